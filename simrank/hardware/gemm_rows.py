"""Measured matrix products of several devices, and their residuals from the rule.

`configs/gemm/rows` has one table per dtype, with a column per device; `configs/gemm/fit` has the
facts of these devices, the rule's constants and the widths of intervals, which
`simrank calibrate --gemm` writes. The residual of a product is interpolated between its nearest
measured ones.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.config.folders import configs_dir
from simrank.hardware.gemm import TABLE_DTYPES, load_gemm_rows
from simrank.hardware.gemm_rule import Machine, RuleConstants, rule_us
from simrank.hardware.spec import START_US

if TYPE_CHECKING:
    from pathlib import Path

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
    machine: Machine

    def machine_in(self, kind: str) -> Machine:
        """Return its facts for a kind of product."""
        return self.machine._replace(peak_flops=self.peaks[PEAK_OF[kind]])


class Fit(NamedTuple):
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

    def time_us(self, machine: Machine, sizes: Array, kind: str) -> Array:
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


def size_class(sizes: Array, fit: Fit) -> Array:
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
        machine = Machine(
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
def read_fits() -> dict[tuple[str, str], Fit]:
    """Return the fits of all kinds and devices."""
    names = RuleConstants._fields
    return {
        (row["kind"], row["device"]): Fit(
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
