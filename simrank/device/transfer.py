"""Copies between devices and the host: bytes that share the links they cross (E11)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from simrank.device.buffer import wait_values
from simrank.device.current import stream_on
from simrank.device.memory import guarded
from simrank.device.operation import Operation
from simrank.device.races import Accesses, Touched
from simrank.engine import Activity, ActivityPool, Resource
from simrank.engine.delays import TRANSFER
from simrank.hardware.activity_rates import solve_rates
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from simrank.device.buffer import Buffer
    from simrank.device.device import Device
    from simrank.device.stream import Stream
    from simrank.engine import Engine
    from simrank.hardware.cluster import Cluster


class _Route(NamedTuple):
    """Links from device to device, what a byte uses of each, and the time of the first byte."""

    links: tuple[int, ...]
    demands: tuple[tuple[Resource, float], ...]
    latency_ps: int


class Pace(Protocol):
    """How a library lets a message flow, where that is not what its links would do."""

    @property
    def latency_ps(self) -> int:
        """Return what passes before the first byte flows."""

    @property
    def flow_ps(self) -> int:
        """Return how long its bytes flow, alone."""

    @property
    def bytes_per_s(self) -> float:
        """Return what all such messages on one link reach together."""


class Newcomer(Protocol):
    """What will cross links and, while nothing else does, needs not to be looked at.

    Attributes:
        ends_ps: When it is done, alone.
    """

    ends_ps: int

    def share(self) -> None:
        """Share links from now on: something else is there."""


class Network:
    """The links of a cluster in one run: what crosses them shares them.

    Attributes:
        cluster: The frozen cluster.
        pool: Transfers in flight, and the bytes of collectives.
        version: Grows whenever a link becomes slower or faster.
    """

    def __init__(self, engine: Engine, cluster: Cluster) -> None:
        self.engine = engine
        self.cluster = cluster
        self.pool = ActivityPool(engine, solve_rates)
        self.version = 0
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
        """Let something cross links, which it shares once it is not the only one."""
        if len(self.pool) or self._has_lone():
            self._wake_lone()
            newcomer.share()
        else:
            self._lone = newcomer

    def start(self, activity: Activity) -> None:
        """Put bytes in flight now."""
        self._wake_lone()
        self.pool.start(activity)

    def _has_lone(self) -> bool:
        return self._lone is not None and self._lone.ends_ps > self.engine.now_ps

    def _wake_lone(self) -> None:
        lone, self._lone = self._lone, None
        if lone is not None and lone.ends_ps > self.engine.now_ps:
            lone.share()

    def route_bandwidth_bytes_per_s(self, src: int, dst: int) -> float:
        """Return what the narrowest link from device to device carries when it is free."""
        links = list(self._route(src, dst).links) or [self.cluster.num_links]
        return float(self.cluster.link_bandwidth_bytes_per_s[links].min())

    def _route(self, src: int, dst: int) -> _Route:
        """Return the links from device to device; looked up once."""
        route = self._routes.get((src, dst))
        if route is None:
            paths = self.cluster.paths([src], [dst])
            links = tuple(int(i) for i in paths.links[0] if i != self.cluster.num_links)
            demands = tuple((self.link(index), 1.0) for index in links)
            route = _Route(links, demands, int(paths.latency_ps[0]))
            self._routes[src, dst] = route
        return route

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
        links, demands, latency_ps = self._route(src, dst)
        start_ps = self.engine.now_ps

        def arrived() -> None:
            for observer in self.engine.observers:
                names = tuple(self.cluster.link_name(link) for link in links)
                observer.on_transfer(size_bytes, names, start_ps, self.engine.now_ps)
            done()

        max_rate = float("inf")
        if pace is not None and links:
            latency_ps = pace.latency_ps
            beyond = self.route_bandwidth_bytes_per_s(src, dst) / pace.bytes_per_s
            demands = tuple((link, max(beyond, 1.0)) for link, _ in demands)
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


class TransferOperation(Operation):
    """A copy between two devices, or between a device and its host.

    Args:
        stream: A stream of the device that drives the copy.
        route: (source, target) device indices; None stands for the host.
        size_bytes: What crosses.
        effect: Moves the values, at the end.
        touched: What it reads and writes.
    """

    __slots__ = ("_drop", "_route")
    kind = "copy"

    def __init__(
        self,
        stream: Stream,
        route: tuple[int | None, int | None],
        size_bytes: int,
        effect: Callable[[], None] | None = None,
        touched: Touched | None = None,
    ) -> None:
        source, into = ("host" if end is None else f"device {end}" for end in route)
        super().__init__(stream, f"copy {source} to {into}", effect, touched)
        self._route = route
        self._drop: Callable[[], None] | None = None
        self.details = {"bytes": size_bytes}

    def begin(self) -> None:
        """Cross the route, or the host link at the bandwidth of the device's host link."""
        assert self.details is not None, "set when made"
        device, size_bytes = self.stream.device, self.details["bytes"]
        source, into = self._route
        if source is not None and into is not None:
            self._drop = device.network.transfer(source, into, size_bytes, self.end)
        else:
            activity = Activity(float(size_bytes), [(device.host_link, 1.0)], self.end)
            device.pool.start(activity)
            self._drop = lambda: device.pool.drop(activity)

    def end(self) -> None:
        """Let go of the activity, which refers back, and complete."""
        self._drop = None
        super().end()

    def drop(self) -> None:
        """Take it out of flight."""
        if self._drop is not None:
            self._drop()


def copy_between(target: Buffer, src: Buffer) -> TransferOperation:
    """Issue a copy from or to a device on its current stream; on that of the source if both are."""
    device = src.cuda_device or target.cuda_device
    assert device is not None, "copies within the host are no transfers"
    if src.cuda_device is None:
        wait_values(src)
    stream = stream_on(device)
    other = None if target.cuda_device in (None, device) else stream_on(target.cuda_device)
    if other is not None:
        stream.wait_stream(other)  # As in torch: the target's own work comes first,
    operation = TransferOperation(
        stream,
        (_index(src), _index(target)),
        src.nbytes,
        _effect(target, src),
        Accesses((src,) if src.cuda_device is not None else (), (target,)),
    )
    stream.submit(operation)
    if other is not None:
        other.wait_for(operation)  # and goes on when the bytes have arrived.
    return operation


def _index(buffer: Buffer) -> int | None:
    return None if buffer.storage.device is None else buffer.storage.device.index


def upload(tensor: Buffer, values: np.ndarray[Any, Any], device: Device) -> None:
    """Fill a new tensor of `device` with a copy of an array, copied in stream order.

    The values are in place at once: nobody can look at a tensor that is new without waiting for
    the copy, and the caller may change its array as soon as this returns.
    """
    if tensor.storage.has_values:
        tensor.array[...] = values
    operation = TransferOperation(
        stream_on(device), (None, device.index), tensor.nbytes, touched=Accesses((), (tensor,))
    )
    tensor.storage.note_write(operation, tensor.array)
    operation.stream.submit(operation)


def _effect(target: Buffer, src: Buffer) -> Callable[[], None]:
    # Host memory is read at once, as a copy from pageable memory does.
    view, from_host = target.array, src.cuda_device is None
    values = src.array.copy() if from_host and src.storage.has_values else src.array

    def assign() -> None:
        view[...] = values.astype(view.dtype) if values.dtype != view.dtype else values

    return guarded(assign, (src,), (target,))
