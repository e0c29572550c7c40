"""Multicast addresses: one that stands for the same place at all ranks of a team.

They are the address of this rank's part with marks above what memory has; only `multimem`
instructions take them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simrank.kernels.shmem import at_peer
from simrank.kernels.teams import members

_MARK = 1 << 61  # assumed: no simulated memory is that large
_TEAM = 56  # the bit from which on the team's number stands


def address(own: Any, team: int) -> Any:
    """Return the multicast address of an address, or of an array of them."""
    return own | np.int64(_MARK | team << _TEAM)


def places(multicast: int) -> list[int]:
    """Return what a multicast address stands for: the same place at each rank of the team.

    Raises:
        ValueError: It is no multicast address.
    """
    if not multicast & _MARK:
        raise ValueError(
            f"address {multicast:#x} is no multicast address\n"
            "  to fix: give multimem instructions what remote_mc_ptr returned"
        )
    team = (multicast ^ _MARK) >> _TEAM
    own = multicast & ((1 << _TEAM) - 1)
    return [at_peer(own, rank) for rank in members(team)]
