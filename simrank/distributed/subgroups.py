"""Several groups at once: runs of equal length, an enumeration, the parts of a split."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.distributed.backends import Backends
from simrank.distributed.group import Maker, ProcessGroup, membership
from simrank.distributed.membership import (
    Group,
    get_process_group_ranks,
    get_world_size,
    group_or_default,
    new_group,
    world_of,
)
from simrank.engine import user_site
from simrank.ranks import require_rank

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

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
