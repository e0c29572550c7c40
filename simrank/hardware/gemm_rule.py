"""Times of matrix products on devices without measurements; see `rule_us`.

A product is cut into tiles, and its sum over k into splits; the device's SMs take them in waves. A
tile takes as long as its arithmetic, the way of its operands from the cache, and the steps of its
loop over k let it. The library takes what is fastest. Six constants are shared by all devices.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.hardware.gemm import TABLE_DTYPES
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.hardware.spec import DeviceSpec

Array = np.ndarray[Any, Any]

# Tiles of m x n that libraries have kernels for (CUTLASS's and hipBLASLt's defaults), and how
# many parts a sum over k may be cut into, of no fewer than 128 elements each.
_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256))
_SPLITS = (1, 2, 4, 8, 16)
_CHOICES = np.array([(*tile, split) for tile in _TILES for split in _SPLITS], dtype=np.float64)
_SHORTEST_SUM = 128
_STEP_BYTES = 128  # Of a row of an operand: what one step of the loop over k takes.
# Blocks in clusters of 2 x 4, the largest portable size of CUDA's, fetch one operand once per four
# of them and the other once per two: TMA multicast (CUDA programming guide, thread block clusters).
_SHARED_BY_CLUSTERS = 2 / (1 / 2 + 1 / 4)
# Best product of any shape / peak: the mean of H100, B200 and MI355X (80.3, 77.6 and 62.2 %;
# github.com/stas00/ml-engineering, compute/accelerator, maximum achievable matmul).
_BEST_OF_PEAK = 0.734


class RuleConstants(NamedTuple):
    """Constants of the rule that hold on all devices.

    Attributes:
        efficiency: Rate of a tile's arithmetic / the device's best product.
        cache: Rate at which a cache gives operands / the memory's.
        wave_us: Start and end of a wave of tiles.
        step_us: A step of the loop over k can take no less.
        floor_us: A product of nothing.
        memory: Rate at which products read and write memory / a copy's.
    """

    efficiency: float
    cache: float
    wave_us: float
    step_us: float
    floor_us: float
    memory: float


# Fitted to all bf16 rows of configs/gemm; tests/hardware/test_gemm_rule.py fits them again.
CONSTANTS = RuleConstants(1.036, 1.910, 2.701, 0.0557, 2.841, 0.887)


class Machine(NamedTuple):
    """Facts of a device that the rule uses.

    Attributes:
        best_flops: Operations per second of its best product.
        num_sms: Its streaming multiprocessors (compute units).
        memory_bytes_per_s: Rate of a copy in its memory.
        has_clusters: Whether blocks that run together fetch an operand once (Hopper and later).
    """

    best_flops: float
    num_sms: int
    memory_bytes_per_s: float
    has_clusters: bool


def rule_us(
    machine: Machine, sizes: Array, itemsize: int = 2, constants: RuleConstants = CONSTANTS
) -> Array:
    """Return the times of products, in microseconds.

    Args:
        machine: The device.
        sizes: Rows of batch, m, n, k: `batch` products of an m x k by a k x n matrix.
        itemsize: Bytes of an element of the operands; those of results are 2.
        constants: What is the same on all devices.

    Source: own; waves as in NVIDIA's "Matrix Multiplication Background User's Guide".
    """
    batch, m, n, k = (sizes[:, column, None].astype(np.float64) for column in range(4))
    tile_m, tile_n, splits = _CHOICES.T
    cache_bytes_per_us = constants.cache * machine.memory_bytes_per_s / 1e6
    best_flops_per_us = constants.efficiency * machine.best_flops / 1e6
    tiles = batch * np.ceil(m / tile_m) * np.ceil(n / tile_n) * splits
    sum_bytes = k / splits * itemsize
    arithmetic_us = 2 * tile_m * tile_n * k / splits * machine.num_sms / best_flops_per_us
    fetched_bytes = (tile_m + tile_n) * sum_bytes * np.minimum(tiles, machine.num_sms)
    sharing = _SHARED_BY_CLUSTERS if machine.has_clusters else 1.0
    fetch_us = fetched_bytes / (sharing * cache_bytes_per_us)
    steps_us = sum_bytes / _STEP_BYTES * constants.step_us
    # A smooth maximum: what is nearly as slow as the slowest delays it a little.
    tile_us = (arithmetic_us**3 + fetch_us**3 + steps_us**3) ** (1 / 3)
    waves_us = np.ceil(tiles / machine.num_sms) * (tile_us + constants.wave_us)
    moved_bytes = batch * ((m + n) * k * itemsize + 2 * m * n)
    memory_us = moved_bytes / (constants.memory * machine.memory_bytes_per_s / 1e6)
    # Parts of sums are written as float32, and read by the last program, in the same wave.
    joined_us = 2 * splits * batch * m * n * 4 / cache_bytes_per_us
    times_us = np.maximum(waves_us, memory_us) + np.where(splits > 1, joined_us, 0.0)
    is_possible = (splits == 1) | (k / splits >= _SHORTEST_SUM)
    fastest: Array = np.where(is_possible, times_us, np.inf).min(axis=1)
    return constants.floor_us + fastest


@lru_cache(maxsize=4096)
def _predicted_ps(machine: Machine, itemsize: int, product: tuple[int, int, int, int]) -> int:
    return ceil(float(rule_us(machine, np.array([product]), itemsize)[0]) * PS_PER_US)


def predicted_ps(spec: DeviceSpec, dtype: str, product: tuple[int, int, int, int]) -> int | None:
    """Return the time of a library's product on a device without measured ones, in picoseconds.

    None for dtypes of which nothing was measured anywhere, or in which the device has no peak.

    Args:
        spec: The device.
        dtype: torch's name of the dtype.
        product: batch, m, n and k.
    """
    peak, of_best = spec.peak_flops.get(dtype), spec.peak_flops.get("bfloat16")
    if peak is None or dtype not in TABLE_DTYPES or min(product) < 1:
        return None
    best = spec.best_product_flops
    share = _BEST_OF_PEAK if best is None or not of_best else best / of_best
    bandwidth = spec.memory_bandwidth_bytes_per_s
    machine = Machine(share * peak, spec.num_sms, bandwidth, spec.has_block_clusters)
    return _predicted_ps(machine, 1 if dtype.startswith("float8") else 2, product)


# Where fits start, and how they weigh: sizes below 1,024 half, and outliers beyond 10 % less.
_START = RuleConstants(1.0, 3.0, 1.0, 0.1, 4.0, 1.0)
_OUTLIER = 0.1
_SMALL_WEIGHT = 0.5
_MAX_STEPS = 40


def fit_rule(tables: Sequence[tuple[Machine, Array, Array]]) -> RuleConstants:
    """Return the constants with which the rule is nearest to measured times.

    Args:
        tables: For each device what is known of it, its rows as in `rule_us`, and their times in
            microseconds.
    """

    def errors(logs: Array) -> Array:
        constants = RuleConstants(*np.exp(logs))
        return np.concatenate(
            [
                np.where(sizes[:, 1:].min(axis=1) >= 1024, 1.0, _SMALL_WEIGHT)
                * np.log(rule_us(machine, sizes, constants=constants) / times_us)
                for machine, sizes, times_us in tables
            ]
        )

    def cost(found: Array) -> float:
        return float(np.sum(np.sqrt(1 + (found / _OUTLIER) ** 2) - 1))

    logs, damping = np.log(np.array(_START)), 1.0
    found = errors(logs)
    for _ in range(_MAX_STEPS):  # Levenberg and Marquardt's, with weights for outliers.
        shifts = 1e-3 * np.eye(len(logs))
        slopes = np.stack([(errors(logs + shift) - found) / 1e-3 for shift in shifts], axis=1)
        weighted = slopes / np.sqrt(1 + (found / _OUTLIER) ** 2)[:, None]
        normal = slopes.T @ weighted
        step = np.linalg.solve(normal + damping * np.eye(len(logs)), weighted.T @ found)
        tried = np.clip(logs - step, -9.0, 9.0)
        better = errors(tried)
        if cost(better) < cost(found):
            logs, found, damping = tried, better, damping / 3
        else:
            damping *= 4
    return RuleConstants(*(float(value) for value in np.exp(logs)))
