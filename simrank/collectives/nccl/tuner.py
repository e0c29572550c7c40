"""NCCL's tuner: algorithm and protocol by its own estimates, for whole arrays of sizes.

Source: NVIDIA/nccl v2.30.7, src/graph/tuning.cc (estimates) and src/enqueue.cc (the least wins).
These estimates choose; how long the choice takes is `laws`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.collectives.nccl import constants, laws
from simrank.collectives.nccl.constants import (
    COLLNET_CHAIN,
    COLLNET_DIRECT,
    LL,
    LL128,
    NVLINK,
    NVLS,
    NVLS_TREE,
    P2P,
    PAT,
    PROTOCOLS,
    RING,
    SIMPLE,
    TREE,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Communicator, Floats
    from simrank.collectives.nccl.machine import GroupShape
    from simrank.hardware.spec import NcclSpec

_GBPS = 1e9
_MIN_NVLS_RANKS = 3
_CORRECTION_START_BYTES = 64


class Candidate(NamedTuple):
    """An algorithm and protocol that NCCL considers.

    Attributes:
        algorithm: NCCL's name of it, for example nvls_tree; p2p of messages.
        protocol: LL, LL128 or Simple.
        estimate_us: [m] NCCL's own estimate for each size, in microseconds.
    """

    algorithm: str
    protocol: str
    estimate_us: Floats


def candidates(collective: str, sizes_bytes: npt.ArrayLike, comm: Communicator) -> list[Candidate]:
    """Return NCCL's candidates for a collective, with its estimates.

    Args:
        collective: For example all_reduce.
        sizes_bytes: [m] The sizes S of nccl-tests.
        comm: The ranks, and on what they are.
    """
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    if not is_ready_made(collective):
        simple = laws.terms(collective, P2P, SIMPLE, sizes, comm)
        return [Candidate(P2P, SIMPLE, simple.total)]
    found = []
    for algorithm in _ALGORITHMS[collective]:
        if not _is_possible(algorithm, comm):
            continue
        for protocol in (SIMPLE,) if algorithm in _SIMPLE_ONLY else PROTOCOLS:
            if protocol == LL128 and comm.spec.wire != NVLINK:
                continue
            estimate = _estimate_us(collective, algorithm, protocol, sizes, comm)
            found.append(Candidate(algorithm, protocol, estimate))
    return found


def is_ready_made(collective: str) -> bool:
    """Return whether NCCL has algorithms for a collective; it builds the rest from sends."""
    return collective in _ALGORITHMS


_SIMPLE_ONLY = (COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT)
_ALGORITHMS = {
    "all_reduce": (TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE),
    "all_gather": (RING, PAT),  # NVLS and CollNet need registered buffers.
    "reduce_scatter": (RING, PAT),
    "broadcast": (RING,),
    "reduce": (RING,),
}


def nvls_reduces(dtype: str, redop: str) -> bool:
    """Return whether the switch can reduce a dtype so. Source: NCCL's ncclNvlsSupported.

    Args:
        dtype: torch's name of the dtype.
        redop: sum, min, max, ...
    """
    if dtype in ("float32", "float64"):
        return redop == "sum"
    if dtype in ("float16", "bfloat16", "int32", "uint32", "int64", "uint64"):
        return redop in ("sum", "min", "max")
    return False


def _is_possible(algorithm: str, comm: Communicator) -> bool:
    shape, spec = comm.shape, comm.spec
    has_switch = spec.nvls_bytes_per_s > 0 and shape.num_least >= _MIN_NVLS_RANKS
    if algorithm in (COLLNET_DIRECT, COLLNET_CHAIN):
        return spec.has_collnet and shape.num_nodes > 1
    if algorithm == NVLS:  # Between nodes it takes CollNet.
        return has_switch and (shape.num_nodes == 1 or spec.has_collnet)
    # All-reduces of 128 GB200 and GB300 in two racks take as long as trees and rings do, three
    # times what this tree over the switches would take: assumed to be possible for one board only.
    if algorithm == NVLS_TREE:
        return has_switch and shape.num_nodes > 1 and shape.num_least <= constants.MOST_OF_A_BOARD
    if algorithm == PAT:
        return shape.num_local == 1
    return True


def _estimate_us(
    collective: str, algorithm: str, protocol: str, sizes: Floats, comm: Communicator
) -> Floats:
    shape, spec = comm.shape, comm.spec
    inside, between = laws.step_us(algorithm, protocol, comm)
    num_inside, num_between = laws.step_counts(collective, algorithm, shape)
    latency = laws.base_us(algorithm, protocol) + num_inside * inside + num_between * between
    bandwidth = _algorithm_GBps(collective, algorithm, protocol, comm)
    per_size: Floats = np.full(len(sizes), bandwidth)
    waits: Floats = np.full(len(sizes), latency)
    if algorithm == TREE:
        per_size = bandwidth * _tree_correction(protocol, sizes)
    if _is_slow_ring(collective, algorithm, protocol, shape):
        is_large = sizes / (spec.channels * shape.num_ranks) >= constants.RING_SIMPLE_NODES_BYTES
        waits = np.where(is_large, latency * constants.RING_SIMPLE_NODES_FACTOR, latency)
    return waits + sizes / per_size / 1e3


def _is_slow_ring(collective: str, algorithm: str, protocol: str, shape: GroupShape) -> bool:
    is_ring = algorithm == RING and protocol == SIMPLE
    return is_ring and shape.num_nodes > 1 and collective == "all_reduce"


def _tree_correction(protocol: str, sizes: Floats) -> Floats:
    row = constants.TREE_CORRECTION[PROTOCOLS.index(protocol)]
    table = np.array([*row, 1.0], dtype=np.float64)
    index = np.log2(np.maximum(sizes / _CORRECTION_START_BYTES, 1)).astype(np.int64)
    return np.asarray(table[np.minimum(index, len(table) - 1)], dtype=np.float64)


def _algorithm_GBps(  # noqa: N802 - the unit's name
    collective: str, algorithm: str, protocol: str, comm: Communicator
) -> float:
    """Return size over time of large sizes, as NCCL estimates it."""
    shape, spec = comm.shape, comm.spec
    if algorithm == TREE:
        return _tree_GBps(protocol, comm)
    if algorithm == NVLS_TREE:
        per_channel = constants.NVLS_TREE_CHANNEL_GBPS[spec.architecture][shape.column]
        bus = min(2 * _nvls_GBps(spec), _crossing_GBps(comm), spec.channels * per_channel)
        return bus * shape.num_ranks / laws.num_steps(collective, shape.num_ranks)
    steps = laws.num_steps(collective, shape.num_ranks)
    if algorithm == PAT:
        return constants.PAT_FACTOR * _network_GBps(comm) * shape.num_ranks / steps
    if algorithm in (COLLNET_DIRECT, COLLNET_CHAIN):
        return 0.5 * laws.collnet_factor(algorithm, comm) * _ring_GBps(protocol, comm)
    bus = 2 * _nvls_GBps(spec) if algorithm == NVLS else _ring_GBps(protocol, comm)
    if algorithm == NVLS and shape.num_nodes > 1:
        bus = min(bus, _network_GBps(comm))
    return bus * shape.num_ranks / steps


def _nvls_GBps(spec: NcclSpec) -> float:  # noqa: N802 - the unit's name
    return spec.nvls_bytes_per_s / _GBPS * constants.NVLS_EFFICIENCY[spec.architecture]


def _network_GBps(comm: Communicator) -> float:  # noqa: N802 - the unit's name
    return comm.spec.nics * comm.spec.nic_bytes_per_s / _GBPS


def _crossing_GBps(comm: Communicator) -> float:  # noqa: N802 - the unit's name
    """Return the network bandwidth of trees; on two nodes each tree crosses once."""
    return _network_GBps(comm) * (2 if comm.shape.num_nodes == 2 else 1)


def _ring_GBps(protocol: str, comm: Communicator) -> float:  # noqa: N802 - the unit's name
    spec = comm.spec
    bus = spec.ring_bytes_per_s_of(comm.shape.num_local) / _GBPS
    if comm.shape.num_nodes > 1:
        bus = min(bus, _network_GBps(comm))
    if protocol == LL:
        return min(laws.ll_max_bytes_per_us(comm) / 1e3, constants.RING_LL_FACTOR * bus)
    if protocol == LL128:
        per_channel = constants.RING_LL128_CHANNEL_GBPS[spec.architecture][comm.shape.column]
        return min(constants.RING_LL128_FACTOR * bus, spec.channels * per_channel)
    return bus


def _tree_GBps(protocol: str, comm: Communicator) -> float:  # noqa: N802 - the unit's name
    """Return half of the bus bandwidth: a tree sends all up, and all down."""
    spec, column, is_one_node = comm.spec, comm.shape.column, comm.shape.num_nodes == 1
    bus = spec.ring_bytes_per_s_of(comm.shape.num_local) / _GBPS
    if not is_one_node:
        bus = min(bus, _crossing_GBps(comm))
    per_channel = constants.TREE_CHANNEL_GBPS[spec.architecture][column]
    found = min(constants.TREE_FACTOR * bus, spec.channels * per_channel)
    if protocol == LL:
        found = min(found * constants.TREE_LL_FACTOR, laws.ll_max_bytes_per_us(comm) / 1e3)
    elif protocol == LL128:
        per_channel = constants.TREE_LL128_CHANNEL_GBPS[spec.architecture][column]
        found = min(found * _TREE_LL128_FACTORS[not is_one_node], spec.channels * per_channel)
    return found / 2 * (constants.TREE_PATTERN_FACTOR if is_one_node else 1.0)


_TREE_LL128_FACTORS = (constants.TREE_LL128_FACTOR_ONE_NODE, constants.TREE_LL128_FACTOR_NODES)
