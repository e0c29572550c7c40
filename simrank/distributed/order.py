"""Collectives of several groups that may run at the same time, and the order they are issued in.

Two communicators that share ranks need the same order on all of them: on hardware a kernel that
spins for its peers may keep out the kernel that those peers wait for.

Source: NCCL user guide, "Using multiple NCCL communicators concurrently".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simrank.distributed.caller import Caller
    from simrank.distributed.collective import CollectiveOperation


def note_order(caller: Caller, operation: CollectiveOperation) -> None:
    """Note what else a rank has in flight when it issues a collective, and compare the others'."""
    group, in_flight = caller.group, caller.in_flight
    if len(in_flight) > (operation.stream in in_flight):
        rank = caller.rank
        for stream, other in list(in_flight.items()):
            before = other.last_issued[other.group_rank(rank)]
            if before is None or before.stream is not stream:  # It has ended.
                del in_flight[stream]
            elif other is not group and stream is not operation.stream:
                _compare(before, operation)
    in_flight[operation.stream] = group


def _compare(before: CollectiveOperation, operation: CollectiveOperation) -> None:
    """Note that a rank issues a call while another is in flight; one may have done the reverse."""
    operation.call.ahead.setdefault(before.call, operation)
    reverse = before.call.ahead.get(operation.call)
    if reverse is not None:
        leaks = operation.call.group.world.comm_library.leaks
        leaks.opposite(operation, reverse, f"{before.name} and {operation.name}")
