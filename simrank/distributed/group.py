"""Process groups: members, their calls in flight, and their streams.

`ProcessGroup` is one group, shared by its members; `World` holds the groups of one spawn;
`Membership` is what one rank knows of them.

A group is plain data: the modules above keep the state of its calls in its attributes, and their
types are theirs.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.device.stream import new_stream
from simrank.device.transports import NCCL as TO_DEVICES
from simrank.device.transports import check_transport
from simrank.distributed.backends import NCCL_ONLY, Backends
from simrank.distributed.call_history import CallHistory
from simrank.distributed.mismatched_calls import MadeCall, mismatch_error
from simrank.errors import FoldingError, PeerDiedError, RankState
from simrank.ranks import require_rank
from simrank.ranks.current import of_process

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from simrank.collectives.schedule import IntArray
    from simrank.device import Buffer, Device, Network, Stream
    from simrank.distributed.library import CollectiveLibrary
    from simrank.engine import CallSite, Task, TaskGroup
    from simrank.errors import CollectiveMismatchError
    from simrank.ranks import Program
    from simrank.ranks.folding import Folding


Key = tuple["Hashable", ...]
NO_MEMBERS: dict[int, tuple[int, ...]] = {}


class Maker(NamedTuple):
    """A rank that calls `new_group`, and the line of its call."""

    rank: int
    site: CallSite | None


class ProcessGroup:
    """A process group; one object that all its members share.

    Attributes:
        name: For reports.
        label: torch's name of it: "0" is the default group.
        ranks: Global ranks of the members, in group order.
        devices: Device of each member: its own, unless its tensors lie on another.
        device_indices: The same, as plain integers: each call looks.
        has_moved: Whether a member has used another device than its own.
        calls: Collectives under way, by sequence number: `call.Call`.
        lines: Lines of the members' calls, `findings.CallLines`; None before the first.
        mailboxes: Point-to-point messages under way, by backend: `p2p.Mailboxes`.
        planner: Chooses algorithms and computes times, `planner.Planner`; None before its use.
        last_issued: The collective that each member issued last, if it has not ended.
        forms: What calls of the members are, by function, options and metadata of the tensors.
        backend: The backend's name, as given.
        backends: The backend of each kind of device.
        barriers: Monitored barriers under way, by their number among the group's calls.
        is_eager: Whether its communicators are made with it, and not at their first use.
        communicators: Those that are made at first use, by pair of ranks; None: of all members.
        dead: What each member raised that died while the others run on, or that gave up a call
            whose time limit passed, by global rank.
        roster: The active members, where members may be inactive; None: all are.
        represented: Members that do not run, by their representative, as group ranks.
        rooted_ends: When members would have ended the last rooted call, by representative.
    """

    def __init__(
        self, name: str, ranks: Sequence[int], world: World, backend: Backends = NCCL_ONLY
    ) -> None:
        self.name = name
        self.label = name
        self.backend, self.backends = backend
        self.ranks = ranks
        self.world = world
        self.engine = world.engine
        self.devices: IntArray = world.devices[np.asarray(ranks, dtype=np.int64)]
        self.calls: dict[int, Any] = {}
        self.lines: Any = None
        self.mailboxes: dict[str, Any] = {}
        self.barriers: dict[int, Any] = {}
        self.is_eager = True
        self.communicators: dict[tuple[int, int] | None, Any] = {}
        self.dead: dict[int, BaseException] = {}
        self.roster: Any = None
        folding = world.folding
        self.represented = NO_MEMBERS if folding is None else folding.represented(ranks)
        self.rooted_ends: dict[int, Any] = {}
        self.planner: Any = None
        self.last_issued: list[Any] = [None] * len(ranks)
        self.forms: dict[Hashable, Any] = {}
        self._num_calls = [0] * len(ranks)
        self._index = None if isinstance(ranks, range) else {r: i for i, r in enumerate(ranks)}
        assert self._index is None or len(self._index) == len(ranks), "a member has one group rank"
        self.has_moved = False
        self.device_indices: list[int] = self.devices.tolist()
        self._streams: dict[tuple[int, int, str], Stream] = {}
        self._makers: dict[int, CallSite | None] = {}
        self._destroyed: set[int] = set()

    def __repr__(self) -> str:
        """Return the name and size."""
        return f"<ProcessGroup '{self.name}' of {len(self.ranks)} ranks>"

    def size(self) -> int:
        """Return the number of members."""
        return len(self.ranks)

    def rank(self) -> int:
        """Return the running rank's group rank; -1 if it is no member."""
        return self.group_rank(require_rank("ProcessGroup.rank").rank)

    def group_rank(self, global_rank: int | None) -> int:
        """Return the group rank of a global rank; -1 if it is no member."""
        if global_rank is None:
            return -1
        if self._index is None:
            return global_rank if global_rank < len(self.ranks) else -1
        return self._index.get(global_rank, -1)

    @property
    def group_name(self) -> str:
        """Return the name, as torch spells it."""
        return self.name

    @property
    def group_desc(self) -> str:
        """Return the name: a description that was given is used as the name."""
        return self.name

    def backend_for(self, tensor: Buffer) -> str:
        """Return the backend that serves a tensor: that of its kind of device.

        Raises:
            RuntimeError: The group has none for that kind of device; in torch's words.
        """
        kind = "cpu" if tensor.cuda_device is None else "cuda"
        if kind not in self.backends:
            what = f"No backend type associated with device type {kind}"
            if kind == "cpu":
                check_transport(what, TO_DEVICES, tensor.storage)
            raise RuntimeError(what)
        return self.backends[kind]

    def made_by(self, rank: int) -> bool:
        """Return whether a rank has called `new_group` for it; the default group needs no call."""
        return not self._makers or rank in self._makers

    def is_destroyed(self, rank: int | None) -> bool:
        """Return whether a rank has destroyed this group."""
        return rank in self._destroyed

    def serves(self, rank: int | None) -> bool:
        """Return whether a rank is a member and has not destroyed this group."""
        return self.group_rank(rank) >= 0 and rank not in self._destroyed

    def destroy(self, rank: int) -> None:
        """Note that a rank has destroyed this group: its further calls are refused."""
        self._destroyed.add(rank)

    def check_alive(self, what: str, *peers: int) -> None:
        """Check that all members are alive, or, where some are named, these.

        Args:
            what: The call, for the message.
            *peers: Group ranks of the members that the call depends on; none: all.

        Raises:
            PeerDiedError: A member has died; it is named.
        """
        for rank, error in self.dead.items():
            if not peers or self.group_rank(rank) in peers:
                shown = self.world.shown(rank)
                raise PeerDiedError(self.engine.now_ps, what, shown, error)

    def lose(self, rank: int | None, error: BaseException) -> None:
        """Fail the calls that depend on a member that has died, or that has given up a call.

        Source: gloo closes the connections to all members when a time limit passes (its
        transport/tcp/unbound_buffer.cc); torch aborts the NCCL communicator then.
        """
        group_rank = self.group_rank(rank)
        if group_rank < 0 or rank is None or rank in self.dead:
            return
        if self.roster is not None and self.roster.skips_dead:
            self.roster.deactivate(group_rank, error)
            return
        self.dead[rank] = error
        for call in list(self.calls.values()):
            member = call.group.group_rank(rank)
            if member >= 0:  # Some members may be inactive in it.
                call.lose(member, self.world.shown(rank), error)
        for boxes in self.mailboxes.values():
            boxes.lose(group_rank, rank, error)

    def next_seq(self, group_rank: int) -> int:
        """Return the sequence number of a member's next collective; the first is 1."""
        self._num_calls[group_rank] += 1
        if self.represented:
            for other in self.represented.get(group_rank, ()):
                self._num_calls[other] += 1
        return self._num_calls[group_rank]

    def num_calls(self, group_rank: int) -> int:
        """Return the number of collectives that a member has called."""
        return self._num_calls[group_rank]

    def is_even(self) -> bool:
        """Return whether all members have made equally many calls, and none is under way."""
        if self.calls or self.barriers or self.dead:
            return False
        is_empty = all(boxes.is_empty for boxes in self.mailboxes.values())
        return is_empty and len(set(self._num_calls)) == 1

    def set_num_calls(self, group_rank: int, num_calls: int) -> None:
        """Set the sequence number of a member that becomes active."""
        self._num_calls[group_rank] = num_calls

    def use_device(self, group_rank: int, device: Device) -> None:
        """Note the device that a member's communicator is on: that of its tensors."""
        if self.device_indices[group_rank] != device.index:
            self.place(group_rank, device.index)

    def place(self, group_rank: int, device_index: int) -> None:
        """Move a member's communicator to another device.

        Raises:
            FoldingError: Ranks are folded: those that do not run are on their own devices.
        """
        if self.world.folding is not None:
            raise FoldingError(
                f"rank {self.ranks[group_rank]} calls with a tensor on device {device_index}, "
                "which is another rank's\n  to fix: call torch.cuda.set_device(local_rank) first"
            )
        self.has_moved = True
        self.device_indices[group_rank] = device_index
        self.devices = np.array(self.device_indices, dtype=np.int64)
        self.planner = None

    def device_of(self, group_rank: int) -> int:
        """Return the index of the device that a member's communicator is on."""
        return self.device_indices[group_rank]

    def stream(
        self, group_rank: int, device: Device, name: str, *, by_host: bool = False
    ) -> Stream:
        """Return a member's stream of this group, by name: of asynchronous calls, or of a pair."""
        key = (group_rank, device.index, name)
        if key not in self._streams:
            self._streams[key] = new_stream(device, name, by_host=by_host)
        return self._streams[key]


class World:
    """The process groups of the ranks of one spawn.

    Attributes:
        engine: The engine that runs them.
        cluster: Where they run.
        network: The cluster's links in this run.
        comm_library: The collective library of the Context.
        size: Number of ranks.
        devices: Device of each rank.
        shares_devices: Whether several ranks may use one device: they stand for threads of one
            process, which need no communicator each.
        folding: The ranks that run and represent others; None: all run.
        has_changed: Whether its members are no more the ranks of the spawn under their numbers:
            one has died, a process has joined, or ranks have met under other numbers.
        local: What layers above keep of it, by names of their own. A table by world would keep it
            alive forever: what it holds knows the world.
    """

    def __init__(
        self,
        network: Network,
        devices: IntArray,
        library: CollectiveLibrary,
        folding: Folding | None = None,
    ) -> None:
        self.engine = network.engine
        self.folding = folding
        self.cluster = network.cluster
        self.network = network
        self.comm_library = library
        self.devices = devices
        self.size = len(devices)
        self.shares_devices = self.has_changed = False
        self.history = CallHistory(self.size)
        self.local: dict[str, Any] = {}
        self._groups: dict[Key, ProcessGroup] = {}
        self._shown: dict[int, int] = {}
        self._joined: list[Task] = []
        if library.recorder is not None:
            library.recorder.begin(self)
        library.worlds[1 + max(library.worlds, default=0)] = self

    def add(self, task: Task, device_index: int) -> int:
        """Add a task of a device, and return its number."""
        self.has_changed = True
        self._joined.append(task)
        self.devices = np.append(self.devices, device_index)
        return len(self.devices) - 1

    @property
    def has_guests(self) -> bool:
        """Whether members that have joined the group still run."""
        return not all(task.finished for task in self._joined)

    def number(self, members: Sequence[int]) -> None:
        """Note which ranks the members of a default group have: reports call them by these."""
        if self._shown or not isinstance(members, range):
            self._shown.update((member, rank) for rank, member in enumerate(members))

    def shown(self, rank: int) -> int:
        """Return the rank that a member has in its default group, for its number."""
        return self._shown.get(rank, rank)

    def groups(self) -> list[ProcessGroup]:
        """Return all groups, in the order in which they were made."""
        return list(self._groups.values())

    def groups_of(self, rank: int) -> list[ProcessGroup]:
        """Return the groups that a rank is in."""
        return [group for group in self._groups.values() if group.group_rank(rank) >= 0]

    def group(
        self,
        key: Key,
        name: str,
        ranks: Sequence[int],
        backend: Backends = NCCL_ONLY,
        maker: Maker | None = None,
    ) -> ProcessGroup:
        """Return the group that belongs to a call of `new_group`; the first caller creates it.

        The n-th `new_group` of every rank is the same group, as in torch.

        Args:
            key: How often the rank has initialised and how many groups it has made since; for a
                group that only its members make, what they identify it by.
            name: The group's name.
            ranks: Global ranks of its members.
            backend: The backend's name, and the backend of each kind of device.
            maker: The rank that calls, and its line; None for the default group.

        Raises:
            CollectiveMismatchError: Another rank's call had other members or another backend.
        """
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ProcessGroup(name, ranks, self, backend)
            group.is_eager = self.comm_library.makes_early
            group.label = str(key[1])
        elif maker is not None:
            same_ranks = group.ranks == ranks or tuple(group.ranks) == tuple(ranks)
            if not same_ranks or group.backend != backend.name:
                raise self._made_differently(group, key, (ranks, backend.name), maker)
        if maker is not None:
            group._makers[maker.rank] = maker.site  # noqa: SLF001 - the two halves of one thing
        return group

    def _made_differently(
        self,
        group: ProcessGroup,
        key: Key,
        given: tuple[Sequence[int], str],
        maker: Maker,
    ) -> CollectiveMismatchError:
        makers = sorted(group._makers.items())  # noqa: SLF001 - the two halves of one thing
        calls = [
            MadeCall(rank, _made_with(group.ranks, group.backend), site) for rank, site in makers
        ]
        calls.append(MadeCall(maker.rank, _made_with(*given), maker.site))
        called = {call.rank for call in calls}
        absent = [rank for rank in range(self.size) if rank not in called]
        number = key[1] if isinstance(key[1], int) else 0
        return mismatch_error(self.engine.now_ps, "default_pg", number, calls, absent)

    def rank_died(self, rank: int, error: BaseException) -> None:
        """Fail all waits for a rank that died while its siblings run on."""
        self.has_changed = True
        self.comm_library.leaks.forget(rank)
        for group in self._groups.values():
            group.lose(rank, error)

    def note_half_made(self, ranks_of_spawn: TaskGroup) -> None:
        """Note groups as leaks that ranks have not called `new_group` for, though others have.

        Every rank makes one that has a number; else, and in torch programs, its members do. Ranks
        that failed had no chance to.
        """
        if ranks_of_spawn.failed or ranks_of_spawn.aborting:
            return
        states = self.comm_library.leaks.half_made
        for key, group in self._groups.items():
            makers = group._makers  # noqa: SLF001 - as above
            ranks = range(self.size) if isinstance(key[1], int) else group.ranks
            if self.folding is not None:
                ranks = [rank for rank in ranks if self.folding.runs(rank)]
            if 0 < len(makers) < len(ranks) and not group.dead:
                absent = set(ranks) - set(makers)
                maker, site = min(makers.items())
                file, line = (None, None) if site is None else site.line()
                text = f"never called new_group for '{group.name}', as rank {maker} did"
                states.append(RankState(tuple(sorted(absent)), text, file, line, waits=False))

    def drop(self) -> None:
        """Forget every call under way, since the ranks were aborted."""
        self.comm_library.leaks.clear()
        for pending in list(self.engine.pending):  # Calls, messages and meetings.
            group = getattr(pending, "group", None)  # Of a kernel's programs, another kind of one.
            if getattr(group, "world", None) is self:
                self.engine.pending.pop(pending)
        for group in self._groups.values():
            if group.roster is not None:
                group.roster.change = None
            group.calls.clear()
            group.mailboxes.clear()
            group.barriers.clear()
            group.communicators.clear()


def _made_with(ranks: Sequence[int], backend: str) -> dict[str, object]:
    """Return the facts of a group that its makers must agree on, under the words of reports."""
    return {"op": "new_group", "ranks": str(list(ranks)), "backend": backend}


class Membership:
    """State of torch.distributed of one rank; kept in its program.

    Attributes:
        default: The default group, or None before `init_process_group`.
        generation: How often it has initialised.
        epoch: What its groups' names are unique in, among those that initialised with it.
        num_groups: How many groups it has made since it last initialised.
        num_splits: How often it has split each group.
        made: The groups that it is a member of, in the order in which it made them.
        coalescing: The open coalescing manager of each group that has one.
        callers: Its place in the groups that it has called on, by the group's identity and whether
            its tensor lay on the host.
        ways: How its messages went that it has sent or received, by what they depend on.
    """

    __slots__ = (
        "callers", "coalescing", "default", "epoch", "generation", "made", "num_groups",
        "num_splits", "ways",
    )  # fmt: skip

    def __init__(self) -> None:
        self.default: ProcessGroup | None = None
        self.generation = 0
        self.epoch: Hashable = 0
        self.num_groups = 0
        self.made: list[ProcessGroup] = []
        self.num_splits: dict[ProcessGroup, int] = {}
        self.coalescing: dict[ProcessGroup, Any] = {}
        self.callers: dict[tuple[int, bool], Caller] = {}
        self.ways: dict[Hashable, Any] = {}

    def forget(self) -> None:
        """Forget what was looked up: groups have changed, or the rank has."""
        self.callers.clear()
        self.ways.clear()


def _of_fork(own: Membership) -> Membership:
    """Return a copy of a rank's groups, for a process that it forks."""
    made = copy(own)
    made.made = list(own.made)
    made.callers, made.ways = {}, {}
    return made


_KEY = of_process("distributed", _of_fork)


def membership(program: Program) -> Membership:
    """Return the rank's membership, made at first use."""
    own: Membership | None = program.local.get(_KEY)
    if own is None:
        own = program.local[_KEY] = Membership()
    return own


# ---- callers: a rank in its place in a group, looked up once for all of its calls ----

_IN_FLIGHT = "groups in flight"


class Caller(NamedTuple):
    """A member of a group that calls.

    It names no program: a rank keeps those that it has been, and nothing may refer back to it.

    Attributes:
        group: The group.
        group_rank: Its rank in it.
        backend: What carries its call.
        in_flight: By stream of the rank, the group that used it last.
    """

    group: ProcessGroup
    group_rank: int
    backend: str
    in_flight: dict[Stream, ProcessGroup]

    @property
    def rank(self) -> int:
        """Return its global rank."""
        return int(self.group.ranks[self.group_rank])

    def narrowed(self, part: ProcessGroup) -> Caller:
        """Return the caller within the active members."""
        return self._replace(group=part, group_rank=part.group_rank(self.rank))


def caller_of(program: Program, group: ProcessGroup, backend: str) -> Caller:
    """Return the caller for a running member of a group."""
    in_flight = program.local.setdefault(_IN_FLIGHT, {})
    return Caller(group, group.group_rank(program.rank), backend, in_flight)
