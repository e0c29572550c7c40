"""The rings of a schedule's phase, on all channels: what their messages cost."""

from collections.abc import Iterator

import numpy as np

from simrank.collectives.schedule import IntArray, Phase
from simrank.collectives.time_network import Interconnect, Lane
from simrank.collectives.time_ring import RingCosts


class Channels:
    """The rings on which the channels of a phase send, and the links they share.

    Rings that visit the ranks in different orders still use few different pairs of them, because
    they agree inside a node or between nodes: routes are looked up once per pair, and a link is
    loaded as often as channels use it.

    Args:
        network: The hardware.
        devices: [n] Device of each rank.
        phase: Its rings.

    Attributes:
        rings: [C, R, m] Ranks of each channel, ring by ring.
    """

    def __init__(self, network: Interconnect, devices: IntArray, *, phase: Phase) -> None:
        self.rings = phase.rings
        self._pairs, ends, repeats = _pairs(phase.rings)
        self._lane = Lane(network, (devices[ends[0]], devices[ends[1]]), repeats=repeats)

    def costs(self, step_bytes: int) -> Iterator[RingCosts]:
        """Yield what messages of a size cost on each channel, as its rings are: [R, m].

        Args:
            step_bytes: Bytes of every message.
        """
        busy_ps, flight_ps = self._lane.costs(step_bytes)
        for pairs in self._pairs:
            yield RingCosts(busy_ps[pairs], flight_ps[pairs])


def _pairs(rings: IntArray) -> tuple[IntArray, tuple[IntArray, IntArray], IntArray]:
    """Return the distinct pairs of neighbours on some rings.

    Shapes: (C channels, R rings of m ranks, P pairs)
        rings: [C, R, m]

    Returns:
        [C, R, m] the pair that begins at each position of each ring; [P] first and second rank of
        each pair; [P] on how many channels it occurs.
    """
    orders = rings.reshape(len(rings), -1)
    follower, pair = np.empty_like(orders), np.full_like(orders, -1)
    for channel, order in enumerate(orders):
        follower[channel, order] = np.roll(rings[channel], -1, axis=-1).reshape(-1)
    shared: list[tuple[IntArray, IntArray, IntArray]] = []
    num_pairs = 0
    for channel in range(len(orders)):
        first = np.flatnonzero(pair[channel] < 0)
        second = follower[channel, first]
        is_same = follower[channel:, first] == second
        numbers = num_pairs + np.arange(len(first))
        pair[channel:, first] = np.where(is_same, numbers, pair[channel:, first])
        shared.append((first, second, np.count_nonzero(is_same, axis=0)))
        num_pairs += len(first)
    columns = [np.concatenate(column) for column in zip(*shared, strict=True)]
    at_position = np.take_along_axis(pair, orders, axis=1).reshape(rings.shape)
    return at_position, (columns[0], columns[1]), columns[2]
