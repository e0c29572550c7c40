"""Functions of numbers that numpy lacks: special functions, tf32, bytes, directed rounding.

Most are computed in float64 and rounded once.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.protocols import Value

    Gap = Callable[..., Fraction]

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


# ---- number formats without an element type in kernels ----

_DROPPED_BITS = 13  # Of the 23 of float32's mantissa, tf32 keeps 10.


def to_tf32(values: Value, *, truncates: bool = False) -> Value:
    """Round float32 values to tf32, ties away from zero, or truncate them as tensor cores do.

    Source: PTX ISA, `cvt.rna.tf32.f32`; the docstring of `tl.dot` for the truncation.
    """
    bits = np.asarray(values, np.float32).view(np.uint32)
    half = np.uint32(0 if truncates else 1 << (_DROPPED_BITS - 1))
    kept = np.uint32(0xFFFF_FFFF << _DROPPED_BITS & 0xFFFF_FFFF)
    rounded = ((bits + half) & kept).view(np.float32)
    result: Value = np.where(np.isfinite(values), rounded, values)[()]
    return result


def bytes_of_both(first: Value, second: Value, selector: Value) -> Value:
    """Select four of the eight bytes of two words by the nibbles of a selector, as uint32.

    A nibble with its highest bit set repeats the sign of its byte.

    Source: PTX ISA, `prmt`.
    """
    chosen = (np.asarray(selector)[..., None] >> np.arange(0, 16, 4)) & 0xF
    low, high = (values.astype(np.uint32).astype(np.uint64) for values in (first, second))
    both = np.asarray(low | (high << np.uint64(32)))[..., None]
    found = (both >> (8 * (chosen & 7)).astype(np.uint64)) & np.uint64(0xFF)
    found = np.where(chosen & 8, np.where(found & np.uint64(0x80), 0xFF, 0), found)
    result: Value = np.ascontiguousarray(found.astype(np.uint8)).view(np.uint32)[..., 0]
    return result


# ---- directed rounding: down, up or toward zero, by the side of the exact value ----
# Exact values are Python fractions, one by one; speed does not matter for these functions.


MODES = ("rd", "ru", "rz")


def _is_finite(number: float) -> bool:
    return isinstance(number, int) or math.isfinite(number)


def _side(gap: Gap) -> Callable[..., int]:
    """Return a function that compares the exact value with a result: -1, 0 or 1."""

    def side(near: float, *operands: float) -> int:
        if math.isnan(near) or not all(map(_is_finite, operands)):
            return 0
        start = Fraction(0) if math.isinf(near) else Fraction(near)
        try:
            off = gap(start, *map(Fraction, operands))
        except ZeroDivisionError:
            return 0
        if math.isinf(near):  # The exact value of an overflow is finite.
            return -1 if near > 0 else 1
        return (off > 0) - (off < 0)

    return side


def directed(
    mode: str, nearest: Callable[..., Any], gap: Gap, name: str = ""
) -> Callable[..., Any]:
    """Return a function with directed rounding.

    Args:
        mode: "rd" down, "ru" up, "rz" toward zero.
        nearest: Computes one of the two neighbors of the exact result.
        gap: Returns the exact value minus a result, or any number of that sign, as a fraction.
        name: "add", "sub" or "fma": sums of zero are negative when rounded down.
    """
    side_of = np.frompyfunc(_side(gap), gap.__code__.co_argcount, 1)

    def call(*values: Value) -> Value:
        operands = [np.asarray(value) for value in values]
        near = np.asarray(nearest(*operands))
        plain = [operand.astype(object) for operand in operands]
        side = np.asarray(side_of(near.astype(np.float64).astype(object), *plain), np.int8)
        below, above = (near.dtype.type(end) for end in (-np.inf, np.inf))
        if mode == "rz":
            moves, towards = side * np.sign(near) < 0, near.dtype.type(0)
        else:
            moves, towards = (side < 0, below) if mode == "rd" else (side > 0, above)
        result = np.where(moves, np.nextafter(near, towards), near)
        if mode == "rd" and name:
            result = np.where((near == 0) & (side == 0), _zero_sum(name, operands), result)
        return result[()]

    return call


def _zero_sum(name: str, operands: list[Any]) -> Any:
    """Return a zero sum rounded down: positive only if both addends are positive zeros."""
    first, last = operands[0], operands[-1]
    if name == "sub":
        last = -last
    if name == "fma":
        first = np.copysign(first, 1) * np.sign(operands[1]) * np.copysign(1, operands[0])
        first = np.where(operands[0] * operands[1] == 0, _signed_zero(*operands[:2]), first)
    is_positive = (first == 0) & (last == 0) & ~np.signbit(first) & ~np.signbit(last)
    return np.where(is_positive, 0.0, -0.0)


def _signed_zero(first: Any, second: Any) -> Any:
    return np.where(np.signbit(first) != np.signbit(second), -0.0, 0.0)


def fused_nearest(first: Value, second: Value, third: Value) -> Value:
    """Compute first * second + third, rounded once to the nearest or its neighbor."""

    def one(a: float, b: float, c: float) -> float:
        if not all(map(math.isfinite, (a, b, c))):
            return a * b + c
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if exact == 0:
            return a * b + c if a * b == 0 else 0.0
        sign = 1.0 if exact > 0 else -1.0
        try:
            return math.copysign(float(exact), sign)
        except OverflowError:
            return sign * math.inf

    with np.errstate(all="ignore"):
        wide = np.frompyfunc(one, 3, 1)(*(value.astype(object) for value in (first, second, third)))
        result: Value = np.asarray(wide, np.float64).astype(first.dtype)
    return result


GAPS: dict[str, Gap] = {
    "add": lambda r, a, b: a + b - r,
    "sub": lambda r, a, b: a - b - r,
    "mul": lambda r, a, b: a * b - r,
    "div": lambda r, a, b: a / b - r,
    "fma": lambda r, a, b, c: a * b + c - r,
    "rcp": lambda r, a: 1 / a - r,
    "sqrt": lambda r, a: a - r * r,
    "convert": lambda r, a: a - r,
}
NEAREST: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "fma": fused_nearest, "rcp": lambda x: 1 / x, "sqrt": np.sqrt,
}  # fmt: skip
_SUMS = ("add", "sub", "fma")


def arithmetic() -> dict[str, Callable[..., Any]]:
    """Return libdevice's arithmetic functions with directed rounding, by name."""
    return {
        f"{name}_{mode}": directed(mode, nearest, GAPS[name], name if name in _SUMS else "")
        for name, nearest in NEAREST.items()
        for mode in MODES
    }


def conversion(mode: str, target: Any) -> Callable[..., Any]:
    """Return a conversion to a floating type with directed rounding."""
    return directed(mode, lambda values: values.astype(target), GAPS["convert"])


# ---- Bessel functions, erfcx and the inverse of erfc: series in decimals, rounded once ----
# The results keep their digits near zeros, where a polynomial in float64 loses them. Each call
# takes 20 to 200 us (measured): accuracy matters here, not speed.
#
# Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.23, 9.1.10-13, 9.1.27,
# 9.2.5-10 and 9.6.10.

_EULER = Decimal(
    "0.577215664901532860606512090082402431042159335939923598805767234884867726777664670936947063"
)
_PI = Decimal(
    "3.141592653589793238462643383279502884197169399375105820974944592307816406286208998628034825"
    "3421170679821480865"
)
_SERIES_BELOW = 25.0  # Above it the asymptotic expansion is more accurate than float64.
_DIGITS = 40  # 17 of the result, 17 that float64 loses near a zero, and a reserve.
_MOST_ORDERS = 10_000  # assumed: larger ones would take minutes
_SMALLEST_LOG = -750.0  # exp of it is 0 in float64.


def _digits(x: float) -> int:
    """Return the precision for summing a series whose terms grow as exp(x)."""
    return _DIGITS + math.ceil(0.9 * abs(x))


def _power_series(order: int, x: float, sign: int) -> Decimal:
    """Compute J (sign -1) or I (sign 1): the sum of sign^k (x/2)^(n+2k) / k!(n+k)!."""
    half = Decimal(x) / 2
    square = sign * half * half
    term = total = half**order / math.factorial(order)
    k = 0
    while abs(term) > abs(total).scaleb(-_DIGITS) or k < abs(x):
        k += 1
        term *= square / (k * (k + order))
        total += term
        if not term:
            break
    return total


def _hankel(order: int, x: float) -> tuple[float, float]:
    """Compute J and Y of order 0 or 1 for large x, by the asymptotic expansion."""
    mu, term, k = 4 * order * order, 1.0, 0
    parts = [1.0, 0.0]
    while abs(term) > 1e-18 and k < 40:
        k += 1
        term *= (mu - (2 * k - 1) ** 2) / (k * 8 * x)
        parts[k % 2] += (1, 1, -1, -1)[k % 4] * term
    sine, cosine = math.sin(x), math.cos(x)
    phase = (cosine + sine, sine - cosine) if order == 0 else (sine - cosine, -sine - cosine)
    size = math.sqrt(1 / (math.pi * x))
    even, odd = parts
    return size * (even * phase[0] - odd * phase[1]), size * (even * phase[1] + odd * phase[0])


def bessel_j(order: int, x: float) -> float:
    """Compute the Bessel function of the first kind; NaN for negative orders."""
    _check_order(order)
    if math.isnan(x) or order < 0:
        return math.nan
    odd = math.copysign(1.0, x) if order % 2 else 1.0
    size = abs(x)
    if math.isinf(x) or (size and _underflows(order, size)):
        return math.copysign(0.0, odd)
    if size < _SERIES_BELOW or order > size:
        with localcontext() as context:
            context.prec = _digits(size)
            return odd * float(_power_series(order, size, -1)) if size or order else 1.0
    return odd * _upward(order, size, [_hankel(n, size)[0] for n in (0, 1)])


def _check_order(order: int) -> None:
    if order > _MOST_ORDERS:
        raise UnsupportedError(f"Bessel functions of order {order}: at most {_MOST_ORDERS}")


def _underflows(order: int, size: float) -> bool:
    """Return whether the first term of the series underflows float64."""
    return order > size and order * math.log(size / 2) - math.lgamma(order + 1) < _SMALLEST_LOG


def _upward(order: int, x: float, known: list[float]) -> float:
    """Compute a function of any order from orders 0 and 1, by recurrence."""
    before, now = known
    if order == 0:
        return before
    for n in range(1, order):
        before, now = now, 2 * n / x * now - before
    return now


def bessel_y(order: int, x: float) -> float:
    """Compute the Bessel function of the second kind; NaN for negative arguments."""
    _check_order(order)
    if math.isnan(x) or x < 0 or order < 0:
        return math.nan
    if x == 0:
        return -math.inf
    if math.isinf(x):
        return 0.0
    if x >= _SERIES_BELOW:
        return _upward(order, x, [_hankel(n, x)[1] for n in (0, 1)])
    with localcontext() as context:
        context.prec = _digits(x)
        before, now = _y_series(0, x), _y_series(1, x)
        if order == 0:
            return float(before)
        for n in range(1, order):
            before, now = now, 2 * n / Decimal(x) * now - before
        return float(now)


def _y_series(order: int, x: float) -> Decimal:
    """Compute Y of order 0 or 1 by its series with harmonic numbers."""
    half = Decimal(x) / 2
    square = -half * half
    term = half**order
    harmonic = [Decimal(0), Decimal(order)]  # H(k) and H(k + order).
    total = term * (sum(harmonic) - 2 * _EULER)
    k = 0
    while abs(term) > Decimal(1).scaleb(-2 * _DIGITS) * half**order or k < x:
        k += 1
        term *= square / (k * (k + order))
        harmonic = [harmonic[0] + 1 / Decimal(k), harmonic[1] + 1 / Decimal(k + order)]
        total += term * (sum(harmonic) - 2 * _EULER)
    pole = 1 / half if order else Decimal(0)
    return (2 * half.ln() * _power_series(order, x, -1) - pole - total) / _PI


def bessel_i(order: int, x: float) -> float:
    """Compute the modified Bessel function of the first kind."""
    if math.isnan(x):
        return x
    odd = math.copysign(1.0, x) if order % 2 else 1.0
    if abs(x) > 720:  # float64 overflows at 713.98.
        return odd * math.inf
    with localcontext() as context:
        context.prec = _DIGITS
        total = _power_series(order, abs(x), 1) if x or order else Decimal(1)
        return odd * float(total)


def erfcx(x: float) -> float:
    """Compute exp(x^2) erfc(x)."""
    if math.isnan(x) or x == -math.inf:
        return abs(x)
    if x > 12:
        return _erfcx_asymptotic(x)
    if x < -27:
        return math.inf
    with localcontext() as context:
        context.prec = _DIGITS + math.ceil(0.45 * x * x)
        number = Decimal(x)
        grown = (number * number).exp()
        term = total = number
        n = 0
        while abs(term) > abs(total).scaleb(-context.prec):
            n += 1
            term *= number * number * 2 / (2 * n + 1)
            total += term
        return float(grown - 2 * total / _PI.sqrt())


def _erfcx_asymptotic(x: float) -> float:
    """Compute 1 / (x sqrt(pi)) times 1 - 1/2x^2 + 3/4x^4 - ..., for large x."""
    if math.isinf(x):
        return 0.0
    term = total = 1.0
    for n in range(1, 20):
        term *= -(2 * n - 1) / 2 / x / x
        total += term
    return total / (x * math.sqrt(math.pi))


def erfc_inverse(inverse_of_erf: Callable[[float], float]) -> Callable[[float], float]:
    """Return the inverse of erfc, given that of erf for moderate arguments."""

    def inverse(target: float) -> float:
        if not 0 < target < 2:
            return {0.0: math.inf, 2.0: -math.inf}.get(target, math.nan)
        if target > 1.5:  # The difference is exact.
            return -inverse(2 - target)
        if target >= 0.5:
            return inverse_of_erf(1 - target)
        log = math.log(target)
        result = math.sqrt(-log - 0.5 * math.log(max(-math.pi * log, 1)))
        for _ in range(6):  # Newton's method on log(erfc), which does not underflow.
            scaled = erfcx(result)
            result += (math.log(scaled) - result * result - log) * scaled * math.sqrt(math.pi) / 2
        return result

    return inverse


def gamma(x: float) -> float:
    """Compute the gamma function: infinite at zero, NaN at the other poles."""
    if x == 0:
        return math.copysign(math.inf, x)
    if math.isnan(x) or x == -math.inf or (x < 0 and x == math.floor(x)):
        return math.nan
    try:
        return math.gamma(x)
    except OverflowError:
        return -math.inf if x < 0 and math.floor(x) % 2 else math.inf
