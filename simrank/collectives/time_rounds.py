"""Times of all ranks, round by round: max-plus over arrivals, link costs and loads."""

from collections import Counter

import numpy as np
import numpy.typing as npt

from simrank.collectives.schedule import IntArray, Round, Schedule, Tables, step_elements
from simrank.collectives.time_network import Lane, Network, known_or_marked
from simrank.collectives.time_ring import (
    has_closed_form,
    is_equal_ring,
    ring_rounds,
    ring_times,
)

MAX_LANES = 16  # Rounds that share their arrays are few; others never come back.


def play_time(
    schedule: Schedule,
    arrivals_ps: npt.ArrayLike,
    *,
    network: Network,
    devices: IntArray,
    itemsize: int,
) -> IntArray:
    """Return when each rank is done with a collective.

    A step costs the latency of its route plus its bytes over the slowest link, whose bandwidth is
    shared by the steps of the round that use it, rounded up to picoseconds. A message up to the
    library's buffer is eager: it leaves when its sender is ready. A larger one starts when both
    ends are ready. Both ends are busy until it has arrived; a rank sends and receives at the same
    time.

    Shapes: (n ranks)
        arrivals_ps, devices, returns: [n]

    Args:
        schedule: What to play.
        arrivals_ps: When each rank calls, or `NOT_ARRIVED`.
        network: The hardware.
        devices: Device of each rank.
        itemsize: Bytes of an element.

    Returns:
        Completion times in picoseconds; `NOT_KNOWN` for each rank whose own steps need a rank
        that has not arrived. The others are final.
    """
    player = TimePlayer(schedule, network=network, devices=devices, itemsize=itemsize)
    return player.completions(arrivals_ps)


class TimePlayer:
    """Computes completions of one schedule on one set of devices, for any arrivals.

    What does not depend on arrivals (routes, loads, costs) is worked out once and kept.

    Args:
        schedule: What to play.
        network: The hardware.
        devices: Device of each rank.
        itemsize: Bytes of an element.
    """

    def __init__(
        self, schedule: Schedule, *, network: Network, devices: IntArray, itemsize: int
    ) -> None:
        self._schedule, self._network, self._itemsize = schedule, network, itemsize
        self._devices = np.asarray(devices, dtype=np.int64)
        # The round is kept beside its lane so that no other array can get its identity.
        self._lanes: dict[tuple[int, int, bytes], tuple[Lane, Round]] = {}

    def completions(self, arrivals_ps: npt.ArrayLike) -> IntArray:
        """Return when each rank is done, in picoseconds; see `play_time`."""
        if self._schedule.uniform and self._schedule.num_rounds:
            return known_or_marked(self._ring_completions(self._start(arrivals_ps)))
        return self.round_completions(arrivals_ps)

    def round_completions(self, arrivals_ps: npt.ArrayLike) -> IntArray:
        """Return what `completions` does, without closed forms: every round is played."""
        num_channels = self._schedule.num_channels
        clocks = np.tile(self._start(arrivals_ps), num_channels)
        for loop in range(self._schedule.num_loops):
            tables = self._schedule.loop_tables(loop)
            for steps in self._schedule.rounds():
                if steps.src is not steps.dst:
                    self._play_round(clocks, steps, tables)
        return known_or_marked(clocks.reshape(num_channels, -1).max(axis=0))

    def _start(self, arrivals_ps: npt.ArrayLike) -> IntArray:
        launched: IntArray = np.asarray(arrivals_ps, dtype=np.int64)
        return launched + self._network.collectives.launch_latency_ps

    def _ring_completions(self, clocks: IntArray) -> IntArray:
        schedule = self._schedule
        steps = next(steps for steps in schedule.rounds() if steps.src is not steps.dst)
        loops = (self._longest(schedule.loop_tables(loop)) for loop in range(schedule.num_loops))
        for longest, repeats in Counter(loops).items():
            step_bytes = longest * self._itemsize
            lane = self._lane(steps, np.full(steps.num_steps, step_bytes, dtype=np.int64))
            # All channels of a uniform schedule take the same route, so one stands for all.
            cost = lane.cost_ps(step_bytes)[: schedule.world_size]
            num_rounds = schedule.num_rounds * repeats
            is_eager = step_bytes <= self._network.collectives.buffer_bytes
            if is_equal_ring(cost, num_rounds) or (is_eager and has_closed_form(cost, num_rounds)):
                clocks = ring_times(clocks, cost, num_rounds)
            else:
                clocks = ring_rounds(clocks, cost, num_rounds, is_eager=is_eager)
        return clocks

    def _play_round(self, clocks: IntArray, steps: Round, tables: Tables) -> None:
        step_bytes = self._step_bytes(steps, tables)
        remote = steps.src != steps.dst
        cost = self._lane(steps, step_bytes).cost_ps(step_bytes)
        lanes = steps.channel * self._schedule.world_size
        src, dst = lanes + steps.src, lanes + steps.dst
        ready = clocks[src]
        is_late = step_bytes > self._network.collectives.buffer_bytes
        ready = np.where(is_late, np.maximum(ready, clocks[dst]), ready)
        done = (ready + cost)[remote]
        np.maximum.at(clocks, src[remote], done)
        np.maximum.at(clocks, dst[remote], done)

    def _step_bytes(self, steps: Round, tables: Tables) -> IntArray:
        if self._schedule.uniform:
            longest = self._longest(tables)
            return np.full(steps.num_steps, longest * self._itemsize, dtype=np.int64)
        return step_elements(tables, steps) * self._itemsize

    def _longest(self, tables: Tables) -> int:
        return max(tables[0].max_size, tables[1].max_size)

    def _lane(self, steps: Round, step_bytes: IntArray) -> Lane:
        loaded = (step_bytes > 0) & (steps.src != steps.dst)
        key = (id(steps.src), id(steps.dst), loaded.tobytes())
        if key not in self._lanes:
            if len(self._lanes) >= MAX_LANES:
                self._lanes.clear()
            lane = Lane(self._network, self._devices, steps=steps, loaded=loaded)
            self._lanes[key] = (lane, steps)
        return self._lanes[key][0]
