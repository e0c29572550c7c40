"""Collectives in flight share links with each other, with messages and with copies (E11, C3).

A collective's latency passes whatever others do. Then its bytes flow: at full speed it uses its
busiest link altogether, and the others in proportion. Where links are shared, all that flows
through one gets an equal part of it (max-min), and the ends of the ranks move accordingly. What
shares with nobody ends when it would have ended anyway, to the picosecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from simrank.engine import Activity
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from simrank.collectives.schedule import IntArray
    from simrank.device import Network
    from simrank.distributed.flight import Flight
    from simrank.engine import Resource


class LinkLoads:
    """The links that a collective uses, and how much of each at full speed.

    Args:
        network: The links.
        links: [k] Their indices.
        num_bytes: [k] What each carries.

    Attributes:
        busiest: The largest of the demands that were asked for last.
        alone_rate: The rate at which those flow that share with nobody.
    """

    def __init__(self, network: Network, links: IntArray, num_bytes: IntArray) -> None:
        self._network = network
        self._carried = list(
            zip(map(network.link, links.tolist()), num_bytes.tolist(), strict=True)
        )
        nominal = network.cluster.link_bandwidth_bytes_per_s[links] / PS_PER_S
        self._nominal_ps = float((num_bytes / nominal).max(initial=0.0))
        self._version = -1
        self._demands: tuple[tuple[Resource, float], ...] = ()
        self._alone_ps = 0.0
        self.busiest, self.alone_rate = 0.0, 1.0

    @property
    def alone_ps(self) -> float:
        """How long its busiest link needs, alone, as links are now; infinite where one is down."""
        self._refresh()
        return self._alone_ps

    @property
    def slowdown(self) -> float:
        """How much longer its busiest link needs than on the cluster as described, if it works."""
        now_ps = max(
            (size / link.capacity for link, size in self._carried if link.capacity), default=0.0
        )
        return now_ps / self._nominal_ps if now_ps else 1.0

    @property
    def demands(self) -> tuple[tuple[Resource, float], ...]:
        """Bytes per picosecond of each link at full speed; none where a link is down."""
        self._refresh()
        return self._demands

    def _refresh(self) -> None:
        if self._version == self._network.version:
            return
        self._version = self._network.version
        times = [
            size / link.capacity if link.capacity else float("inf") for link, size in self._carried
        ]
        self._alone_ps = max(times, default=0.0)
        self._demands = ()
        if 0 < self._alone_ps < float("inf"):
            # Of the busiest link exactly all: alone, nothing is slower by a rounding.
            self._demands = tuple(
                (link, link.capacity * (time_ps / self._alone_ps))
                for (link, _), time_ps in zip(self._carried, times, strict=True)
            )
            # Once for all calls: most share with nobody.
            self.busiest = max(demand for _, demand in self._demands)
            rates = (link.capacity / demand for link, demand in self._demands if demand > 0)
            self.alone_rate = min(1.0, *rates)


class _Bytes(Activity):
    """The bytes of one collective, which flow as fast as its links let them.

    Args:
        flight: What is slowed down with them.
        flow_ps: How long they take alone.
        loads: What it does to its links.
    """

    __slots__ = ("_flight",)

    def __init__(self, flight: Flight, flow_ps: int, loads: LinkLoads) -> None:
        # Equal parts of a link are equal numbers of bytes on it, whoever sends them.
        weight = 1 / loads.busiest
        super().__init__(float(flow_ps), loads.demands, _nothing, max_rate=1.0, weight=weight)
        self._flight = flight

    def on_rate(self, rate: float) -> None:
        """Slow the ends of ranks down, or let them go on."""
        self._flight.set_rate(rate)


def _nothing() -> None:
    """Its flight ends by itself."""


class Shares(Protocol):
    """What is known of the bytes of a collective; worked out only where links are shared."""

    @property
    def loads(self) -> LinkLoads:
        """What it does to the links."""

    def flow_ps(self, took_ps: int) -> int:
        """Return how long bytes flow, of what it takes from its last arrival to its last end."""


class Flow:
    """How the bytes of one collective flow; a newcomer on the network.

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
                flowing.alone_rate = loads.alone_rate
            self._network.start(flowing)
            self._flight.let_go = lambda: self._network.pool.drop(flowing)
