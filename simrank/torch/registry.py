"""The process groups of each rank: torch's registry of them, and how they are made."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from simrank.distributed.active_members import ElasticOptions
from simrank.distributed.backends import NCCL, Backends, parse_backend
from simrank.distributed.group import Maker, World, membership
from simrank.distributed.membership import destroy_process_group as destroy_simulated
from simrank.distributed.membership import world_of
from simrank.engine import user_site
from simrank.isolation import libraries
from simrank.ranks import require_rank
from simrank.ranks.current import of_process, rank_program
from simrank.torch import debug_detail, devices
from simrank.torch.group import SimulatedGroup
from simrank.torch.identity import GroupOptions, OfGroups
from simrank.torch.rendezvous import meet
from simrank.torch.unsupported import check_has_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    import torch

    from simrank.distributed.group import ProcessGroup
    from simrank.ranks import Program

_OriginalWorld: Any = type(c10d._world)


class Groups:
    """What torch keeps in module globals: one of these per rank, and one for everybody else."""

    def __init__(self) -> None:
        self.default_pg: object = None
        self.group_count = 0
        self.pg_map: dict[Any, Any] = OfGroups()
        self.pg_names: dict[Any, str] = {}
        self.pg_group_ranks: dict[Any, Any] = OfGroups()
        self.pg_backend_config: dict[Any, str] = OfGroups()
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, Any] = {}
        self.comms: list[Any] = []
        self.init_method: str | None = None


def _of_fork(own: Groups) -> Groups:
    """Return a rank's state for a process that it forks."""
    made = Groups()
    for name, value in vars(own).items():
        setattr(made, name, copy(value))
    return made


_KEY = of_process("torch's process groups", _of_fork)


def _field(name: str) -> property:
    outside = getattr(_OriginalWorld, name)

    def get(world: object) -> Any:  # Three times in each call of a collective.
        program = rank_program()
        if program is None:
            return outside.fget(world)
        return getattr(program.local.get(_KEY) or groups_of(program), name)

    def put(world: object, value: object) -> None:
        program = rank_program()
        if program is None:
            outside.fset(world, value)
        else:
            setattr(groups_of(program), name, value)

    return property(get, put)


_FIELDS = [name for name in vars(Groups()) if name != "init_method"]
# torch's registry, for whom each rank has its own; its identity stays, as modules have bound it.
RankWorld: type = type("RankWorld", (_OriginalWorld,), {name: _field(name) for name in _FIELDS})


def groups_of(program: Program) -> Groups:
    """Return the groups of a rank, made at first use."""
    own: Groups | None = program.local.get(_KEY)
    if own is None:
        own = program.local[_KEY] = Groups()
    return own


def parsed(backend: str) -> Backends:
    """Return the backend of each kind of device.

    Raises:
        UnsupportedError: A backend is not simulated.
    """
    return parse_backend("undefined" if backend in ("", "None") else backend)


def make_new_group(original: Any) -> Any:
    """Return what stands for `_new_process_group_helper`: simulated groups in ranks."""

    def _new_process_group_helper(
        group_size: int,
        group_rank: int,
        global_ranks_in_group: Sequence[int],
        backend: str,
        store: dist.Store,
        group_name: str,
        backend_options: Any = None,
        timeout: timedelta | None = None,
        pg_tag: str | None = None,
        device_id: Any = None,
        group_desc: str | None = None,
    ) -> tuple[Any, Any]:
        # torch's own group of `fake` moves nothing, wherever it is.
        if rank_program() is None or str(backend).lower() == "fake":
            made: tuple[Any, Any] = original(
                group_size, group_rank, global_ranks_in_group, backend, store, group_name,
                backend_options, timeout, pg_tag, device_id, group_desc,
            )  # fmt: skip
            return made
        world: Any = c10d._world
        check_has_values(require_rank("init_process_group").context)
        if group_name in world.pg_names.values():
            raise ValueError(
                "The specified group name has already been created, please use a different "
                "group name"
            )
        _check_bound(device_id)
        c10d._check_valid_timeout(timeout)
        assert timeout is not None, "checked"
        if pg_tag:
            existing = c10d._find_pg_by_ranks_and_tag(pg_tag, list(global_ranks_in_group))
            if existing:
                return existing, world.pg_map[existing][1]
        make: Callable[..., SimulatedGroup | None] = make_group
        members: Any = _numbers_of(global_ranks_in_group)
        if not global_ranks_in_group:
            make, members = make_default, _Place(store, group_rank, group_size)
        group = make(str(backend), group_name, members, timeout, group_desc)
        if group is None:
            return c10d.GroupMember.NON_GROUP_MEMBER, None
        if isinstance(backend_options, ElasticOptions):
            backend_options.apply(group.simulated)
        group.checker = _checker_of(group)
        if device_id is not None:
            group.bound_device_id = device_id
            group.simulated.is_eager = True
        prefix = dist.PrefixStore(f"{group_name}/", store)
        group.store = prefix
        tag: dict[str, Any] = (
            {"pg_tag": f"user:{pg_tag}"} if pg_tag else {"add_to_default_tag": True}
        )
        c10d._register_pg_in_world(
            group,
            backend_name=backend,
            store=prefix,
            group_name=group_name,
            backend_config=_config_text(str(backend)),
            **tag,
        )
        return group, prefix

    return _new_process_group_helper


def _check_bound(device: Any) -> None:
    if device is not None and (device.index is None or device.type == "cpu"):
        raise ValueError(
            "init_process_group device_id parameter must be an accelerator with an index"
        )


class _Place(NamedTuple):
    """Where the members of a default group meet: a store, with the rank that one has and how many.

    Attributes:
        store: The store.
        rank: Who comes.
        size: How many come.
    """

    store: dist.Store
    rank: int
    size: int


def make_default(
    backend: str, name: str, place: _Place, timeout: timedelta, description: str | None
) -> SimulatedGroup:
    """Make the running rank's side of its default group."""
    program = require_rank("init_process_group")
    state, backends = membership(program), _checked(program, backend)
    members = meet(program, *place)
    key = state.epoch, name
    world = world_of(program)
    world.number(members)
    state.default = world.group(key, "default_pg", members, backends)
    return _side_of(state.default, backend, name, timeout, description)


def _numbers_of(ranks: Sequence[int]) -> Sequence[int]:
    """Return the numbers under which members were started, of their ranks in the default group."""
    default = membership(require_rank("new_group")).default
    if default is None or isinstance(default.ranks, range):
        return ranks
    return [default.ranks[rank] for rank in ranks]


def _checked(program: Program, backend: str) -> Backends:
    """Return the backends of a group that a rank makes, which may need devices."""
    libraries.check_use("torch")
    backends = parsed(backend)
    if NCCL in backend.lower():  # Such a program may say `tensor.to(0)` next.
        devices.enable_where_possible(program)
    return backends


def make_group(
    backend: str, name: str, ranks: Sequence[int], timeout: timedelta, description: str | None
) -> SimulatedGroup | None:
    """Make the running rank's side of a group; None if it is no member.

    Args:
        backend: Of the group.
        name: torch's name of it.
        ranks: The numbers under which its members were started, in the order of their ranks.
        timeout: Time limit of its calls.
        description: What reports call it.
    """
    program = require_rank("new_group")
    state, world = membership(program), world_of(program)
    backends = _checked(program, backend)
    given = description if description not in (None, "undefined") else None
    assert program.rank is not None, "a rank"
    if program.rank not in ranks:
        return None
    maker, key = Maker(program.rank, user_site()), (state.epoch, name, tuple(ranks))
    key = _clashing(world, key) or key
    shared = world.group(key, given or f"group_{name}", tuple(ranks), backends, maker)
    _names.setdefault(world, {}).setdefault(key[:2], {})[key] = None
    state.made.append(shared)
    return _side_of(shared, backend, name, timeout, description)


def _side_of(
    shared: ProcessGroup, backend: str, name: str, timeout: timedelta, description: str | None
) -> SimulatedGroup:
    """Return the running rank's side of a group that it is a member of."""
    own = shared.group_rank(require_rank("new_group").rank or 0)
    options = GroupOptions(backend, timeout, shared.ranks, name)
    group = SplittableGroup(own, shared, options, _chosen_limit(timeout, backend))
    group._set_group_desc(description or "undefined")
    return group


def _checker_of(group: SimulatedGroup) -> debug_detail.Checker | None:
    """Return the checker of a group's calls, which has a group of its own; None: not wanted."""
    if not debug_detail.is_wanted():
        return None
    program, shared = require_rank("new_group"), group.simulated
    state, world = membership(program), world_of(program)
    key = (state.epoch, shared, "checks of debug level DETAIL")
    members = tuple(int(rank) for rank in shared.ranks)
    name = f"{shared.name} (TORCH_DISTRIBUTED_DEBUG=DETAIL)"
    helper = world.group(key, name, members, parsed("gloo"))
    return debug_detail.Checker(helper, group.rank())


class SplittableGroup(SimulatedGroup):
    """A group of which `dist.split_group`, and meshes of bound devices, make others."""

    _num_splits = 0

    def comm_split_count(self) -> int:
        """Return how often the group has been split, whoever was in the parts."""
        return self._num_splits

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> SimulatedGroup | None:
        """Make the running rank's side of a part of the group; None if it is no member.

        Args:
            new_ranks: The members' group ranks here.
            timeout: Time limit of the part's calls; None: as here.
            opts: Options of the backend; nothing of them changes a simulated group.
            group_name: torch's name of the part.
            group_desc: What reports call it.
            device_types: Keep the backends of these devices alone; None: all.
        """
        number, self._num_splits = self._num_splits, self._num_splits + 1
        if self._rank not in new_ranks:
            return None
        program, parent = require_rank("split_group"), self.simulated
        state, world = membership(program), world_of(program)
        backend = self.options.backend
        if device_types is not None:
            kept = parent.backends
            backend = ",".join(f"{each.type}:{kept[each.type]}" for each in device_types)
        members = tuple(int(parent.ranks[rank]) for rank in sorted(new_ranks))
        # Members may know it by names of their own: it is the parent's n-th split that they share.
        key = (state.epoch, parent, "torch's split", number, members)
        maker = Maker(program.rank or 0, user_site())
        shared = world.group(key, group_desc or f"split_{number}", members, parsed(backend), maker)
        shared.is_eager |= parent.is_eager
        state.made.append(shared)
        if isinstance(opts, ElasticOptions):
            opts.apply(shared)
        name = group_name or f"{self.group_name}:split:{number}"
        limit = self.options._timeout if timeout is None else timeout
        made = _side_of(shared, backend, name, limit, group_desc)
        made.store = dist.PrefixStore(f"{name}/", self.get_group_store())
        return made


# By generation and torch's name: the groups that ranks have made under it.
_names: WeakKeyDictionary[World, dict[tuple[Any, ...], dict[tuple[Any, ...], None]]] = (
    WeakKeyDictionary()
)


def _clashing(world: World, key: tuple[Any, str, tuple[int, ...]]) -> tuple[Any, ...] | None:
    """Return a group of the same name with other members.

    torch numbers groups per process and meets in the store under that number: every rank has to
    call `new_group` for every group. Names made of a hash of the members differ by themselves, and
    a group of one member needs no meeting.
    """
    known = _names.get(world, {}).get(key[:2], {})
    if len(key[2]) == 1:
        known = {k: None for k in known if len(k[2]) > 1}
    is_number = key[1].isdigit()
    return next(
        (k for k in known if k != key and (is_number or not set(k[2]).isdisjoint(key[2]))), None
    )


def _chosen_limit(timeout: timedelta, backend: str) -> timedelta | None:
    """Return a time limit that the program has chosen; torch's defaults fire for nobody."""
    defaults = (c10d._get_default_timeout(c10d.Backend(backend)), c10d.default_pg_timeout)
    return None if timeout in defaults else timeout


def _config_text(backend: str) -> str:
    """Return torch's text for the backends of a group. It warns of `nccl2`, which it lacks."""
    text = str(c10d.BackendConfig(c10d.Backend(backend.replace("nccl2", "nccl"))))
    return text.replace("nccl", "nccl2") if "nccl2" in backend else text


def make_destroy(original: Any) -> Any:
    """Return what stands for `destroy_process_group`: simrank forgets the group too."""

    def destroy_process_group(group: Any = None) -> None:
        chosen = c10d.GroupMember.WORLD if group is None else group
        original(group)
        if isinstance(chosen, SimulatedGroup) and rank_program() is not None:
            destroy_simulated(chosen.simulated)

    return destroy_process_group
