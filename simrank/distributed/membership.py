"""Joining, leaving and making process groups, as in torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.distributed.group import ProcessGroup, World, membership
from simrank.errors import UnsupportedError
from simrank.ranks import Program, require_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

_BACKENDS = ("nccl", "simrank", "cuda:nccl")
_NOT_INITIALIZED = (
    "Default process group has not been initialized, please make sure to call init_process_group."
)


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Any = None,  # noqa: ANN401 - torch's signature
    world_size: int = -1,
    rank: int = -1,
    **ignored: Any,  # noqa: ANN401 - store, group_name, pg_options, device_id: nothing to set up
) -> None:
    """Join the default group of the ranks of this spawn; no rank waits for another.

    Raises:
        ValueError: Called twice, or with a rank or world size that is not this rank's.
        UnsupportedError: The backend is not simulated.
    """
    del init_method, timeout, ignored
    program = require_rank("init_process_group")
    state = membership(program)
    if state.default is not None:
        raise ValueError("trying to initialize the default process group twice!")
    if backend is not None and backend not in _BACKENDS:
        raise UnsupportedError(
            f"backend {backend!r} is not simulated; choices: {', '.join(_BACKENDS)}"
        )
    for name, given, actual in (
        ("rank", rank, program.rank),
        ("world_size", world_size, program.world_size),
    ):
        if given not in (-1, actual):
            raise ValueError(
                f"{name}={given}, but this is rank {program.rank} of {program.world_size}"
            )
    state.generation += 1
    state.num_groups = 0
    world = world_of(program)
    state.default = world.group((state.generation, 0), "default_pg", range(world.size))


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Leave the default group (and with it all groups), or forget one group; never waits.

    Raises:
        ValueError: There is no default group.
    """
    state = membership(require_rank("destroy_process_group"))
    if state.default is None:
        raise ValueError("Invalid process group specified")
    if group is None or group is state.default:
        state.default = None


def is_initialized() -> bool:
    """Return whether this rank has a default group."""
    return membership(require_rank("is_initialized")).default is not None


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Any = None,  # noqa: ANN401 - torch's signature
    backend: str | None = None,
    pg_options: Any = None,  # noqa: ANN401
    group_desc: str | None = None,
    **ignored: Any,  # noqa: ANN401 - use_local_synchronization, device_id
) -> ProcessGroup:
    """Make a group of some ranks; every rank must call it, in the same order, members or not.

    Raises:
        ValueError: A rank is named twice or does not exist.
        SimrankError: Another rank made its n-th group with other members.
    """
    del timeout, backend, pg_options, ignored
    program = require_rank("new_group")
    default = group_or_default(None, program)
    state = membership(program)
    members: Sequence[int] = default.ranks if ranks is None else tuple(sorted(ranks))
    if len(set(members)) != len(members):
        raise ValueError("duplicate rank")
    for member in members:
        if not 0 <= member < default.size():
            raise ValueError(
                "the new group's rank should be within the world_size set by init_process_group, "
                f"got rank {member} of {default.size()}"
            )
    state.num_groups += 1
    number = state.num_groups
    name = group_desc or f"group_{number}"
    return world_of(program).group((state.generation, number), name, members)


def get_rank(group: ProcessGroup | None = None) -> int:
    """Return this rank in the group; -1 if it is no member."""
    program = require_rank("get_rank")
    return group_or_default(group, program).group_rank(program.rank)


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Return the number of members; -1 if this rank is none of them."""
    program = require_rank("get_world_size")
    chosen = group_or_default(group, program)
    return chosen.size() if chosen.group_rank(program.rank) >= 0 else -1


def world_of(program: Program) -> World:
    """Return the process groups of the spawn that a rank belongs to."""
    world = program.local["world"]
    assert isinstance(world, World)
    return world


def group_or_default(group: ProcessGroup | None, program: Program) -> ProcessGroup:
    """Return the group that a call means.

    Raises:
        ValueError: The rank has not initialised.
    """
    default = membership(program).default
    if default is None:
        raise ValueError(_NOT_INITIALIZED)
    return default if group is None else group


def peer_in_group(
    name: str,
    global_rank: int | None,
    group_rank: int | None,
    group: ProcessGroup | None,
    program: Program,
) -> int:
    """Return the group rank of a root or peer given in one of torch's two ways.

    Raises:
        ValueError: Both or neither is given, or the rank is no member.
    """
    chosen = group_or_default(group, program)
    if (global_rank is None) == (group_rank is None):
        raise ValueError(f"Must specify exactly one of {name} and group_{name}")
    if group_rank is not None:
        if not 0 <= group_rank < chosen.size():
            raise ValueError(f"group_{name}={group_rank} is not part of {chosen!r}")
        return group_rank
    found = chosen.group_rank(global_rank)
    if found < 0 or not (global_rank or 0) >= 0:
        raise ValueError(f"Global rank {global_rank} is not part of group {chosen!r}")
    return found
