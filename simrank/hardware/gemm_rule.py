"""Times of a library's matrix products by a rule of tiles, waves and memory; see `rule_us`.

A product is cut into tiles, and its sum over k into splits; the device's SMs take them in waves. A
tile takes as long as its arithmetic, the reads of its operands from the cache, and the steps of its
loop over k. The library takes the fastest choice. The nine constants are fitted per measured
device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

# Tiles of m x n that libraries have kernels for (CUTLASS's and cuBLAS's; thin ones for thin
# products), and the number of parts of a sum over k, of no fewer than 128 elements each.
_TILES = (
    (64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256),
    (64, 32), (64, 16), (128, 32), (16, 64), (32, 64),
)  # fmt: skip
_SPLITS = (1, 2, 4, 8, 16)
_CHOICES = np.array([(*tile, split) for tile in _TILES for split in _SPLITS], dtype=np.float64)
_SHORTEST_SUM = 128
_STEP_BYTES = 128  # Of a row of an operand: one step of the loop over k.
_LEAST_M, _LEAST_N = 64, 16  # Of the instructions of tensor cores: thinner tiles take as long.
# Blocks in clusters of 2 x 4, the largest portable size of CUDA's, fetch one operand once per four
# of them and the other once per two: TMA multicast (CUDA programming guide, thread block clusters).
_SHARED_BY_CLUSTERS = 2 / (1 / 2 + 1 / 4)
# The tables' kernels took five copies of the weights in turn; products with fewer bytes found them
# in L2. On L40S the edge is sharp: between 16 and 20 MB of 96 MB (configs/gemm/rows).
_WEIGHT_COPIES = 5
_EDGE_POWER = 16.0


class RuleConstants(NamedTuple):
    """Constants of the rule, fitted per measured device.

    Attributes:
        efficiency: Rate of a tile's arithmetic / the peak.
        cache: Bytes per clock that an SM gets from the cache.
        wave_us: Start and end of a wave of tiles.
        step: Microseconds x GHz of one step of the loop over k.
        floor_us: A product of no size.
        memory: Rate at which products read and write memory / a copy's.
        resident: Part of L2 that holds the weights between two products.
        join_us: Sum of split parts, besides their bytes.
        quantise: Rate at which activations are quantised / a copy's.
    """

    efficiency: float
    cache: float
    wave_us: float
    step: float
    floor_us: float
    memory: float
    resident: float
    join_us: float
    quantise: float


class Machine(NamedTuple):
    """Facts of a device that the rule uses.

    Attributes:
        peak_flops: Operations per second in the product's dtype.
        num_sms: Its streaming multiprocessors (compute units).
        clock_ghz: Their clock.
        memory_bytes_per_s: Rate of a copy in its memory.
        l2_bytes: Size of its last cache.
        has_clusters: Whether blocks that run together fetch an operand once (Hopper and later).
    """

    peak_flops: float
    num_sms: int
    clock_ghz: float
    memory_bytes_per_s: float
    l2_bytes: float
    has_clusters: bool


def rule_us(machine: Machine, sizes: Array, itemsize: float, constants: RuleConstants) -> Array:
    """Return the times of products in a CUDA graph, in microseconds.

    Args:
        machine: The device.
        sizes: Rows of batch, m, n, k: `batch` products of an m x k by a k x n matrix.
        itemsize: Bytes of an element of the operands; results have 2. Below 2, the time of
            quantising m x k activations of 2 bytes is part of the product.
        constants: Those of the device, or of the one that is nearest to it.

    Source: own; waves as in NVIDIA's "Matrix Multiplication Background User's Guide".
    """
    batch, m, n, k = (sizes[:, column, None].astype(np.float64) for column in range(4))
    tile_m, tile_n, splits = _CHOICES.T
    cache_per_us = constants.cache * machine.num_sms * machine.clock_ghz * 1e3
    tiles = batch * np.ceil(m / tile_m) * np.ceil(n / tile_n) * splits
    sum_bytes = k / splits * itemsize
    tile_flops = 2 * np.maximum(tile_m, _LEAST_M) * np.maximum(tile_n, _LEAST_N) * k / splits
    arithmetic_us = tile_flops * machine.num_sms / (constants.efficiency * machine.peak_flops / 1e6)
    fetched_bytes = (tile_m + tile_n) * sum_bytes * np.minimum(tiles, machine.num_sms)
    fetch_us = fetched_bytes / ((_SHARED_BY_CLUSTERS if machine.has_clusters else 1) * cache_per_us)
    steps_us = sum_bytes / _STEP_BYTES * constants.step / machine.clock_ghz
    # A smooth maximum: what is nearly as slow as the slowest delays it a little.
    tile_us = np.cbrt(_cubed(arithmetic_us) + _cubed(fetch_us) + _cubed(steps_us))
    waves_us = np.ceil(tiles / machine.num_sms) * (tile_us + constants.wave_us)
    memory_us = _memory_us(machine, constants, (batch, m, n, k), itemsize)
    # Parts of sums are written as float32, and read by the last program, in the same wave.
    joined_us = 2 * splits * batch * m * n * 4 / cache_per_us + constants.join_us
    either_us = np.sqrt(np.sqrt(np.square(np.square(waves_us)) + memory_us**4))
    times_us = either_us + np.where(splits > 1, joined_us, 0.0)
    is_possible = (splits == 1) | (k / splits >= _SHORTEST_SUM)
    fastest: Array = np.where(is_possible, times_us, np.inf).min(axis=1)
    return constants.floor_us + fastest + quantising_us(machine, sizes, itemsize, constants)


def _cubed(times_us: Array) -> Array:
    return times_us * times_us * times_us


def quantising_us(
    machine: Machine, sizes: Array, itemsize: float, constants: RuleConstants
) -> Array:
    """Return the part of `rule_us` that quantises the activations, in microseconds."""
    elements = sizes[:, 0].astype(np.float64) * sizes[:, 1] * sizes[:, 3]
    rate_per_us = constants.quantise * machine.memory_bytes_per_s / 1e6
    return elements * (2 + itemsize) / rate_per_us if itemsize < 2 else 0 * elements


def _memory_us(
    machine: Machine, constants: RuleConstants, size: tuple[Array, ...], itemsize: float
) -> Array:
    """Return the times of reads and writes of L2 and of memory beyond it."""
    batch, m, n, k = size
    cache_per_us = constants.cache * machine.num_sms * machine.clock_ghz * 1e3
    memory_per_us = constants.memory * machine.memory_bytes_per_s / 1e6
    held_bytes = constants.resident * machine.l2_bytes
    weights = batch * n * k * itemsize
    others = batch * (m * k * itemsize + 2 * m * n)
    in_cache = 1 / (1 + (_WEIGHT_COPIES * weights / held_bytes) ** _EDGE_POWER)
    beyond = 1 / (1 + (others / held_bytes) ** -4)
    from_memory = weights * (1 - in_cache) + others * beyond
    found: Array = from_memory / memory_per_us + (others + weights * in_cache) / cache_per_us
    return found
