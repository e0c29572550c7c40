"""What kernels may say where the stock interpreter is no help: bf16, fp8, libdevice, errors."""

import math
import sys
import traceback
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import simrank
from simrank.errors import UnsupportedError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from triton.language.extra import libdevice  # noqa: E402
from triton.language.extra.cuda import (  # noqa: E402
    gdc_launch_dependents,
    gdc_wait,
    globaltimer,
    num_threads,
    num_warps,
    smid,
)

from simrank.kernels.memory.illegal import IllegalAccessError  # noqa: E402

N = 256
BF16 = ml_dtypes.bfloat16


def launch(ctx, kernel, inputs, out, grid=(1,), **constants):
    """Launch on arrays; return the output as an array."""
    tensors = [ctx.from_numpy(array) for array in (*inputs, out)]
    kernel[grid](*tensors, **constants)
    return tensors[-1].numpy()


@triton.jit
def arithmetic(x_ptr, y_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x, y = tl.load(x_ptr + lanes), tl.load(y_ptr + lanes)
    tl.store(out + lanes, x + y)
    tl.store(out + N + lanes, x * y)
    tl.store(out + 2 * N + lanes, x - 2.5)
    tl.store(out + 3 * N + lanes, tl.where(x > 0, x, 0))
    tl.store(out + 4 * N + lanes, tl.cumsum(x, 0) * 0 + tl.sum(x))


def test_bf16_equals_ml_dtypes(on_rank):
    """Which rounds each operation to nearest even from float32."""

    def body(ctx):
        x, y = np.random.default_rng(0).standard_normal((2, N)).astype(BF16)
        found = launch(ctx, arithmetic, [x, y], np.zeros((5, N), BF16), N=N)
        wanted = [x + y, x * y, x - BF16(2.5), np.maximum(x, BF16(0))]
        for ours, theirs in zip(found, wanted, strict=False):
            assert ours.tobytes() == theirs.tobytes()
        assert found[4, 0] == BF16(x.astype(np.float64).sum())

    on_rank(body)


@triton.jit
def through(x_ptr, out, TYPE: tl.constexpr, N: tl.constexpr, MODE: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out + lanes, x.to(TYPE, fp_downcast_rounding=MODE).to(tl.float32))


@pytest.mark.parametrize(
    ("narrow", "dtype"),
    [
        (tl.float16, np.float16), (tl.bfloat16, BF16), (tl.float8e4nv, ml_dtypes.float8_e4m3fn),
        (tl.float8e5, ml_dtypes.float8_e5m2),
    ],
)  # fmt: skip
def test_narrow_casts_round_to_nearest_even_and_fp8_saturates(on_rank, narrow, dtype):
    """In range as ml_dtypes; beyond fp8's largest number, that number."""

    def body(ctx):
        rng = np.random.default_rng(1)
        x = (rng.standard_normal(N) * np.exp2(rng.integers(-12, 7, N))).astype(np.float32)
        x[:4] = [1e30, -1e30, np.nan, 0.0]
        found = launch(ctx, through, [x], np.zeros(N, "f4"), TYPE=narrow, N=N, MODE=None)
        largest = float(ml_dtypes.finfo(dtype).max)
        clipped = np.clip(x, -largest, largest) if np.dtype(dtype).itemsize == 1 else x
        with np.errstate(over="ignore"):
            wanted = clipped.astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(found, wanted)
        toward = launch(ctx, through, [x], np.zeros(N, "f4"), TYPE=narrow, N=N, MODE="rtz")
        inside = np.isfinite(found) & np.isfinite(toward)
        assert (np.abs(toward[inside]) <= np.abs(x[inside])).all()

    on_rank(body)


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


@triton.jit
def unknown_function(x_ptr, out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), libdevice.cyl_bessel_i0(tl.load(x_ptr + tl.arange(0, N))))


def test_what_is_not_emulated_is_refused_by_name(on_rank):
    """A stub of libdevice would return None otherwise."""

    def body(ctx):
        launch(ctx, unknown_function, [np.zeros(N, "f4")], np.zeros(N, "f4"), N=N)

    with pytest.raises(UnsupportedError, match=r"libdevice\.cyl_bessel_i0"):
        on_rank(body)


@triton.jit
def about_the_device(out):
    gdc_wait()
    begin = globaltimer()
    tl.store(out, num_warps())
    tl.store(out + 1, num_threads())
    tl.store(out + 2, smid() == tl.program_id(0))
    tl.store(out + 3, globaltimer() >= begin)
    gdc_launch_dependents()


def test_kernels_ask_about_their_device(on_rank):
    """The launch's warps, the SM, and simulated time."""

    def body(ctx):
        out = ctx.zeros(4, dtype=simrank.int64)
        about_the_device[(1,)](out, num_warps=8)
        assert out.tolist() == [8, 256, 1, 1]

    on_rank(body)


class Pair(NamedTuple):
    """Two tensors that a kernel gets by name."""

    source: object
    target: object


@triton.jit
def doubled(x):
    return x * 2


@triton.jit
def with_tuples(pair, sizes, FUNCTION: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.static_assert(isinstance(lanes, tl.tensor))
    tl.static_assert(lanes.dtype.is_int32() and not lanes.dtype.is_fp16())
    x = tl.load(pair.source + lanes, mask=lanes < sizes[0], other=0.0)
    total = 0.0
    for size in tl.static_range(len(sizes)):
        total += sizes[size]
    tl.store(pair.target + lanes, FUNCTION(x) + total)


def test_named_tuples_and_functions_are_arguments(on_rank):
    """As Triton passes them."""

    def body(ctx):
        x, out = ctx.randn(N), ctx.empty(N)
        with_tuples[(1,)](Pair(x, out), (N, 3), doubled, N=N)
        assert (out.numpy() == x.numpy() * 2 + (N + 3)).all()

    on_rank(body)


def test_kernels_may_be_closures(on_rank):
    """They see the variables around them."""
    shift = tl.constexpr(5)

    @triton.jit
    def shifted(x_ptr, out, N: tl.constexpr):
        tl.store(out + tl.arange(0, N), tl.load(x_ptr + tl.arange(0, N)) + shift)

    def body(ctx):
        x = np.ones(N, "f4")
        assert (launch(ctx, shifted, [x], np.zeros(N, "f4"), N=N) == 6).all()

    on_rank(body)


@triton.jit
def out_of_bounds(x_ptr, out, N: tl.constexpr):
    lanes = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out + lanes, x)


def test_out_of_bounds_names_line_tensor_bounds_and_program(on_rank):
    """And the traceback ends in the kernel's own source."""

    def body(ctx):
        launch(ctx, out_of_bounds, [np.zeros((2, N), "f4")], np.zeros(4 * N, "f4"), grid=(4,), N=N)

    with pytest.raises(IllegalAccessError) as caught:
        on_rank(body)
    line = out_of_bounds.fn.__code__.co_firstlineno + 3
    text = str(caught.value)
    assert f"kernel 'out_of_bounds' at test_language.py:{line}: load of element 512" in text
    assert "'x_ptr', fp32[2, 256], with 512 elements, 0 to 511" in text
    assert text.endswith("program 2, 3")
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert (__file__, line) in [(frame.filename, frame.lineno) for frame in frames]


def test_breakpoints_stop_in_the_kernel(on_rank, monkeypatch):
    """With the kernel's own frame, where its variables can be read."""
    stopped = []

    def hook():
        frame = sys._getframe(1)
        stopped.append((frame.f_code.co_filename, frame.f_lineno, list(frame.f_locals)))

    @triton.jit
    def with_breakpoint(x_ptr, N: tl.constexpr):
        x = tl.load(x_ptr + tl.arange(0, N))
        breakpoint()
        tl.store(x_ptr + tl.arange(0, N), x)

    monkeypatch.setattr(sys, "breakpointhook", hook)
    on_rank(lambda ctx: with_breakpoint[(1,)](ctx.zeros(N), N=N) and None)
    line = with_breakpoint.fn.__code__.co_firstlineno + 3
    assert stopped == [(__file__, line, ["x_ptr", "N", "x"])]


@triton.jit
def masked_without_other(x_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x_ptr + lanes, mask=lanes < 2))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_debug_mode_poisons_masked_off_lanes(on_rank, dtype):
    """NaN or the largest number: a result that uses them shows it."""

    def body(ctx):
        x, out = (ctx.from_numpy(np.zeros(N, dtype)) for _ in range(2))
        masked_without_other[(1,)](x, out, N=N, debug=True)
        found = out.numpy()[2:]
        assert np.isnan(found).all() if dtype == "float32" else (found == 2**31 - 1).all()
        masked_without_other[(1,)](x, out, N=N)
        assert (out.numpy() == 0).all()

    on_rank(body)


@triton.jit
def small_dot(a_ptr, b_ptr, out, PRECISION: tl.constexpr):
    lanes = tl.arange(0, 16)
    at = lanes[:, None] * 16 + lanes[None, :]
    c = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision=PRECISION)
    tl.store(out + at, c)


def test_hardware_precision_truncates_fp32_inputs_to_tf32(on_rank):
    """Unless the kernel asks for ieee; without it dots are exact to fp32."""

    def body(ctx):
        a, b = np.random.default_rng(0).standard_normal((2, 16, 16)).astype(np.float32)
        tensors = [ctx.from_numpy(x) for x in (a, b, np.zeros((16, 16), "f4"))]
        kept = [(x.view("u4") & np.uint32(0xFFFFE000)).view("f4").astype(float) for x in (a, b)]
        exact = a.astype(float) @ b.astype(float)
        truncated = kept[0] @ kept[1]
        for asked, precision, wanted in (
            (None, "hardware", truncated),
            ("ieee", "hardware", exact),
            (None, "ieee", exact),
        ):
            small_dot[(1,)](*tensors, asked, precision=precision)
            np.testing.assert_allclose(tensors[2].numpy(), wanted, rtol=1e-5, atol=1e-5)

    on_rank(body)


@triton.jit
def values_of_constants(out, N: tl.constexpr):
    x = tl.zeros((N,), tl.float32)
    tl.static_assert(x.shape[0].value == N.value)
    tl.static_assert(tl.constexpr(3).value == 3)
    bottom = tl.topk(tl.arange(0, 8), 2, descending=False)
    tl.store(out + tl.arange(0, 2), bottom + x.numel.value)


def test_constants_have_a_value(on_rank):
    """Kernels that ask for it get the constant itself."""

    def body(ctx):
        assert launch(ctx, values_of_constants, [], np.zeros(2, "i4"), N=N).tolist() == [N, N + 1]

    on_rank(body)


@triton.jit
def no_such_hint(out):
    for i in tl.range(0, 4, stages=3):
        tl.store(out + i, i)


def test_unknown_hints_of_loops_are_refused(on_rank):
    """A misspelt one would do nothing."""
    with pytest.raises(TypeError, match=r"tl\.range has no argument 'stages'"):
        on_rank(lambda ctx: launch(ctx, no_such_hint, [], np.zeros(4, "i4")) and None)
