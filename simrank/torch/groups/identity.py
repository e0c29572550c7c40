"""Names, ranks and properties of process groups and their backends."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary
from zlib import crc32

import torch
import torch.distributed as dist

from simrank.distributed.backends import NCCL
from simrank.errors import SimrankError, UnsupportedError
from simrank.isolation.package_state import cure
from simrank.ranks import require_rank
from simrank.ranks.current import comparisons_of, current_program, rank_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from simrank.distributed.group import ProcessGroup


class GroupOptions:
    """The options of a backend.

    Attributes:
        global_ranks_in_group: As torch fills it.
        group_name: The group's name.
    """

    def __init__(self, backend: str, timeout: timedelta, ranks: Sequence[int], name: str) -> None:
        self.backend = backend
        self._timeout = timeout
        self.global_ranks_in_group = list(ranks)
        self.group_name = name
        self.is_high_priority_stream = False
        self.split_from: object = None
        self.split_color = 0


class DeviceBackend:
    """The backend of a group for one kind of device; it forwards to the group.

    Programs tell by its class, `dist.ProcessGroupNCCL` or `dist.ProcessGroupGloo`, which backend
    it is; the group itself is neither.

    Args:
        group: The running rank's side of the group.
        backend: Name of the backend.
    """

    def __init__(self, group: IdentifiedGroup, backend: str) -> None:
        self._group, self.simulated_backend = group, backend

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the group."""
        if name == "_group":  # It is being copied: nothing is here yet.
            raise AttributeError(name)
        return getattr(self._group, name)

    def __repr__(self) -> str:
        """Return the names of the backend and its group."""
        return f"<{self.simulated_backend} backend of {self._group!r}>"


class IdentifiedGroup(dist.ProcessGroup):
    """One rank's view of a group, without its calls.

    Args:
        rank: Its group rank.
        group: What all members share.
        options: Backend, name, time limit.
        limit: The time limit that the program has chosen; it fires. None: torch's default, which
            does not, as a simulation knows at once that nothing will come.

    Attributes:
        owner: The rank that has made it.
        is_by_hand: Whether the program has made it of its backend's class: its calls skip torch's
            dispatcher, which refuses calls without tensors, and most with sparse ones.
    """

    is_constructed_by_program = False

    def __init__(
        self, rank: int, group: ProcessGroup, options: GroupOptions, limit: timedelta | None
    ) -> None:
        super().__init__(rank, group.size())  # type: ignore[call-arg]  # Stubs lack it.
        self.simulated = group
        self.options = options
        self.store: dist.Store | None = None
        self._rank, self._size, self._limit = rank, group.size(), limit
        self._description = "undefined"
        self.owner = require_rank("new_group").rank
        self._backends: dict[str, DeviceBackend] = {}

    # ---- names and ranks ----

    def rank(self) -> int:
        """Return the group rank."""
        check_owner(self)
        program = rank_program()
        recorder = None if program is None else comparisons_of(program)
        if recorder is None:
            return self._rank
        return recorder.within_group(self._rank, self.simulated.ranks)

    def size(self) -> int:
        """Return the number of members."""
        return self._size

    getRank = rank
    getSize = size

    def getBackendName(self) -> str:
        """Return "simrank": C++ would cast a group named "gloo" to its own class."""
        return "simrank"

    def name(self) -> str:
        """Return the backend's name."""
        return self.options.backend

    def _get_backend_name(self) -> str:
        return self.options.backend

    @property
    def group_name(self) -> Any:
        """Return torch's name of the group."""
        return self.options.group_name

    made_as = group_name

    @property
    def group_desc(self) -> str:
        """Return the description that was given."""
        return self._description

    def getGroupName(self) -> str:
        """Return torch's name of the group."""
        return self.options.group_name

    def getGroupDesc(self) -> str:
        """Return the description that was given."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self.options.group_name = name

    setGroupName = _set_group_name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    setGroupDesc = _set_group_desc

    def get_group_store(self) -> dist.Store:
        """Return the group's store."""
        assert self.store is not None, "given as the group is made"
        return self.store

    def __repr__(self) -> str:
        """Return the rank and the name of the group."""
        return f"<{self.options.backend} group '{self.group_name}', rank {self._rank}/{self._size}>"

    # ---- as its own backend ----

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self.simulated.backends]

    @property
    def simulated_backend(self) -> str:
        """Return the backend of a group that the program made from the backend's class."""
        return self.options.backend if self.is_constructed_by_program else ""

    def _get_backend(self, device: torch.device) -> Any:
        kind = torch.device(device).type
        backend = self.simulated.backends.get(kind)
        if backend is None:
            raise RuntimeError(f"No backend type associated with device type {kind}")
        if self.is_constructed_by_program:
            return self
        found = self._backends.get(backend)
        if found is None:
            found = self._backends[backend] = DeviceBackend(self, backend)
        return found

    def _is_nccl(self) -> bool:
        return NCCL in self.simulated.backends.values()

    @property
    def supports_splitting(self) -> bool:
        """Return whether `split_group` works: with nccl."""
        return self._is_nccl()

    @property
    def supports_coalescing(self) -> bool:
        """Return whether a coalescing manager issues calls as one: with nccl."""
        return self._is_nccl()

    @property
    def supports_time_estimate(self) -> bool:
        """Return False: the simulation gives the time of a call."""
        return False

    def create_device(self, *_: object, **__: object) -> None:
        """Do nothing: gloo would choose a network interface here."""

    create_default_device = create_device

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: members' calls are counted from the start."""

    def _get_sequence_number_for_group(self) -> int:
        return self.simulated.num_calls(self._rank)

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Do nothing: no thread of the group outlives a call."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of later calls."""
        self.options._timeout = self._limit = timeout

    _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Do nothing: default time limits never fire.

        Raises:
            UnsupportedError: The program has chosen a time limit.
        """
        if self._limit is not None:
            raise UnsupportedError(
                f"{timeout} more for the calls in flight of a group with a time limit of its own\n"
                "  to fix: a longer time limit as the group is made"
            )

    @property
    def uid(self) -> int:
        """Return the group's number, a hash of its name."""
        return crc32(self.group_name.encode())

    def _group_start(self) -> None:
        """Do nothing: NCCL would abort several communicators at once from here."""

    _group_end = _group_start

    def shutdown(self) -> None:
        """Do nothing: calls in flight end by themselves."""

    def abort(self) -> None:
        """Do nothing, as `shutdown`."""

    def eager_connect_single_device(self, device: torch.device | None = None) -> None:
        """Do nothing: members need no connection."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Do nothing: ranks outside of a split take no part."""


# ---- Owners: separate processes cannot use each other's group objects ----


def check_owner(group: IdentifiedGroup) -> None:
    """Raise if a rank uses the group object of another rank.

    It has met it in what all share: the calls would be those of a stranger to the group, which
    torch leaves out with a warning, or be right by luck.

    Raises:
        SimrankError: It does; the text says which module to make private.
    """
    program = current_program()
    if program is None or program.rank in (group.owner, None):
        return
    from simrank.isolation.package_changes import holder_of  # noqa: PLC0415 - after an error only

    holder = holder_of(group)
    where = "something that ranks share" if holder is None else f"{holder}, which ranks share"
    fix = "" if holder is None else f"\n  to fix: {cure(holder)}"
    raise SimrankError(
        f"rank {program.rank} uses a process group of rank {group.owner}, {group!r}: processes "
        f"have their own; it is held by {where}{fix}"
    )


def compared_group_rank(original: Callable[[Any, int], int]) -> Callable[[Any, int], int]:
    """Wrap `get_group_rank`: in folded runs a rank's own number records its comparisons."""

    @functools.wraps(original)
    def get_group_rank(group: Any, global_rank: int) -> int:
        found, program = original(group, global_rank), rank_program()
        recorder = None if program is None else comparisons_of(program)
        if recorder is None or program is None or int(global_rank) != program.rank:
            return found
        return recorder.within_group(found, group.simulated.ranks)

    return get_group_rank


def compared_coordinates(
    original: Callable[[Any], tuple[int, ...] | None],
) -> Callable[[Any], tuple[int, ...] | None]:
    """Wrap `DeviceMesh.get_coordinate`: coordinates record their comparisons in folded runs."""
    # A DTensor asks at each operation; of equal meshes lines are equal.
    known: WeakKeyDictionary[Any, dict[tuple[int, ...], list[tuple[int, ...]]]]
    known = WeakKeyDictionary()

    @functools.wraps(original)
    def get_coordinate(self: Any) -> tuple[int, ...] | None:
        found, program = original(self), rank_program()
        recorder = None if program is None else comparisons_of(program)
        if found is None or recorder is None:
            return found
        own, by_place = tuple(found), known.setdefault(self, {})
        if own not in by_place:
            ranks = self.mesh.numpy()
            lines = (ranks[(*own[:dim], slice(None), *own[dim + 1 :])] for dim in range(len(own)))
            by_place[own] = [tuple(line.tolist()) for line in lines]
        pairs = zip(own, by_place[own], strict=True)
        return type(found)(recorder.within_group(at, line) for at, line in pairs)

    return get_coordinate


class OfGroups(dict[Any, Any]):
    """torch's table of a rank's groups; a missing group may be another rank's."""

    def __contains__(self, group: object) -> bool:
        """Return whether torch knows the group."""
        return super().__contains__(group) or _is_unknown(group)

    def get(self, group: Any, default: Any = None) -> Any:
        """Return torch's entry of a group."""
        return super().get(group, default) if group in self else default

    def __missing__(self, group: object) -> Any:
        """Raise KeyError."""
        _is_unknown(group)
        raise KeyError(group)


def _is_unknown(group: Any) -> bool:
    """Return False for the rank's own groups."""
    if hasattr(group, "owner"):
        check_owner(group)
    return False


# ---- Process groups that a program makes itself, as instances of their classes ----
