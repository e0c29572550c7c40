"""libdevice's functions equal the C library's."""

import math
from fractions import Fraction

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language.extra import libdevice

from simrank.errors import UnsupportedError
from simrank.kernels.language import special
from simrank.kernels.language.libdevice import BY_MODULE
from simrank.kernels.language.libdevice import LIBDEVICE as EMULATED
from simrank.kernels.values import types
from simrank.kernels.values.block import Block

from ..assembly import launch
from . import ulps

N = 256


LIBDEVICE = {
    "tanh": math.tanh, "exp": math.exp, "fast_expf": math.exp, "erf": math.erf, "log1p": math.log1p,
    "expm1": math.expm1, "sinh": math.sinh, "cosh": math.cosh, "asin": math.asin, "acos": math.acos,
    "atan": math.atan, "cbrt": lambda x: math.copysign(abs(x) ** (1 / 3), x), "rint": round,
    "nearbyint": round, "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil,
    "erfc": math.erfc, "lgamma": math.lgamma, "rcp_rn": lambda x: 1 / x, "isnan": math.isnan,
    "isinf": math.isinf, "finitef": math.isfinite, "signbit": lambda x: x < 0,
    "normcdf": lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), "exp10": lambda x: 10.0**x,
    "round": lambda x: math.copysign(math.floor(abs(x) + 0.5), x), "fast_cosf": math.cos,
}  # fmt: skip


@triton.jit
def unary(x_ptr, out, FUNCTION: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, FUNCTION(tl.load(x_ptr + lanes)))


@pytest.mark.parametrize("name", LIBDEVICE)
def test_libdevice_equals_the_c_library(on_rank, name):
    """In float32, from values in float64, over the domain that all of them share."""

    def body(ctx):
        x = np.linspace(-0.95, 0.97, N).astype(np.float32)
        function = getattr(libdevice, name)
        found = launch(ctx, unary, [x], np.zeros(N, "f4"), FUNCTION=function, N=N)
        wanted = [float(LIBDEVICE[name](float(value))) for value in x]
        np.testing.assert_allclose(found, np.float32(wanted), rtol=3e-7, atol=1e-37)

    on_rank(body)


@triton.jit
def more_libdevice(x_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    i = lanes * 77 - 400
    tl.store(out + lanes, libdevice.pow(x, 3.0))
    tl.store(out + N + lanes, libdevice.erf(libdevice.erfinv(x)))
    tl.store(out + 2 * N + lanes, libdevice.clz(i) * 100 + libdevice.popc(i))
    tl.store(out + 3 * N + lanes, libdevice.ffs(i))
    tl.store(out + 4 * N + lanes, libdevice.int_as_float(libdevice.float_as_int(x)))
    tl.store(out + 5 * N + lanes, libdevice.mulhi(i * 1000003, i * 999983))
    tl.store(out + 6 * N + lanes, libdevice.atan2(x, 0.5) + libdevice.hypot(x, x))
    tl.store(out + 7 * N + lanes, libdevice.fmod(x, 0.3) + libdevice.copysign(1.0, x))
    tl.store(out + 8 * N + lanes, libdevice.brev(i))


def test_libdevice_of_bits_and_of_two_arguments(on_rank):
    """Against numpy and Python integers."""

    def body(ctx):
        x = np.linspace(-0.95, 0.97, N).astype(np.float32)
        found = launch(ctx, more_libdevice, [x], np.zeros((9, N)), N=N)
        i = [77 * lane - 400 for lane in range(N)]
        bits = [number & 0xFFFFFFFF for number in i]
        low = [number & -number for number in i]
        wide = [wrapped(n * 1000003) * wrapped(n * 999983) >> 32 for n in i]
        wanted = [
            x.astype(float) ** 3, x, [(32 - b.bit_length()) * 100 + b.bit_count() for b in bits],
            [number.bit_length() for number in low], x, wide,
            np.arctan2(x, 0.5) + np.hypot(x, x), np.fmod(x, np.float32(0.3)) + np.copysign(1, x),
            [wrapped(int(f"{b:032b}"[::-1], 2)) for b in bits],
        ]  # fmt: skip
        for row, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=f"row {row}")

    def wrapped(number):
        return (number + 2**31) % 2**32 - 2**31

    on_rank(body)


FLOATS = {types.float32: 1, types.float64: 2}  # The column of the bounds.
INEXACT = ulps.UNARY | ulps.SERIES | ulps.FAST | ulps.BINARY | ulps.DECIMAL | ulps.ORDERS
# What has no digits to lose, or is tested by itself.
EXACT = {
    "fma", "fma_rn", "saturatef", "fast_powf", "fast_dividef", "isnan", "isinf", "signbit",
    "finitef", "isfinited", "abs", "ldexp", "scalbn", "clz", "popc", "ffs", "brev", "mulhi",
    "llrint", "llround", "nextafter", "erfinv",
    "erfcinv", "normcdfinv", "norm3d", "norm4d", "rnorm3d", "rnorm4d", "ilogb", "byte_perm",
    "mul24", "hadd", "rhadd", "sad", "rcp64h",
} | set(special.arithmetic())  # fmt: skip


def computed(name, *columns):
    """Return a function of libdevice of arrays."""
    element = types.of_memory(columns[0].dtype)
    with np.errstate(all="ignore"):
        return EMULATED[name](*(Block(x[None], element) for x in columns)).values[0]


def test_every_function_of_libdevice_is_tested():
    """Against a reference, or one by one; what only renames or moves bits is not."""
    moved = {name for name in EMULATED if "_as_" in name or "2" in name} - set(INEXACT)
    assert set(EMULATED) == set(INEXACT) | EXACT | moved


@pytest.mark.parametrize("name", [*ulps.UNARY, *ulps.FAST])
def test_functions_are_within_the_bound_that_cuda_documents(name):
    """Over all exponents, and of what is special."""
    for element in FLOATS:
        if name in ulps.FAST and element is types.float64:
            continue
        x = ulps.numbers(element.memory)
        if name == "lgamma":  # Between its poles the bound does not hold (CUDA's own remark).
            x = x[~((x < -2.2) & (x > -24))]
        with np.errstate(all="ignore"):
            wanted = INEXACT[name][0](x.astype(ulps.WIDE))
        off = ulps.num_ulps(computed(name, x), np.asarray(wanted))
        worst = int(off.argmax())
        assert off[worst] <= INEXACT[name][FLOATS[element]], f"{name}({x[worst]!r})"


@pytest.mark.parametrize("name", ulps.SERIES)
def test_error_functions_are_within_the_bound_that_cuda_documents(name):
    """Against their series with 200 digits, also where hardly anything is left of them."""
    for element, largest in ((types.float32, 9), (types.float64, 12)):
        x = np.linspace(-largest, largest, 41).astype(element.memory)
        off = ulps.num_ulps(computed(name, x), ulps.SERIES[name][0](x))
        worst = int(off.argmax())
        assert off[worst] <= INEXACT[name][FLOATS[element]], f"{name}({x[worst]!r})"


@pytest.mark.parametrize("name", ulps.BINARY)
def test_functions_of_two_numbers_are_within_the_bound_that_cuda_documents(name):
    """Of all pairs of special numbers, and of others at random."""
    for element in FLOATS:
        x = ulps.numbers(element.memory, 100)
        special = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1, -1, 0.5, 3], element.memory)
        first = np.concatenate([x, np.repeat(special, len(special))])
        second = np.concatenate([np.roll(x, 77), np.tile(special, len(special))])
        with np.errstate(all="ignore"):
            wanted = INEXACT[name][0](*(v.astype(ulps.WIDE) for v in (first, second)))
        off = ulps.num_ulps(computed(name, first, second), wanted)
        worst = int(off.argmax())
        bound = INEXACT[name][FLOATS[element]]
        assert off[worst] <= bound, f"{name}({first[worst]!r}, {second[worst]!r})"


def one(name, *numbers, element=types.float32):
    """Return a function of libdevice of plain numbers."""
    return float(computed(name, *(np.array([n], element.memory) for n in numbers))[0])


def test_fast_functions_do_as_their_instructions():
    """They go by logarithms and reciprocals, which are not there for every number."""
    assert math.isnan(one("fast_powf", -2.0, 2.0))
    assert math.isnan(one("fast_powf", 0.0, 0.0))
    assert one("fast_powf", 2.0, 10.0) == 1024.0
    assert one("fast_dividef", 3.0, 2.0**127) == 0.0
    assert math.isnan(one("fast_dividef", math.inf, 2.0**127))
    assert one("fast_dividef", 3.0, math.inf) == 0.0


def test_products_are_added_to_with_one_rounding():
    """The exact sum is just above the middle of two numbers; rounded to fp64 first it is not."""
    first, second = 1 + 2.0**-12, 1 + 2.0**-12  # The product is 1 + 2**-11 + 2**-24.
    third = 2.0**-60
    assert one("fma", first, second, third) == 1 + 2.0**-11 + 2.0**-23
    assert one("fma", first, second, 0.0) == 1 + 2.0**-11


def test_what_is_no_number_becomes_what_the_conversion_says():
    """NaN gives zero to 32 bits from fp32, else the smallest integer."""
    for name, wanted in (
        ("float2int_rn", 0), ("float2ll_rn", -(2**63)), ("double2int_rz", -(2**31)),
        ("llrint", -(2**63)),
    ):  # fmt: skip
        element = types.float64 if name.startswith("double") else types.float32
        assert one(name, math.nan, element=element) == wanted
        assert one(name, 1e30, element=element) == (2**31 if "int_" in name else 2**63) - (
            "int_" in name
        )


def test_the_inverse_of_erf_gives_the_number_back():
    """Its erf differs by what rounding its argument makes of it."""
    x = np.linspace(-0.999, 0.999, 81)
    found = computed("erfinv", x)
    slope = 2 / math.sqrt(math.pi) * np.exp(-found * found)
    back = ulps.SERIES["erf"][0](found)
    assert (np.abs(back - x) <= 5 * np.spacing(np.abs(found)) * slope + np.spacing(np.abs(x))).all()


@pytest.mark.parametrize("name", ulps.DECIMAL)
def test_series_are_within_the_bound_that_cuda_documents(name):
    """Also at the numbers next to their zeros, where hardly a digit is left in float64."""
    reference, *_, (low, high) = ulps.DECIMAL[name]
    for element in FLOATS:
        x = ulps.between(element.memory, low, high)
        off = ulps.num_ulps(computed(name, x), reference(x))
        worst = int(off.argmax())
        assert off[worst] <= INEXACT[name][FLOATS[element]], f"{name}({x[worst]!r})"


@pytest.mark.parametrize("order", [0, 1, 2, 5, 20])
@pytest.mark.parametrize("name", ulps.ORDERS)
def test_bessel_functions_of_any_order_are_as_good(name, order):
    """Below the order and above it, where they swing; CUDA documents 5e-12 for large arguments."""
    for element, least in ((types.float32, 2.2e-6), (types.float64, 5e-12)):
        x = np.array([0.25, 1.5, 7.9, 14.0, 26.0, 40.0], element.memory)
        found = both("jn" if name == "jn" else "yn", order, x)
        wanted = ulps.ORDERS[name](order)(x)
        off = np.minimum(ulps.num_ulps(found, wanted) / 2, np.abs(found - wanted) / least)
        assert (off <= 1).all()
        if order < 2:
            assert (found == computed(f"{name[0]}{order}", x)).all()


def both(name, order, x):
    """Return a Bessel function of one order."""
    blocks = (Block(np.full((1, len(x)), order, "i4"), types.int32),
              Block(x[None], types.of_memory(x.dtype)))  # fmt: skip
    return EMULATED[name](*blocks).values[0]


SPECIAL = [
    ("j0", [np.inf, -np.inf, 0.0, np.nan], [0, 0, 1, np.nan]),
    ("j1", [np.inf, -np.inf, 0.0, -0.0], [0, -0.0, 0, -0.0]),
    ("y0", [0.0, np.inf, -1.0, np.nan], [-np.inf, 0, np.nan, np.nan]),
    ("y1", [0.0, np.inf, -1.0, 1e-320], [-np.inf, 0, np.nan, -np.inf]),
    ("cyl_bessel_i0", [0.0, 800.0, -800.0, np.nan], [1, np.inf, np.inf, np.nan]),
    ("cyl_bessel_i1", [-0.0, 800.0, -800.0, -np.inf], [-0.0, np.inf, -np.inf, -np.inf]),
    ("tgamma", [0.0, -0.0, -3.0, -np.inf], [np.inf, -np.inf, np.nan, np.nan]),
    ("tgamma", [172.0, -184.5, -183.5, np.inf], [np.inf, -0.0, 0.0, np.inf]),
    ("erfcx", [np.inf, -np.inf, -28.0, 1e200], [0, np.inf, np.inf, 5.641895835477563e-201]),
    ("erfcinv", [0.0, 2.0, 1.0, 2.5], [np.inf, -np.inf, 0, np.nan]),
    ("normcdfinv", [0.0, 1.0, 0.5, -0.5], [-np.inf, np.inf, 0, np.nan]),
    ("ilogb", [0.0, np.inf, np.nan, 5e-324], [-(2**31), 2**31 - 1, -(2**31), -1074]),
]


@pytest.mark.parametrize(("name", "given", "wanted"), SPECIAL)
def test_ends_and_poles_are_as_cuda_documents_them(name, given, wanted):
    """Signs of zeros too, except where the documentation gives none."""
    found, wanted = computed(name, np.array(given)), np.array(wanted, np.float64)
    np.testing.assert_allclose(found, wanted, rtol=4e-16)
    if name in ("j1", "cyl_bessel_i1", "tgamma"):
        assert (np.signbit(found) == np.signbit(wanted)).all()


def test_bessel_functions_of_orders_without_end_are_refused_and_of_negative_ones_are_no_numbers():
    """The documentation says NaN; what would take minutes is an error by name."""
    assert math.isnan(both("jn", -1, np.array([1.0]))[0])
    assert math.isnan(both("yn", -1, np.array([1.0]))[0])
    assert both("jn", 9000, np.array([1.0]))[0] == 0
    with pytest.raises(UnsupportedError, match="order 20000"):
        both("jn", 20000, np.array([1.0]))


def test_inverses_of_complements_give_the_number_back():
    """Their erfc differs by what rounding the argument makes of it, also next to 0 and 2."""
    x = np.array([1e-40, 1e-20, 1e-3, 0.3, 0.4999, 0.5, 0.9, 1 + 1e-9, 1.3, 1.7, 2 - 1e-12])
    for name, scale in (("erfcinv", 1.0), ("normcdfinv", -math.sqrt(0.5))):
        found = computed(name, x if name == "erfcinv" else x / 2) * scale
        slope = 2 / math.sqrt(math.pi) * np.exp(-found * found)
        back = ulps.SERIES["erfc"][0](found)
        allowed = 4 * np.spacing(np.abs(found)) * slope + np.spacing(x)
        assert (np.abs(back - x) <= allowed).all()


@pytest.mark.parametrize("size", [3, 4])
def test_lengths_of_vectors_neither_overflow_nor_underflow(size):
    """Against numbers of more digits; an infinite coordinate outweighs NaN."""
    for element, bounds in ((types.float32, (3, 2)), (types.float64, (2, 1))):
        columns = [np.roll(ulps.numbers(element.memory, 60), 9 * k) for k in range(size)]
        with np.errstate(all="ignore"):
            wide = [column.astype(ulps.WIDE) for column in columns]
            largest = np.max(np.abs(wide), axis=0)
            scale = np.where((largest > 0) & np.isfinite(largest), largest, 1)
            wanted = scale * np.sqrt(sum((column / scale) ** 2 for column in wide))
            wanted = np.where(np.isinf(wide).any(axis=0), np.inf, wanted)
            for name, reference, bound in (
                (f"norm{size}d", wanted, bounds[0]), (f"rnorm{size}d", 1 / wanted, bounds[1]),
            ):  # fmt: skip
                assert (ulps.num_ulps(computed(name, *columns), reference) <= bound).all()


EXACTLY = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "rcp": lambda a: 1 / a, "fma": lambda a, b, c: a * b + c,
}  # fmt: skip


@np.errstate(all="ignore")
@pytest.mark.parametrize("name", [*EXACTLY, "sqrt"])
def test_rounding_in_a_direction_gives_the_neighbours_of_the_exact_result(name):
    """The next number below it, the next above, or the smaller; all three where it is exact."""
    for element in FLOATS:
        x = ulps.numbers(element.memory, 40)
        x = x[np.isfinite(x) & (x != 0)]
        x = np.abs(x) if name == "sqrt" else x
        columns = [np.roll(x, 31 * k) for k in range({"rcp": 1, "sqrt": 1, "fma": 3}.get(name, 2))]
        down, up, zero = (computed(f"{name}_{mode}", *columns) for mode in ("rd", "ru", "rz"))
        info = np.finfo(element.memory)
        for k, numbers in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            exact = None if name == "sqrt" else EXACTLY[name](*map(Fraction, numbers))
            low, high = (_as_fraction(value[k], info) for value in (down, up))
            if name == "sqrt":
                assert low * low <= Fraction(numbers[0]) <= high * high
                assert (low == high) is (low * low == Fraction(numbers[0]))
            else:
                assert low <= exact <= high
                assert (low == high) is (low == exact)
            assert low == high or np.nextafter(down[k], element.memory.type(np.inf)) == up[k]
            assert zero[k] == (down[k] if low >= 0 else up[k])


def _as_fraction(number, info):
    """Return a number as a fraction; infinity as what is larger than all products."""
    number = float(number)
    return Fraction(number) if math.isfinite(number) else Fraction(int(np.sign(number)) * 2**2200)


def test_zeros_and_infinities_rounded_in_a_direction():
    """A sum of zero is negative when it is rounded down; overflow ends at the largest number."""
    largest = float(np.finfo(np.float32).max)
    for name, numbers, wanted in (
        ("add_rd", (1.0, -1.0), -0.0), ("add_ru", (1.0, -1.0), 0.0), ("add_rd", (0.0, 0.0), 0.0),
        ("add_rd", (-0.0, 0.0), -0.0), ("sub_rd", (2.0, 2.0), -0.0), ("sub_rd", (0.0, -0.0), 0.0),
        ("fma_rd", (1.0, 1.0, -1.0), -0.0), ("fma_rd", (0.0, 1.0, 0.0), 0.0),
        ("fma_rd", (0.0, -1.0, 0.0), -0.0), ("fma_rz", (1.0, 1.0, -1.0), 0.0),
        ("mul_rd", (0.0, 1.0), 0.0), ("mul_rz", (largest, 2.0), largest),
        ("mul_rd", (largest, -2.0), -math.inf), ("mul_ru", (largest, -2.0), -largest),
        ("div_ru", (1.0, 0.0), math.inf), ("rcp_rz", (0.0,), math.inf),
        ("add_rz", (math.inf, 1.0), math.inf), ("add_rd", (math.inf, -math.inf), math.nan),
        ("sqrt_rz", (-1.0,), math.nan), ("mul_ru", (1e-30, 1e-30), 1e-45),
        ("mul_rd", (1e-30, -1e-30), -1e-45), ("fma_rz", (largest, 2.0, -largest), largest),
    ):  # fmt: skip
        found = one(name, *numbers)
        assert found == np.float32(wanted) or math.isnan(found) is math.isnan(wanted) is True
        assert math.copysign(1, found) == math.copysign(1, wanted) or math.isnan(wanted)


@np.errstate(all="ignore")
@pytest.mark.parametrize("target", ["float", "double"])
@pytest.mark.parametrize("source", ["int", "uint", "ll", "ull", "double"])
def test_conversions_round_in_their_direction(source, target):
    """Integers of any size and doubles, to the next number below, above, or nearer to zero."""
    element = {"int": types.int32, "uint": types.uint32, "ll": types.int64, "ull": types.uint64,
               "double": types.float64}[source]  # fmt: skip
    if f"{source}2{target}_rz" not in EMULATED:  # It is exact.
        assert target == "double"
        return
    random, out = np.random.default_rng(3), np.float32 if target == "float" else np.float64
    if source == "double":
        x = random.standard_normal(60) * 10.0 ** random.integers(-50, 42, 60)
    else:
        ends = types.integer_range(element)
        drawn = random.integers(*ends, 60, element.memory).tolist()
        x = np.array([*ends, 0, 1, 16777217, *drawn], element.memory)
    down, up, zero = (computed(f"{source}2{target}_{mode}", x) for mode in ("rd", "ru", "rz"))
    for k, number in enumerate(x.tolist()):
        low, high = (_as_fraction(value[k], np.finfo(out)) for value in (down, up))
        assert low <= Fraction(number) <= high
        assert low == high or np.nextafter(down[k], out(np.inf)) == up[k]
        assert (low == high) is (low == Fraction(number))
        assert zero[k] == (down[k] if low >= 0 else up[k])


def test_floats_become_unsigned_integers_whose_bits_come_as_signed_ones():
    """As libdevice declares them: saturated, NaN is zero from fp32 to 32 bits."""
    for name, number, wanted in (
        ("float2uint_rn", 3e9, 3_000_000_000), ("float2uint_rz", -1.0, 0),
        ("float2uint_ru", 1.25, 2), ("float2uint_rd", 1.75, 1), ("float2uint_rn", 1e20, 2**32 - 1),
        ("float2uint_rn", math.nan, 0), ("float2ull_rz", 1e19, 9999999980506447872),
        ("double2uint_rn", 2.5, 2), ("double2ull_ru", 0.5, 1), ("double2ull_rn", math.nan, 2**63),
    ):  # fmt: skip
        element = types.float64 if name.startswith("double") else types.float32
        found = computed(name, np.array([number], element.memory))
        assert found.dtype.kind == "i"
        assert int(found.view(f"u{found.itemsize}")[0]) == wanted, name


def test_functions_of_integers_and_of_words_are_exact():
    """Against Python's integers."""
    random = np.random.default_rng(5)
    x, y, z = (random.integers(-(2**31), 2**31, 50).astype(np.int32) for _ in range(3))
    signed = [tuple(map(int, row)) for row in zip(x, y, z, strict=True)]
    plain = [tuple(number % 2**32 for number in row) for row in signed]

    def of(name, *columns):
        return [int(value) for value in computed(name, *columns)]

    ux, uy = x.view(np.uint32), y.view(np.uint32)
    assert of("hadd", x, y) == [(a + b) >> 1 for a, b, _ in signed]
    assert of("rhadd", ux, uy) == [(a + b + 1) >> 1 for a, b, _ in plain]
    low = [[(n + 2**23) % 2**24 - 2**23 for n in row] for row in signed]
    assert of("mul24", x, y) == [(a * b + 2**31) % 2**32 - 2**31 for a, b, _ in low]
    assert of("mul24", ux, uy) == [a % 2**24 * (b % 2**24) % 2**32 for a, b, _ in plain]
    wanted = [(abs(a - b) + c) % 2**32 for (a, b, _), (*_, c) in zip(signed, plain, strict=True)]
    blocks = [Block(v[None], t) for v, t in ((x, types.int32), (y, types.int32),
                                             (z.view(np.uint32), types.uint32))]  # fmt: skip
    assert [int(v) % 2**32 for v in EMULATED["sad"](*blocks).values[0]] == wanted
    halves = computed("hiloint2double", x, y)
    assert of("double2hiint", halves) == x.tolist()
    assert of("double2loint", halves) == y.tolist()
    selector = np.array([0x7531, 0x0246, 0x89AB], np.int32)
    first, second = np.full(3, 0x33221100, np.int32), np.full(3, -0x0811223C, np.int32)  # F7EEDDC4
    found = [value % 2**32 for value in of("byte_perm", first, second, selector)]
    assert found == [0xF7DD3311, 0x0022C4EE, 0x00000000]
    near = computed("rcp64h", np.array([3.0, -7e100, 1e-310, np.inf]))
    np.testing.assert_allclose(near[:2], [1 / 3.0, -1 / 7e100], rtol=2.0**-20)
    assert near[2:].tolist() == [math.inf, 0]


def test_the_library_of_amd_has_one_function_more():
    """A hyperbolic tangent of fp32."""
    values = np.linspace(-3, 3, 7, dtype=np.float32)
    tanh = BY_MODULE["triton.language.extra.hip.libdevice"]["fast_tanhf"]
    found = tanh(Block(values[None], types.float32)).values[0]
    np.testing.assert_array_equal(found, computed("tanh", values))
    assert "fast_tanhf" not in EMULATED
