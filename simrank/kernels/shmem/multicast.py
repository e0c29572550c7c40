"""Multicast addresses: one address for the same bytes at all ranks of a team or group.

A team's multicast address is the address of this rank's part with mark bits above all memory; a
group's is registered in the address space. Only `multimem` instructions accept them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrank.kernels import machine
from simrank.kernels.shmem.api import at_peer
from simrank.kernels.shmem.teams import members

if TYPE_CHECKING:
    from simrank.kernels.machine.arrays import Array, Value


_MARK = 1 << 61  # assumed: no simulated memory is that large
_TEAM = 56  # lowest bit of the team's number


def address(own: Value, team: int) -> Value:
    """Return the multicast address of an address, or of an array of addresses."""
    return own | np.int64(_MARK | team << _TEAM)


def members_of(multicast: Array) -> list[Array]:
    """Return the addresses at each rank of the team or group of multicast addresses.

    Raises:
        ValueError: An address is not multicast, or the addresses are in several allocations.
    """
    first, last = int(multicast.min()), int(multicast.max())
    of_group = machine.now().device.memory.space.multicast(first)
    if of_group is not None:
        return [
            multicast - first + (storage.address + of_group.offset) for storage in of_group.storages
        ]
    if not first & _MARK:
        raise ValueError(
            f"address {first:#x} is no multicast address\n"
            "  to fix: give multimem instructions the handle's multicast_ptr, or what "
            "remote_mc_ptr returned"
        )
    team = (first ^ _MARK) >> _TEAM
    own, length = first & ((1 << _TEAM) - 1), last - first
    result = []
    for rank in members(team):
        start = at_peer(own, rank)
        if at_peer(own + length, rank) != start + length:
            raise ValueError("multicast addresses of one instruction are of several allocations")
        result.append(multicast - first + start)
    return result
