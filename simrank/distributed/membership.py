"""Joining, leaving and making process groups, as in torch.distributed."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from simrank.distributed.backends import Backend, Backends, check_timeout, parse_backend
from simrank.distributed.group import Maker, ProcessGroup, World, membership
from simrank.distributed.options import ElasticOptions
from simrank.distributed.rendezvous import give_port_back, take_port
from simrank.engine import user_site
from simrank.engine.callsite import depth_of_user
from simrank.ranks import Program, current_program, require_rank

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
    """Stands for the default group, and for a group that one is no member of."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


class group(metaclass=_World):  # noqa: N801 - torch's name
    """Stands for the default group."""


# ---- joining and leaving ----


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
    _apply(pg_options, state.default)


def _apply(options: object, made: ProcessGroup) -> None:
    """Heed options that make a group elastic; others are taken and ignored."""
    if isinstance(options, ElasticOptions):
        options.apply(made)


def destroy_process_group(group: Group = None) -> None:
    """Leave the default group (and with it all groups), or one group.

    It waits for this rank's own calls on what is destroyed, and for nobody else: if they can never
    complete, the report of that deadlock names them.

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
    state.callers.clear()
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
    return -1 if chosen is None else chosen.group_rank(program.rank)


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
