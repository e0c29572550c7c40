"""Cost of one program's accesses while other programs run (rule K4)."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from simrank.units import ceil_ps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device.device import Device
    from simrank.device.memory import Storage

# Assumed: the wait of one program for a load from its own device's memory (half of the about 600
# ns of a miss is hidden by other work), for an L2 round trip of an atomic or poll, and the cost of
# issuing a store (H100 latencies: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU
# Architecture via Microbenchmarking", 2024).
LOAD_PS = 300_000
ATOMIC_PS = 300_000
# Assumed: L2 delivers 2.1 times the achieved memory bandwidth (H100: 5.5 to 7 TB/s were measured,
# and 2.9 of HBM3; Chips and Cheese, "Nvidia's H100: Funny L2, and Tons of Bandwidth").
L2_PER_HBM = 2.1
# Programs with dots share tiles, and requests of neighboring SMs for one line reach L2 once (Nsight
# Compute, "L2 Request Coalescer"). A product in tiles of 192 x 192 at 777 TFLOPS takes 8.1 TB/s of
# an H100 (pranjalssh/fast.cu, kernel 6).
TILES_PER_HBM = 2.8
STORE_PS = 50_000
# Assumed: programs on half of the SMs saturate the memory; fewer leave bandwidth unused.
_SATURATING_SHARE = 0.5
# Assumed: a round trip to the host's memory over PCIe takes about a microsecond.
_HOST_LATENCY_PS = 500_000
# Programs that saturate a link: one channel of NCCL, a program, reaches 18 to 21 of the 376 GB/s
# of an H100's port (`p2p_channel_bandwidth` in `configs/clusters`).
_SATURATING_LINK = 20


class _Route(NamedTuple):
    """Route to another device."""

    latency_ps: int
    program_bytes_per_s: float  # Per program, shared with the others.


class AccessCosts:
    """Access costs of the programs of one launch.

    Args:
        device: The device of the programs.
        num_resident: Number of programs that run at the same time.
    """

    def __init__(self, device: Device, num_resident: int) -> None:
        self._device = device
        num_sharing = max(num_resident, device.spec.num_sms * _SATURATING_SHARE, 1.0)
        self._own = _Route(0, device.spec.memory_bandwidth_bytes_per_s / num_sharing)
        self._num_sharing_link = max(num_resident, _SATURATING_LINK)
        host_rate = device.spec.host_link_bandwidth_bytes_per_s / self._num_sharing_link
        self._host = _Route(_HOST_LATENCY_PS, host_rate)
        self._routes: dict[int, _Route] = {}  # By peer index, looked up once.
        # Cache of costs: a kernel has few access sizes.
        self._known: dict[tuple[Device | None, int, int], int] = {}

    def first_ps(self, storage: Storage, *, writes: bool) -> int:
        """Return the latency of a load, or the cost of issuing a store.

        Later loads from the same memory overlap with it: compilers pipeline loops.
        """
        return STORE_PS if writes else LOAD_PS + 2 * self._route(storage.device).latency_ps

    def moved_ps(self, storage: Storage, size_bytes: int, new_bytes: int) -> int:
        """Return a program's share of the time that an access occupies memory or a link.

        Args:
            storage: The accessed storage.
            size_bytes: Bytes moved.
            new_bytes: Bytes that come from or go to the memory itself; the rest is in L2.
        """
        key = (storage.device, size_bytes, new_bytes)
        cost_ps = self._known.get(key)
        if cost_ps is None:
            route = self._route(storage.device)
            if route is self._own:
                size_bytes = max(new_bytes, ceil(size_bytes / L2_PER_HBM))
            cost_ps = self._known[key] = ceil_ps(size_bytes / route.program_bytes_per_s)
        return cost_ps

    def atomic_ps(self, storages: Sequence[Storage]) -> int:
        """Return the one-way cost of an atomic to the farthest of its storages."""
        if len(storages) == 1:
            return ATOMIC_PS // 2 + self._route(storages[0].device).latency_ps
        return ATOMIC_PS // 2 + max(map(self.latency_ps, storages), default=0)

    def latency_ps(self, storage: Storage) -> int:
        """Return the latency of the route to a storage."""
        return self._route(storage.device).latency_ps

    def _route(self, peer: Device | None) -> _Route:
        if peer is self._device:
            return self._own
        if peer is None:  # Pinned host memory.
            return self._host
        route = self._routes.get(peer.index)
        if route is None:
            network, own = self._device.network, self._device.index
            latency_ps = int(network.cluster.paths([own], [peer.index]).latency_ps[0])
            rate = network.route_bandwidth_bytes_per_s(own, peer.index)
            route = _Route(latency_ps, rate / self._num_sharing_link)
            self._routes[peer.index] = route
        return route
