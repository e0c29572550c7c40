"""Small kernels that simrank and Triton's own interpreter must run alike.

The module is imported twice: here, and with TRITON_INTERPRET=1 in a process of its own. Kernels
write one row of `out` per value, so that a difference names the expression. Loads add a program
id times 0: so that programs in lockstep have values of their own, which are the same.
"""

import itertools
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import triton
import triton.language as tl

N = 64


@dataclass
class Case:
    """A kernel, its inputs and its output.

    Attributes:
        kernel: Takes the inputs, the output and the constants.
        inputs: Arrays that it reads.
        out: Shape and dtype of what it writes; it starts as zeros.
        constants: Arguments by name.
        grid: Programs along each axis.
        rtol: How far values may be apart; 0 for not at all.
        reference: Computes the output with numpy, for interpreters that cannot.
        reference_rtol: How far it may be apart from values, where it sums in another order.
        older: Computes what interpreters of some releases give instead, which is wrong.
    """

    kernel: Any
    inputs: list[Any]
    out: tuple[Any, str]
    constants: dict[str, Any] = field(default_factory=dict)
    grid: tuple[int, ...] = (1,)
    rtol: float = 0.0
    reference: Any = None
    reference_rtol: float = 0.0
    older: Any = None


# What a release of Triton may not have: it is left out of the kernels.
HAS_SQUEEZE = tl.constexpr(hasattr(tl, "squeeze"))
CLAMPS_INTEGERS = not hasattr(tl.core, "_promote_bfloat16_to_float32")


@triton.jit
def put(out, row, value, N: tl.constexpr):
    tl.store(out + row * N + tl.arange(0, N), value)


@triton.jit
def arithmetic(x_ptr, y_ptr, out, N: tl.constexpr, CLAMPS: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * 0 + lanes)
    y = tl.load(y_ptr + lanes)
    put(out, 0, x + y, N)
    put(out, 1, x - y, N)
    put(out, 2, x * y, N)
    put(out, 3, x / y, N)
    put(out, 4, x % y, N)
    put(out, 5, tl.minimum(x, y), N)
    put(out, 6, tl.maximum(x, y), N)
    put(out, 7, tl.where(x > y, x, y + 1), N)
    put(out, 8, x <= y, N)
    put(out, 9, (x == y) | (x != x), N)
    put(out, 10, x + 3, N)
    put(out, 11, 100 - x, N)
    put(out, 12, x * 2.5, N)
    put(out, 13, 7 / y, N)
    put(out, 14, tl.abs(x), N)
    if CLAMPS:
        put(out, 15, tl.clamp(x, 2, 5), N)


@triton.jit
def fused(x_ptr, y_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * 0 + lanes)
    put(out, 0, tl.fma(x, tl.load(y_ptr + lanes), x), N)


@triton.jit
def integers(x_ptr, y_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * 0 + lanes)
    y = tl.load(y_ptr + lanes)
    put(out, 0, x // y, N)
    put(out, 1, x % y, N)
    put(out, 2, x & y, N)
    put(out, 3, x | y, N)
    put(out, 4, x ^ y, N)
    put(out, 5, x << 3, N)
    put(out, 6, x >> 2, N)
    put(out, 7, x // 3, N)
    put(out, 8, x % 5, N)
    put(out, 9, tl.cdiv(x, y), N)
    put(out, 10, x * 100 + y, N)
    put(out, 11, 100 // y, N)
    put(out, 12, x + lanes, N)
    put(out, 13, -x, N)


@triton.jit
def inverted(x_ptr, out, N: tl.constexpr):
    put(out, 0, ~tl.load(x_ptr + tl.program_id(0) * 0 + tl.arange(0, N)), N)


@triton.jit
def shifts(x_ptr, y_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * 0 + lanes)
    y = tl.load(y_ptr + lanes)
    put(out, 0, x >> y, N)
    put(out, 1, x << y, N)
    put(out, 2, x >> 1, N)
    put(out, 3, 100 >> y, N)
    put(out, 4, tl.load(x_ptr) >> tl.load(y_ptr), N)


@triton.jit
def high_halves(x_ptr, y_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    put(out, 0, tl.umulhi(tl.load(x_ptr + tl.program_id(0) * 0 + lanes), tl.load(y_ptr + lanes)), N)


@triton.jit
def functions(x_ptr, y_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * 0 + lanes)
    y = tl.load(y_ptr + lanes)
    put(out, 0, tl.exp(x), N)
    put(out, 1, tl.exp2(x), N)
    put(out, 2, tl.log(y), N)
    put(out, 3, tl.log2(y), N)
    put(out, 4, tl.sqrt(y), N)
    put(out, 6, tl.rsqrt(y), N)
    put(out, 7, tl.sin(x), N)
    put(out, 8, tl.cos(x), N)
    put(out, 9, tl.erf(x), N)
    put(out, 10, tl.floor(x), N)
    put(out, 11, tl.ceil(x), N)
    put(out, 12, tl.sigmoid(x), N)
    put(out, 13, tl.fdiv(x, y), N)
    put(out, 14, tl.softmax(x), N)


@triton.jit
def methods(x_ptr, out, N: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * 0 + tl.arange(0, N))
    put(out, 0, x.exp().abs().log(), N)


@triton.jit
def rounded_functions(x_ptr, y_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * 0 + lanes)
    y = tl.load(y_ptr + lanes)
    put(out, 0, tl.sqrt_rn(y), N)
    put(out, 1, tl.div_rn(x, y), N)


@triton.jit
def casts(x_ptr, out, N: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * 0 + tl.arange(0, N))
    put(out, 0, x.to(tl.float16), N)
    put(out, 1, x.to(tl.float32), N)
    put(out, 2, x.to(tl.float64), N)
    put(out, 3, x.to(tl.int8), N)
    put(out, 4, x.to(tl.int16), N)
    put(out, 5, x.to(tl.int32), N)
    put(out, 6, x.to(tl.int64), N)
    put(out, 7, x.to(tl.int1), N)
    put(out, 8, tl.abs(x).to(tl.uint8), N)
    put(out, 9, tl.abs(x).to(tl.uint16), N)
    put(out, 10, tl.abs(x).to(tl.uint32), N)
    put(out, 11, tl.cast(x, tl.float32).to(tl.int32, bitcast=True), N)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def merge_welford(mean1, m1, weight1, mean2, m2, weight2):
    delta = mean2 - mean1
    weight = weight1 + weight2
    ratio = weight2 / weight
    return mean1 + delta * ratio, m1 + m2 + delta * delta * weight1 * ratio, weight


@triton.jit
def decayed(a1, x1, a2, x2):
    return a1 * a2, x1 * a2 + x2


@triton.jit
def reductions(x_ptr, out, M: tl.constexpr, K: tl.constexpr):
    rows = tl.arange(0, M)
    columns = tl.arange(0, K)
    x = tl.load(x_ptr + tl.program_id(0) * 0 + rows[:, None] * K + columns[None, :])
    put(out, 0, tl.sum(x, axis=1), M)
    put(out, 1, tl.max(x, 1), M)
    put(out, 2, tl.min(x, -1), M)
    put(out, 3, tl.argmax(x, axis=1), M)
    put(out, 4, tl.argmin(x, 1), M)
    best, where = tl.max(x, axis=1, return_indices=True)
    put(out, 5, best, M)
    put(out, 6, where, M)
    put(out, 7, tl.sum(tl.sum(x, axis=0)), M)
    put(out, 8, tl.max(x), M)
    put(out, 9, tl.reshape(tl.sum(x, 1, keep_dims=True), (M,)), M)
    put(out, 10, tl.reduce(x, 1, product), M)
    put(out, 11, tl.sum(tl.cumsum(x, 1), 1), M)
    put(out, 12, tl.sum(tl.cumsum(x, axis=1, reverse=True), 1), M)
    put(out, 13, tl.sum(tl.cumprod(x, 1), 1), M)
    put(out, 14, tl.max(tl.sort(x, descending=True), 1), M)


@triton.jit
def several_together(x_ptr, out, M: tl.constexpr, K: tl.constexpr):
    rows = tl.arange(0, M)
    columns = tl.arange(0, K)
    x = tl.load(x_ptr + tl.program_id(0) * 0 + rows[:, None] * K + columns[None, :])
    ones = tl.full((M, K), 1.0, tl.float32)
    zeros = tl.zeros_like(x)
    mean, m2, weight = tl.reduce((x, zeros, ones), 1, merge_welford)
    put(out, 0, mean, M)
    put(out, 1, m2 / weight, M)
    decays = tl.full((M, K), 0.5, tl.float32)
    _, state = tl.associative_scan((decays, x), 1, decayed)
    put(out, 2, tl.sum(state, 1), M)
    _, state = tl.associative_scan((decays, x), 1, decayed, reverse=True)
    put(out, 3, tl.sum(state, 1), M)


@triton.jit
def bits_together(x_ptr, out, M: tl.constexpr, K: tl.constexpr):
    rows = tl.arange(0, M)
    x = tl.load(x_ptr + tl.program_id(0) * 0 + rows[:, None] * K + tl.arange(0, K)[None, :])
    put(out, 0, tl.xor_sum(x, 1), M)
    put(out, 1, tl.reduce_or(x, 1), M)


@triton.jit
def moves(x_ptr, out, M: tl.constexpr, K: tl.constexpr):
    S: tl.constexpr = M * K
    x = tl.load(
        x_ptr + tl.program_id(0) * 0 + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]
    )
    put(out, 0, tl.ravel(tl.trans(x)), S)
    put(out, 1, tl.reshape(x.T, (S,)), S)
    put(out, 2, tl.ravel(tl.permute(tl.reshape(x, (M, 2, K // 2)), (1, 2, 0))), S)
    low, high = tl.split(tl.reshape(x, (M, K // 2, 2)))
    put(out, 3, tl.ravel(tl.join(high, low)), S)
    put(out, 4, tl.ravel(tl.interleave(low, high)), S)
    put(out, 5, tl.cat(tl.ravel(low), tl.ravel(high), can_reorder=True), S)
    put(out, 6, tl.ravel(tl.flip(x, 1)), S)
    put(out, 7, tl.ravel(tl.flip(x, 0)), S)
    put(out, 8, tl.ravel(tl.broadcast_to(tl.expand_dims(tl.max(x, 1), 1), (M, K))), S)
    put(out, 9, tl.ravel(x + tl.max(x, 0)[None, :]), S)
    if HAS_SQUEEZE:
        put(out, 10, tl.ravel(tl.squeeze(tl.unsqueeze(x, 0), 0)), S)
    rising = tl.sort(x)
    put(out, 11, tl.ravel(rising), S)
    put(out, 12, tl.ravel(tl.sort(x, descending=True)), S)
    top = tl.topk(x, K // 2)
    put(out, 13, tl.ravel(tl.join(top, top)), S)
    put(out, 14, tl.ravel(tl.view(x, (K, M))), S)
    put(out, 15, tl.ravel(tl.trans(tl.reshape(x, (2, M // 2, K)), 2, 0, 1)), S)
    index = (tl.arange(0, K)[None, :] * 3 + tl.arange(0, M)[:, None]) % K
    put(out, 16, tl.ravel(tl.gather(x, index, 1)), S)
    put(out, 17, tl.ravel(tl.bitonic_merge(rising, descending=True)), S)


@triton.jit
def counts(x_ptr, out, N: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * 0 + tl.arange(0, N))
    put(out, 0, tl.histogram(x, N), N)
    put(out, 1, tl.histogram(x, N, mask=x % 2 == 0), N)


@triton.jit
def randoms(out, seed, N: tl.constexpr):
    lanes = tl.arange(0, N) + tl.program_id(0) * 0
    put(out, 0, tl.rand(seed, lanes), N)
    put(out, 1, tl.randn(seed, lanes), N)
    put(out, 2, tl.randint(seed, lanes), N)
    a, b, c, d = tl.randint4x(seed, lanes + 1000)
    put(out, 3, a ^ b ^ c ^ d, N)
    a, b, c, d = tl.rand4x(seed, lanes)
    put(out, 4, a + b + c + d, N)
    put(out, 5, tl.randint(seed, lanes.to(tl.int64) * 1_000_000_007), N)
    put(out, 6, tl.rand(seed, lanes, n_rounds=6), N)


@triton.jit
def quotient_and_rest(x, y):
    return x // y, x % y


@triton.jit
def first_power_above(x):
    power = 1
    while power <= x:
        power *= 2
    return power


@triton.jit
def control(x_ptr, out, limit, flag: tl.constexpr, N: tl.constexpr):
    pid = tl.program_id(0)
    if pid >= limit:
        return
    x = tl.load(x_ptr + pid)
    total = 0
    for i in range(pid, 20, 3):
        if i % 2 == 0 and i > 4:
            total += i
        elif not (i < 10 or i == 13):
            total -= 1
    tl.store(out + pid, total)
    whole, rest = quotient_and_rest(x, 3)
    tl.store(out + N + pid, whole * 10 + rest)
    tl.store(out + 2 * N + pid, first_power_above(x))
    tl.store(out + 3 * N + pid, 1 if 2 < x < 40 else 0)
    steps = 0
    while x > 1 and steps < 30:
        x = x // 2 if x % 2 == 0 else 3 * x + 1
        steps += 1
    tl.store(out + 4 * N + pid, steps)
    kept = 0
    for i in tl.static_range(4):
        if flag:
            kept += i * i
        else:
            kept -= i
    tl.store(out + 5 * N + pid, kept)
    for i in tl.range(0, pid, num_stages=2, flatten=True):
        kept += i
    tl.store(out + 6 * N + pid, kept)
    tl.store(out + 7 * N + pid, tl.num_programs(0) - pid)
    row, column = tl.swizzle2d(pid // 8, pid % 8, 8, 8, 2)
    tl.store(out + 8 * N + pid, row * 100 + column)


@triton.jit
def masks(x_ptr, out, size, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * 0 + lanes, mask=lanes < size, other=-1)
    put(out, 0, x, N)
    tl.store(out + N + lanes, x, mask=lanes % 3 == 0)
    put(out, 2, tl.load(x_ptr + tl.program_id(0) * 0 + lanes, mask=lanes >= size, other=5.0), N)
    first = tl.load(x_ptr)
    tl.store(out + 3 * N, first + tl.load(x_ptr + 1))
    tl.store(out + 4 * N + lanes[:, None] // 2 + tl.zeros((1, 2), tl.int32), first)


@triton.jit
def described(x_ptr, out, rows, columns, M: tl.constexpr, K: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [M, K])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [M, K])
    pid = tl.program_id(0)
    block = source.load([pid * M, 4])
    target.store([pid * M, 0], block * 2)


@triton.jit
def matrix_product(
    a_ptr, b_ptr, out, M: tl.constexpr, K: tl.constexpr, L: tl.constexpr, WIDE: tl.constexpr
):
    rows = tl.arange(0, M)
    inner = tl.arange(0, K)
    columns = tl.arange(0, L)
    a = tl.load(a_ptr + tl.program_id(0) * 0 + rows[:, None] * K + inner[None, :])
    b = tl.load(b_ptr + inner[:, None] * L + columns[None, :])
    c = tl.dot(a, b, acc=tl.zeros((M, L), WIDE))
    tl.store(out + rows[:, None] * L + columns[None, :], tl.dot(a, b, c))


def _random(dtype: str, *shape: int, seed: int = 0, low: float = -50, high: float = 50) -> Any:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        low = max(int(low), 0) if np.dtype(dtype).kind == "u" else int(low)
        found = rng.integers(low, int(high), shape)
    else:
        found = rng.uniform(low, high, shape)
    return found.astype(dtype)


def _positive(dtype: str, *shape: int) -> Any:
    return _random(dtype, *shape, seed=1, low=1, high=40)


FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _doubled_product(a, b):
    wide = "i8" if a.dtype.kind == "i" else "f8"
    return 2 * (a.astype(wide) @ b.astype(wide))


@triton.jit
def scaled_product(
    a_ptr, a_scales, b_ptr, b_scales, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, A_PACK: tl.constexpr, B_PACK: tl.constexpr,
):  # fmt: skip
    rows_a: tl.constexpr = M // 2 if A == "e2m1" and not A_PACK else M
    inner_a: tl.constexpr = K // 2 if A == "e2m1" and A_PACK else K
    inner_b: tl.constexpr = K // 2 if B == "e2m1" and B_PACK else K
    columns_b: tl.constexpr = N // 2 if B == "e2m1" and not B_PACK else N
    m, n, groups = tl.arange(0, M)[:, None], tl.arange(0, N)[:, None], tl.arange(0, K // 32)[None]
    first = tl.program_id(0) * 0
    ma, ka = first + tl.arange(0, rows_a)[:, None], tl.arange(0, inner_a)[None, :]
    kb, nb = tl.arange(0, inner_b)[:, None], tl.arange(0, columns_b)[None, :]
    a = tl.load(a_ptr + ma * inner_a + ka)
    b = tl.load(b_ptr + kb * columns_b + nb)
    sa = tl.load(a_scales + m * (K // 32) + groups)
    sb = tl.load(b_scales + n * (K // 32) + groups)
    acc = tl.full((M, N), 0.5, tl.float32)
    product = tl.dot_scaled(a, sa, A, b, sb, B, acc, lhs_k_pack=A_PACK, rhs_k_pack=B_PACK)
    tl.store(out + m * N + tl.arange(0, N)[None, :], product)


def _scaled_cases(random):
    """Return a case for each pair of formats of 8 bits and less, and for both ways to pack."""
    m, n, k = 16, 32, 64
    for ours, theirs, *packs in (
        ("e4m3", "e4m3", True, True), ("e4m3", "e5m2", True, True), ("e5m2", "e2m1", True, True),
        ("e2m1", "e2m1", True, True), ("e2m1", "e4m3", False, True), ("e4m3", "e2m1", True, False),
    ):  # fmt: skip
        sizes = [m * k // (1 + (ours == "e2m1")), k * n // (1 + (theirs == "e2m1"))]
        a, b = (random.integers(0, 256, size, np.uint8) for size in sizes)
        scales = [random.integers(120, 134, rows * k // 32, np.uint8) for rows in (m, n)]
        scales[0][3], scales[1][5] = 255, 0  # NaN, and the smallest.
        constants = dict(zip("MNKAB", (m, n, k, ours, theirs), strict=True))
        constants |= dict(zip(("A_PACK", "B_PACK"), packs, strict=True))
        arrays, out = [a, scales[0], b, scales[1]], ((m, n), "float32")
        yield (
            f"scaled {ours} {theirs} {packs}",
            Case(
                scaled_product,
                arrays,
                out,
                constants,
                reference=partial(_scaled, **constants),
                reference_rtol=1e-4,
            ),
        )


def _scaled(a, a_scales, b, b_scales, *, M, N, K, A, B, A_PACK, B_PACK):
    """Return the product with numpy; interpreters before Triton 3.8 have none."""
    left = _decoded(a, A, (M, K), packed=1 if A_PACK else 0)
    right = _decoded(b, B, (K, N), packed=0 if B_PACK else 1)
    ours, theirs = (
        np.repeat(s.view(ml_dtypes.float8_e8m0fnu).astype("f4").reshape(-1, K // 32), 32, axis=1)
        for s in (a_scales, b_scales)
    )
    with np.errstate(all="ignore"):
        return (left * ours) @ (right * theirs.T) + np.float32(0.5)


def _decoded(data, form, shape, *, packed):
    """Return numbers of 8 bits, or of 4 of which two share a byte along an axis, low one first."""
    if form != "e2m1":
        kind = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[form]
        return data.view(kind).astype("f4").reshape(shape)
    halved = list(shape)
    halved[packed] //= 2
    data = data.reshape(halved)
    pairs = np.stack([data & 15, data >> 4], axis=packed + 1)
    return pairs.view(ml_dtypes.float4_e2m1fn).astype("f4").reshape(shape)


def _shifts():
    """Cases of shifts, for each two types of integers."""
    for dtype, by in itertools.product(INTEGERS, INTEGERS):
        pair = [_random(dtype, N, low=-100, high=100), _random(by, N, seed=5, low=0, high=7)]
        # The interpreter keeps the left operand's signedness: stored in as many bits, it is equal.
        wide = f"int{8 * max(np.dtype(dtype).itemsize, np.dtype(by).itemsize)}"
        reference = partial(_shifted, wide)
        yield (
            f"shifts {dtype} {by}",
            Case(shifts, pair, ((5, N), wide), {"N": N}, (1,), 0.0, reference),
        )


def _shifted(wide, x, y):
    x, y = x.astype("i8"), y.astype("i8")
    rows = [x >> y, x << y, x >> 1, 100 >> y, np.full(N, x[0] >> y[0])]
    return np.stack(rows).astype(wide)


def _by_methods(x):
    return np.log(np.abs(np.exp(x)))[None]


def _fused(x, y):
    """Return x * y + x, rounded once."""
    exact = [
        Fraction(float(a)) * Fraction(float(b)) + Fraction(float(a))
        for a, b in zip(x, y, strict=True)
    ]
    return np.array([exact], "f8").astype(x.dtype)


def _not_fused(x, y):
    return (x * y + x)[None]


def _cases() -> dict[str, Case]:
    found = {}
    for dtype in (*FLOATS, *INTEGERS):
        pair = [_random(dtype, N), _positive(dtype, N)]
        wide = "float64" if dtype in FLOATS else "int64"
        constants = {"N": N, "CLAMPS": dtype in FLOATS or CLAMPS_INTEGERS}
        found[f"arithmetic {dtype}"] = Case(arithmetic, pair, ((16, N), "float64"), constants)
        found[f"casts {dtype}"] = Case(casts, pair[:1], ((12, N), "float64"), {"N": N})
        matrix = [_random(dtype, 4, 8, seed=3, low=-3, high=3)]
        sizes = {"M": 4, "K": 8}
        rtol = 1e-6 if dtype != "float16" else 2e-2
        found[f"reductions {dtype}"] = Case(reductions, matrix, ((15, 4), wide), sizes, (1,), rtol)
        found[f"moves {dtype}"] = Case(moves, matrix, ((18, 32), wide), sizes)
        if dtype in FLOATS:
            found[f"fused {dtype}"] = Case(
                fused, pair, ((1, N), "float64"), {"N": N}, reference=_fused, older=_not_fused
            )
        if dtype in INTEGERS:
            found[f"integers {dtype}"] = Case(integers, pair, ((14, N), "int64"), {"N": N})
            found[f"inverted {dtype}"] = Case(
                inverted, pair[:1], ((1, N), dtype), {"N": N}, reference=lambda x: ~x[None]
            )
            found[f"bits {dtype}"] = Case(bits_together, matrix, ((2, 4), "int64"), sizes)
        if dtype.endswith(("int32", "int64")):
            large = [_random(dtype, N, low=0, high=2**31), _random(dtype, N, seed=4, high=2**31)]
            found[f"high halves {dtype}"] = Case(high_halves, large, ((1, N), dtype), {"N": N})
    found |= dict(_shifts())
    for dtype in ("float32", "float64"):
        pair = [_random(dtype, N, low=-4, high=4), _positive(dtype, N)]
        found[f"functions {dtype}"] = Case(
            functions, pair, ((15, N), dtype), {"N": N}, rtol=1e-6 if dtype == "float32" else 1e-12
        )
        found[f"methods {dtype}"] = Case(
            methods, pair[:1], ((1, N), dtype), {"N": N}, reference=_by_methods,
            rtol=1e-6 if dtype == "float32" else 1e-12,
        )  # fmt: skip
    pair = [_random("float32", N), _positive("float32", N)]
    found["rounded functions"] = Case(rounded_functions, pair, ((2, N), "float32"), {"N": N})
    matrix = [_random("float32", 8, 16, low=-3, high=3)]
    found["several together"] = Case(
        several_together, matrix, ((4, 8), "float32"), {"M": 8, "K": 16}, rtol=1e-4
    )
    found["counts"] = Case(
        counts, [_random("int32", N, low=0, high=60)], ((2, N), "int32"), {"N": N}
    )
    for seed in (0, 1234, 2**40 + 7):
        found[f"randoms {seed}"] = Case(randoms, [], ((7, N), "float64"), {"seed": seed, "N": N})
    steps = [_random("int32", 16, low=1, high=50)]
    for flag in (True, False):
        constants = {"limit": 12, "flag": flag, "N": 16}
        found[f"control {flag}"] = Case(control, steps, ((9, 16), "int32"), constants, (16,))
    for dtype in ("float32", "float16", "int32"):
        constants = {"size": 40, "N": N}
        found[f"masks {dtype}"] = Case(masks, [_random(dtype, N)], ((5, N), dtype), constants)
    constants = {"rows": 20, "columns": 32, "M": 8, "K": 16}
    source = [_random("float32", 20, 32)]
    found["described"] = Case(described, source, ((20, 32), "float32"), constants, (3,))
    for dtype, wide in (("float16", tl.float32), ("float32", tl.float32), ("int8", tl.int32),
                        ("float64", tl.float64)):  # fmt: skip
        pair = [
            _random(dtype, 16, 32, low=-9, high=9),
            _random(dtype, 32, 16, seed=2, low=-9, high=9),
        ]
        out = ((16, 16), "int32" if dtype == "int8" else "float64")
        constants = {"M": 16, "K": 32, "L": 16, "WIDE": wide}
        # Releases that do not derive the result's type from the operands refuse these two.
        reference = _doubled_product if dtype in {"int8", "float64"} else None
        found[f"dot {dtype}"] = Case(
            matrix_product, pair, out, constants, rtol=1e-6, reference=reference
        )
    found |= dict(_scaled_cases(np.random.default_rng(17)))
    return found


CASES = _cases()
