"""What libdevice's functions are held to: references of more digits, and CUDA's own bounds.

Bounds: CUDA C++ Programming Guide 12.9, 'Mathematical Functions Appendix', in ulps.
"""

import decimal
import math
from functools import cache

import numpy as np

WIDE = np.longdouble
PI = WIDE("3.14159265358979323846264338327950288419716939937510582")


def _pi_part(function):
    """Return sin or cos of pi x; the sum of multiples of a half is exact."""

    def call(x):
        turn = np.fmod(x, 2)
        quarter = np.rint(turn * 2)
        left = (turn - quarter / 2) * PI
        shift = int(function is np.sin)
        values = [np.cos(left), -np.sin(left), -np.cos(left), np.sin(left)]
        index = (quarter.astype(int) - shift) % 4
        return np.choose(index, values)

    return call


def _erf_series(x):
    """Return erf of a decimal by its series."""
    term = total = x
    n = 0
    while abs(term) > decimal.Decimal(10) ** -190:
        n += 1
        term = -term * x * x / n
        total += term / (2 * n + 1)
    return 2 * total / _pi().sqrt()


@cache
def _pi():
    """Return pi to 200 digits by Machin's formula."""

    def arccot(x):
        total = term = decimal.Decimal(1) / x
        n, sign = 3, -1
        while term:
            term = (term / (x * x)).quantize(decimal.Decimal(10) ** -195)
            total += sign * term / n
            n, sign = n + 2, -sign
        return total

    return 4 * (4 * arccot(5) - arccot(239))


def _by_decimal(compute):
    def call(values):
        with decimal.localcontext() as context:
            context.prec = 200
            return np.array([_as_wide(compute(decimal.Decimal(float(x)))) for x in values], WIDE)

    return call


def _as_wide(number):
    return WIDE(f"{number:.30e}")


def _each(function):
    return lambda values: np.array([function(float(x)) for x in values], WIDE)


def _half_away(values):
    return np.array([_round(float(x)) for x in values], WIDE)


def _round(number):
    if not math.isfinite(number):
        return number
    exact = decimal.Decimal(number).to_integral_value(decimal.ROUND_HALF_UP)
    return math.copysign(float(exact), number)


def _exponent(number):
    if number == 0 or not math.isfinite(number):
        return -math.inf if number == 0 else abs(number)
    return math.frexp(number)[1] - 1


def _poles(number):
    is_pole = math.isinf(number) or (number <= 0 and number == math.floor(number))
    try:
        return math.inf if is_pole else math.lgamma(number)
    except OverflowError:
        return math.inf


SQRT_HALF = decimal.Decimal("0.5")
# name: (reference, ulps of fp32, ulps of fp64)
UNARY = {
    "floor": (np.floor, 0, 0), "ceil": (np.ceil, 0, 0), "trunc": (np.trunc, 0, 0),
    "rint": (np.rint, 0, 0), "nearbyint": (np.rint, 0, 0), "round": (_half_away, 0, 0),
    "logb": (_each(_exponent), 0, 0), "sqrt": (np.sqrt, 0.5, 0.5), "sqrt_rn": (np.sqrt, 0.5, 0.5),
    "rcp_rn": (lambda x: 1 / x, 0.5, 0.5), "cbrt": (np.cbrt, 1, 1),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2, 1), "rcbrt": (lambda x: 1 / np.cbrt(x), 1, 1),
    "exp": (np.exp, 1, 1), "exp2": (np.exp2, 2, 1), "exp10": (lambda x: WIDE(10) ** x, 2, 1),
    "expm1": (np.expm1, 1, 1), "log": (np.log, 1, 1), "log2": (np.log2, 1, 1),
    "log10": (np.log10, 2, 1), "log1p": (np.log1p, 1, 1), "sin": (np.sin, 2, 2),
    "cos": (np.cos, 2, 2), "tan": (np.tan, 4, 2), "asin": (np.arcsin, 2, 2),
    "acos": (np.arccos, 2, 2), "atan": (np.arctan, 2, 2), "sinh": (np.sinh, 3, 2),
    "cosh": (np.cosh, 2, 1), "tanh": (np.tanh, 2, 1), "asinh": (np.arcsinh, 3, 3),
    "acosh": (np.arccosh, 4, 3), "atanh": (np.arctanh, 3, 2), "sinpi": (_pi_part(np.sin), 1, 2),
    "cospi": (_pi_part(np.cos), 1, 2), "lgamma": (_each(_poles), 6, 4),
}  # fmt: skip

# ---- Bessel functions and their like: series in decimals of 200 digits ----

_GAMMA = decimal.Decimal(
    "0.577215664901532860606512090082402431042159335939923598805767234884867726777664670936947063"
    "29174674951463144725"
)


def _sum(first, ratio, weight=lambda _: 1):
    """Return the sum of weight(k) times a term that grows by ratio(k)."""
    term, k, total = first, 0, first * weight(0)
    while abs(term) > decimal.Decimal(10) ** -150 or k < 100:
        k += 1
        term *= ratio(k)
        total += term * weight(k)
    return total


def _factorial(n):
    return decimal.Decimal(math.factorial(n))


def _bessel(order, sign):
    def call(x):
        square = sign * (x / 2) ** 2
        start = (x / 2) ** order / _factorial(order) if x or order else decimal.Decimal(1)
        return _sum(start, lambda k: square / (k * (k + order)))

    return call


def _harmonic(n):
    return sum((1 / decimal.Decimal(k) for k in range(1, n + 1)), decimal.Decimal(0))


def _neumann(order):
    """Return Y by its series (A&S 9.1.11), of any order."""

    def call(x):
        half, square = x / 2, -((x / 2) ** 2)
        weights = [_harmonic(0), _harmonic(order)]

        def weight(k):
            if k:
                weights[0] += 1 / decimal.Decimal(k)
                weights[1] += 1 / decimal.Decimal(k + order)
            return sum(weights) - 2 * _GAMMA

        ratio = lambda k: square / (k * (k + order))  # noqa: E731
        regular = _sum(half**order / _factorial(order), ratio, weight)
        poles = (_factorial(order - k - 1) / _factorial(k) * half ** (2 * k) for k in range(order))
        pole = sum(poles, decimal.Decimal(0)) * half**-order
        return (2 * half.ln() * _bessel(order, -1)(x) - pole - regular) / _pi()

    return call


def _gamma(x):
    """Return gamma by the series of the incomplete one, which lacks exp(-300) of it."""
    shift, end = decimal.Decimal(1), decimal.Decimal(1)
    while x < 1:  # Upward, where the series is of positive terms.
        shift, x = shift / x, x + 1
    while x > 2:
        x -= 1
        end *= x
    at = decimal.Decimal(300)
    term = total = 1 / x
    k = 0
    while term > total.scaleb(-60):
        k += 1
        term *= at / (x + k)
        total += term
    return shift * end * total * (x * at.ln() - at).exp()


def _scaled_erfc(x):
    return (x * x).exp() * (1 - _erf_series(x))


# As above, but by series: for numbers below 12.
SERIES = {
    "erf": (_by_decimal(_erf_series), 2, 2),
    "erfc": (_by_decimal(lambda x: 1 - _erf_series(x)), 4, 5),
    "normcdf": (_by_decimal(lambda x: (1 - _erf_series(-x * SQRT_HALF.sqrt())) / 2), 5, 5),
}
# name: (reference, ulps of fp32, ulps of fp64, where). Bessel functions: below 8; see also FAR.
DECIMAL = {
    "j0": (_by_decimal(_bessel(0, -1)), 9, 7, (-8, 8)),
    "j1": (_by_decimal(_bessel(1, -1)), 9, 7, (-8, 8)),
    "y0": (_by_decimal(_neumann(0)), 9, 7, (0.01, 8)),
    "y1": (_by_decimal(_neumann(1)), 9, 7, (0.01, 8)),
    "cyl_bessel_i0": (_by_decimal(_bessel(0, 1)), 6, 6, (-60, 60)),
    "cyl_bessel_i1": (_by_decimal(_bessel(1, 1)), 6, 6, (-60, 60)),
    "tgamma": (_by_decimal(_gamma), 5, 10, (-30, 34)),
    "erfcx": (_by_decimal(_scaled_erfc), 4, 4, (-9, 12)),
}
ORDERS = {"jn": lambda n: _by_decimal(_bessel(n, -1)), "yn": lambda n: _by_decimal(_neumann(n))}
_ZEROS = [
    2.404825557695773, 5.520078110286311, 3.831705970207512, 7.015586669815619, 0.8935769662791675,
    3.957678419314858, 7.086051060301773, 2.197141326031017, 5.429681040794135,
]  # fmt: skip
_FAST_OF_ONE = {f"fast_{name}f": name for name in (
    "sin", "cos", "tan", "log", "log2", "log10", "exp", "exp10",
)} | {"rsqrt_rn": "rsqrt"}  # fmt: skip
FAST = {name: UNARY[exact] for name, exact in _FAST_OF_ONE.items()}
BINARY = {
    "atan2": (np.arctan2, 3, 2), "hypot": (np.hypot, 3, 2), "fmod": (np.fmod, 0, 0),
    "pow": (np.power, 4, 2), "add_rn": (np.add, 0.5, 0.5), "sub_rn": (np.subtract, 0.5, 0.5),
    "mul_rn": (np.multiply, 0.5, 0.5), "div_rn": (np.divide, 0.5, 0.5),
    "copysign": (np.copysign, 0, 0),
    "fdim": (lambda x, y: np.where(x <= y, WIDE(0), x - y), 0.5, 0.5),
    "remainder": (lambda *both: _of_pairs(_remainder, *both), 0, 0),
    "rhypot": (lambda x, y: 1 / np.hypot(x, y), 2, 1),
}  # fmt: skip


def _of_pairs(function, first, second):
    pairs = zip(first, second, strict=True)
    return np.array([function(float(a), float(b)) for a, b in pairs], WIDE)


def _remainder(number, by):
    if math.isnan(number + by) or math.isinf(number) or by == 0:
        return math.nan
    if math.isinf(by):
        return number
    a, b = (decimal.Decimal(part) for part in (number, by))
    with decimal.localcontext() as context:
        context.prec = 1500
        whole = (a / b).to_integral_value(decimal.ROUND_HALF_EVEN)
        return float(a - whole * b)


def between(dtype, low, high, count=40):
    """Return numbers between two, and those nearest to zeros of Bessel functions among them."""
    random = np.random.default_rng(11)
    found = np.concatenate([random.uniform(low, high, count), _ZEROS, [1e-3 * high, high]])
    return found[(found >= low) & (found <= high)].astype(dtype)


def numbers(dtype, count=400):
    """Return numbers over all exponents, small ones, halves and special ones."""
    info, random = np.finfo(dtype), np.random.default_rng(7)
    exponents = random.uniform(info.minexp - info.nmant, info.maxexp - 0.1, count)
    wide = np.exp2(exponents) * random.choice([-1, 1], count)
    near = np.concatenate([random.uniform(-size, size, count) for size in (1, 4, 100)])
    odd = [
        np.inf, -np.inf, np.nan, 0.0, -0.0, 0.5, -0.5, 1, -1, 2, 8388609.0, -8388609.0, 8388607.5,
        0.49999997, 0.49999999999999994, -0.49999999999999994, 2.0**52 + 1, info.max, -info.max,
        info.tiny, info.smallest_subnormal, *np.arange(-12, 12) / 2,
    ]  # fmt: skip
    with np.errstate(over="ignore"):
        return np.concatenate([wide, near, odd]).astype(dtype)


def num_ulps(found, wanted):
    """Return how far results are off, in ulps of what is wanted; infinite where kinds differ."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(found.dtype)
        unit = np.spacing(np.abs(rounded)).astype(WIDE)
        off = np.abs(found.astype(WIDE) - wanted) / unit
    is_special = ~np.isfinite(rounded) | ~np.isfinite(found)
    is_same = (rounded == found) | (np.isnan(rounded) & np.isnan(found))
    return np.where(is_special, np.where(is_same, 0, np.inf), off)
