"""Options of process groups: those that make a group elastic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.distributed.roster import Roster
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.distributed.group import ProcessGroup


class ElasticOptions:
    """Options of a group that goes on without members that die (`pg_options`).

    Args:
        active_ranks: A tensor on the host with an int32 for each member, kept at 1 where it is
            active and at 0 where it sits out; None: ask `active_ranks()`.
        first: Global ranks that are active at first; None: all. The others join by
            `set_active_ranks`.

    Source: the options of Mooncake's backend have such a tensor.
    """

    def __init__(self, active_ranks: Any = None, first: Sequence[int] | None = None) -> None:  # noqa: ANN401 - a tensor of simrank or of torch
        self.active_ranks = active_ranks
        self.first = first

    def apply(self, group: ProcessGroup) -> None:
        """Make a group elastic; every member calls it as it makes the group.

        Raises:
            ValueError: The tensor has another size or type, or a rank is no member.
            UnsupportedError: The tensor is not on the host.
        """
        first = None if self.first is None else members_of(group, self.first)
        mask = None if self.active_ranks is None else _values(self.active_ranks, group.size())
        is_new = group.roster is None or not group.roster.skips_dead
        roster = roster_of(group)
        roster.skips_dead = True
        if is_new and first is not None:
            for rank in set(range(group.size())) - set(first):
                roster.deactivate(rank)
        if mask is not None:
            roster.add_mask(mask)


def roster_of(group: ProcessGroup) -> Roster:
    """Return who of a group is active, made at first use."""
    if group.roster is None:
        group.roster = Roster(group)
    return group.roster


def members_of(group: ProcessGroup, ranks: Sequence[int]) -> list[int]:
    """Return the group ranks of global ranks, ascending.

    Raises:
        ValueError: One is no member, or there is none.
    """
    members = sorted({group.group_rank(rank) for rank in ranks})
    if not members or members[0] < 0 or members[-1] >= group.size():
        raise ValueError(f"ranks {list(ranks)} are not members of group '{group.name}'")
    return members


def _values(mask: Any, size: int) -> np.ndarray[Any, Any]:  # noqa: ANN401 - of any library
    """Return a view of a tensor's values, which is written as ranks come and go.

    Raises:
        UnsupportedError: It is on a device.
        ValueError: It has another size or type.
    """
    if str(getattr(mask, "device", "cpu")) != "cpu":
        raise UnsupportedError(f"active_ranks on {mask.device}: a tensor on the host")
    values: np.ndarray[Any, Any] = mask.array if hasattr(mask, "array") else mask.numpy()
    if values.shape != (size,) or values.dtype != np.int32:
        raise ValueError(
            f"active_ranks: an int32 for each of {size} ranks, not {list(values.shape)} of "
            f"{values.dtype}"
        )
    return values
