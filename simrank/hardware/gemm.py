"""Times of a library's matrix products, interpolated between measured ones.

In logarithms of sizes, measured times are smooth around `floor + flops / best rate`; what is left
is fitted locally, by a plane through the neighbours of a shape. Outside of the measured sizes the
correction stays that of the nearest measured ones.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterable

Array = np.ndarray[Any, Any]

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
