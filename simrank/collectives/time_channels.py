"""The rings of a uniform schedule, one per channel: their orders, and what their messages cost."""

from collections.abc import Iterator

import numpy as np

from simrank.collectives.schedule import IntArray, Round
from simrank.collectives.time_network import Interconnect, Lane
from simrank.collectives.time_ring import RingCosts


class Channels:
    """The rings on which the channels of a uniform schedule send, and the links they share.

    Rings that visit the ranks in different orders still use few different pairs of them, because
    they agree inside a node or between nodes: routes are looked up once per pair, and a link is
    loaded as often as channels use it.

    Shapes: (C channels, n ranks)
        orders: [C, n]

    Args:
        network: The hardware.
        devices: Device of each rank.
        steps: A round of the schedule that moves data; all others have the same ends.

    Attributes:
        orders: Ranks of each channel in the order of its ring.
    """

    def __init__(self, network: Interconnect, devices: IntArray, *, steps: Round) -> None:
        self.orders = steps.src.reshape(-1, len(devices))
        self._pairs, ends, repeats = _pairs(self.orders)
        self._lane = Lane(network, (devices[ends[0]], devices[ends[1]]), repeats=repeats)

    def costs(self, step_bytes: int) -> Iterator[RingCosts]:
        """Yield what messages of a size cost on each channel, in the order of its ring.

        Args:
            step_bytes: Bytes of every message.
        """
        busy_ps, flight_ps = self._lane.costs(step_bytes)
        for pairs in self._pairs:
            yield RingCosts(busy_ps[pairs], flight_ps[pairs])


def _pairs(orders: IntArray) -> tuple[IntArray, tuple[IntArray, IntArray], IntArray]:
    """Return the distinct pairs of neighbours on some rings.

    Shapes: (C rings, n ranks, P pairs)
        orders: [C, n]

    Returns:
        [C, n] the pair that begins at each position of each ring; [P] first and second rank of
        each pair; [P] on how many rings it occurs.
    """
    follower, pair = np.empty_like(orders), np.full_like(orders, -1)
    for ring, order in enumerate(orders):
        follower[ring, order] = np.roll(order, -1)
    shared: list[tuple[IntArray, IntArray, IntArray]] = []
    num_pairs = 0
    for ring in range(len(orders)):
        first = np.flatnonzero(pair[ring] < 0)
        second = follower[ring, first]
        is_same = follower[ring:, first] == second
        numbers = num_pairs + np.arange(len(first))
        pair[ring:, first] = np.where(is_same, numbers, pair[ring:, first])
        shared.append((first, second, np.count_nonzero(is_same, axis=0)))
        num_pairs += len(first)
    columns = [np.concatenate(column) for column in zip(*shared, strict=True)]
    at_position = np.take_along_axis(pair, orders, axis=1)
    return at_position, (columns[0], columns[1]), columns[2]
