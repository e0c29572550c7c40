"""Simulated beside published times of Triton kernels: how far an author may trust them.

`python benches/kernels_published.py [--json FILE]` runs the kernels of Triton's tutorials as their
authors tuned them (blocks, warps), without data, on the simulated device, and prints simulated
beside published throughput.

Sources are in the table below, one per row: issues and pull requests of the named repositories.
"""

# ruff: noqa: ANN001, ANN201, ANN202, ARG001, N803, PLR0913, PLR0917

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import triton
import triton.language as tl
from published import show

import simrank

if TYPE_CHECKING:
    from collections.abc import Callable


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    across = tl.cdiv(N, BN)
    rows = tl.program_id(0) // across * BM + tl.arange(0, BM)
    columns = tl.program_id(0) % across * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_at = a_ptr + rows[:, None] * K + inner[None, :]
    b_at = b_ptr + inner[:, None] * N + columns[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(tl.cdiv(K, BK)):
        acc = tl.dot(tl.load(a_at), tl.load(b_at), acc)
        a_at += BK
        b_at += BK * N
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    c_at = c_ptr + rows[:, None] * N + columns[None, :]
    tl.store(c_at, acc.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _attend(acc, total, top, q, k_ptr, v_ptr, first, last, rows, scale, MASKED: tl.constexpr,
            BN: tl.constexpr, D: tl.constexpr):  # fmt: skip
    dims = tl.arange(0, D)
    for start in range(first, last, BN):
        columns = start + tl.arange(0, BN)
        k = tl.load(k_ptr + columns[None, :] * D + dims[:, None])
        scores = tl.dot(q, k)
        if MASKED:
            scores = scores * scale + tl.where(rows[:, None] >= columns[None, :], 0.0, -1.0e6)
            higher = tl.maximum(top, tl.max(scores, 1))
            scores -= higher[:, None]
        else:
            higher = tl.maximum(top, tl.max(scores, 1) * scale)
            scores = scores * scale - higher[:, None]
        powers = tl.math.exp2(scores)
        shrink = tl.math.exp2(top - higher)
        total = total * shrink + tl.sum(powers, 1)
        acc = acc * shrink[:, None]
        v = tl.load(v_ptr + columns[:, None] * D + dims[None, :])
        acc = tl.dot(powers.to(v.dtype), v, acc)
        top = higher
    return acc, total, top


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, sums_ptr, scale, T, CAUSAL: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    rows, dims = block * BM + tl.arange(0, BM), tl.arange(0, D)
    begin = head.to(tl.int64) * T * D
    at = begin + rows[:, None] * D + dims[None, :]
    q = tl.load(q_ptr + at)
    top = tl.zeros((BM,), tl.float32) - float("inf")
    total = tl.zeros((BM,), tl.float32) + 1.0
    acc = tl.zeros((BM, D), tl.float32)
    last = T
    if CAUSAL:
        last = block * BM
    acc, total, top = _attend(
        acc, total, top, q, k_ptr + begin, v_ptr + begin, 0, last, rows, scale, False, BN, D
    )
    if CAUSAL:
        acc, total, top = _attend(
            acc, total, top, q, k_ptr + begin, v_ptr + begin, last, last + BM, rows, scale, True,
            BN, D,
        )  # fmt: skip
    tl.store(sums_ptr + head * T + rows, top + tl.math.log2(total))
    tl.store(o_ptr + at, (acc / total[:, None]).to(o_ptr.dtype.element_ty))


@triton.jit
def _keys_and_values(dk, dv, k, v, q_ptr, do_ptr, sums_ptr, delta_ptr, columns, first, last,
                     MASKED: tl.constexpr, NARROW: tl.constexpr, D: tl.constexpr):  # fmt: skip
    dims = tl.arange(0, D)
    for start in range(first, last, NARROW):
        rows = start + tl.arange(0, NARROW)
        q = tl.load(q_ptr + rows[:, None] * D + dims[None, :])
        sums = tl.load(sums_ptr + rows)
        powers = tl.math.exp2(tl.dot(k, tl.trans(q)) - sums[None, :])
        if MASKED:
            powers = tl.where(rows[None, :] >= columns[:, None], powers, 0.0)
        do = tl.load(do_ptr + rows[:, None] * D + dims[None, :])
        dv = tl.dot(powers.to(tl.float16), do, dv)
        delta = tl.load(delta_ptr + rows)
        slopes = powers * (tl.dot(v, tl.trans(do)) - delta[None, :])
        dk = tl.dot(slopes.to(tl.float16), q, dk)
    return dk, dv


@triton.jit
def _queries(dq, q, do, sums, delta, k_ptr, v_ptr, rows, first, last,
             MASKED: tl.constexpr, NARROW: tl.constexpr, D: tl.constexpr):  # fmt: skip
    dims = tl.arange(0, D)
    for start in range(first, last, NARROW):
        columns = start + tl.arange(0, NARROW)
        k = tl.load(k_ptr + columns[:, None] * D + dims[None, :])
        v = tl.load(v_ptr + columns[:, None] * D + dims[None, :])
        powers = tl.math.exp2(tl.dot(q, tl.trans(k)) - sums[:, None])
        if MASKED:
            powers = tl.where(rows[:, None] >= columns[None, :], powers, 0.0)
        slopes = powers * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dq = tl.dot(slopes.to(tl.float16), k, dq)
    return dq


@triton.jit
def attention_backward(q_ptr, k_ptr, v_ptr, do_ptr, dq_ptr, dk_ptr, dv_ptr, sums_ptr, delta_ptr, T,
                       CAUSAL: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr,
                       D: tl.constexpr):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    begin = head.to(tl.int64) * T * D
    q_ptr, k_ptr, v_ptr, do_ptr = q_ptr + begin, k_ptr + begin, v_ptr + begin, do_ptr + begin
    sums_ptr, delta_ptr = sums_ptr + head * T, delta_ptr + head * T
    wide, dims = block * WIDE + tl.arange(0, WIDE), tl.arange(0, D)
    at = wide[:, None] * D + dims[None, :]
    k, v = tl.load(k_ptr + at), tl.load(v_ptr + at)
    dk, dv = tl.zeros((WIDE, D), tl.float32), tl.zeros((WIDE, D), tl.float32)
    first = 0
    if CAUSAL:
        first = (block + 1) * WIDE
        dk, dv = _keys_and_values(
            dk, dv, k, v, q_ptr, do_ptr, sums_ptr, delta_ptr, wide, block * WIDE, first, True,
            NARROW // 2, D,
        )  # fmt: skip
    dk, dv = _keys_and_values(
        dk, dv, k, v, q_ptr, do_ptr, sums_ptr, delta_ptr, wide, first, T, False, NARROW, D
    )
    tl.store(dv_ptr + begin + at, dv.to(tl.float16))
    tl.store(dk_ptr + begin + at, dk.to(tl.float16))
    q, do = tl.load(q_ptr + at), tl.load(do_ptr + at)
    sums, delta = tl.load(sums_ptr + wide), tl.load(delta_ptr + wide)
    dq = tl.zeros((WIDE, D), tl.float32)
    last = T
    if CAUSAL:
        last = block * WIDE
        dq = _queries(
            dq, q, do, sums, delta, k_ptr, v_ptr, wide, last, last + WIDE, True, NARROW // 2, D
        )
    dq = _queries(dq, q, do, sums, delta, k_ptr, v_ptr, wide, 0, last, False, NARROW, D)
    tl.store(dq_ptr + begin + at, dq.to(tl.float16))


@triton.jit
def products_of_rows(o_ptr, do_ptr, delta_ptr, ROWS: tl.constexpr, D: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    both = tl.load(o_ptr + at).to(tl.float32) * tl.load(do_ptr + at).to(tl.float32)
    tl.store(delta_ptr + rows, tl.sum(both, 1))


@triton.jit
def scaled(x_ptr, out_ptr, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, (tl.load(x_ptr + at) * scale).to(tl.float16))


@triton.jit
def added(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + tl.load(y_ptr + at, mask=at < n),
             mask=at < n)  # fmt: skip


@triton.jit
def softmax(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * n + columns
    x = tl.load(x_ptr + at, mask=columns < n, other=-float("inf")).to(tl.float32)
    top = tl.max(x, 0)
    total = tl.sum(tl.exp(x - top), 0)
    again = tl.load(x_ptr + at, mask=columns < n, other=-float("inf"))
    y = tl.exp(again.to(tl.float32) - top) / total
    tl.store(out_ptr + at, y.to(again.dtype), mask=columns < n)


@triton.jit
def softmax_backward(dy_ptr, y_ptr, dx_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * n + columns
    dy = tl.load(dy_ptr + at, mask=columns < n, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + at, mask=columns < n, other=0.0).to(tl.float32)
    along = tl.sum(y * dy, 0)
    again = tl.load(dy_ptr + at, mask=columns < n, other=0.0)
    dx = tl.load(y_ptr + at, mask=columns < n, other=0.0).to(tl.float32) * (again - along)
    tl.store(dx_ptr + at, dx.to(again.dtype), mask=columns < n)


class Case(NamedTuple):
    """One published figure.

    Attributes:
        kernel: Which one ran.
        cluster: On what.
        sizes: Of the kernel, see its runner.
        published: TFLOPS, or GB/s.
        source: Who measured.
    """

    kernel: str
    cluster: str
    sizes: tuple[int, ...]
    published: float
    source: str


_TUTORIALS = "triton-lang.org tutorials, 06-fused-attention (A100)"
_HOPPER_D128 = "facebookexperimental/triton#205"
_HOPPER_D64 = "triton-lang/triton#2459"
_PAPER = "Shah et al., FlashAttention-3, 2024, figure 5 (H100 SXM5)"
_BENCHED = "pytorch/benchmark#2296 (H100)"
_BENCHED_16K = "pytorch/benchmark#2391 (H100)"
_MATMUL = "triton-lang/triton#3551 (A100)"
_MATMUL_FP8 = "triton-lang/triton#3546 (H100)"
_VECTORS = "triton-lang/triton#3894 (A100)"
_PROFILES = "XAheli/Kernel-Profiling, data_dashboard/data.js (H200)"
NUM_HEADS = 128  # Four batches of 32, as published; 48 are as fast.


def _cases(kernel: str, cluster: str, source: str, *rows: tuple[tuple[int, ...], float]):
    return [Case(kernel, cluster, sizes, published, source) for sizes, published in rows]


def _of_paper(dim: int, causal: int, *published: float):
    """Return rows of 2,048 to 16,384 tokens: as many in all, of a hidden size of 2,048.

    Less is bound by its launches: half of 1,024 takes as long below the diagonal as without one.
    """
    rows = [
        ((length, dim, causal, 16384 // length * (2048 // dim)), flops)
        for length, flops in zip((2048, 4096, 8192, 16384), published, strict=True)
    ]
    return _cases("attention", "hgx_h100", _PAPER, *rows)


# Attention: T, D, causal, heads; forward in blocks of 128 x 64, backward of 128 x 32, on the
# diagonal of 128 x 16; its time has what autograd does for it (`_backward`). Products:
# M = N = K; of those in fp8 the largest, as smaller ones were bound by their launches. Additions:
# elements. Softmax: rows and columns in fp32; of those profiles the ones that memory bounds, since
# the profiler holds the clock of SMs low.
CASES = (
    *_cases("attention", "hgx_h100", _HOPPER_D128,
            ((1024, 128, 0, NUM_HEADS), 406.8), ((2048, 128, 0, NUM_HEADS), 427.8),
            ((4096, 128, 0, NUM_HEADS), 459.6), ((16384, 128, 0, NUM_HEADS), 487.0)),
    *_cases("attention", "hgx_h100", _HOPPER_D64,
            ((1024, 64, 1, NUM_HEADS), 217.0), ((2048, 64, 1, NUM_HEADS), 303.0)),
    *_cases("attention", "hgx_h100", _BENCHED,
            ((1024, 128, 0, 1024), 353.4), ((2048, 128, 0, 1024), 385.4),
            ((4096, 128, 0, 1024), 404.7), ((8192, 128, 0, 1024), 413.3),
            ((16384, 128, 0, 1024), 420.1)),
    *_cases("attention", "hgx_h100", _BENCHED_16K,
            ((1024, 128, 0, 256), 389.7), ((2048, 128, 0, 128), 433.7),
            ((4096, 128, 0, 64), 458.4), ((8192, 128, 0, 32), 470.7), ((16384, 128, 0, 16), 476.8)),
    *_of_paper(64, 0, 396, 400, 401, 403),
    *_of_paper(128, 0, 389, 389, 392, 395),
    *_of_paper(128, 1, 323, 353, 369, 378),
    *_cases("attention", "hgx_a100", _TUTORIALS,
            ((1024, 64, 0, NUM_HEADS), 141.4), ((2048, 64, 0, NUM_HEADS), 159.7),
            ((4096, 64, 0, NUM_HEADS), 160.6), ((16384, 64, 0, NUM_HEADS), 166.6),
            ((1024, 64, 1, NUM_HEADS), 111.7), ((2048, 64, 1, NUM_HEADS), 136.5),
            ((4096, 64, 1, NUM_HEADS), 150.0), ((16384, 64, 1, NUM_HEADS), 164.3)),
    *_cases("backward", "hgx_a100", _TUTORIALS,
            ((1024, 64, 1), 59.8), ((2048, 64, 1), 76.2), ((4096, 64, 1), 87.5)),
    *_cases("matmul", "hgx_a100", _MATMUL, ((2560,), 214.2), ((2816,), 233.2), ((3072,), 230.2)),
    *_cases("matmul fp8", "hgx_h100", _MATMUL_FP8, ((3584,), 1279.9)),
    *_cases("add", "hgx_a100", _VECTORS, ((1 << 22,), 1206.2), ((1 << 24,), 1546.6),
            ((1 << 26,), 1665.2)),
    *_cases("add", "hgx_h200", _PROFILES, ((1 << 25,), 4554), ((1 << 28,), 4521),
            ((1 << 29,), 4537), ((48 * 12_000 * 1536,), 4405)),
    *_cases("softmax", "hgx_h200", _PROFILES, ((1 << 16, 1024), 4099), ((1 << 19, 1024), 4211),
            ((1 << 16, 4096), 4091), ((1 << 17, 4096), 4090), ((1 << 19, 4096), 3986),
            ((1 << 16, 8192), 4014)),
    *_cases("softmax bwd", "hgx_h200", _PROFILES, ((1 << 16, 1024), 4318), ((1 << 19, 1024), 4156),
            ((1 << 16, 4096), 3301), ((1 << 17, 4096), 3270), ((1 << 19, 4096), 3238),
            ((1 << 16, 8192), 4052)),
)  # fmt: skip
BM, BN = 128, 64
# The tutorial tries them, with these warps and stages.
_TILES = (
    ((128, 256, 64), 8, 3), ((64, 256, 32), 4, 4), ((128, 128, 32), 4, 4), ((128, 64, 32), 4, 4),
)  # fmt: skip
_TILES_FP8 = (((128, 256, 128), 8, 3), ((256, 128, 128), 8, 3), ((128, 128, 128), 4, 4))


def _attention(ctx, length: int, dim: int, causal: int, heads: int) -> float:
    """Return TFLOPS of two products per block of scores."""
    q, k, v, o = (_some(ctx, heads * length, dim) for _ in range(4))
    sums = ctx.empty(heads * length)
    grid, warps = (length // BM, heads), 4 if dim <= 64 else 8
    done = ctx.launch(
        attention, grid, q, k, v, o, sums, 0.1, length, CAUSAL=bool(causal), BM=BM, BN=BN, D=dim,
        num_warps=warps, num_stages=3,
    )  # fmt: skip
    ctx.synchronize()
    flops = 4 * heads * length * length * dim / (2 if causal else 1)
    return flops / done.cost.duration_ps


def _backward(ctx, length: int, dim: int, causal: int) -> float:
    """Return TFLOPS of five products per block of scores.

    The tutorial times `o.backward(do)` again and again: its three kernels, and autograd adds each
    gradient to the one before.
    """
    rows = NUM_HEADS * length
    q, k, v, o, do, dq, dk, dv, *before = (_some(ctx, rows, dim) for _ in range(11))
    sums, delta = ctx.empty(rows), ctx.empty(rows)
    done = [
        ctx.launch(scaled, (rows * dim // 1024,), k, k, 0.1, BLOCK=1024),
        ctx.launch(products_of_rows, (rows // 128,), o, do, delta, ROWS=128, D=dim),
        ctx.launch(
            attention_backward, (length // 128, NUM_HEADS), q, k, v, do, dq, dk, dv, sums, delta,
            length, CAUSAL=bool(causal), WIDE=128, NARROW=32, D=dim, num_warps=4, num_stages=5,
        ),
        *(ctx.launch(added, (rows * dim // 1024,), total, each, total, rows * dim, BLOCK=1024)
          for total, each in zip(before, (dq, dk, dv), strict=True)),
    ]  # fmt: skip
    ctx.synchronize()
    flops = 10 * NUM_HEADS * length * length * dim / (2 if causal else 1)
    return flops / sum(each.cost.duration_ps for each in done)


def _some(ctx, rows: int, columns: int):
    return ctx.empty(rows, columns, dtype=ctx.float16)


def _matmul(ctx, size: int) -> float:
    """Return TFLOPS of a square product in fp16, with the best of the author's tiles."""
    return _product(ctx, size, ctx.float16, _TILES)


def _matmul_fp8(ctx, size: int) -> float:
    """Return TFLOPS of a square product in fp8, with the author's tiles for it."""
    return _product(ctx, size, "float8_e5m2", _TILES_FP8)


def _product(ctx, size: int, dtype, tried) -> float:
    a, b = (ctx.empty(size, size, dtype=dtype) for _ in range(2))
    c = ctx.empty(size, size, dtype=ctx.float16)
    best = []
    for (rows, columns, inner), warps, stages in tried:
        grid = (triton.cdiv(size, rows) * triton.cdiv(size, columns),)
        tiles = {"BM": rows, "BN": columns, "BK": inner, "num_warps": warps, "num_stages": stages}
        best.append(ctx.launch(matmul, grid, a, b, c, size, size, size, **tiles))
    ctx.synchronize()
    return 2 * size**3 / min(each.cost.duration_ps for each in best)


def _add(ctx, size: int) -> float:
    """Return GB/s of an addition."""
    x, y, out = (ctx.empty(size) for _ in range(3))
    done = ctx.launch(added, (triton.cdiv(size, 1024),), x, y, out, size, BLOCK=1024)
    ctx.synchronize()
    return 12 * size / done.cost.duration_ps * 1e3


def _softmax(ctx, rows: int, columns: int) -> float:
    """Return GB/s of a softmax of rows: it is read and written once."""
    return _by_rows(ctx, softmax, rows, columns, num_tensors=2)


def _softmax_backward(ctx, rows: int, columns: int) -> float:
    """Return GB/s of its backward: two tensors are read and one is written."""
    return _by_rows(ctx, softmax_backward, rows, columns, num_tensors=3)


def _by_rows(ctx, kernel, rows: int, columns: int, *, num_tensors: int) -> float:
    tensors = [ctx.empty(rows, columns) for _ in range(num_tensors)]
    warps = 16 if columns >= 8192 else 8 if columns >= 2048 else 4
    done = ctx.launch(kernel, (rows,), *tensors, columns, BLOCK=columns, num_warps=warps)
    ctx.synchronize()
    return num_tensors * 4 * rows * columns / done.cost.duration_ps * 1e3


RUNNERS: dict[str, Callable[..., float]] = {
    "attention": _attention, "backward": _backward, "matmul": _matmul,
    "matmul fp8": _matmul_fp8, "add": _add,
    "softmax": _softmax, "softmax bwd": _softmax_backward,
}  # fmt: skip


def simulated(case: Case) -> float:
    """Return the simulated throughput of a case."""
    found = []

    def program(rank, ctx):
        found.append(RUNNERS[case.kernel](ctx, *case.sizes))

    with simrank.Context(case.cluster, data=False) as ctx:
        ctx.multiprocessing.spawn(program, args=(ctx,), nprocs=1)
    return found[0]


def named(case: Case) -> str:
    """Return a case as its row begins."""
    return f"{case.kernel:<12}{case.cluster:<10}{'x'.join(map(str, case.sizes)):<16}"


if __name__ == "__main__":
    show(__doc__, CASES, simulated, named)
