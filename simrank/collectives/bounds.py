"""Theory bounds of collectives, as pure functions; used by property tests and reports.

Letters: n ranks; S bytes as nccl-tests counts them (the largest buffer of the call: all n blocks of
all_gather, reduce_scatter, all_to_all, gather and scatter); alpha the time of an empty step; B
bytes per second per rank and direction. All results are picoseconds, as floats: they are limits,
not costs.

Source:
    Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005; Patarasuk and Yuan, JPDC 69(2), 2009;
    bus bandwidth: NVIDIA/nccl-tests `doc/PERFORMANCE.md`.
"""

import math

from simrank.collectives.problem import GATHERED, ROOTED
from simrank.units import PS_PER_S


def busbw_factor(collective: str, world_size: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines it.

    Args:
        collective: One of `COLLECTIVES`, or sendrecv.
        world_size: Number of ranks n.
    """
    if collective == "sendrecv" or (collective in ROOTED and collective not in GATHERED):
        return 1.0
    share = (world_size - 1) / world_size
    return 2 * share if collective == "all_reduce" else share


def latency_bound_ps(
    collective: str, world_size: int, *, alpha_ps: float, num_ports: int = 1
) -> float:
    """Return the least time in which every rank can hear from all it depends on.

    Args:
        collective: One of `COLLECTIVES`.
        world_size: Number of ranks n.
        alpha_ps: Time of an empty step.
        num_ports: Messages that a rank can send at the same time; with one, what is known at most
            doubles in each step.
    """
    del collective  # All of them have one pair of ranks that must hear from everyone.
    num_rounds, reach = 0, 1
    while reach < world_size:
        num_rounds, reach = num_rounds + 1, reach * (num_ports + 1)
    return num_rounds * alpha_ps


def bandwidth_bound_ps(
    collective: str,
    world_size: int,
    *,
    size_bytes: float,
    bandwidth_bytes_per_s: float,
    in_switch: bool = False,
) -> float:
    """Return the least time in which the bytes can pass the busiest rank.

    Args:
        collective: One of `COLLECTIVES`.
        world_size: Number of ranks n.
        size_bytes: S.
        bandwidth_bytes_per_s: B.
        in_switch: Whether an all_reduce is reduced and spread by a switch: a rank sends its data,
            and the sum of its part.
    """
    if world_size == 1:
        return 0.0
    share = (world_size + 1) / world_size if in_switch else busbw_factor(collective, world_size)
    per_rank = share * size_bytes
    return per_rank / bandwidth_bytes_per_s * PS_PER_S


def ring_ps(
    collective: str,
    world_size: int,
    *,
    size_bytes: float,
    alpha_ps: float,
    bandwidth_bytes_per_s: float,
) -> float:
    """Return the time of a ring (or of pairwise all_to_all) with equal chunks and links.

    Args:
        collective: all_reduce, all_gather, reduce_scatter or all_to_all.
        world_size: Number of ranks n.
        size_bytes: S.
        alpha_ps: Time of an empty step.
        bandwidth_bytes_per_s: B.
    """
    num_steps = (world_size - 1) * (2 if collective == "all_reduce" else 1)
    transfer_ps = size_bytes / world_size / bandwidth_bytes_per_s * PS_PER_S
    return num_steps * (alpha_ps + transfer_ps)


def chain_ps(
    world_size: int,
    num_chunks: int,
    *,
    size_bytes: float,
    alpha_ps: float,
    bandwidth_bytes_per_s: float,
) -> float:
    """Return the time of a pipelined chain broadcast or reduce.

    Args:
        world_size: Number of ranks n.
        num_chunks: Equal chunks that follow each other.
        size_bytes: S.
        alpha_ps: Time of an empty step.
        bandwidth_bytes_per_s: B.
    """
    if world_size == 1:
        return 0.0
    transfer_ps = size_bytes / num_chunks / bandwidth_bytes_per_s * PS_PER_S
    return (world_size - 2 + num_chunks) * (alpha_ps + transfer_ps)


def best_chunk_bytes(
    num_hops: int, *, size_bytes: float, alpha_ps: float, bandwidth_bytes_per_s: float
) -> float:
    """Return the chunk that makes a pipeline over `num_hops` > 1 hops fastest.

    Args:
        num_hops: Links that every chunk passes, one after the other.
        size_bytes: S.
        alpha_ps: Time of an empty step.
        bandwidth_bytes_per_s: B.
    """
    alpha_bytes = alpha_ps / PS_PER_S * bandwidth_bytes_per_s
    return math.sqrt(alpha_bytes * size_bytes / (num_hops - 1))


def two_level_all_reduce_bound_ps(
    devices_per_node: int,
    num_nodes: int,
    *,
    size_bytes: float,
    node_bytes_per_s: float,
    nic_bytes_per_s: float,
) -> float:
    """Return the bandwidth bound of an all_reduce over nodes with one NIC per device.

    Args:
        devices_per_node: g.
        num_nodes: N.
        size_bytes: S.
        node_bytes_per_s: Rate of a device inside its node, per direction.
        nic_bytes_per_s: Rate of a NIC, per direction.
    """
    inside = bandwidth_bound_ps(
        "all_reduce",
        devices_per_node,
        size_bytes=size_bytes,
        bandwidth_bytes_per_s=node_bytes_per_s,
    )
    between = bandwidth_bound_ps(
        "all_reduce",
        num_nodes,
        size_bytes=size_bytes / devices_per_node,
        bandwidth_bytes_per_s=nic_bytes_per_s,
    )
    return max(inside, between)
