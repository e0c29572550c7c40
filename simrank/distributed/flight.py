"""A collective in flight: end times of its ranks, projected from remaining work (E11).

`Flow` and its helpers share links with messages and copies.
"""

from __future__ import annotations

from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from simrank.engine import Activity, Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.collectives.schedule import IntArray
    from simrank.device import Network
    from simrank.engine import Engine, Resource, Wakeup

    FloatArray = np.ndarray[Any, np.dtype[np.float64]]


class Landing(NamedTuple):
    """Ranks that end together.

    Attributes:
        after_ps: When, counted from the collective's beginning, at its nominal speed.
        group_ranks: Its ranks, in group order.
    """

    after_ps: int
    group_ranks: tuple[int, ...]


class Lands(Protocol):
    """Receives the ends of ranks of a collective."""

    def end(self, group_ranks: Sequence[int]) -> None:
        """End these ranks now."""


def landings(ends_ps: IntArray, group_ranks: IntArray) -> tuple[Landing, ...]:
    """Return ends as groups of ranks, the first ones first.

    Shapes: (m ranks)
        ends_ps, group_ranks: [m]
    """
    order = ends_ps.argsort(kind="stable")
    pairs = zip(ends_ps[order].tolist(), group_ranks[order].tolist(), strict=True)
    return tuple(
        Landing(end_ps, tuple(rank for _, rank in ranks))
        for end_ps, ranks in groupby(pairs, key=lambda pair: pair[0])
    )


def _nothing() -> None:
    """It has no bytes in flight."""


class Flight:
    """A collective, or the decided part of one, on its way to the ends of its ranks.

    Its ends are one entry of the engine's queue at a time. They are projected: `set_rate` settles
    what has been done so far and moves those that are still ahead.

    Args:
        engine: The engine.
        call: Told of the ranks that end.
        begin_ps: When it began, in picoseconds.
        ahead: The ends, sorted.

    Attributes:
        last_end_ps: When the last ranks end at nominal speed.
        let_go: Called when it is cancelled: takes its bytes out of flight.
    """

    __slots__ = (
        "_ahead",
        "_call",
        "_cursor",
        "_done_ps",
        "_engine",
        "_rate",
        "_since_ps",
        "_wakeup",
        "last_end_ps",
        "let_go",
    )

    def __init__(
        self, engine: Engine, call: Lands, begin_ps: int, ahead: tuple[Landing, ...]
    ) -> None:
        self._engine = engine
        self._call = call
        self._ahead = ahead
        self._cursor = 0
        self._since_ps = begin_ps
        self.last_end_ps = begin_ps + ahead[-1].after_ps
        self._done_ps = 0.0
        self.let_go: Callable[[], None] = _nothing
        self._rate = 1.0
        self._wakeup: Wakeup = engine.call_at(begin_ps + ahead[0].after_ps, self._land)

    def set_rate(self, rate: float) -> None:
        """Go on at another speed from now on.

        Args:
            rate: Picoseconds of nominal time per picosecond; 1 is the nominal speed, 0 stands.
        """
        if rate == self._rate:
            return
        now_ps = self._engine.now_ps
        self._done_ps += (now_ps - self._since_ps) * self._rate
        stood, self._since_ps, self._rate = self._rate == 0, now_ps, rate
        if self._cursor < len(self._ahead):
            if not stood:
                self._engine.cancel(self._wakeup)
            if rate:
                self._wakeup = self._engine.call_at(self._end_ps(), self._land)

    def cancel(self) -> None:
        """Forget the ends that are still ahead: they are projected again."""
        if self._cursor < len(self._ahead) and self._rate:
            self._engine.cancel(self._wakeup)
        self._cursor = len(self._ahead)
        self.let_go()

    @property
    def is_over(self) -> bool:
        """Whether no end is ahead any more."""
        return self._cursor == len(self._ahead)

    def _end_ps(self) -> int:
        """Return when the next ranks end, as it looks now."""
        left_ps = self._ahead[self._cursor].after_ps - self._done_ps
        end_ps = self._since_ps + (left_ps if self._rate == 1.0 else left_ps / self._rate)
        return max(ceil(end_ps), self._engine.now_ps)

    def _land(self) -> None:
        landing = self._ahead[self._cursor]
        self._cursor += 1
        if self._cursor < len(self._ahead):
            self._wakeup = self._engine.call_at(self._end_ps(), self._land)
        else:
            self.let_go = _nothing  # What it called refers back.
        self._call.end(landing.group_ranks)


# ---- Sharing of links among collectives, messages and copies in flight (E11, C3) ----
# A collective's latency passes independently of other flows. Then its bytes flow: at full speed it
# uses its busiest link altogether, and the others in proportion. Where links are shared, all that
# flows through one gets an equal part of it (max-min), and the ends of the ranks move accordingly.
# A flow that shares no link ends when it would have ended anyway, to the picosecond.


class Speed(NamedTuple):
    """Rates of a collective on its links at one time.

    Attributes:
        alone_ps: How long its busiest link needs, alone; infinite where one is down.
        demands: [k] Bytes per picosecond of each link at full speed; empty where a link is down.
        busiest: The largest of them.
        alone_rate: The rate of flows that share no link.
    """

    alone_ps: float
    demands: list[float]
    busiest: float
    alone_rate: float


def speed_of(num_bytes: IntArray, capacities: FloatArray) -> Speed:
    """Return the rate of bytes over links.

    Shapes: (k links)
        num_bytes: [k]; capacities: [k] in bytes per picosecond; 0 where a link is down.
    """
    times_ps = np.full(len(num_bytes), np.inf)
    np.divide(num_bytes, capacities, out=times_ps, where=capacities > 0)
    alone_ps = float(times_ps.max(initial=0.0))
    if not 0 < alone_ps < np.inf:
        return Speed(alone_ps, [], 0.0, 1.0)
    # Of the busiest link exactly all: alone, nothing is slower by a rounding.
    demands = capacities * (times_ps / alone_ps)
    rates = capacities[demands > 0] / demands[demands > 0]
    return Speed(alone_ps, demands.tolist(), float(demands.max()), min(1.0, float(rates.min())))


class Carried:
    """Bytes of a schedule on each link, and the speed at the links' described bandwidths.

    Args:
        links: [k] The links of the first such group.
        num_bytes: [k] What each carries.
        bandwidths: [k] What each can, in bytes per picosecond.

    Attributes:
        links, num_bytes: As given.
        nominal: How fast.
    """

    def __init__(self, links: IntArray, num_bytes: IntArray, bandwidths: FloatArray) -> None:
        self.links, self.num_bytes = links, num_bytes
        self.nominal = speed_of(num_bytes, bandwidths)


class LinkLoads:
    """The links that a collective uses, and how much of each at full speed.

    Args:
        network: The links.
        links: [k] Their indices.
        carried: What each carries.
        times: [k] How often that much crosses each at once: of replicas that do not run, too. None:
            once.

    Attributes:
        is_crowded: Whether replicas that do not run share its links.
    """

    def __init__(
        self,
        network: Network,
        links: IntArray,
        carried: Carried,
        times: FloatArray | None = None,
    ) -> None:
        self._times = times
        self.is_crowded = times is not None and bool((times > 1).any())
        self._network = network
        self._links = links
        self._carried = carried
        self._version = 0  # Of the network: at first, links are as described.
        self._speed = self._crowded(carried.nominal)
        self._claim: Claim | None = None

    @property
    def speed(self) -> Speed:
        """Speed at current link capacity."""
        if self._version != self._network.version:
            self._version = self._network.version
            self._speed = self._crowded(speed_of(self._carried.num_bytes, self._capacities()))
            self._claim = None
        return self._speed

    def _crowded(self, speed: Speed) -> Speed:
        """Return the speed beside the replicas that do not run: they demand as much."""
        if not self.is_crowded or not speed.demands:
            return speed
        demands = np.array(speed.demands) * self._times
        used = demands > 0
        rate = float((self._capacities()[used] / demands[used]).min())
        return speed._replace(demands=demands.tolist(), alone_rate=min(speed.alone_rate, rate))

    def _capacities(self) -> FloatArray:
        links = self._network.links_of(self._links.tolist())
        return np.array([link.capacity for link in links], dtype=np.float64)

    @property
    def slowdown(self) -> float:
        """Slowdown of the busiest link against the cluster as described, if the link works."""
        capacities, nominal_ps = self._capacities(), self._carried.nominal.alone_ps
        works = capacities > 0
        times_ps = self._carried.num_bytes[works] / capacities[works]
        return float(times_ps.max(initial=0.0)) / nominal_ps if times_ps.any() else 1.0

    @property
    def claim(self) -> Claim:
        """Link claim, first in first out among identical flows."""
        demands = self.speed.demands
        if self._claim is None:
            links = self._network.links_of(self._links.tolist()) if demands else []
            self._claim = Claim(tuple(zip(links, demands, strict=True)))
        return self._claim

    @property
    def demands(self) -> Sequence[tuple[Resource, float]]:
        """Bytes per picosecond of each link at full speed; none where a link is down."""
        return self.claim.demands


class _Bytes(Activity):
    """The bytes of one collective, which flow as fast as its links let them.

    Args:
        flight: What is slowed down with them.
        flow_ps: How long they take alone.
        loads: What it does to its links.
    """

    __slots__ = ()

    def __init__(self, flight: Flight, flow_ps: int, loads: LinkLoads) -> None:
        # Equal parts of a link are equal numbers of bytes on it, for any sender.
        weight = 1 / loads.speed.busiest
        super().__init__(float(flow_ps), loads.demands, _nothing, max_rate=1.0, weight=weight)
        self.claim = loads.claim
        self.on_rate = flight.set_rate


class Shares(Protocol):
    """Bytes of a collective on its links; computed only if links are shared."""

    @property
    def is_crowded(self) -> bool:
        """Whether replicas that do not run share its links."""

    @property
    def loads(self) -> LinkLoads:
        """Its loads on the links."""

    def flow_ps(self, took_ps: int) -> int:
        """Return the time of bytes on links, within the last arrival and the last end."""


class Flow:
    """The flow of one collective's bytes on the network.

    Args:
        network: The links.
        flight: The collective.
        shares: What is known of its bytes.
        last_arrival_ps: When its last rank came.

    Attributes:
        ends_ps: When they have flowed at nominal speed.
    """

    __slots__ = ("_flight", "_last_arrival_ps", "_network", "_shares", "ends_ps")

    def __init__(
        self, network: Network, flight: Flight, shares: Shares, last_arrival_ps: int
    ) -> None:
        self._network, self._flight, self._shares = network, flight, shares
        self._last_arrival_ps = last_arrival_ps
        self.ends_ps = flight.last_end_ps

    @property
    def shares_alone(self) -> bool:
        """Whether it shares links though nothing else is in flight."""
        return self._shares.is_crowded

    def share(self) -> None:
        """Share links from when the bytes begin to flow; until now they had them alone."""
        flow_ps = self._shares.flow_ps(self.ends_ps - self._last_arrival_ps)
        begin_ps = max(self.ends_ps - flow_ps, self._network.engine.now_ps)
        loads, left_ps = self._shares.loads, self.ends_ps - begin_ps
        if loads.demands and left_ps > 0 and not self._flight.is_over:
            flowing = _Bytes(self._flight, left_ps, loads)
            self._network.engine.call_at(begin_ps, lambda: self._start(flowing))

    def _start(self, flowing: _Bytes) -> None:
        if not self._flight.is_over:
            loads = self._shares.loads
            if loads.demands is flowing.demands:  # No link has changed since.
                flowing.alone_rate = loads.speed.alone_rate
            self._network.start(flowing)
            self._flight.let_go = lambda: self._network.pool.drop(flowing)
