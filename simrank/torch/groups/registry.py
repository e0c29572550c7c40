"""torch's registry of process groups, one per rank, and constructors of groups."""

from __future__ import annotations

import functools
from copy import copy
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from simrank.distributed.active_members import ElasticOptions
from simrank.distributed.backends import NCCL, Backends, parse_backend
from simrank.distributed.group import Maker, World, membership
from simrank.distributed.membership import destroy_process_group as destroy_simulated
from simrank.distributed.membership import join_world, note_limit, number_of, world_of
from simrank.engine import user_site
from simrank.errors import UnsupportedError
from simrank.isolation import libraries
from simrank.ranks import require_rank
from simrank.ranks.current import current_program, of_process, rank_program
from simrank.torch.cuda.bindings import ProcessGroupNCCL as NcclNames
from simrank.torch.devices import activation
from simrank.torch.groups.gloo_checks import Checker, is_detail_wanted
from simrank.torch.groups.group import SimulatedGroup
from simrank.torch.groups.identity import GroupOptions, OfGroups
from simrank.torch.groups.stores import PrefixStore, dispatching
from simrank.torch.releases import INSTALLED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from simrank.distributed.group import ProcessGroup
    from simrank.ranks import Program

_OriginalWorld: Any = type(c10d._world)


class Groups:
    """The groups of one rank, which torch keeps in module globals."""

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
    """Return a copy of a rank's groups, for a process that it forks."""
    made = Groups()
    for name, value in vars(own).items():  # A group itself is that of the rank.
        setattr(made, name, copy(value) if isinstance(value, dict | list) else value)
    return made


_KEY = of_process("torch's process groups", _of_fork)


def _field(name: str) -> property:
    outside = getattr(_OriginalWorld, name)

    def get(world: object) -> Any:  # Three times in each call of a collective.
        program = current_program()
        if program is None or program.rank is None:
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
# torch's registry with one state per rank. The object stays the same: modules import it by name.
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
    """Return the replacement of `_new_process_group_helper`: simulated groups in ranks."""

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
        enable_reconfigure: bool = False,  # Since torch 2.14.
    ) -> tuple[Any, Any]:
        # torch's own group of `fake` moves nothing, wherever it is.
        if rank_program() is None or str(backend).lower() == "fake":
            made: tuple[Any, Any] = original(
                group_size, group_rank, global_ranks_in_group, backend, store, group_name,
                backend_options, timeout, pg_tag, device_id, group_desc,
                **({"enable_reconfigure": True} if enable_reconfigure else {}),
            )  # fmt: skip
            return made
        world: Any = c10d._world
        _check_new(group_name, device_id, is_reconfigured=enable_reconfigure)
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
        config = getattr(backend_options, "config", None)
        group.copies_without_blocks = (
            getattr(config, "cta_policy", None) == NcclNames.NCCL_CTA_POLICY_ZERO
        )
        group.checker = _checker_of(group)
        if device_id is not None:
            group.bound_device_id = device_id
            group.simulated.is_eager = True
        prefix = dist.PrefixStore(f"{group_name}/", store)
        group.store = prefix
        tag: dict[str, Any] = (
            {"pg_tag": f"user:{pg_tag}"} if pg_tag else {"add_to_default_tag": True}
        )
        name: Any = group_name  # A `GroupName`, of str.
        getattr(c10d, "_register_pg_in_world", _register)(
            group,
            backend_name=backend,
            store=prefix,
            group_name=name,
            backend_config=_config_text(str(backend)),
            **tag,
        )
        return group, prefix

    return _new_process_group_helper


def _register(
    group: Any,
    *,
    backend_name: Any,
    store: Any,
    group_name: Any,
    backend_config: str,
    pg_tag: str | None = None,
    add_to_default_tag: bool = False,
) -> None:
    """Register a group, where torch has no function for it (before 2.13)."""
    world = c10d._world
    tag = pg_tag or f"ptd:{group_name}"
    world.pg_map[group] = (backend_name, store)
    world.pg_names[group] = group_name
    c10d._register_process_group(group_name, group)
    world.pg_backend_config[group] = backend_config
    if add_to_default_tag:
        world.tags_to_pg.setdefault("", []).append(group)
    world.tags_to_pg.setdefault(tag, []).append(group)
    world.pg_to_tag[group] = tag


def _check_new(name: str, device: Any, *, is_reconfigured: bool) -> None:
    """Check what a group is made of, in torch's words.

    Raises:
        UnsupportedError: The group can be reconfigured.
        ValueError: The name is taken, or the device has no index.
    """
    if is_reconfigured:
        raise UnsupportedError("process groups with enable_reconfigure=True")
    if name in c10d._world.pg_names.values():
        raise ValueError(
            "The specified group name has already been created, please use a different group name"
        )
    if device is not None and (device.index is None or device.type == "cpu"):
        raise ValueError(
            "init_process_group device_id parameter must be an accelerator with an index"
        )


class _Place(NamedTuple):
    """The meeting place of a default group: store, rank and world size.

    Attributes:
        store: The store.
        rank: The arriving rank.
        size: How many come.
    """

    store: dist.Store
    rank: int
    size: int


def make_default(
    backend: str, name: str, place: _Place, timeout: timedelta, description: str | None
) -> SimulatedGroup:
    """Make the running rank's default group."""
    program = require_rank("init_process_group")
    note_limit(program, timeout)
    state, backends = membership(program), _checked(program, backend)
    members = meet(program, *place)
    key = state.epoch, name
    world = world_of(program)
    world.number(members)
    state.default = world.group(key, "default_pg", members, backends)
    return _side_of(state.default, backend, name, timeout, description)


def _numbers_of(ranks: Sequence[int]) -> Sequence[int]:
    """Return the spawn ranks of members that are given as ranks of the default group."""
    default = membership(require_rank("new_group")).default
    if default is None or isinstance(default.ranks, range):
        return ranks
    return [default.ranks[rank] for rank in ranks]


def _checked(program: Program, backend: str) -> Backends:
    """Return the backends of a new group, and turn devices on for nccl."""
    libraries.check_use("torch")
    backends = parsed(backend)
    if NCCL in backend.lower():  # Such a program may say `tensor.to(0)` next.
        activation.enable_where_possible(program)
    return backends


def make_group(
    backend: str, name: str, ranks: Sequence[int], timeout: timedelta, description: str | None
) -> SimulatedGroup | None:
    """Make a group for the running rank; return None if it is not a member.

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
    """Return the running rank's view of a group."""
    own = shared.group_rank(require_rank("new_group").rank or 0)
    options = GroupOptions(backend, timeout, shared.ranks, name)
    group = SplittableGroup(own, shared, options, _chosen_limit(timeout, backend))
    group._set_group_desc(description or "undefined")
    return group


def _checker_of(group: SimulatedGroup) -> Checker | None:
    """Return the checker of a group's calls at debug level DETAIL, else None."""
    if not is_detail_wanted():
        return None
    program, shared = require_rank("new_group"), group.simulated
    state, world = membership(program), world_of(program)
    key = (state.epoch, shared, "checks of debug level DETAIL")
    members = tuple(int(rank) for rank in shared.ranks)
    name = f"{shared.name} (TORCH_DISTRIBUTED_DEBUG=DETAIL)"
    helper = world.group(key, name, members, parsed("gloo"))
    return Checker(helper, group.rank())


_KEEPS_ORDER = (2, 14)  # The release of torch that numbers a split's members as they are given.


class SplittableGroup(SimulatedGroup):
    """A group that `dist.split_group` and meshes of bound devices can split."""

    _num_splits = 0

    def comm_split_count(self) -> int:
        """Return the number of splits of the group."""
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
        """Make a part of the group for the running rank; return None if it is not a member.

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
        if INSTALLED < _KEEPS_ORDER:
            new_ranks = sorted(new_ranks)
        members = tuple(int(parent.ranks[rank]) for rank in new_ranks)
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
    """Return a time limit that the program has chosen; None for torch's defaults."""
    defaults = (c10d._get_default_timeout(c10d.Backend(backend)), c10d.default_pg_timeout)
    return None if timeout in defaults else timeout


def _config_text(backend: str) -> str:
    """Return torch's text for the backends of a group, also for `nccl2`, which torch lacks."""
    text = str(c10d.BackendConfig(c10d.Backend(backend.replace("nccl2", "nccl"))))
    return text.replace("nccl", "nccl2") if "nccl2" in backend else text


def make_destroy(original: Any) -> Any:
    """Return the replacement of `destroy_process_group`: simrank forgets the group, too."""

    def destroy_process_group(group: Any = None) -> None:
        chosen = c10d.GroupMember.WORLD if group is None else group
        original(group)
        if isinstance(chosen, SimulatedGroup) and rank_program() is not None:
            destroy_simulated(chosen.simulated)

    return destroy_process_group


# ---- Members of a default group: the started ranks, or processes that meet in a store ----
# Usually the started ranks are the members, and none waits. Once a rank has died, a process has
# joined, or ranks pass other numbers than their own, members exchange their ranks in the store and
# wait for all: a group may grow, shrink, and have new processes.

_MEETINGS = "meetings of a default group"  # In `World.local`.


class MemberEntry(NamedTuple):
    """A member's entry in the store.

    Attributes:
        number: Its rank in the spawn; of a process the number that it has taken.
        generation: How often it has joined as it was started, where it does so now, else 0.
        world: Number of the spawn.
    """

    number: int
    generation: int
    world: int


def meet(program: Program, store: dist.Store, rank: int, size: int) -> Sequence[int]:
    """Return the members of the default group that a rank joins, and set its epoch.

    Args:
        program: The joining one.
        store: Where the members meet.
        rank: Its rank there.
        size: The number of members.

    Raises:
        UnsupportedError: Some joined as they were started, and others under other numbers.
    """
    state, world = membership(program), world_of(program)
    place = _place(store, rank, size)
    is_as_started = program.process_of is None and (rank, size) == (program.rank, world.size)
    if is_as_started and not world.has_changed:
        state.generation += 1
        state.epoch = state.generation
        _tell(store, place, rank, MemberEntry(rank, state.generation, _number(world)))
        return range(size)
    world.has_changed = True
    met = meet_at(place, program, store, rank, size)
    known = {each.generation for each in met} - {0}
    if not known:
        state.epoch = store.get(f"{place}/epoch") if rank else _new_epoch(program, store, place)
        return tuple(each.number for each in met)
    if tuple(each.number for each in met) != tuple(range(world.size)) or len(known) > 1:
        as_started = ", ".join(str(index) for index, each in enumerate(met) if each.generation)
        raise UnsupportedError(
            f"rank {program.rank} joins a group of {size} as rank {rank}, and rank(s) {as_started} "
            "of it joined as they were started, since nothing had changed yet\n"
            "  to fix: give the group another size, or a new number to each member"
        )
    state.epoch = known.pop()
    return range(size)


def meet_at(
    place: str, program: Program, store: dist.Store, rank: int, size: int
) -> list[MemberEntry]:
    """Wait for the members of a group in a store, and return them by rank.

    Members of several spawns become members of the oldest one's world, unless some of them joined
    as they were started: they do not wait.
    """
    world = world_of(program)
    _tell(store, place, rank, MemberEntry(number_of(program, rank), 0, _number(world)))
    met = [_reported(store, f"{place}/{index}") for index in range(size)]
    oldest = min(each.world for each in met)
    if oldest == max(each.world for each in met) or any(each.generation for each in met):
        return met
    number = join_world(program, world.comm_library.worlds[oldest])
    _tell(store, f"{place}/world", rank, MemberEntry(number, 0, oldest))
    return [_reported(store, f"{place}/world/{index}") for index in range(size)]


def _place(store: dist.Store, rank: int, size: int) -> str:
    """Return the prefix under which members meet; each meeting has another one."""
    here = f"simrank/members/{size}"
    return f"{here}/{store.add(f'{here}/of rank {rank}', 1)}"


def _tell(store: dist.Store, place: str, rank: int, met: MemberEntry) -> None:
    store.set(f"{place}/{rank}", ",".join(map(str, met)))


def _reported(store: dist.Store, key: str) -> MemberEntry:
    return MemberEntry(*map(int, store.get(key).decode().split(",")))


def _new_epoch(program: Program, store: dist.Store, place: str) -> bytes:
    """Return a unique name of this meeting; rank 0 stores it."""
    world = world_of(program)
    number = world.local[_MEETINGS] = world.local.get(_MEETINGS, 0) + 1
    name = f"met {number}"
    store.set(f"{place}/epoch", name)
    return name.encode()


def _number(world: World) -> int:
    """Return the number of a spawn among those of its Context."""
    return next(n for n, each in world.comm_library.worlds.items() if each is world)


_DEFAULT_LIMIT = timedelta(minutes=30)  # c10d's; nccl's is 10.


def group_of_store(
    backend: str, store: dist.Store, rank: int, size: int, options: Any, timeout: timedelta | None
) -> SimulatedGroup:
    """Return a group that the program constructs itself; its members meet in a store.

    Args:
        backend: Its backend.
        store: A store that only the members use for this meeting.
        rank: The caller's group rank.
        size: The number of members.
        options: Of the class, for its time limit; or the time limit.
        timeout: The time limit, else.
    """
    program = require_rank(f"a process group of {backend}")
    if isinstance(options, timedelta):
        timeout = options
    limit = timeout or getattr(options, "_timeout", None) or _DEFAULT_LIMIT
    times = store.add(f"simrank/{backend}/{rank}", 1)
    place = f"simrank/{backend}/{times}"
    members = [met.number for met in meet_at(place, program, store, rank, size)]
    if rank == 0:
        # A name that no other group of these members has, wherever they meet.
        store.set(f"{place}/name", f"by_hand_{program.rank}_{_next_number(program)}")
    name = store.get(f"{place}/name").decode()
    made = make_group(backend, name, members, limit, None)
    assert made is not None, "a member"
    made.is_constructed_by_program = True
    return made


_MADE_BY_HAND = "groups made by hand"


def _next_number(program: Any) -> int:
    number: int = program.local.get(_MADE_BY_HAND, 0)
    program.local[_MADE_BY_HAND] = number + 1
    return number


class _OfBackend(type):
    """Metaclass: `isinstance` is true for groups and backends of the class's backend."""

    def __instancecheck__(cls: Any, instance: object) -> bool:
        return getattr(instance, "simulated_backend", None) == cls.backend


class _ByHand(metaclass=_OfBackend):
    """Replacement of a class of c10d: it constructs simulated groups.

    Attributes:
        backend: Of the groups.
    """

    backend = ""

    def __new__(
        cls,
        store: dist.Store,
        rank: int,
        size: int,
        options: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        return group_of_store(cls.backend, store, rank, size, options, timeout)


class ProcessGroupGloo(_ByHand):
    """Replacement of the class of this name."""

    backend = "gloo"


class ProcessGroupNCCL(_ByHand, NcclNames):
    """Replacement of the class of this name, with its options."""

    backend = "nccl"


def _wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the constructor of torch's wrapper: it compares calls of a simulated group."""

    @functools.wraps(original)
    def wrap(
        wrapped_pg: Any, store_prefix: str, store: Any, rank: int, world_size: int, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        if not isinstance(wrapped_pg, SimulatedGroup):
            return original(wrapped_pg, store_prefix, store, rank, world_size, *args, **kwargs)
        prefix = PrefixStore(f"wrapper of {store_prefix}", store)
        helper = group_of_store("gloo", prefix, rank, world_size, None, None)
        wrapped_pg.checker = Checker(helper.simulated, rank)
        return wrapped_pg

    return wrap


def patches(owners: Sequence[Any]) -> list[tuple[Any, str, Any]]:
    """Return the patches of modules that export the classes."""
    found: list[tuple[Any, str, Any]] = []
    for owner in owners:
        for simulated in (ProcessGroupGloo, ProcessGroupNCCL):
            name = simulated.__name__
            original: Any = getattr(owner, name, simulated)
            found.append((owner, name, dispatching(original, simulated)))
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    name = "_create_process_group_wrapper"
    found.append((c10d, name, _wrapping(getattr(c10d, name))))
    return found
