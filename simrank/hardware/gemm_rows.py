"""Measured matrix products of several devices, the rule of their times, and residuals.

`configs/gemm/rows` has one table per dtype, with a column per device; `configs/gemm/fit` has the
facts of these devices, the rule's constants and the widths of intervals, which `simrank calibrate
--gemm` writes. In logarithms of sizes, measured times are smooth around `floor + flops / best
rate`; what is left is fitted locally, by a plane through the neighbours of a shape, and outside of
the measured sizes stays that of the nearest ones; see `gemm_ps`.

By the rule, see `rule_us`, a product is cut into tiles, and its sum over k into splits; the
device's SMs take them in waves. A tile takes as long as its arithmetic, the reads of its operands
from the cache, and the steps of its loop over k. The library takes the fastest choice. The nine
constants are fitted per measured device. The residual of a product is interpolated between its
nearest measured ones.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.config.files import configs_dir
from simrank.hardware.spec import START_US
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterable


# ---- times of a library's matrix products, interpolated between measured ones ----

# Chosen by leaving out rows of all tables: 0.7 to 1.5 octaves are alike, narrower is noisier.
_WIDTH_OCTAVES = 1.0
_RIDGE = 1e-6  # Keeps the plane defined where all neighbours have one size in common.
# torch's dtype -> how the tables write products of it. Their f32 rows are TF32.
TABLE_DTYPES = {
    "bfloat16": "bf16xbf16->bf16",
    "float16": "bf16xbf16->bf16",
    "float8_e4m3fn": "f8e4m3fnxf8e4m3fn->bf16",
    "float8_e5m2": "f8e4m3fnxf8e4m3fn->bf16",
}


class GemmRow(NamedTuple):
    """One measured product.

    Attributes:
        batch: How many products at once.
        m, n, k: Of an m x k by a k x n matrix.
        time_us: Measured.
    """

    batch: int
    m: int
    n: int
    k: int
    time_us: float


class GemmCurve:
    """The times of one device in one dtype.

    Args:
        rows: What was measured.

    Attributes:
        floor_us: What the smallest product takes.
        best_flops_per_us: The best rate that was measured.
    """

    def __init__(self, rows: Iterable[GemmRow]) -> None:
        listed = list(rows)
        sizes = np.array([row[:4] for row in listed], dtype=np.float64)
        times_us = np.array([row.time_us for row in listed])
        flops = 2 * sizes.prod(axis=1)
        self.floor_us = float(times_us.min())
        self.best_flops_per_us = float((flops / times_us).max())
        self._log_sizes = np.log2(sizes)
        self._left = np.log(times_us) - np.log(self._base_us(sizes))
        self._low, self._high = self._log_sizes.min(axis=0), self._log_sizes.max(axis=0)

    def _base_us(self, sizes: Array) -> Any:  # noqa: ANN401 - an array or a scalar
        return self.floor_us + 2 * sizes.prod(axis=-1) / self.best_flops_per_us

    def time_us(self, batch: int, m: int, n: int, k: int) -> float:
        """Return the time of `batch` products of m x k by k x n matrices, in microseconds."""
        sizes = np.array([batch, m, n, k], dtype=np.float64)
        log_size = np.clip(np.log2(sizes), self._low, self._high)
        offsets = self._log_sizes - log_size
        weights = np.exp(-(offsets**2).sum(axis=1) / _WIDTH_OCTAVES**2)
        plane = np.column_stack([np.ones(len(offsets)), offsets])
        weighted = plane * weights[:, None]
        normal = plane.T @ weighted + _RIDGE * np.eye(plane.shape[1])
        correction = np.linalg.solve(normal, weighted.T @ self._left)[0]
        return float(self._base_us(sizes) * np.exp(correction))


@lru_cache(maxsize=16)
def load_gemm_rows(path: str) -> dict[str, tuple[GemmRow, ...]]:
    """Return the rows of a table by dtype, as the table writes it."""
    rows_by_dtype: dict[str, list[GemmRow]] = {}
    with Path(path).open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            sizes = [int(line[name]) for name in ("b", "m", "n", "k")]
            row = GemmRow(sizes[0], sizes[1], sizes[2], sizes[3], float(line["time_us"]))
            rows_by_dtype.setdefault(line["dtype"], []).append(row)
    return {dtype: tuple(rows) for dtype, rows in rows_by_dtype.items()}


@lru_cache(maxsize=64)
def _curve(path: str, table_dtype: str) -> GemmCurve | None:
    rows = load_gemm_rows(path).get(table_dtype)
    return None if rows is None else GemmCurve(rows)


@lru_cache(maxsize=4096)
def gemm_ps(path: str, dtype: str, batch: int, m: int, n: int, k: int) -> int | None:
    """Return the time of a library's product in picoseconds; None where nothing was measured.

    Args:
        path: The device's table.
        dtype: torch's name of the dtype.
        batch: How many products at once.
        m: Rows of the results.
        n: Columns of the results.
        k: What is summed over.

    Source: the table; see configs/gemm/README.md.
    """
    table_dtype = TABLE_DTYPES.get(dtype)
    curve = None if table_dtype is None else _curve(path, table_dtype)
    if curve is None or min(batch, m, n, k) < 1:
        return None
    return ceil(curve.time_us(batch, m, n, k) * PS_PER_US)


# ---- times of a library's matrix products by a rule of tiles, waves and memory; see `rule_us` ----

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


class GemmDevice(NamedTuple):
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


def rule_us(machine: GemmDevice, sizes: Array, itemsize: float, constants: RuleConstants) -> Array:
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
    machine: GemmDevice, sizes: Array, itemsize: float, constants: RuleConstants
) -> Array:
    """Return the part of `rule_us` that quantises the activations, in microseconds."""
    elements = sizes[:, 0].astype(np.float64) * sizes[:, 1] * sizes[:, 3]
    rate_per_us = constants.quantise * machine.memory_bytes_per_s / 1e6
    return elements * (2 + itemsize) / rate_per_us if itemsize < 2 else 0 * elements


def _memory_us(
    machine: GemmDevice, constants: RuleConstants, size: tuple[Array, ...], itemsize: float
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


# ---- measured matrix products of several devices, and their residuals from the rule ----

Array = np.ndarray[Any, Any]

# How the tables call products -> bytes of an element of the operands (block scales included).
ITEMSIZES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625}
PEAK_OF = {"bfloat16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4"}
SIZE_CLASSES = ("m <= 32", "middle", "m, n, k >= 1024", "fallback")
ANY = "any"  # Constants of all measured devices together.
_XLA_DEVICE = "mi355x"  # No other table has it.

# Kriging with an exponential covariance, chosen by leaving out (n, k) pairs: half as far and twice
# as far are alike, and so are 64 and all rows.
_RANGE_OCTAVES = 4.0
_NOISE = 0.1  # Variance of a measurement / that of the residual.
_NEIGHBOURS = 64
_ODD_OCTAVES = 0.7  # Distance of odd m, for which libraries take other kernels.
_WAVE_WEIGHT = 2.0
_WAVE_TILES = ((128, 128), (128, 256))
_FEW_WAVES = (0.5, 16.0)  # Waves of tiles between which their rounding shows.


class MeasuredDevice(NamedTuple):
    """Facts of a measured device.

    Attributes:
        name: Its column in the tables.
        like: Compute capabilities of devices that it stands for.
        peaks: Operations per second of bfloat16, fp8 and nvfp4, where it has them.
        machine: Its other facts, at the peak of bfloat16.
    """

    name: str
    like: tuple[str, ...]
    peaks: dict[str, float]
    machine: GemmDevice

    def machine_in(self, kind: str) -> GemmDevice:
        """Return its facts for a kind of product."""
        return self.machine._replace(peak_flops=self.peaks[PEAK_OF[kind]])


class GemmFit(NamedTuple):
    """Fitted facts of one device and kind of product.

    Attributes:
        constants: The rule's.
        best_share: Best measured rate / the peak.
        least: Smallest n and k of the kernel proper; below one of them, a fallback runs.
        fallback_us: The least time of the fallback.
    """

    constants: RuleConstants
    best_share: float
    least: tuple[int, int]
    fallback_us: float

    def time_us(self, machine: GemmDevice, sizes: Array, kind: str) -> Array:
        """Return the times of products by the rule, in microseconds; sizes as in `rule_us`."""
        found = rule_us(machine, sizes, ITEMSIZES[kind], self.constants)
        slowest: Array = np.maximum(found, np.where(self.falls_back(sizes), self.fallback_us, 0.0))
        return slowest

    def falls_back(self, sizes: Array) -> Array:
        """Return a mask of the products that the fallback computes."""
        found: Array = (sizes[:, 2] < self.least[0]) | (sizes[:, 3] < self.least[1])
        return found


class Residual:
    """Logarithms of measured / ruled times of one device, interpolated.

    Args:
        sizes: Rows of batch, m, n, k.
        logs: One per row.
        num_sms: Of the measured device.
    """

    def __init__(self, sizes: Array, logs: Array, num_sms: int) -> None:
        self._low, self._high = sizes.min(axis=0), sizes.max(axis=0)
        self._places, self._logs = places(sizes, num_sms), logs

    def log_at(self, size: Array, num_sms: int) -> float:
        """Return the residual of one product; beyond the measured sizes, that of the nearest."""
        place = places(np.clip(size, self._low, self._high)[None], num_sms)[0]
        return interpolate(self._places, self._logs, place, _NOISE)


def interpolate(known: Array, logs: Array, place: Array, noise: float) -> float:
    """Return the residual at a place, by kriging from its nearest known places."""
    distances = np.sqrt(((known - place) ** 2).sum(axis=1))
    number = min(_NEIGHBOURS, len(distances))
    near = np.argpartition(distances, number - 1)[:number]
    weights = np.linalg.solve(covariance(known[near], known[near], noise), logs[near])
    return float(np.exp(-distances[near] / _RANGE_OCTAVES) @ weights)


def places(sizes: Array, num_sms: int) -> Array:
    """Return products as points; close ones have similar residuals.

    Args:
        sizes: Rows of batch, m, n, k.
        num_sms: Of the device: it says how full the last wave of tiles is.
    """
    batch, m, n, k = sizes.T.astype(np.float64)
    columns = [np.log2(m), np.log2(n), np.log2(k), _ODD_OCTAVES * ((m % 2 == 1) & (m > 1))]
    for tile_m, tile_n in _WAVE_TILES:
        waves = batch * np.ceil(m / tile_m) * np.ceil(n / tile_n) / num_sms
        shows = (waves > _FEW_WAVES[0]) & (waves < _FEW_WAVES[1])
        columns.append(_WAVE_WEIGHT * np.log2(np.ceil(waves) / waves) * shows)
    return np.stack(columns, axis=1)


def covariance(left: Array, right: Array, noise: float = 0.0) -> Array:
    """Return the covariance of residuals at two sets of places; `noise` on the diagonal."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    found: Array = np.exp(-np.sqrt(np.maximum(squares, 0.0)) / _RANGE_OCTAVES)
    return found + noise * np.eye(len(left)) if noise else found


def krige_variance() -> float:
    """Return the variance of a measurement / that of the residual."""
    return _NOISE


def size_class(sizes: Array, fit: GemmFit) -> Array:
    """Return the index in `SIZE_CLASSES` of each product."""
    is_large = sizes[:, 1:].min(axis=1) >= 1024
    by_size = np.where(sizes[:, 1] <= 32, 0, np.where(is_large, 2, 1))
    found: Array = np.where(fit.falls_back(sizes), 3, by_size)
    return found


def folder() -> Path:
    """Return the folder of the tables."""
    return configs_dir() / "gemm"


@lru_cache(maxsize=1)
def measured_devices() -> dict[str, MeasuredDevice]:
    """Return the facts of all measured devices by name."""
    found = {}
    for row in _rows(folder() / "fit" / "devices.csv"):
        peaks = {name: float(row[name]) * 1e12 for name in set(PEAK_OF.values()) if row[name]}
        machine = GemmDevice(
            peaks["bfloat16"],
            int(row["num_sms"]),
            float(row["clock_ghz"]),
            float(row["memory_gb_s"]) * 1e9,
            float(row["l2_mb"]) * 1e6,
            has_clusters=row["clusters"] == "1",
        )
        like = tuple(row["like"].split())
        found[row["device"]] = MeasuredDevice(row["device"], like, peaks, machine)
    return found


@lru_cache(maxsize=4)
def read_rows(kind: str) -> dict[str, tuple[Array, Array]]:
    """Return the sizes (rows of batch, m, n, k) and times in microseconds of each device."""
    path = folder() / "rows" / f"{kind}.csv"
    with path.open(encoding="utf-8") as file:
        devices = file.readline().strip().split(",")[3:]
    cells = np.genfromtxt(path, delimiter=",", skip_header=1)
    sizes = np.stack([np.ones(len(cells)), cells[:, 2], cells[:, 0], cells[:, 1]], axis=1)
    found = {}
    for column, device in enumerate(devices, start=3):
        known = ~np.isnan(cells[:, column])
        found[device] = sizes[known], cells[known, column]
    if kind == "bfloat16":
        found[_XLA_DEVICE] = _xla_rows()
    return found


def _xla_rows() -> tuple[Array, Array]:
    """Return the sizes and times of XLA's products on MI355X, without the start of a launch."""
    rows = np.array(load_gemm_rows(str(folder() / f"{_XLA_DEVICE}.csv"))[TABLE_DTYPES["bfloat16"]])
    return rows[:, :4], rows[:, 4] - START_US


@lru_cache(maxsize=1)
def read_fits() -> dict[tuple[str, str], GemmFit]:
    """Return the fits of all kinds and devices."""
    names = RuleConstants._fields
    return {
        (row["kind"], row["device"]): GemmFit(
            RuleConstants(*(float(row[name]) for name in names)),
            float(row["best_share"]),
            (int(row["least_n"]), int(row["least_k"])),
            float(row["fallback_us"]),
        )
        for row in _rows(folder() / "fit" / "constants.csv")
    }


@lru_cache(maxsize=1)
def read_widths() -> dict[tuple[str, str, str], dict[int, float]]:
    """Return half-widths of 90% intervals, as logarithms, per size class.

    Keys are the kind of product, the relation of the measured rows, and the device, or `ANY`.
    """
    return widths_in(folder() / "fit" / "intervals.csv")


def widths_in(path: Path) -> dict[tuple[str, str, str], dict[int, float]]:
    """Return half-widths per size class of a file whose first three columns are their key."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in _rows(path):
        first, relation, device, size_class, half_width = row.values()
        found.setdefault((first, relation, device), {})[int(size_class)] = float(half_width)
    return found


@lru_cache(maxsize=64)
def residual_of(kind: str, device: str, *, falls_back: bool) -> Residual | None:
    """Return the residual of a measured device, of its kernel proper or of the fallback."""
    sizes, times_us = read_rows(kind)[device]
    fit, measured = read_fits()[kind, device], measured_devices()[device]
    kept = fit.falls_back(sizes) == falls_back
    if not kept.any():
        return None
    sizes, times_us = sizes[kept], times_us[kept]
    logs = np.log(times_us / fit.time_us(measured.machine_in(kind), sizes, kind))
    return Residual(sizes, logs, measured.machine.num_sms)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
