"""The hardware of the time model, the costs of one step, and room in buffers.

Source:
    Alexandrov, Ionescu, Schauser and Scheiman, "LogGP", SPAA 1995, for the two ends of a message.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from simrank.collectives.schedule import IntArray, Round, Schedule, step_elements
from simrank.errors import TimeOverflowError

FloatArray = npt.NDArray[np.float64]

# Far beyond any simulated time, and far enough below 2**63 that costs can still be added.
NOT_ARRIVED = 1 << 61
NOT_KNOWN = NOT_ARRIVED
_FIRST_UNKNOWN = 1 << 60

# Products and quotients of float64 are off by parts in 1e16: without this, a cost that is a whole
# number of picoseconds could be rounded up to the next one.
_ROUNDING = 1 - 1e-14


class Paths(Protocol):
    """Routes of k pairs of devices.

    Shapes: (k pairs, h = most hops of any of them)
        latency_ps: [k]
        links: [k, h], padded with the number of links
    """

    @property
    def latency_ps(self) -> IntArray:
        """Latency of each route, in picoseconds."""

    @property
    def links(self) -> npt.NDArray[np.integer[Any]]:
        """Links of each route."""


class CollectiveCosts(Protocol):
    """Costs of the collective library."""

    @property
    def launch_latency_ps(self) -> int:
        """Paid once per collective, before its first step, in picoseconds."""

    @property
    def step_overhead_ps(self) -> int:
        """The largest overhead of a step for its sender, in picoseconds."""

    @property
    def num_channels(self) -> int:
        """Channels that the library opens for a collective."""

    @property
    def buffer_bytes(self) -> int:
        """Buffer of one channel towards one peer, in bytes."""


class Interconnect(Protocol):
    """The part of a cluster that the time model uses; `hardware.Cluster` is one."""

    @property
    def collectives(self) -> CollectiveCosts:
        """Costs of the collective library."""

    @property
    def link_bandwidth_bytes_per_s(self) -> FloatArray:
        """Bandwidth of each link, and inf for the padding link at the end."""

    @property
    def is_mesh(self) -> bool:
        """Whether every two devices of a node have a link of their own."""

    @property
    def first_uplink(self) -> int:
        """Index of the first link between pods; that of the padding link where there is none."""

    def paths(self, src: IntArray, dst: IntArray, /) -> Paths:
        """Return the routes from each source to the destination at the same position."""

    def node_of(self, device: IntArray, /) -> IntArray:
        """Return the node of each device."""


class StepCosts(NamedTuple):
    """Costs of each step at its two ends (as in LogGP: o + m G, and L + m G).

    Attributes:
        busy_ps: How long the sender is busy: latency up to the library's overhead, and transfer.
        flight_ps: After how long the receiver has the message: the route's latency, and transfer.
    """

    busy_ps: IntArray
    flight_ps: IntArray


class Lane:
    """The links of the steps of one round: latency, and time per byte under this round's load.

    Args:
        network: The hardware.
        ends: Source and destination device of each step; they may be the same.
        fan: Steps of equal id >= 0 load a link that they share once; None means no such steps.
        loaded: Which steps carry bytes and so load their links.
        repeats: How often each step occurs at the same time; once by default.
    """

    def __init__(
        self,
        network: Interconnect,
        ends: tuple[IntArray, IntArray],
        *,
        fan: IntArray | None = None,
        loaded: npt.NDArray[np.bool_] | None = None,
        repeats: IntArray | None = None,
    ) -> None:
        paths = network.paths(*ends)
        bandwidth = network.link_bandwidth_bytes_per_s
        links = step_links(network, paths, ends, fan=fan)
        if loaded is not None:
            links = np.where(loaded[:, None], links, len(bandwidth) - 1)
        load = _link_load(links, len(bandwidth), fan=fan, repeats=repeats)
        ps_per_byte = load * 1e12 / bandwidth
        ps_per_byte[-1] = 0.0
        self.latency_ps = np.asarray(paths.latency_ps, dtype=np.int64)
        self._held_ps = np.minimum(self.latency_ps, network.collectives.step_overhead_ps)
        self.ps_per_byte: FloatArray = ps_per_byte[links].max(axis=1, initial=0.0)

    def costs(self, step_bytes: IntArray | int) -> StepCosts:
        """Return the cost of each step, its transfer rounded up once to picoseconds.

        Args:
            step_bytes: Bytes of each step.

        Raises:
            TimeOverflowError: One takes longer than simulated time lasts.
        """
        exact_ps = np.ceil(self.ps_per_byte * step_bytes * _ROUNDING)
        if exact_ps.max(initial=0.0) >= NOT_ARRIVED:
            raise TimeOverflowError(0, int(exact_ps.max()))
        transfer_ps = exact_ps.astype(np.int64)
        return StepCosts(self._held_ps + transfer_ps, self.latency_ps + transfer_ps)


def step_links(
    network: Interconnect, paths: Paths, ends: tuple[IntArray, IntArray], *, fan: IntArray | None
) -> npt.NDArray[np.integer[Any]]:
    """Return the links that each step uses.

    A step of a rank to itself uses none, but in a fan: the switch takes a rank's own share from its
    link, or hands it over, as those of others.

    Shapes: (k steps, h = most hops of any of them)
        returns: [k, h], padded with the number of links

    Args:
        network: The hardware.
        paths: The route of each step.
        ends: Source and destination device of each step.
        fan: As in `Lane`.
    """
    links = np.asarray(paths.links)
    if fan is None:
        return links
    src, dst = ends
    own = np.flatnonzero((src == dst) & (fan >= 0))
    others = np.flatnonzero((src != dst) & (fan >= 0))
    if not len(own) or not len(others):
        return links
    fans, first = np.unique(fan[others], return_index=True)
    beside = others[first][np.minimum(np.searchsorted(fans, fan[own]), len(fans) - 1)]
    peer = np.where(dst[beside] == src[own], src[beside], dst[beside])
    out = np.asarray(network.paths(src[own], peer).links)
    back = np.asarray(network.paths(peer, src[own]).links)
    num_hops = (back < len(network.link_bandwidth_bytes_per_s) - 1).sum(axis=1)
    links = links.copy()
    links[own, 0] = out[:, 0]
    links[own, 1] = back[np.arange(len(own)), num_hops - 1]
    return links


def _link_load(
    links: npt.NDArray[np.integer[Any]],
    num_links: int,
    *,
    fan: IntArray | None,
    repeats: IntArray | None,
) -> IntArray | FloatArray:
    """Return the number of steps per link; the steps of one fan count once."""
    if repeats is not None:
        weights = np.repeat(repeats, links.shape[1])
        return np.bincount(links.ravel(), weights, minlength=num_links)
    if fan is None:
        return np.bincount(links.ravel(), minlength=num_links)
    shared = fan >= 0
    load = np.bincount(links[~shared].ravel(), minlength=num_links)
    # One entry per (fan, link), however many of the fan's steps use the link.
    pairs = np.unique(fan[shared, None] * num_links + links[shared])
    return load + np.bincount(pairs % num_links, minlength=num_links)


def known_or_marked(times_ps: IntArray) -> IntArray:
    """Return times with everything that depends on an absent rank set to `NOT_KNOWN`."""
    return np.where(times_ps >= _FIRST_UNKNOWN, NOT_KNOWN, times_ps)


# ---- room in buffers: which messages wait until their receivers have taken earlier ones ----

# Assumed: in schedules of more steps only single messages are compared with the buffer. Those that
# grow so large send to a peer once or twice, or are uneven rings of hundreds of ranks, where a late
# rank has as much to pass on as it finds.
MAX_WINDOW_STEPS = 1 << 18
MEETS = -1  # Instead of a clock: the message starts when its receiver is ready too.


class Ends(NamedTuple):
    """The ends of the steps of a round.

    Attributes:
        src: Lane that sends.
        dst: Lane that receives.
        remote: Whether it is another rank's.
    """

    src: IntArray
    dst: IntArray
    remote: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, steps: Round, world_size: int) -> "Ends":
        """Return the lanes of the steps of a round."""
        channel = steps.channel if steps.dst_channel is None else steps.dst_channel
        src, dst = steps.channel * world_size + steps.src, channel * world_size + steps.dst
        return cls(src, dst, steps.src != steps.dst)


def timed_rounds(schedule: Schedule) -> Iterator[Round]:
    """Yield the rounds of a loop that change clocks."""
    for steps in schedule.rounds():
        if steps.src is not steps.dst or steps.dst_channel is not None:
            yield steps


def window_gates(schedule: Schedule, itemsize: int, *, room_bytes: int) -> IntArray | None:
    """Return the clock that each step waits for besides its sender's; None with room for all.

    Clocks are numbered: those of all lanes at the start, then, step by step through rounds and
    loops, that of the step's receiver after its round. Local steps are only counted where they
    change clocks. Where nothing has to be taken it is the sender's own start.

    Args:
        schedule: What is played.
        itemsize: Bytes of an element.
        room_bytes: Buffer of a connection.
    """
    most = max(schedule.input.num_elements, schedule.output.num_elements) * itemsize
    if most * schedule.num_rounds * schedule.num_loops <= room_bytes:
        return None
    sent = _all_sent(schedule, itemsize, room_bytes)
    if sent is None:
        return None
    gates = (_ring_gates if schedule.phases else _taken_gates)(schedule, sent, room_bytes)
    return gates if bool((gates != sent.src).any()) else None


class _Sent(NamedTuple):
    """All steps, in their order.

    Attributes:
        src: Lane that sends.
        dst: Lane that receives.
        size: Bytes; of messages that do not fit a buffer by themselves, one more than it holds.
        number: Of the round.
    """

    src: IntArray
    dst: IntArray
    size: IntArray
    number: IntArray


def _all_sent(schedule: Schedule, itemsize: int, room_bytes: int) -> _Sent | None:
    """Return all steps, or None if there are too many."""
    found: list[tuple[IntArray, IntArray, IntArray]] = []
    left = MAX_WINDOW_STEPS
    for loop in range(schedule.num_loops):
        tables = schedule.loop_tables(loop)
        for steps in timed_rounds(schedule):
            left -= steps.num_steps
            if left < 0:
                return None
            ends = Ends.of(steps, schedule.world_size)
            size = step_elements(tables, steps) * itemsize
            if schedule.phases:  # All of a round are padded.
                size[:] = size.max(initial=0)
            size = np.where(ends.remote, np.minimum(size, room_bytes + 1), 0)
            counts = ends.remote if steps.dst_channel is None else slice(None)
            found.append((ends.src[counts], ends.dst[counts], size[counts]))
    if not found:
        return None
    number = np.repeat(np.arange(len(found)), [len(src) for src, _, _ in found])
    src, dst, size = (np.concatenate(column) for column in zip(*found, strict=True))
    return _Sent(src, dst, size, number)


def _num_clocks(schedule: Schedule) -> int:
    return schedule.world_size * (schedule.num_lanes or schedule.num_channels)


def _taken_gates(schedule: Schedule, sent: _Sent, room_bytes: int) -> IntArray:
    """Return for each step the clock with which enough of its connection has been taken."""
    num_clocks = _num_clocks(schedule)
    connection = sent.src * num_clocks + sent.dst
    order = np.argsort(connection, kind="stable")
    connection, size, number = connection[order], sent.size[order], sent.number[order]
    total = np.cumsum(size)
    is_first = np.diff(connection, prepend=-1) != 0
    before = np.maximum.accumulate(np.where(is_first, total - size, 0))
    is_beyond = total - room_bytes > before
    taken = np.where(is_beyond, np.searchsorted(total, total - room_bytes), 0)
    clock = np.where(number[taken] < number, num_clocks + order[taken], MEETS)
    gates = sent.src.copy()
    gates[order[is_beyond]] = clock[is_beyond]
    return gates


def _ring_gates(schedule: Schedule, sent: _Sent, room_bytes: int) -> IntArray:
    """Return for each step beyond a buffer the clock with which its receiver began the phase."""
    num_clocks = _num_clocks(schedule)
    begun = np.arange(num_clocks)
    gates, end = sent.src.copy(), 0
    for phase in schedule.phases:
        num_rounds = phase.num_rounds * schedule.num_loops
        part = slice(end, end := end + num_rounds * num_clocks)
        size = sent.size[part].reshape(num_rounds, num_clocks)
        is_beyond = (np.cumsum(size, axis=0) > room_bytes).ravel()
        gates[part][is_beyond] = begun[sent.dst[part]][is_beyond]
        begun = np.empty_like(begun)
        begun[sent.dst[end - num_clocks : end]] = end + np.arange(num_clocks)
    return gates
