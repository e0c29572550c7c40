"""libdevice's functions equal the C library's."""

import math

import numpy as np
import pytest

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from triton.language.extra import libdevice  # noqa: E402

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
