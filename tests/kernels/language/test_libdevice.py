"""libdevice's functions equal the C library's."""

import math

import numpy as np
import pytest

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from triton.language.extra import libdevice  # noqa: E402

from simrank.kernels.language.libdevice import LIBDEVICE as EMULATED  # noqa: E402
from simrank.kernels.values import types  # noqa: E402
from simrank.kernels.values.block import Block  # noqa: E402

from . import ulps  # noqa: E402

N = 256


def launch(ctx, kernel, inputs, out, grid=(1,), **constants):
    """Launch on arrays; return the output as an array."""
    tensors = [ctx.from_numpy(array) for array in (*inputs, out)]
    kernel[grid](*tensors, **constants)
    return tensors[-1].numpy()


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
INEXACT = ulps.UNARY | ulps.SERIES | ulps.FAST | ulps.BINARY
# What has no digits to lose, or is tested by itself.
EXACT = {
    "fma", "fma_rn", "saturatef", "fast_powf", "fast_dividef", "isnan", "isinf", "signbit",
    "finitef", "isfinited", "abs", "ldexp", "scalbn", "clz", "popc", "ffs", "brev", "mulhi",
    "llrint", "llround", "nextafter", "erfinv",
}  # fmt: skip


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
