"""Special functions that numpy lacks, computed in float64 and rounded once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.arrays import Value

# Nodes are 1/64 apart, so five terms of Taylor's series leave a remainder below 1e-12.
_STEPS_PER_UNIT = 64
_LARGEST = 6.0  # erf is 1 in float64 from 5.93 on.
_TABLE = np.array([math.erf(i / _STEPS_PER_UNIT) for i in range(int(_LARGEST) * 64 + 1)])
_SLOPE = 2 / math.sqrt(math.pi)
_SMALL_TABLE = 256  # elements; below it one call of the C library per element is as fast (measured)


def through_float64(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes in float64 and returns its input's type."""

    def call(*values: Value) -> Value:
        wide = (np.asarray(value, np.float64) for value in values)
        result = np.asarray(compute(*wide), np.float64)
        return result.astype(values[0].dtype)[()]

    return call


def in_wider(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes in the next wider type, and rounds once.

    For float64 that is C's long double, if it is wider.
    """

    def call(*values: Value) -> Value:
        wider = np.float64 if values[0].dtype == np.float32 else np.longdouble
        result = compute(*(np.asarray(value).astype(wider) for value in values))
        return np.asarray(result).astype(values[0].dtype)[()]

    return call


def of_each(function: Callable[..., float], num_args: int = 1) -> Callable[..., Any]:
    """Return an array version of a function of Python's `math`; NaN outside its domain."""

    def one(*numbers: float) -> float:
        try:
            return function(*numbers)
        except ValueError:
            return math.nan

    return through_float64(np.frompyfunc(one, num_args, 1))


_erf_of_each = through_float64(np.frompyfunc(math.erf, 1, 1))


def erf(values: Value) -> Value:
    """Compute the error function; for float32 by Taylor's series around a table, within 1 ulp."""
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


def inverse_of_erf(target: float) -> float:
    """Return y with erf(y) = target, by Newton's method.

    Source: M. Giles, "Approximating the erfinv function", GPU Computing Gems 2, 2011; the start
    value is Winitzki's simpler approximation.
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


erfinv = through_float64(np.frompyfunc(inverse_of_erf, 1, 1))


# ---- Functions of C ----


def rounded_away(values: Value) -> Value:
    """Round halves away from zero, as C's `round`; adding 0.5 would round twice."""
    whole = np.trunc(values)
    is_up = np.abs(values - whole) >= values.dtype.type(0.5)
    up = np.copysign(values.dtype.type(1), values) * is_up
    result: Value = np.copysign(whole + up, values)
    return result


def logb(values: Value) -> Value:
    """Return the exponent of numbers, including subnormal ones."""
    _, exponent = np.frexp(values)
    special = np.where(np.isfinite(values), -np.inf, np.abs(values))
    is_plain = np.isfinite(values) & (values != 0)
    result: Value = np.where(is_plain, exponent - 1, special).astype(values.dtype)
    return result


def difference(first: Value, second: Value) -> Value:
    """Return first - second where positive, else zero; NaN stays."""
    is_less = first <= second
    result: Value = np.where(is_less, first.dtype.type(0), first - second)
    return result


def log_gamma(number: float) -> float:
    """Return log |gamma|; infinite at the poles."""
    if math.isinf(number) or (number <= 0 and number == math.floor(number)):
        return math.inf
    try:
        return math.lgamma(number)
    except OverflowError:
        return math.inf


_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_REST = -4.833646656726457e-17  # The rounding error of `_SQRT_HALF`.
_SPLIT = 134217729.0  # 2**27 + 1


def normal_cdf(number: float) -> float:
    """Return the normal distribution function, accurate also for small results."""
    if not abs(number) < 40:  # Outside, the float64 result is 0 or 1.
        return math.nan if math.isnan(number) else float(number > 0)
    z = -number * _SQRT_HALF
    lost = _rounding_error_of_product(-number, _SQRT_HALF, z) - number * _SQRT_HALF_REST
    return 0.5 * (math.erfc(z) - _SLOPE * math.exp(-z * z) * lost)


def _rounding_error_of_product(first: float, second: float, product: float) -> float:
    """Return the rounding error of a product (Dekker, 1971)."""
    high = first * _SPLIT - (first * _SPLIT - first)
    other = second * _SPLIT - (second * _SPLIT - second)
    low, rest = first - high, second - other
    return ((high * other - product) + high * rest + low * other) + low * rest


def sine_of_pi(values: Any) -> Any:
    """Compute sin(pi x); at integers zero with the sign of x."""
    quarter, left = _quarters(values)
    odd = quarter % 2 == 1
    size = np.where(odd, np.cos(np.pi * left), np.sin(np.pi * left))
    result = np.where(quarter >= 2, -size, size)
    return np.where(result == 0, np.copysign(0.0, values), result)


def cosine_of_pi(values: Any) -> Any:
    """Compute cos(pi x); zero at half-integers."""
    quarter, left = _quarters(values)
    odd = quarter % 2 == 1
    size = np.where(odd, np.sin(np.pi * left), np.cos(np.pi * left))
    result = np.where((quarter == 1) | (quarter == 2), -size, size)
    return np.where(result == 0, 0.0, result)


def _quarters(values: Any) -> tuple[Any, Any]:
    """Return the nearest quarter turn of x / 2, 0 to 3, and the remainder, both exact."""
    turn = np.fmod(values, 2.0)
    nearest = np.rint(2 * turn)
    return nearest % 4, turn - nearest / 2


def quotient_fast(first: Value, second: Value) -> Value:
    """Compute first / second as `__fdividef`, which loses all digits for divisors above 2**126.

    Source: CUDA C++ Programming Guide, 'Intrinsic Functions'.
    """
    is_large = (np.abs(second) > 2.0**126) & np.isfinite(second)
    return np.where(is_large, first * first.dtype.type(0), first / second)


def power_fast(base: Any, exponent: Any) -> Any:
    """Compute base ** exponent as `__powf`, by logarithms: NaN for all negative bases.

    Source: CUDA C++ Programming Guide, 'Intrinsic Functions'.
    """
    return np.exp2(exponent * np.log2(base))
