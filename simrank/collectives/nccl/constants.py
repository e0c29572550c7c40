"""NCCL's own constants: latencies, bandwidth limits and correction factors of its tuner.

Times are in microseconds, rates in GB/s (10^9 bytes per second). Source of every number that names
no other: NVIDIA/nccl v2.30.7, src/graph/tuning.cc.
"""

from __future__ import annotations

from typing import Final

SOURCE: Final = "NVIDIA/nccl v2.30.7 src/graph/tuning.cc"

LL, LL128, SIMPLE = "LL", "LL128", "Simple"
PROTOCOLS: Final = (LL, LL128, SIMPLE)
TREE, RING, NVLS, NVLS_TREE, P2P = "tree", "ring", "nvls", "nvls_tree", "p2p"
PAT = "pat"  # Parallel aggregated trees, of groups with one rank per node.
# Switches of the network reduce (SHARP).
COLLNET_DIRECT, COLLNET_CHAIN = "collnet_direct", "collnet_chain"
ALGORITHMS: Final = (TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT)

NVLINK, PCI, NET = "nvlink", "pci", "net"
VOLTA, AMPERE, HOPPER, BLACKWELL = "volta", "ampere", "hopper", "blackwell"

# By algorithm: of LL, LL128, Simple. Those that are not here start at once.
BASE_US: Final = {TREE: (6.8, 14.0, 8.4), RING: (6.6, 14.0, 8.4), PAT: (8.0, 8.0, 8.0)}

# One step over a link, by algorithm and kind of link: of LL, LL128, Simple.
STEP_US: Final = {
    (TREE, NVLINK): (0.6, 1.25, 4.0),
    (RING, NVLINK): (0.6, 1.9, 3.4),
    (NVLS, NVLINK): (0.0, 0.0, 25.0),
    (NVLS_TREE, NVLINK): (0.0, 0.0, 25.0),
    (COLLNET_DIRECT, NVLINK): (0.0, 0.0, 3.7),
    (COLLNET_CHAIN, NVLINK): (0.0, 0.0, 2.8),
    (TREE, PCI): (1.0, 1.9, 4.0),
    (RING, PCI): (1.0, 2.5, 5.7),
    (TREE, NET): (5.0, 8.5, 14.0),
    (RING, NET): (2.7, 4.0, 14.0),
    (COLLNET_DIRECT, PCI): (0.0, 0.0, 3.7),
    (COLLNET_CHAIN, PCI): (0.0, 0.0, 2.8),
    (COLLNET_DIRECT, NET): (0.0, 0.0, 31.0),
    (COLLNET_CHAIN, NET): (0.0, 0.0, 30.0),
    (NVLS, NET): (0.0, 0.0, 18.0),
    (NVLS_TREE, NET): (0.0, 0.0, 20.9),
    (PAT, NVLINK): (0.0, 0.0, 2.8),  # Per rank: what it computes.
    (PAT, PCI): (0.0, 0.0, 2.8),
    (PAT, NET): (0.0, 0.0, 14.0 / 3.5),
}

# What a host adds to a step between nodes: of LL and LL128; of Simple it is three times that.
NET_OVERHEAD_US: Final = {"intel": 1.0, "amd": 2.0}

# The most that LL carries: in one node by architecture, between nodes by the host's maker.
LL_MAX_ONE_NODE_GBPS: Final = {VOLTA: 39.0, AMPERE: 87.7, HOPPER: 141.0, BLACKWELL: 282.0}
LL_MAX_NODES_GBPS: Final = {"intel": (39.0, 20.4), "amd": (22.5, 19.0)}  # On 2 nodes, on more.

# Per channel: in one node, on two, on more.
RING_LL128_CHANNEL_GBPS: Final = {
    VOLTA: (20.0, 20.0, 20.0),
    AMPERE: (20.0, 20.0, 20.0),
    HOPPER: (36.7, 36.7, 36.7),
    BLACKWELL: (40.0, 40.0, 40.0),
}
TREE_LL128_CHANNEL_GBPS: Final = {
    VOLTA: (20.0, 20.0, 20.0),
    AMPERE: (20.0, 20.0, 20.0),
    HOPPER: (36.7, 36.7, 29.0),
    BLACKWELL: (55.6, 31.67, 20.0),
}
TREE_CHANNEL_GBPS: Final = {
    VOLTA: (26.5, 18.5, 10.0),
    AMPERE: (24.0, 23.6, 17.8),
    HOPPER: (38.7, 41.4, 36.0),
    BLACKWELL: (70.0, 42.8, 24.0),
}
NVLS_TREE_CHANNEL_GBPS: Final = {
    VOLTA: (26.5, 18.5, 10.0),
    AMPERE: (24.0, 23.6, 17.8),
    HOPPER: (0.0, 57.7, 45.5),
    BLACKWELL: (0.0, 96.0, 80.0),
}
NVLS_EFFICIENCY: Final = {VOLTA: 0.0, AMPERE: 0.0, HOPPER: 0.85, BLACKWELL: 0.74}

PAT_FACTOR: Final = 0.75  # Of the bus bandwidth.
COLLNET_PEER_US: Final = 0.4  # Each way, for each further rank of the node.
COLLNET_FACTOR: Final = {VOLTA: 1.0, AMPERE: 1.0, HOPPER: 0.85, BLACKWELL: 0.85}  # Of the bus.
RING_LL_FACTOR: Final = 0.5  # Of the bus bandwidth: half of what LL sends are flags.
RING_LL128_FACTOR: Final = 0.92
TREE_FACTOR: Final = 0.92
TREE_LL_FACTOR: Final = 1 / 3.8
TREE_LL128_FACTOR_ONE_NODE: Final = 7 / 9
TREE_LL128_FACTOR_NODES: Final = 120 / 128
TREE_PATTERN_FACTOR: Final = 0.85
RING_SIMPLE_NODES_FACTOR: Final = 1.4  # Of the latency of all_reduce; 1.9 before Ampere.
RING_SIMPLE_NODES_BYTES: Final = 64  # From so many bytes per channel and rank on.

# Of the bandwidth of a tree, by floor(log2(bytes / 64)): of LL, LL128, Simple. Then 1.
# fmt: off
TREE_CORRECTION: Final = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
     0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
     0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
     0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
# fmt: on

# Ranks of one node: more are a rack that NVLink joins. Boards have up to 16 GPUs.
MOST_OF_A_BOARD: Final = 16
