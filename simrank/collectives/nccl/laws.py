"""Closed-form times of NCCL's collectives, for whole arrays of sizes.

    t = L + base + D + W + k sqrt(D W)

L is the launch and base what NCCL sets up per algorithm and protocol; D is the latency of all
steps, W the time that the busiest link needs for its bytes. The last term is the ramp between the
two: with the Simple protocol a step's bytes do not overlap with its latency altogether.

Source of the form, fitted to published tables: `configs/measured`; of the constants:
`simrank.collectives.nccl.constants`. Sizes are those of nccl-tests; times are microseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simrank.collectives.nccl import constants
from simrank.collectives.nccl.constants import (
    COLLNET_CHAIN,
    COLLNET_DIRECT,
    LL,
    NET,
    NVLS,
    NVLS_TREE,
    P2P,
    PAT,
    PROTOCOLS,
    RING,
    SIMPLE,
    TREE,
)
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from simrank.collectives.nccl.machine import GroupShape
    from simrank.hardware.spec import NcclSpec

Floats = npt.NDArray[np.float64]
Numbers = float | Floats

_PER_US = 1e6  # Bytes per second over it are bytes per microsecond.
PROTOCOL_FACTOR = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}  # Of a link's rate: the rest is flags.
_RAMP_RANKS = 8  # NVLS's ramp grows with the square root of the ranks beyond so many.

# Messages between two ranks, as NCCL's send and recv run them.
P2P_BASE_US = 9.2  # Fitted to sendrecv of 8 B on B200: 9.8 us with one LL step of 0.6.
P2P_PEER_US = 0.28  # Fitted to all-to-all on 8 B200: per further peer of the node.
P2P_REMOTE_PEER_US = 2.7  # NCCL's LL step between nodes, per peer on another node.
P2P_CHANNEL_BYTES = 16 << 20  # Source: fitted to sendrecv on B200 and A100; bytes per channel.
P2P_NET_CHUNK_BYTES = 128 << 10  # Source: NVIDIA/nccl v2.30.7, NCCL_P2P_NET_CHUNKSIZE.
# Between such pieces of a lone message a card waits: fitted to sendrecv of 16 B200 on two nodes,
# 0.41 of a card. Messages to several peers fill these waits: all-to-all of 16 ranks on two nodes
# reaches 0.92 to 1.01 of the cards at four sites (0.47 and 0.77 at a fifth, by its settings).
P2P_NET_CHUNK_US = 2.0
# Of a card, by messages between racks: all-to-all of 128 GB300 in two racks, one site.
P2P_RACK_SHARE = 0.25
P2P_MAX_CHANNELS = 32  # Source: NVIDIA/nccl v2.30.7, NCCL_MAX_NCHANNELS of p2p.


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted factors of NCCL's constants, and the time of a launch.

    While many series are fitted together each is an array of one entry per measured time.

    Attributes:
        launch_us: L, in microseconds.
        hop_intra: Of the latency of a step inside a node.
        hop_net: Of the latency of a step between nodes.
        bandwidth_intra: Of the rate inside a node.
        bandwidth_net: Of the rate of a network card.
        ramp: k.
        latency_ll128: Of the step latencies of LL128.
        latency_simple: Of the step latencies of Simple.
        bandwidth_ll: Of the rate that LL reaches.
        takes_fastest: Whether the fastest of these times is chosen, as where a tuner plugin
            overrides NCCL; else NCCL's own estimates choose.
    """

    launch_us: float = (
        4.0  # Assumed: a kernel launch is 2 to 5 us, and measured ones are pipelined.
    )
    hop_intra: float = 1.0
    hop_net: float = 1.0
    bandwidth_intra: float = 1.0
    bandwidth_net: float = 1.0
    ramp: float = 1.0
    latency_ll128: float = 1.0
    latency_simple: float = 1.0
    bandwidth_ll: float = 1.0
    takes_fastest: bool = False


UNCALIBRATED = Calibration()
CONSTANTS = tuple(each.name for each in fields(Calibration) if each.name != "takes_fastest")


@dataclass(frozen=True, slots=True)
class Communicator:
    """A group of ranks as NCCL sees it: shape, hardware and constants.

    Attributes:
        shape: Which ranks take part.
        spec: What NCCL finds.
        calibration: The constants to use.
    """

    shape: GroupShape
    spec: NcclSpec
    calibration: Calibration = UNCALIBRATED


class Terms(NamedTuple):
    """The parts of a time, in microseconds; the last three may be arrays, one entry per size.

    Attributes:
        launch: L.
        base: What NCCL sets up.
        latency: D.
        transfer: W.
        ramp: k sqrt(D W).
    """

    launch: float
    base: float
    latency: float
    transfer: Floats
    ramp: Floats

    @property
    def total(self) -> Floats:
        """The time."""
        return self.launch + self.base + self.latency + self.transfer + self.ramp


class NominalTimes(NamedTuple):
    """Latencies and transfer times at NCCL's own constants; `terms` applies a calibration.

    Every field is a number or an array of one entry per size.

    Attributes:
        base_us: What NCCL sets up.
        inside_us: The latency of all steps inside nodes.
        between_us: That of all steps between nodes.
        ramp_us: Latency of which only the ramp knows: a message's own step.
        port_us: The time that a device's port needs for its bytes.
        card_us: That of a network card; 0 on one node.
        pause_us: How long a card waits between the pieces of messages.
        limit_us: The least time that LL takes on any link; 0 of other protocols.
        ramp: What multiplies the ramp; 0: there is none.
        is_ll: 1 where the protocol is LL, else 0; of messages all three are 0.
        is_ll128: Likewise of LL128.
        is_simple: Likewise of Simple.
    """

    base_us: Numbers
    inside_us: Numbers
    between_us: Numbers
    ramp_us: Numbers
    port_us: Floats
    card_us: Floats
    pause_us: Floats
    limit_us: Floats
    ramp: Numbers
    is_ll: Numbers
    is_ll128: Numbers
    is_simple: Numbers

    def terms(self, calibration: Calibration) -> Terms:
        """Return the parts of the time with fitted constants."""
        latency = self._latency(calibration)
        ports, cards = self._flows(calibration)
        transfer = np.maximum(np.maximum(ports, self.limit_us), cards)
        ramp = calibration.ramp * self.ramp * np.sqrt((latency + self.ramp_us) * transfer)
        launch: Any = calibration.launch_us  # As the next two: an array only where a fit asks.
        base: Any = self.base_us
        waits: Any = latency
        return Terms(launch, base, waits, transfer, ramp)

    def slopes(self, calibration: Calibration) -> Floats:
        """Return by how much the logarithm of the time grows with that of each constant.

        Shapes: (c constants in the order of `CONSTANTS`, m sizes)
            result: [c, m]
        """
        parts = self.terms(calibration)
        ports, cards = self._flows(calibration)
        is_card = cards > np.maximum(ports, self.limit_us)
        is_port = ~is_card & (ports >= self.limit_us)
        waits = parts.latency + self.ramp_us
        by_latency = 1 + _ratio(parts.ramp, 2 * waits)
        by_transfer = 1 + _ratio(parts.ramp, 2 * parts.transfer)
        factor = _ratio(parts.latency, self._latency(_without_factors(calibration)))
        port = -by_transfer * ports * is_port
        card = -by_transfer * (cards - self.pause_us) * is_card
        zero = 0 * parts.total
        each = (
            parts.launch + zero,
            by_latency * factor * calibration.hop_intra * self.inside_us,
            by_latency * factor * calibration.hop_net * self.between_us,
            port,
            card,
            parts.ramp,
            by_latency * parts.latency * self.is_ll128,
            by_latency * parts.latency * self.is_simple,
            (port + card) * self.is_ll,
        )
        return np.stack([part + zero for part in each]) / parts.total

    def _latency(self, calibration: Calibration) -> Numbers:
        factor = np.where(self.is_ll128, calibration.latency_ll128, 1.0)
        factor = np.where(self.is_simple, calibration.latency_simple, factor)
        hops = calibration.hop_intra * self.inside_us + calibration.hop_net * self.between_us
        return factor * hops

    def _flows(self, calibration: Calibration) -> tuple[Floats, Floats]:
        of_ll = np.where(self.is_ll, calibration.bandwidth_ll, 1.0)
        cards = self.card_us / (calibration.bandwidth_net * of_ll) + self.pause_us
        return self.port_us / (calibration.bandwidth_intra * of_ll), cards


def _without_factors(calibration: Calibration) -> Calibration:
    return replace(calibration, latency_ll128=1.0, latency_simple=1.0)


def _ratio(above: Numbers, below: Numbers) -> Floats:
    """Return a quotient, 0 where nothing is divided by nothing."""
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)


class Volumes(NamedTuple):
    """Bytes that the busiest links carry.

    Attributes:
        port: What a device's port carries in one direction.
        nic: What a network card carries.
    """

    port: Floats
    nic: Floats


def terms(
    collective: str,
    algorithm: str,
    protocol: str,
    sizes_bytes: npt.ArrayLike,
    comm: Communicator,
) -> Terms:
    """Return the parts of the time of one collective.

    Shapes: (m sizes)
        sizes_bytes, transfer, ramp: [m]

    Args:
        collective: For example all_reduce.
        algorithm: tree, ring, nvls, nvls_tree or p2p.
        protocol: LL, LL128 or Simple.
        sizes_bytes: The sizes S of nccl-tests.
        comm: The ranks, and on what they are.
    """
    return work(collective, algorithm, protocol, sizes_bytes, comm).terms(comm.calibration)


def work(
    collective: str,
    algorithm: str,
    protocol: str,
    sizes_bytes: npt.ArrayLike,
    comm: Communicator,
) -> NominalTimes:
    """Return the work of a collective; arguments as of `terms`."""
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    if algorithm == P2P:
        return _p2p_work(collective, sizes, comm)
    inside, between = _latency_us(collective, algorithm, protocol, comm)
    port, card, limit = _transfer_us(collective, algorithm, protocol, sizes, comm)
    ramp = _ramp(algorithm, protocol, comm)
    base = base_us(algorithm, protocol)
    kinds = [float(protocol == each) for each in PROTOCOLS]
    return NominalTimes(base, inside, between, 0.0, port, card, 0 * port, limit, ramp, *kinds)


def base_us(algorithm: str, protocol: str) -> float:
    """Return the base latency of an algorithm and protocol."""
    known = constants.BASE_US.get(algorithm)
    return 0.0 if known is None else known[PROTOCOLS.index(protocol)]


def num_steps(collective: str, num_ranks: int) -> int:
    """Return the steps of a ring, as NCCL counts them."""
    if collective in ("broadcast", "reduce"):
        return num_ranks
    return 2 * (num_ranks - 1) if collective == "all_reduce" else num_ranks - 1


def step_counts(collective: str, algorithm: str, shape: GroupShape) -> tuple[int, int]:
    """Return the number of successive steps inside nodes, and between them."""
    nodes, depth = shape.num_nodes, shape.depth
    if algorithm == RING:
        passes = 2 if collective == "all_reduce" else 1
        between = passes * (nodes - 1)
        return num_steps(collective, shape.num_ranks) - between, between
    if algorithm == TREE:
        return 2 * (shape.num_local - 1), 2 * depth
    if algorithm == PAT:
        return shape.num_ranks, depth
    if algorithm == COLLNET_DIRECT:
        return 2 * min(1, shape.num_local - 1), 1
    if algorithm == COLLNET_CHAIN:
        return 2 * (shape.num_local - 1), 1
    return 1, 2 * depth if algorithm == NVLS_TREE else int(nodes > 1)


def step_us(algorithm: str, protocol: str, comm: Communicator) -> tuple[float, float]:
    """Return the latency of one step inside a node, and between nodes."""
    shape, spec = comm.shape, comm.spec
    index = PROTOCOLS.index(protocol)
    inside = constants.STEP_US.get((algorithm, spec.wire), (0.0, 0.0, 0.0))[index]
    between = constants.STEP_US.get((algorithm, NET), (0.0, 0.0, 0.0))[index]
    between += nic_latency_us(protocol, spec)
    if algorithm == COLLNET_DIRECT:
        inside += constants.COLLNET_PEER_US * (shape.num_local - 1)
    if algorithm == RING and shape.num_nodes > 1:
        overhead = constants.NET_OVERHEAD_US[spec.host] * (3 if protocol == SIMPLE else 1)
        inside = max(inside, overhead)
    return inside, between


def nic_latency_us(protocol: str, spec: NcclSpec) -> float:
    """Return the network card's latency per step; twice for Simple, which flushes."""
    return spec.nic_latency_ps / PS_PER_US * (2 if protocol == SIMPLE else 1)


def _latency_us(
    collective: str, algorithm: str, protocol: str, comm: Communicator
) -> tuple[float, float]:
    num_inside, num_between = step_counts(collective, algorithm, comm.shape)
    inside, between = step_us(algorithm, protocol, comm)
    return num_inside * inside, num_between * between


def volumes(collective: str, algorithm: str, sizes: Floats, comm: Communicator) -> Volumes:
    """Return the bytes of a collective on its busiest links."""
    shape, nics = comm.shape, max(comm.spec.nics, 1)
    n, local, nodes = shape.num_ranks, shape.num_local, shape.num_nodes
    crossing = sizes if nodes == 2 else 2 * sizes  # An inner node sends three halves, and one.
    if algorithm == RING:
        whole = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0, "reduce": 1.0}
        port = whole.get(collective, (n - 1) / n) * sizes
        return Volumes(port, port / nics)
    if algorithm == PAT:  # One rank per node.
        return Volumes(0 * sizes, (n - 1) / n / constants.PAT_FACTOR * sizes / nics)
    if algorithm == TREE:
        return Volumes(2 * sizes if local > 1 else 0 * sizes, crossing / nics)
    if algorithm in (COLLNET_DIRECT, COLLNET_CHAIN):  # What goes up and comes back shares the bus.
        both = 2 * sizes / collnet_factor(algorithm, comm)
        return Volumes(both if local > 1 else 0 * both, both / nics)
    if algorithm == NVLS and nodes == 1:
        return Volumes((n + 1) / n * sizes, sizes / nics)
    if algorithm == NVLS:
        crossing = 2 * (n - 1) / n * sizes  # As NCCL counts what its switches reduce.
    return Volumes((local + 1) / local * sizes, crossing / nics)


def collnet_factor(algorithm: str, comm: Communicator) -> float:
    """Return CollNet's share of the bus; CollNet direct loses where ranks share network cards."""
    if algorithm == COLLNET_CHAIN:
        return 1.0
    ranks_per_nic = comm.shape.num_local / max(comm.spec.nics, 1)
    return constants.COLLNET_FACTOR[comm.spec.architecture] * 2 / (1 + ranks_per_nic)


def port_bytes_per_us(algorithm: str, protocol: str, comm: Communicator) -> float:
    """Return the rate of a device's port for an algorithm, with a protocol's flags in it."""
    spec = comm.spec
    if algorithm in (NVLS, NVLS_TREE):
        return spec.nvls_bytes_per_s * constants.NVLS_EFFICIENCY[spec.architecture] / _PER_US
    ring = spec.ring_bytes_per_s_of(comm.shape.num_local)
    return ring * PROTOCOL_FACTOR[protocol] / _PER_US


def ll_max_bytes_per_us(comm: Communicator) -> float:
    """Return the most that LL carries."""
    shape, spec = comm.shape, comm.spec
    if shape.num_nodes == 1:
        return constants.LL_MAX_ONE_NODE_GBPS[spec.architecture] * 1e3
    return constants.LL_MAX_NODES_GBPS[spec.host][0 if shape.num_nodes == 2 else 1] * 1e3


def _transfer_us(
    collective: str, algorithm: str, protocol: str, sizes: Floats, comm: Communicator
) -> tuple[Floats, Floats, Floats]:
    """Return the transfer times of ports, network cards and LL's limit."""
    carried = volumes(collective, algorithm, sizes, comm)
    port = carried.port / port_bytes_per_us(algorithm, protocol, comm)
    limit, is_one_node = 0 * sizes, comm.shape.num_nodes == 1
    if protocol == LL:
        most = np.maximum(carried.port, 0 * sizes if is_one_node or algorithm != TREE else sizes)
        limit = most / ll_max_bytes_per_us(comm)
    if is_one_node:
        return port, 0 * sizes, limit
    card = carried.nic / (comm.spec.nic_bytes_per_s * PROTOCOL_FACTOR[protocol] / _PER_US)
    return port, card, limit


def _ramp(algorithm: str, protocol: str, comm: Communicator) -> float:
    shape = comm.shape
    if protocol != SIMPLE:
        return 0.0
    if algorithm not in (NVLS, NVLS_TREE):
        return 1.0
    ranks = shape.num_local if shape.num_nodes > 1 else shape.num_ranks
    return math.sqrt(max(ranks, _RAMP_RANKS) / _RAMP_RANKS)


def _p2p_work(collective: str, sizes: Floats, comm: Communicator) -> NominalTimes:
    """Messages between pairs: all_to_all, gather, scatter, sendrecv."""
    shape, spec = comm.shape, comm.spec
    if collective == "sendrecv":
        return message_work(sizes, comm, shape.num_ranks)
    n, peers, remote = shape.num_ranks, shape.num_local - 1, shape.num_ranks - shape.num_least
    port = spec.ring_bytes_per_s_of(shape.num_local) / _PER_US
    sharing = shape.num_least / max(spec.nics, 1)  # Ranks of one card; below 1: cards of a rank.
    return _exchange_work(
        peers / n * sizes / port, remote / n * sizes * sharing, (peers - 1, remote), comm
    )


def message_terms(sizes_bytes: npt.ArrayLike, comm: Communicator, num_members: int) -> Terms:
    """Return the parts of the time of a message from a rank to another one.

    Args:
        sizes_bytes: [m] Bytes that are sent.
        comm: The two, or all ranks where each sends to the next one.
        num_members: Ranks of the communicator: NCCL divides its channels among so many peers.
    """
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    return message_work(sizes, comm, num_members).terms(comm.calibration)


def message_work(sizes: Floats, comm: Communicator, num_members: int) -> NominalTimes:
    """Return the work of a message; arguments as of `message_terms`."""
    shape, spec = comm.shape, comm.spec
    channels = np.clip(
        sizes / P2P_CHANNEL_BYTES, max(1, P2P_MAX_CHANNELS // num_members), P2P_MAX_CHANNELS
    )
    port = (
        np.minimum(channels * spec.p2p_channel_bytes_per_s, spec.ring_bytes_per_s_of(2)) / _PER_US
    )
    inside = 0 * sizes if shape.num_local == 1 else sizes / port
    return _exchange_work(inside, sizes, (0, 1), comm)  # One message of a node crosses its card.


def message_bytes_per_s(comm: Communicator) -> float:
    """Return the message rate of a port over all channels; between nodes, of a network card."""
    calibration, spec = comm.calibration, comm.spec
    if comm.shape.num_nodes == 1:
        return spec.ring_bytes_per_s_of(2) * calibration.bandwidth_intra
    rate = spec.nic_bytes_per_s * calibration.bandwidth_net / _PER_US
    return P2P_NET_CHUNK_BYTES / (P2P_NET_CHUNK_BYTES / rate + P2P_NET_CHUNK_US) * _PER_US


def _exchange_work(
    inside_us: Floats, card_bytes: Floats, peers: tuple[int, int], comm: Communicator
) -> NominalTimes:
    """Return the work of an exchange of messages.

    Shapes: (m sizes)
        inside_us, card_bytes: [m]

    Args:
        inside_us: What those to ranks of the node take.
        card_bytes: What a network card carries, if there are several nodes.
        peers: Further ones on the node; those on other nodes.
        comm: The ranks.
    """
    spec, between, card, pause = comm.spec, 0.0, 0 * card_bytes, 0 * card_bytes
    if comm.shape.num_nodes > 1:
        share = P2P_RACK_SHARE if comm.shape.num_local > constants.MOST_OF_A_BOARD else 1.0
        card = card_bytes / (share * spec.nic_bytes_per_s / _PER_US)
        if peers[1] == 1:
            pause = card_bytes / P2P_NET_CHUNK_BYTES * P2P_NET_CHUNK_US
        between = P2P_REMOTE_PEER_US * peers[1] + spec.nic_latency_ps / PS_PER_US
    step = constants.STEP_US[RING, spec.wire][0]
    base = P2P_BASE_US - UNCALIBRATED.launch_us + step
    inside = P2P_PEER_US * max(peers[0], 0)
    return NominalTimes(
        base, inside, between, step, inside_us, card, pause, 0 * card, 1.0, 0.0, 0.0, 0.0
    )
