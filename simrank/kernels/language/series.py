"""Bessel functions, erfcx and the inverse of erfc: series in decimals, rounded once.

The results keep their digits near zeros, where a polynomial in float64 loses them. Each call takes
20 to 200 us (measured): accuracy matters here, not speed.

Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.23, 9.1.10-13, 9.1.27,
9.2.5-10 and 9.6.10.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING

from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

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


def j(order: int, x: float) -> float:
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


def y(order: int, x: float) -> float:
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


def i(order: int, x: float) -> float:
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
