"""Traffic of collectives: bytes per link, and in each device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from simrank.collectives.schedule import Op, Round, crosses_links, step_elements
from simrank.collectives.time_network import step_links

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.collectives.schedule import IntArray, Schedule
    from simrank.collectives.time_network import Interconnect

_known: WeakKeyDictionary[Schedule, int] = WeakKeyDictionary()  # Elements read and written.
# Of the bytes that rings send, the part that is added to what is there.
_REDUCED_PART = {"all_reduce": 0.5, "reduce_scatter": 1.0, "reduce": 1.0}


def link_bytes(
    schedule: Schedule, network: Interconnect, devices: IntArray, itemsize: int
) -> dict[int, int]:
    """Return the bytes that cross each link that a collective uses.

    Args:
        schedule: What the ranks run.
        network: The hardware.
        devices: The device of each rank.
        itemsize: Bytes of an element.
    """
    total = np.zeros(len(network.link_bandwidth_bytes_per_s))  # The last one is the dummy.
    for steps, moved in _by_ends(schedule):
        ends = devices[steps.src], devices[steps.dst]
        links = step_links(network, network.paths(*ends), ends, fan=steps.fan)
        weights = _weights(steps, links, moved).ravel()
        total += np.bincount(links.ravel(), weights, minlength=len(total))
    total[-1] = 0
    return {int(link): int(total[link]) * itemsize for link in np.flatnonzero(total)}


def link_loads(
    schedule: Schedule, network: Interconnect, devices: IntArray, itemsize: int
) -> tuple[IntArray, IntArray]:
    """Return the load of links as the time model counts it: ring steps are padded.

    Shapes: (k links)
        returns: [k] links and [k] their bytes

    Args:
        schedule: What the ranks run.
        network: The hardware.
        devices: The device of each rank.
        itemsize: Bytes of an element.
    """
    if not schedule.phases:
        carried = link_bytes(schedule, network, devices, itemsize)
        return np.array(list(carried), np.int64), np.array(list(carried.values()), np.int64)
    total = np.zeros(len(network.link_bandwidth_bytes_per_s), np.int64)  # The last is the dummy.
    for phase in schedule.phases:
        src, dst = phase.ends
        links = np.asarray(network.paths(devices[src], devices[dst]).links)
        counts = np.bincount(links.ravel(), minlength=len(total))
        total += counts * (phase.step_elements(schedule.tables) * phase.num_rounds * itemsize)
    used = np.flatnonzero(total[:-1])
    return used, total[used]


def uplink_slowdown(
    schedule: Schedule, network: Interconnect, devices: IntArray, itemsize: int
) -> float:
    """Return the slowdown of a collective by links between pods."""
    first = network.first_uplink
    if first == len(network.link_bandwidth_bytes_per_s) - 1:
        return 1.0
    links, num_bytes = link_loads(schedule, network, devices, itemsize)
    times = num_bytes / network.link_bandwidth_bytes_per_s[links]
    within = times[links < first].max(initial=0.0)
    return float(times.max() / within) if within else 1.0


def _by_ends(schedule: Schedule) -> Iterator[tuple[Round, IntArray]]:
    """Yield rounds with the elements of each step; rounds without fans are summed up.

    The rounds of a ring are all alike: 2,046 of them on 1,024 ranks.
    """
    size = schedule.world_size
    columns: list[IntArray] = []
    last: tuple[Round, IntArray] | None = None
    for steps in schedule.rounds():
        moved = step_elements(schedule.tables, steps) * crosses_links(steps)
        if steps.fan is not None:
            yield steps, moved
        elif last is not None and last[0].src is steps.src and last[0].dst is steps.dst:
            last[1][:] += moved
        else:
            columns.append(np.stack((steps.src * size + steps.dst, moved)))
            last = steps, columns[-1][1]
    if columns:
        ends, moved = np.concatenate(columns, axis=1)
        distinct, inverse = np.unique(ends, return_inverse=True)
        total = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(total, inverse, moved)
        yield _pairs_round(distinct // size, distinct % size), total


def _pairs_round(src: IntArray, dst: IntArray) -> Round:
    """Return steps of which only the ends matter."""
    zeros = np.zeros_like(src)
    return Round(src, dst, zeros, zeros, zeros, zeros, zeros + 1, zeros, zeros)


def _weights(steps: Round, links: npt.NDArray[np.integer[Any]], moved: IntArray) -> IntArray:
    """Return each step's load per link; the steps of one fan share it.

    Shapes: (k steps, H links of a route)
        links, result: [k, H]
        moved: [k]
    """
    weights = np.repeat(moved[:, None], links.shape[1], axis=1)
    if steps.fan is not None:
        shared = np.flatnonzero(steps.fan >= 0)
        pairs = steps.fan[shared, None] * (int(links.max(initial=0)) + 1) + links[shared]
        _, first = np.unique(pairs, return_index=True)
        is_first = np.zeros(pairs.size, dtype=bool)
        is_first[first] = True
        weights[shared] *= is_first.reshape(pairs.shape)
    return weights


def memory_bytes(schedule: Schedule, itemsize: int) -> int:
    """Return the bytes that a collective reads and writes per device, the mean over ranks.

    A step reads what it sends and writes what it receives; one that reduces reads its operand too.
    Inside a switch a multicast is read once, and what is reduced on the way is written once.

    Args:
        schedule: What the ranks run.
        itemsize: Bytes of an element.
    """
    if schedule.phases:
        accesses = 2 + _REDUCED_PART.get(schedule.collective, 0.0)
        sent = sum(
            phase.step_elements(schedule.tables) * phase.num_rounds * len(phase.rings)
            for phase in schedule.phases
        )
        return round(sent * accesses) * itemsize
    total = _known.get(schedule)
    if total is None:  # Groups of one size share a schedule.
        total = sum(_accessed(schedule, steps) for steps in schedule.rounds())
        _known[schedule] = total
    return -(-total // schedule.world_size) * itemsize


def _accessed(schedule: Schedule, steps: Round) -> int:
    """Return the elements that the steps of a round read and write, on all ranks together."""
    moved = step_elements(schedule.tables, steps) * (steps.count > 0)
    if steps.fan is None:
        return int(moved @ (2 + (steps.op == Op.REDUCE)))
    plain = steps.fan < 0
    accessed = int(moved[plain] @ (2 + (steps.op[plain] == Op.REDUCE)))
    _, first = np.unique(steps.fan[~plain], return_index=True)
    return accessed + int(moved[~plain].sum() + moved[~plain][first].sum())
