"""Times of all ranks, round by round: max-plus over arrivals, link costs and loads."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from simrank.collectives.schedule import (
    IntArray,
    Phase,
    Round,
    Schedule,
    Tables,
    crosses_links,
    step_elements,
)
from simrank.collectives.time_network import (
    MEETS,
    Ends,
    Interconnect,
    Lane,
    StepCosts,
    known_or_marked,
    timed_rounds,
    window_gates,
)
from simrank.collectives.time_ring import RingCosts, RingRounds, play_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LANES = 16  # Rounds that share their arrays are few; others never come back.
# Assumed: some 3 MB of rounds that are worked out stay with a player; larger schedules are read
# again each time. A round counts as some steps, because arrays cost memory too.
MAX_KEPT_STEPS = 1 << 16
ROUND_STEPS = 16


class _Sent(NamedTuple):
    """The steps of a round between ranks, with their costs.

    Attributes:
        src: Lane that sends.
        dst: Lane that receives.
        costs: What each step costs.
        meets: Whether each message waits for its receiver.
        gate: Number of the clock for which each step waits, if some do; see `window_gates`.
    """

    src: IntArray
    dst: IntArray
    costs: StepCosts
    meets: npt.NDArray[np.bool_]
    gate: IntArray | None = None

    def behind(self, gate: IntArray) -> Self:
        """Return these steps with the clocks for which they wait."""
        meets = gate == MEETS
        return self._replace(meets=self.meets | meets, gate=np.where(meets, self.src, gate))


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

    Messages are eager as long as they fit the buffer between two lanes: they leave when their
    sender is ready. Further ones wait until the receiver has taken as much as they need, and one
    that is larger than the buffer starts when both ends are ready (see `time_network`). A schedule
    of fewer lanes than the library has channels stands for all of them, so its lanes share their
    buffers: each has `buffer_bytes * num_channels` of the library over its own number of channels.

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
        """Return the result of `completions` by playing every round."""
        num_lanes = self._schedule.num_lanes or self._schedule.num_channels
        clocks = np.tile(self._start(arrivals_ps), num_lanes)
        gates, at = self._gates, len(clocks)
        passed = np.concatenate([clocks, np.empty_like(gates)]) if gates is not None else clocks
        for loop in range(self._schedule.num_loops):
            for src, dst, costs, meets, gate in self._kept.get(loop) or self._loop_rounds(loop):
                ready = clocks[src]
                if gate is not None:
                    ready = np.maximum(ready, passed[gate])
                ready = np.where(meets, np.maximum(ready, clocks[dst]), ready)
                np.maximum.at(clocks, src, ready + costs.busy_ps)
                np.maximum.at(clocks, dst, ready + costs.flight_ps)
                if gate is not None:
                    passed[at : (at := at + len(dst))] = clocks[dst]
        return known_or_marked(clocks.reshape(num_lanes, -1).max(axis=0))

    @cached_property
    def _gates(self) -> IntArray | None:
        """The clock that each step waits for, if any."""
        return window_gates(self._schedule, self._itemsize, room_bytes=self._room_bytes)

    @cached_property
    def _room_bytes(self) -> int:
        """Buffer of a lane towards another."""
        library = self._network.collectives
        return library.buffer_bytes * library.num_channels // self._schedule.num_channels

    def _start(self, arrivals_ps: npt.ArrayLike) -> IntArray:
        launched: IntArray = np.asarray(arrivals_ps, dtype=np.int64)
        return launched + self._network.collectives.launch_latency_ps

    def _loop_rounds(self, loop: int) -> Iterator[_Sent]:
        """Yield the rounds of a loop, and keep them if there is room."""
        tables, gates = self._schedule.loop_tables(loop), self._gates
        at = 0 if gates is None else loop * (len(gates) // self._schedule.num_loops)
        kept: list[_Sent] = []
        room = self._room
        for steps in timed_rounds(self._schedule):
            sent = self._sent(steps, tables)
            if gates is not None:
                sent = sent.behind(gates[at : at + len(sent.src)])
            at += len(sent.src)
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
        src, dst, remote = Ends.of(steps, self._schedule.world_size)
        meets = step_bytes > self._room_bytes
        if steps.dst_channel is not None:
            # Local steps cost nothing here either, but bring one lane the clock of another.
            costs = StepCosts(*(np.where(remote, cost, 0) for cost in costs))
            return _Sent(src, dst, costs, meets & remote)
        if not remote.all():
            costs = StepCosts(*(cost[remote] for cost in costs))
            src, dst, meets = src[remote], dst[remote], meets[remote]
        return _Sent(src, dst, costs, meets)

    def _ring_completions(self, start: IntArray) -> IntArray:
        phases, network, devices = self._schedule.phases, self._network, self._devices
        if not self._phases:
            self._phases = [Channels(network, devices, phase=phase) for phase in phases]
        clocks = np.tile(start, (len(phases[0].rings), 1))  # Of each channel.
        for channels, phase in zip(self._phases, phases, strict=True):
            runs = self._runs(phase)
            of_channels = zip(*(channels.costs(run.step_bytes) for run in runs), strict=True)
            for channel, costs in enumerate(of_channels):
                rings = channels.rings[channel]
                clocks[channel, rings] = play_phase(clocks[channel, rings], runs, costs)
        done: IntArray = clocks.max(axis=0)
        return done

    def _runs(self, phase: Phase) -> list[RingRounds]:
        """Return the rounds of a phase that are alike and follow each other."""
        schedule = self._schedule
        loops = Counter(
            phase.step_elements(schedule.loop_tables(loop)) for loop in range(schedule.num_loops)
        )
        runs: list[RingRounds] = []
        left_bytes = self._room_bytes
        for elements, repeats in loops.items():
            step_bytes, num_rounds = elements * self._itemsize, phase.num_rounds * repeats
            num_free = min(max(left_bytes, 0) // max(step_bytes, 1), num_rounds)
            left_bytes -= step_bytes * num_rounds
            is_eager = step_bytes <= self._room_bytes
            runs.append(RingRounds(step_bytes, num_rounds, num_free if is_eager else None))
        return runs

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


# ---- The rings of a schedule's phase, on all channels: what their messages cost ----


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
        """Yield the costs of messages of a size on each channel, in ring order: [R, m].

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
