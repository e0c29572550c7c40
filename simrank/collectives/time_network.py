"""The hardware of the time model, and the costs of one step of a round.

Source:
    Alexandrov, Ionescu, Schauser and Scheiman, "LogGP", SPAA 1995, for the two ends of a message.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from simrank.collectives.schedule import IntArray
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
