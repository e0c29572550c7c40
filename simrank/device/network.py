"""The links of a cluster in one run, whose bandwidth transfers share (E11)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from simrank.engine import Activity, ActivityPool, Resource
from simrank.engine.delays import TRANSFER
from simrank.hardware.sharing import solve_rates
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.engine import Engine
    from simrank.hardware.cluster import Cluster


class _Route(NamedTuple):
    """Links from device to device, what a byte uses of each, and the time of the first byte."""

    links: tuple[int, ...]
    demands: tuple[tuple[Resource, float], ...]
    latency_ps: int
    bytes_per_s: float  # Of the narrowest link, when it is idle.


class Pace(Protocol):
    """A library's flow of a message, instead of the links' own."""

    @property
    def latency_ps(self) -> int:
        """Return the time before the first byte flows."""

    @property
    def flow_ps(self) -> int:
        """Return the time of its bytes on idle links."""

    @property
    def bytes_per_s(self) -> float:
        """Return the total bandwidth of such messages on one link."""


class Newcomer(Protocol):
    """A transfer that needs no link sharing while it is the only one.

    Attributes:
        ends_ps: When it is done, alone.
    """

    ends_ps: int

    @property
    def shares_alone(self) -> bool:
        """Whether it shares links though nothing else is in flight."""

    def share(self) -> None:
        """Share links from now on: something else is there."""


class Network:
    """The links of a cluster in one run: what crosses them shares them.

    Attributes:
        cluster: The frozen cluster.
        pool: Transfers in flight, and the bytes of collectives.
        version: Grows whenever a link becomes slower or faster.
        replicas: Returns the transfers of replicas that do not run, for sender and receiver.
    """

    def __init__(self, engine: Engine, cluster: Cluster) -> None:
        self.engine = engine
        self.cluster = cluster
        self.pool = ActivityPool(engine, solve_rates)
        self.version = 0
        self.replicas: Callable[[int, int], Sequence[tuple[int, int]]] | None = None
        self._lone: Newcomer | None = None
        self._links: dict[int, Resource] = {}
        self._routes: dict[tuple[int, int], _Route] = {}

    def link(self, index: int) -> Resource:
        """Return one direction of a link, as a shared resource in bytes per picosecond."""
        return self.links_of([index])[0]

    def links_of(self, indices: Sequence[int]) -> list[Resource]:
        """Return several of them, made at their first use."""
        links = self._links
        missing = [index for index in indices if index not in links]
        if missing:
            rates = self.cluster.link_bandwidth_bytes_per_s[missing] / PS_PER_S
            for index, rate in zip(missing, rates.tolist(), strict=True):
                links[index] = Resource(partial(self.cluster.link_name, index), rate)
        return [links[index] for index in indices]

    def set_bandwidth(self, index: int, bandwidth_bytes_per_s: float) -> None:
        """Change a link now; what is in flight on it slows down or speeds up from here on."""
        self._wake_lone()
        self.version += 1
        self.pool.change(self.link(index), capacity=bandwidth_bytes_per_s / PS_PER_S)

    def join(self, newcomer: Newcomer) -> None:
        """Add a transfer to its links, which it shares from the second transfer on."""
        is_crowded = self.replicas is not None and newcomer.shares_alone
        lone = self._lone
        is_lone = lone is None or lone.ends_ps <= self.engine.now_ps
        if len(self.pool) or not is_lone or is_crowded:
            self._wake_lone()
            newcomer.share()
        else:
            self._lone = newcomer

    def start(self, activity: Activity) -> None:
        """Put bytes in flight now."""
        self._wake_lone()
        self.pool.start(activity)

    def _wake_lone(self) -> None:
        lone, self._lone = self._lone, None
        if lone is not None and lone.ends_ps > self.engine.now_ps:
            lone.share()

    def route_bandwidth_bytes_per_s(self, src: int, dst: int) -> float:
        """Return the bandwidth of the narrowest link between two devices when it is idle."""
        return self._route(src, dst).bytes_per_s

    def _route(self, src: int, dst: int) -> _Route:
        """Return the links from device to device; looked up once."""
        route = self._routes.get((src, dst))
        if route is None:
            paths = self.cluster.paths([src], [dst])
            links = tuple(int(i) for i in paths.links[0] if i != self.cluster.num_links)
            times = self._times(src, dst, links)
            demands = tuple((self.link(i), n) for i, n in zip(links, times, strict=True))
            rates = self.cluster.link_bandwidth_bytes_per_s[list(links) or [self.cluster.num_links]]
            route = _Route(links, demands, int(paths.latency_ps[0]), float(rates.min()))
            self._routes[src, dst] = route
        return route

    def _times(self, src: int, dst: int, links: Sequence[int]) -> list[float]:
        """Return the number of transfers on each link, those of replicas included."""
        replicas = () if self.replicas is None else self.replicas(src, dst)
        if not replicas:
            return [1.0] * len(links)
        paths = self.cluster.paths([s for s, _ in replicas], [d for _, d in replicas])
        return [1.0 + int((paths.links == link).sum()) for link in links]

    def transfer(
        self,
        src: int,
        dst: int,
        size_bytes: int,
        done: Callable[[], None],
        pace: Pace | None = None,
    ) -> Callable[[], None]:
        """Move bytes from device to device: the route's latency, then its shared bandwidth.

        Args:
            src: The device that sends.
            dst: The device that gets them.
            size_bytes: What crosses.
            done: Called when it has.
            pace: What a library makes of it; None: what the links do.

        Returns:
            What takes it out of flight, for a rank that was aborted.
        """
        links, demands, latency_ps, bytes_per_s = self._route(src, dst)
        start_ps = self.engine.now_ps

        def arrived() -> None:
            for observer in self.engine.observers:
                names = tuple(self.cluster.link_name(link) for link in links)
                observer.on_transfer(size_bytes, names, start_ps, self.engine.now_ps)
            done()

        max_rate = float("inf")
        if pace is not None and links:
            latency_ps = pace.latency_ps
            beyond = bytes_per_s / pace.bytes_per_s
            if beyond > 1.0:
                demands = tuple([(link, times * beyond) for link, times in demands])
            max_rate = size_bytes / pace.flow_ps if pace.flow_ps else max_rate
        work = float(size_bytes) if links else 0.0
        activity = Activity(work, demands, arrived, max_rate=max_rate)
        flows_ps = start_ps + latency_ps
        if self.engine.delays is not None:
            flows_ps += self.engine.delays.draw(TRANSFER, src, lambda: None)
        wakeup = self.engine.call_at(flows_ps, lambda: self.start(activity))

        def drop() -> None:
            self.engine.cancel(wakeup)
            self.pool.drop(activity)

        return drop
