"""Joining, leaving and making process groups, as in torch.distributed."""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import urlparse

from simrank.distributed.backends import Backend, Backends, check_timeout, parse_backend
from simrank.distributed.group import Maker, ProcessGroup, World, membership
from simrank.engine import limits, user_site
from simrank.engine.callsite import depth_of_user
from simrank.engine.choices import LONG_PS
from simrank.errors import DistNetworkError
from simrank.ranks import Program, current_program, require_rank
from simrank.ranks.current import comparisons_of, of_process
from simrank.ranks.ports import node_of, ports_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


Group = ProcessGroup | int | None  # An int is NON_GROUP_MEMBER.

NON_GROUP_MEMBER = -100
_NOT_INITIALIZED = (
    "Default process group has not been initialized, please make sure to call init_process_group."
)


class _World(type):
    """Gives `GroupMember.WORLD`: the running rank's default group, or None."""

    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802 - torch's name
        """Return the running rank's default group, or None."""
        program = current_program()
        return None if program is None else membership(program).default


class GroupMember(metaclass=_World):
    """Marker of the default group, and of groups without the caller."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


class group(metaclass=_World):  # noqa: N801 - torch's name
    """Marker of the default group."""


# ---- joining and leaving ----


def note_limit(program: Program, timeout: timedelta) -> None:
    """Name a short limit of joining the default group to a search of every timing."""
    if timeout.total_seconds() * 1e12 < LONG_PS:
        limits.pass_over(program.engine, "the time limit of init_process_group")


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: object = None,
    group_name: str = "",
    pg_options: object = None,
    device_id: object = None,
) -> None:
    """Join the default group of the ranks of this spawn; no rank waits for another.

    Raises:
        ValueError: Called twice, or with a rank or world size that is not this rank's.
        TypeError: The timeout is no timedelta.
        UnsupportedError: The backend is not simulated.
        DistNetworkError: Another program of the simulated host has the port.
    """
    del group_name
    program = require_rank("init_process_group")
    state = membership(program)
    if state.default is not None:
        raise ValueError("trying to initialize the default process group twice!")
    check_timeout(timeout)
    if timeout is not None:
        note_limit(program, timeout)
    parsed = parse_backend(backend)
    for name, given, actual in (
        ("rank", rank, program.rank),
        ("world_size", world_size, program.world_size),
    ):
        if given not in (-1, actual):
            raise ValueError(
                f"{name}={given}, but this is rank {program.rank} of {program.world_size}"
            )
    if store is None:
        take_port(program, init_method)
    state.generation += 1
    state.epoch = state.generation
    state.num_groups = 0
    world = world_of(program)
    state.default = world.group((state.epoch, 0), "default_pg", range(world.size), parsed)
    state.default.is_eager |= device_id is not None
    if pg_options is not None:
        _apply(pg_options, state.default)


@runtime_checkable
class ChangesGroup(Protocol):
    """Options that change a group as each member makes it; see `roster.ElasticOptions`."""

    def apply(self, group: ProcessGroup) -> None:
        """Change the group."""


def _apply(options: object, made: ProcessGroup) -> None:
    """Apply options that change a group; options of torch are accepted and ignored."""
    if isinstance(options, ChangesGroup):  # That takes 50 us.
        options.apply(made)


def destroy_process_group(group: Group = None) -> None:
    """Leave the default group (and with it all groups), or one group.

    It waits for this rank's own calls on the destroyed groups, and for no other rank: if they can
    never complete, the report of that deadlock names them.

    Raises:
        ValueError: There is no such group.
    """
    program = require_rank("destroy_process_group")
    if group == NON_GROUP_MEMBER:
        return
    state, rank = membership(program), program.rank
    assert rank is not None
    if state.default is None or (isinstance(group, ProcessGroup) and group.is_destroyed(rank)):
        raise ValueError("Invalid process group specified")
    if group is None or group is state.default:
        leaving = [*reversed(state.made), state.default]
        state.made = []
    else:
        if group not in state.made:
            raise ValueError("Invalid process group specified")
        assert isinstance(group, ProcessGroup)
        leaving = [group]
        state.made.remove(group)
    for left in leaving:
        _finish_own(left, rank)
        left.destroy(rank)
    state.forget()
    if leaving[-1] is state.default:
        state.default = None
        give_port_back(program)


def _finish_own(group: ProcessGroup, rank: int) -> None:
    """Wait on the host for what the rank has in flight in a group."""
    for call in list(group.calls.values()):
        operation = call.operation_of(call.group.group_rank(rank))
        if operation is not None and operation.error is None:
            group.engine.wait(operation)
            operation.host_ordered()
    for boxes in group.mailboxes.values():
        for message in boxes.pending():
            if message.rank == rank:
                group.engine.wait(message)
                message.host_ordered()


def is_initialized() -> bool:
    """Return whether this rank has a default group; False outside of ranks."""
    program = current_program()
    return program is not None and membership(program).default is not None


# ---- asking ----


def get_rank(group: Group = None) -> int:
    """Return this rank in the group; -1 if it is no member."""
    program = require_rank("get_rank")
    chosen = registered_group(group, program)
    if chosen is None:
        return -1
    rank, recorder = chosen.group_rank(program.rank), comparisons_of(program)
    return rank if recorder is None else recorder.within_group(rank, chosen.ranks)


def get_world_size(group: Group = None) -> int:
    """Return the number of members; -1 if this rank is none of them."""
    program = require_rank("get_world_size")
    chosen = registered_group(group, program)
    return chosen.size() if chosen is not None and chosen.group_rank(program.rank) >= 0 else -1


def get_backend(group: Group = None) -> Backend:
    """Return the name of a group's backend.

    Raises:
        ValueError: This rank is no member.
    """
    chosen = registered_group(group, require_rank("get_backend"))
    if chosen is None:
        raise ValueError("Invalid process group specified")
    return Backend(chosen.backend)


def get_process_group_ranks(group: Group = None) -> list[int]:
    """Return the global ranks of a group, in group order."""
    chosen = registered_group(group, require_rank("get_process_group_ranks"))
    return [] if chosen is None else list(chosen.ranks)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """Return the number that a global rank has in a group.

    Raises:
        ValueError: It is no member.
    """
    chosen = registered_group(group, require_rank("get_group_rank"))
    member = -1 if chosen is None or global_rank < 0 else chosen.group_rank(global_rank)
    if member < 0:
        raise ValueError(f"Global rank {global_rank} is not part of group {group}")
    return member


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """Return the global rank of a member of a group.

    Raises:
        ValueError: There is no such member.
    """
    chosen = registered_group(group, require_rank("get_global_rank"))
    if chosen is None or not 0 <= group_rank < chosen.size():
        raise ValueError(f"Group rank {group_rank} is not part of group {group}")
    return int(chosen.ranks[group_rank])


# ---- making ----


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: object = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: object = None,
    sort_ranks: bool = True,
) -> ProcessGroup | int | None:
    """Make a group of some ranks; every rank must call it, in the same order, members or not.

    With `use_local_synchronization` only the members call it.

    Returns:
        The group; `GroupMember.NON_GROUP_MEMBER` on ranks that are no members (with
        `use_local_synchronization`: None).

    Raises:
        ValueError: A rank is named twice or does not exist.
        CollectiveMismatchError: Another rank made its n-th group otherwise.
    """
    program = require_rank("new_group")
    default = group_or_default(None, program)
    state, rank = membership(program), program.rank
    check_timeout(timeout)
    assert rank is not None
    if use_local_synchronization and ranks is not None and rank not in ranks:
        return None
    members = _members(ranks, default.size(), sort_ranks=sort_ranks)
    parsed = parse_backend(backend) if backend else Backends(default.backend, default.backends)
    key: tuple[Any, ...] = (state.epoch, tuple(members))
    name = group_desc or f"group of {list(members)}"
    if not use_local_synchronization:
        state.num_groups += 1
        key = (state.epoch, state.num_groups)
        name = group_desc or f"group_{state.num_groups}"
    made = world_of(program).group(key, name, members, parsed, Maker(rank, user_site()))
    if made.group_rank(rank) < 0:
        return NON_GROUP_MEMBER
    made.is_eager |= default.is_eager or device_id is not None
    if pg_options is not None:
        _apply(pg_options, made)
    state.made.append(made)
    return made


def _members(ranks: Sequence[int] | None, size: int, *, sort_ranks: bool) -> Sequence[int]:
    """Return the members of a new group.

    Raises:
        ValueError: A rank is named twice or does not exist.
    """
    if ranks is None:
        return range(size)
    members = tuple(sorted(ranks)) if sort_ranks else tuple(ranks)
    if len(set(members)) != len(members):
        raise ValueError(f"ranks list must not contain duplicate entries, got {list(members)}")
    for member in members:
        if not 0 <= member < size:
            raise ValueError(
                f"Rank {member} is out of range. Valid ranks are 0 to {size - 1} "
                f"(world_size={size})"
            )
    return members


# ---- for the calls ----


def world_of(program: Program) -> World:
    """Return the process groups of the spawn that a rank belongs to."""
    world = program.local["world"]
    assert isinstance(world, World)
    return world


def registered_group(group: Group, program: Program) -> ProcessGroup | None:
    """Return the group that is asked about, None for NON_GROUP_MEMBER.

    Raises:
        ValueError: The rank has not initialised, or has destroyed the group.
    """
    if group == NON_GROUP_MEMBER and not isinstance(group, ProcessGroup):
        return None
    chosen = group_or_default(group, program)
    if chosen.is_destroyed(program.rank):
        raise ValueError(
            f"Group {chosen} is not registered, please create group with "
            "torch.distributed.new_group API"
        )
    return chosen


def group_or_default(group: Group, program: Program) -> ProcessGroup:
    """Return the group that a call means.

    Raises:
        ValueError: The rank has not initialised, or the group is of another spawn.
        TypeError: It is no group.
    """
    if group is None or group == NON_GROUP_MEMBER:
        default = membership(program).default
        if default is None:
            raise ValueError(_NOT_INITIALIZED)
        return default
    if not isinstance(group, ProcessGroup):
        raise TypeError(f"expected a ProcessGroup, got {group!r}")
    if group.world is not world_of(program):
        raise ValueError(f"Invalid process group specified: '{group.name}' is of another spawn")
    return group


def member_group(call: str, group: Group, program: Program) -> ProcessGroup | None:
    """Return the group of a call; None, with torch's warning, where the rank is no member.

    Raises:
        ValueError: The rank has not initialised, or has destroyed the group.
    """
    if (
        type(group) is ProcessGroup
        and group.world is program.local["world"]
        and group.serves(program.rank)
    ):  # Nearly always.
        return group
    if isinstance(group, ProcessGroup) and group.is_destroyed(program.rank):
        raise ValueError(
            f"Invalid process group specified: {call} on group '{group.name}', which rank "
            f"{program.rank} has destroyed"
        )
    chosen = group_or_default(group, program)
    is_named = group is None or isinstance(group, ProcessGroup)
    if is_named and chosen.group_rank(program.rank) >= 0:
        return chosen
    warnings.warn(
        f"Running {call} on global rank {program.rank} which does not belong to the given group.",
        stacklevel=depth_of_user(),
    )
    return None


def peer_in_group(
    name: str, global_rank: int | None, group_rank: int | None, group: ProcessGroup
) -> int:
    """Return the group rank of a root or peer given in one of torch's two ways.

    Raises:
        ValueError: Both or neither is given, or the rank is no member.
    """
    if global_rank is not None and group_rank is not None:
        raise ValueError(f"Can't specify both group_rank and global_rank: {name} and group_{name}")
    if group_rank is not None:
        if not 0 <= group_rank < group.size():
            raise ValueError(f"Group rank {group_rank} is not part of group {group}")
        return group_rank
    if global_rank is None:
        raise ValueError(f"Must specify global_rank or group_rank: {name} or group_{name}")
    member = group.group_rank(global_rank) if global_rank >= 0 else -1
    if member < 0:
        raise ValueError(f"Global rank {global_rank} is not part of group {group}")
    return member


# ---- Several groups at once: runs of equal length, an enumeration, the parts of a split ----

Subgroups = tuple[ProcessGroup | None, list[ProcessGroup | int | None]]


def new_subgroups(
    group_size: int | None = None,
    group: Group = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
) -> Subgroups:
    """Cut a group into runs of `group_size` ranks (default: the devices of a node).

    Returns:
        The subgroup that this rank belongs to, and all of them.

    Raises:
        ValueError: The size does not divide the group.
    """
    program = require_rank("new_subgroups")
    if group_size is None:
        group_size = program.context.cluster.devices_per_node
    if group_size <= 0:
        raise ValueError(f"The arg 'group_size' ({group_size}) must be positive")
    world_size = get_world_size(group)
    if world_size < group_size:
        raise ValueError(
            f"The arg 'group_size' ({group_size}) must not exceed the world size ({world_size})"
        )
    if world_size % group_size:
        raise ValueError(
            f"The world size ({world_size}) must be divisible by 'group_size={group_size!r}'"
        )
    ranks = get_process_group_ranks(group)
    runs = [ranks[first : first + group_size] for first in range(0, len(ranks), group_size)]
    return new_subgroups_by_enumeration(runs, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
) -> Subgroups:
    """Make a group of each list of ranks; no rank may be in two.

    Returns:
        The subgroup that this rank belongs to, or None, and all of them.

    Raises:
        ValueError: There is no list, or a rank is in two.
    """
    if not ranks_per_subgroup_list:
        raise ValueError("The arg 'ranks_per_subgroup_list' cannot be empty")
    own: ProcessGroup | None = None
    made: list[ProcessGroup | int | None] = []
    seen: dict[int, Sequence[int]] = {}
    for ranks in ranks_per_subgroup_list:
        subgroup = new_group(ranks, timeout, backend, pg_options, group_desc=group_desc)
        made.append(subgroup)
        if isinstance(subgroup, ProcessGroup):
            own = subgroup
        for rank in ranks:
            if rank in seen:
                raise ValueError(
                    f"Rank {rank} has appeared in both subgroup {seen[rank]} and {ranks}"
                )
            seen[rank] = ranks
    return own, made


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Split a group; all its members call it with the same lists of group ranks.

    Returns:
        The part that this rank belongs to, or None.

    Raises:
        ValueError: A list is empty, too long or names a rank twice; this rank is no member.
        RuntimeError: The parent's backend cannot split: only nccl can.
    """
    del timeout, pg_options, backend
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    program = require_rank("split_group")
    default = group_or_default(None, program)
    parent = default if parent_pg is None else parent_pg
    rank = program.rank
    assert rank is not None
    own_rank = parent.group_rank(rank)
    if own_rank < 0:
        raise ValueError(f"Global rank {rank} is not part of the parent group {parent}")
    if "cuda" not in parent.backends or parent.backends["cuda"] != "nccl":
        raise RuntimeError(
            "No backend for the parent process group or its backend does not support splitting"
        )
    state = membership(program)
    for group_ranks in split_ranks:
        _check_part(group_ranks, default.size())
    # Not in the order of `new_group`: only the parent's members split it.
    number = state.num_splits[parent] = state.num_splits.get(parent, 0) + 1
    for group_ranks in split_ranks:
        if own_rank in group_ranks:
            members = tuple(int(parent.ranks[group_rank]) for group_rank in sorted(group_ranks))
            name = group_desc or f"{parent.name}:split:{number}"
            key = (state.epoch, parent, number, members)
            parsed = Backends(parent.backend, parent.backends)
            made = world_of(program).group(key, name, members, parsed, Maker(rank, user_site()))
            state.made.append(made)
            return made
    return None


def _check_part(group_ranks: Sequence[int], world_size: int) -> None:
    if not group_ranks:
        raise ValueError("the split group cannot be empty")
    if len(group_ranks) > world_size:
        raise ValueError(
            "the split group's size should be less or equal to the world_size set by "
            "init_process_group"
        )
    if len(group_ranks) != len(set(group_ranks)):
        raise ValueError("the split group cannot have duplicate ranks")


# ---- Members that no spawn has numbered ----
# The ranks of a spawn are numbered from 0. A rank that joins a group takes the next number
# of theirs, under any rank. Its death is that of a member.

_KEY = "number as a member"  # In `Program.local`.


def number_of(program: Program, group_rank: int) -> int:
    """Return the number of a rank or process that joins a group.

    Args:
        program: The joining one.
        group_rank: Its rank in the group: it stands for the device of this number of its host.
    """
    if program.process_of is not None and _KEY not in program.local:
        cluster, host = program.context.cluster, program.started_rank or 0
        index = host - host % cluster.devices_per_node + group_rank % cluster.devices_per_node
        _take_number(program, world_of(program), min(index, cluster.num_devices - 1))
    assert program.rank is not None, "a rank joins"
    return program.rank


def join_world(program: Program, world: World) -> int:
    """Add a rank or process to the world of another spawn, and return its number."""
    before = world_of(program)
    if before is not world:
        program.local["world"] = world
        _take_number(program, world, int(before.devices[program.rank or 0]))
    assert program.rank is not None, "a rank comes"
    return program.rank


def _take_number(program: Program, world: World, device_index: int) -> None:
    task = program.task
    assert task is not None, "it runs"
    program.rank = task.rank = program.local[_KEY] = world.add(task, device_index)
    membership(program).forget()


def process_ended(program: Program, status: int) -> None:
    """Fail the waits in groups for a process that has died."""
    if status and _KEY in program.local:
        engine = program.engine
        engine.call_at(engine.now_ps, partial(lose, program, SystemExit(status)))


def lose(program: Program, error: BaseException) -> None:
    """Fail the waits in groups for a member that has died; from the hub."""
    assert program.rank is not None, "a member"
    world_of(program).rank_died(program.rank, error)


# ---- The port at which the ranks of a program meet ----
# Rank 0 holds it from `init_process_group` until it destroys the group, or ends.

_PORT_KEY = of_process("port of the rendezvous")


def take_port(program: Program, init_method: str | None) -> None:
    """Take the port of a rendezvous by `tcp://` or `env://`, on rank 0.

    Raises:
        DistNetworkError: Another program of this host has it, or a store or socket of this one.
    """
    if program.rank != 0:
        return
    port: int | None = None  # It has none, or any will do.
    if init_method is not None and not init_method.startswith("env:"):
        port = urlparse(init_method).port or None
    elif "MASTER_PORT" in os.environ:
        port = int(os.environ["MASTER_PORT"])
    if port is None:
        return
    try:
        _, holder = ports_of(program).take(program, port, "the rendezvous")
    except OSError as error:
        raise cannot_listen(program, port, error) from None
    program.local[_PORT_KEY] = (port, holder)


def give_port_back(program: Program) -> None:
    """Release the port of the rendezvous."""
    held = program.local.pop(_PORT_KEY, None)
    if held is not None:
        ports_of(program).release(node_of(program), *held)


def cannot_listen(program: Program, port: int, error: OSError) -> DistNetworkError:
    """Return torch's error of a port that is in use, with a note that names its holder."""
    made = DistNetworkError(program.engine.now_ps, port)
    for note in getattr(error, "__notes__", ()):
        made.add_note(note)
    return made
