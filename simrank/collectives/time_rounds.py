"""Times of all ranks, round by round: max-plus over arrivals, link costs and loads."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simrank.collectives.schedule import (
    IntArray,
    Round,
    Schedule,
    Tables,
    crosses_links,
    step_elements,
)
from simrank.collectives.time_channels import Channels
from simrank.collectives.time_network import Interconnect, Lane, StepCosts, known_or_marked
from simrank.collectives.time_ring import play_rings

MAX_LANES = 16  # Rounds that share their arrays are few; others never come back.
# Assumed: some 3 MB of rounds that are worked out stay with a player; larger schedules are read
# again each time. A round counts as some steps, because arrays cost memory too.
MAX_KEPT_STEPS = 1 << 16
ROUND_STEPS = 16


class _Sent(NamedTuple):
    """The steps of a round between ranks, with what they cost.

    Attributes:
        src: Lane that sends.
        dst: Lane that receives.
        costs: What each step costs.
        is_late: Whether each message waits for its receiver.
    """

    src: IntArray
    dst: IntArray
    costs: StepCosts
    is_late: npt.NDArray[np.bool_]


def play_time(
    schedule: Schedule,
    arrivals_ps: npt.ArrayLike,
    *,
    network: Interconnect,
    devices: IntArray,
    itemsize: int,
) -> IntArray:
    """Return when each rank is done with a collective.

    A step's receiver has the message after the latency of its route plus its bytes over the
    slowest link, whose bandwidth is shared by the steps of the round that use it, rounded up to
    picoseconds. Its sender is busy for the same bytes, but of the latency only for the library's
    overhead per step: where a route takes longer, the rest passes while the sender goes on. A rank
    sends and receives at the same time.

    A message up to the lane's buffer is eager: it leaves when its sender is ready. A larger one
    starts when both ends are ready. A schedule of fewer lanes than the library has channels stands
    for all of them, so its lanes share their buffers: each has `buffer_bytes * num_channels` of
    the library over its own number of channels.

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
        self, schedule: Schedule, *, network: Interconnect, devices: IntArray, itemsize: int
    ) -> None:
        self._schedule, self._network, self._itemsize = schedule, network, itemsize
        self._devices = np.asarray(devices, dtype=np.int64)
        # The round is kept beside its lane so that no other array can get its identity.
        self._lanes: dict[tuple[int, int, bytes], tuple[Lane, Round]] = {}
        self._phases: list[Channels] = []
        self._kept: dict[int, list[_Sent]] = {}
        self._room = MAX_KEPT_STEPS

    def completions(self, arrivals_ps: npt.ArrayLike) -> IntArray:
        """Return when each rank is done, in picoseconds; see `play_time`."""
        if self._schedule.phases:
            return known_or_marked(self._ring_completions(self._start(arrivals_ps)))
        return self.round_completions(arrivals_ps)

    def round_completions(self, arrivals_ps: npt.ArrayLike) -> IntArray:
        """Return what `completions` does, without closed forms: every round is played."""
        num_lanes = self._schedule.num_lanes or self._schedule.num_channels
        clocks = np.tile(self._start(arrivals_ps), num_lanes)
        for loop in range(self._schedule.num_loops):
            for src, dst, costs, is_late in self._kept.get(loop) or self._loop_rounds(loop):
                ready = clocks[src]
                ready = np.where(is_late, np.maximum(ready, clocks[dst]), ready)
                np.maximum.at(clocks, src, ready + costs.busy_ps)
                np.maximum.at(clocks, dst, ready + costs.flight_ps)
        return known_or_marked(clocks.reshape(num_lanes, -1).max(axis=0))

    def _start(self, arrivals_ps: npt.ArrayLike) -> IntArray:
        launched: IntArray = np.asarray(arrivals_ps, dtype=np.int64)
        return launched + self._network.collectives.launch_latency_ps

    def _loop_rounds(self, loop: int) -> Iterator[_Sent]:
        """Yield the rounds of a loop, and keep them if there is room."""
        tables = self._schedule.loop_tables(loop)
        kept: list[_Sent] = []
        room = self._room
        for steps in self._schedule.rounds():
            if steps.src is steps.dst and steps.dst_channel is None:
                continue
            sent = self._sent(steps, tables)
            room -= len(sent.src) + ROUND_STEPS
            if room >= 0:
                kept.append(sent)
            else:
                kept.clear()
            yield sent
        if room >= 0:
            self._kept[loop], self._room = kept, room

    def _sent(self, steps: Round, tables: Tables) -> _Sent:
        step_bytes = self._step_bytes(steps, tables)
        costs = self._lane(steps, step_bytes).costs(step_bytes)
        lanes = steps.channel * self._schedule.world_size
        src, dst, is_late = lanes + steps.src, lanes + steps.dst, self._is_late(step_bytes)
        remote = steps.src != steps.dst
        if steps.dst_channel is not None:
            # Local steps cost nothing here either, but bring one lane the clock of another.
            dst = steps.dst_channel * self._schedule.world_size + steps.dst
            costs = StepCosts(*(np.where(remote, cost, 0) for cost in costs))
            return _Sent(src, dst, costs, is_late & remote)
        if not remote.all():
            costs = StepCosts(*(cost[remote] for cost in costs))
            src, dst, is_late = src[remote], dst[remote], is_late[remote]
        return _Sent(src, dst, costs, is_late)

    def _ring_completions(self, start: IntArray) -> IntArray:
        phases, network, devices = self._schedule.phases, self._network, self._devices
        if not self._phases:
            self._phases = [Channels(network, devices, phase=phase) for phase in phases]
        clocks = np.tile(start, (len(phases[0].rings), 1))  # Of each channel.
        for channels, step_bytes, num_rounds in self._runs():
            is_eager = not self._is_late(np.array(step_bytes))
            for channel, costs in enumerate(channels.costs(step_bytes)):
                rings = channels.rings[channel]
                begun = clocks[channel, rings]
                clocks[channel, rings] = play_rings(begun, costs, num_rounds, is_eager=is_eager)
        done: IntArray = clocks.max(axis=0)
        return done

    def _runs(self) -> Iterator[tuple[Channels, int, int]]:
        """Yield rounds that are alike and follow each other: rings, bytes of a step, how many."""
        schedule = self._schedule
        for channels, phase in zip(self._phases, schedule.phases, strict=True):
            loops = Counter(
                phase.step_elements(schedule.loop_tables(loop))
                for loop in range(schedule.num_loops)
            )
            for elements, repeats in loops.items():
                yield channels, elements * self._itemsize, phase.num_rounds * repeats

    def _is_late(self, step_bytes: IntArray) -> npt.NDArray[np.bool_]:
        """Return whether messages wait for their receivers, being larger than a lane's buffer."""
        library = self._network.collectives
        return (
            step_bytes * self._schedule.num_channels > library.buffer_bytes * library.num_channels
        )

    def _step_bytes(self, steps: Round, tables: Tables) -> IntArray:
        step_bytes = step_elements(tables, steps) * self._itemsize
        if self._schedule.phases:  # All of a round are padded.
            step_bytes[:] = step_bytes.max(initial=0)
        return step_bytes

    def _lane(self, steps: Round, step_bytes: IntArray) -> Lane:
        loaded = (step_bytes > 0) & crosses_links(steps)
        key = (id(steps.src), id(steps.dst), loaded.tobytes())
        if key not in self._lanes:
            if len(self._lanes) >= MAX_LANES:
                self._lanes.clear()
            ends = (self._devices[steps.src], self._devices[steps.dst])
            lane = Lane(self._network, ends, fan=steps.fan, loaded=loaded)
            self._lanes[key] = (lane, steps)
        return self._lanes[key][0]
