"""Special functions that numpy lacks, computed in float64 and rounded once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.arrays import Value

# Abscissae are 1/64 apart: the remainder of five terms of Taylor's series is below 1e-12.
_STEPS_PER_UNIT = 64
_LARGEST = 6.0  # erf is 1 in float64 from 5.93 on.
_TABLE = np.array([math.erf(i / _STEPS_PER_UNIT) for i in range(int(_LARGEST) * 64 + 1)])
_SLOPE = 2 / math.sqrt(math.pi)
_SMALL_TABLE = 256  # elements; below it the C library one by one is as fast (measured)


def through_float64(compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that computes in float64 and gives back the type it got."""

    def call(values: Value) -> Value:
        result = np.asarray(compute(np.asarray(values, np.float64)), np.float64)
        return result.astype(values.dtype)[()]

    return call


_erf_of_each = through_float64(np.frompyfunc(math.erf, 1, 1))


def erf(values: Value) -> Value:
    """Return the error function: of float32 by Taylor's series around a table, within 1 ulp."""
    if values.dtype == np.float64 or values.size < _SMALL_TABLE:
        value_of_all: Value = _erf_of_each(values)
        return value_of_all
    size = np.abs(values.astype(np.float64))
    inside = np.minimum(np.nan_to_num(size, nan=0.0), _LARGEST)
    step = np.rint(inside * _STEPS_PER_UNIT)
    x = step / _STEPS_PER_UNIT
    h = inside - x
    # Derivatives of erf: slope * exp(-x^2) times Hermite polynomials.
    series = 1 + h * (-x + h * ((2 * x * x - 1) / 3 + h * (x / 2 - x * x * x / 3)))
    result = _TABLE[step.astype(np.int64)] + _SLOPE * np.exp(-x * x) * h * series
    result = np.copysign(result, values)
    return np.where(np.isnan(values), np.nan, result).astype(values.dtype)


def _inverse_of_erf(target: float) -> float:
    """Return y with erf(y) = target, by Newton's method from Giles' approximation.

    Source: M. Giles, "Approximating the erfinv function", GPU Computing Gems 2, 2011: the start
    is Winitzki's simpler one, good enough for Newton.
    """
    if not -1 < target < 1:
        return math.copysign(math.inf, target) if abs(target) == 1 else math.nan
    if target == 0:
        return target
    log = math.log1p(-target * target)
    half = 2 / (math.pi * 0.147) + log / 2
    result = math.copysign(math.sqrt(math.sqrt(half * half - log / 0.147) - half), target)
    for _ in range(4):
        if abs(target) < 0.5:
            error = math.erf(result) - target
        else:  # The complement keeps its digits near 1.
            error = (1 - abs(target)) - math.erfc(abs(result))
            error = error if target > 0 else -error
        result -= error / (_SLOPE * math.exp(-result * result))
    return result


erfinv = through_float64(np.frompyfunc(_inverse_of_erf, 1, 1))
