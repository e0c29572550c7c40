"""What the time model needs to know of the hardware, and what one step of a round costs."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from simrank.collectives.schedule import IntArray, Round

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
    """What the collective library adds."""

    @property
    def launch_latency_ps(self) -> int:
        """Paid once per collective, before its first step, in picoseconds."""

    @property
    def buffer_bytes(self) -> int:
        """A message up to this size leaves its sender without waiting for the receiver."""


class Network(Protocol):
    """The part of a cluster that the time model uses; `hardware.Cluster` is one."""

    @property
    def collectives(self) -> CollectiveCosts:
        """Costs of the collective library."""

    @property
    def link_bandwidth_bytes_per_s(self) -> FloatArray:
        """Bandwidth of each link, and inf for the padding link at the end."""

    def paths(self, src: IntArray, dst: IntArray, /) -> Paths:
        """Return the routes from each source to the destination at the same position."""


class Lane:
    """The links of the steps of one round: latency, and time per byte under this round's load.

    Args:
        network: The hardware.
        devices: Device of each rank.
        steps: A round; local steps may be among them.
        loaded: Which steps carry bytes and so load their links.
    """

    def __init__(
        self,
        network: Network,
        devices: IntArray,
        *,
        steps: Round,
        loaded: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        paths = network.paths(devices[steps.src], devices[steps.dst])
        bandwidth = network.link_bandwidth_bytes_per_s
        links = np.asarray(paths.links)
        load = _link_load(links, len(bandwidth), fan=steps.fan, loaded=loaded)
        ps_per_byte = load * 1e12 / bandwidth
        ps_per_byte[-1] = 0.0
        self.latency_ps = np.asarray(paths.latency_ps, dtype=np.int64)
        self.ps_per_byte: FloatArray = ps_per_byte[links].max(axis=1, initial=0.0)

    def cost_ps(self, step_bytes: IntArray | int) -> IntArray:
        """Return what each step costs, rounded up once to picoseconds.

        Args:
            step_bytes: Bytes of each step.
        """
        transfer = np.ceil(self.ps_per_byte * step_bytes * _ROUNDING)
        return self.latency_ps + transfer.astype(np.int64)


def _link_load(
    links: npt.NDArray[np.integer[Any]],
    num_links: int,
    *,
    fan: IntArray | None,
    loaded: npt.NDArray[np.bool_] | None,
) -> IntArray:
    """Return how many steps share each link; the steps of one fan count once."""
    if loaded is not None:
        links = np.where(loaded[:, None], links, num_links - 1)
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
