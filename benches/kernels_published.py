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
def attention_backward(q_ptr, k_ptr, v_ptr, do_ptr, dq_ptr, dk_ptr, dv_ptr, sums_ptr, delta_ptr, T,
                       CAUSAL: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr,
                       D: tl.constexpr):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    begin = head.to(tl.int64) * T * D
    wide, dims, narrow = block * WIDE + tl.arange(0, WIDE), tl.arange(0, D), tl.arange(0, NARROW)
    at = begin + wide[:, None] * D + dims[None, :]
    k, v = tl.load(k_ptr + at), tl.load(v_ptr + at)
    dk, dv = tl.zeros((WIDE, D), tl.float32), tl.zeros((WIDE, D), tl.float32)
    first = block * WIDE if CAUSAL else 0
    for start in range(first, T, NARROW):
        rows = start + narrow
        q = tl.load(q_ptr + begin + rows[:, None] * D + dims[None, :])
        do = tl.load(do_ptr + begin + rows[:, None] * D + dims[None, :])
        powers = tl.math.exp2(tl.dot(k, tl.trans(q)) - tl.load(sums_ptr + head * T + rows)[None, :])
        if CAUSAL:
            powers = tl.where(rows[None, :] >= wide[:, None], powers, 0.0)
        dv = tl.dot(powers.to(tl.float16), do, dv)
        dp = tl.dot(v, tl.trans(do))
        ds = powers * (dp - tl.load(delta_ptr + head * T + rows)[None, :])
        dk = tl.dot(ds.to(tl.float16), q, dk)
    tl.store(dk_ptr + at, dk.to(tl.float16))
    tl.store(dv_ptr + at, dv.to(tl.float16))
    own_q, own_do = tl.load(q_ptr + at), tl.load(do_ptr + at)
    sums, delta = tl.load(sums_ptr + head * T + wide), tl.load(delta_ptr + head * T + wide)
    dq = tl.zeros((WIDE, D), tl.float32)
    last = (block + 1) * WIDE if CAUSAL else T
    for start in range(0, last, NARROW):
        columns = start + narrow
        some_k = tl.load(k_ptr + begin + columns[:, None] * D + dims[None, :])
        some_v = tl.load(v_ptr + begin + columns[:, None] * D + dims[None, :])
        scores = tl.math.exp2(tl.dot(own_q, tl.trans(some_k)) - sums[:, None])
        if CAUSAL:
            scores = tl.where(wide[:, None] >= columns[None, :], scores, 0.0)
        slope = scores * (tl.dot(own_do, tl.trans(some_v)) - delta[:, None])
        dq = tl.dot(slope.to(tl.float16), some_k, dq)
    tl.store(dq_ptr + at, dq.to(tl.float16))


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
_MATMUL = "triton-lang/triton#3551 (A100)"
_VECTORS = "triton-lang/triton#3894 (A100)"


def _cases(kernel: str, cluster: str, source: str, *rows: tuple[tuple[int, ...], float]):
    return [Case(kernel, cluster, sizes, published, source) for sizes, published in rows]


# Attention: T, D, causal; forward in blocks of 128 x 64, backward of 128 x 32. Products: M = N = K.
# Additions: elements.
CASES = (
    *_cases("attention", "hgx_h100", _HOPPER_D128,
            ((1024, 128, 0), 406.8), ((2048, 128, 0), 427.8), ((4096, 128, 0), 459.6),
            ((16384, 128, 0), 487.0)),
    *_cases("attention", "hgx_h100", _HOPPER_D64, ((1024, 64, 1), 217.0), ((2048, 64, 1), 303.0)),
    *_cases("attention", "hgx_a100", _TUTORIALS,
            ((1024, 64, 0), 141.4), ((2048, 64, 0), 159.7), ((4096, 64, 0), 160.6),
            ((16384, 64, 0), 166.6), ((1024, 64, 1), 111.7), ((2048, 64, 1), 136.5),
            ((4096, 64, 1), 150.0), ((16384, 64, 1), 164.3)),
    *_cases("backward", "hgx_a100", _TUTORIALS,
            ((1024, 64, 1), 59.8), ((2048, 64, 1), 76.2), ((4096, 64, 1), 87.5)),
    *_cases("matmul", "hgx_a100", _MATMUL, ((2560,), 214.2), ((2816,), 233.2), ((3072,), 230.2)),
    *_cases("add", "hgx_a100", _VECTORS, ((1 << 22,), 1206.2), ((1 << 24,), 1546.6),
            ((1 << 26,), 1665.2)),
)  # fmt: skip
BM, BN = 128, 64
_TILES = ((128, 256, 64), (64, 256, 32), (128, 128, 32), (128, 64, 32))  # The tutorial tries them.
NUM_HEADS = 128  # Four batches of 32, as published; 48 are as fast.


def _attention(ctx, length: int, dim: int, causal: int) -> float:
    """Return TFLOPS of two products per block of scores."""
    q, k, v, o = (_some(ctx, NUM_HEADS * length, dim) for _ in range(4))
    sums = ctx.empty(NUM_HEADS * length)
    grid = (length // BM, NUM_HEADS)
    done = ctx.launch(
        attention, grid, q, k, v, o, sums, 0.1, length, CAUSAL=bool(causal), BM=BM, BN=BN, D=dim
    )
    ctx.synchronize()
    flops = 4 * NUM_HEADS * length * length * dim / (2 if causal else 1)
    return flops / done.cost.duration_ps


def _backward(ctx, length: int, dim: int, causal: int) -> float:
    """Return TFLOPS of five products per block of scores; of three kernels, as the tutorial has."""
    rows = NUM_HEADS * length
    q, k, v, o, do, dq, dk, dv = (_some(ctx, rows, dim) for _ in range(8))
    sums, delta = ctx.empty(rows), ctx.empty(rows)
    done = [
        ctx.launch(scaled, (rows * dim // 1024,), k, k, 0.1, BLOCK=1024),
        ctx.launch(products_of_rows, (rows // 128,), o, do, delta, ROWS=128, D=dim),
        ctx.launch(
            attention_backward, (length // 128, NUM_HEADS), q, k, v, do, dq, dk, dv, sums, delta,
            length, CAUSAL=bool(causal), WIDE=128, NARROW=32, D=dim,
        ),
    ]  # fmt: skip
    ctx.synchronize()
    flops = 10 * NUM_HEADS * length * length * dim / (2 if causal else 1)
    return flops / sum(each.cost.duration_ps for each in done)


def _some(ctx, rows: int, columns: int):
    return ctx.empty(rows, columns, dtype=ctx.float16)


def _matmul(ctx, size: int) -> float:
    """Return TFLOPS of a square product in fp16, with the best of the author's tiles."""
    a, b = (_some(ctx, size, size) for _ in range(2))
    c = ctx.empty(size, size, dtype=ctx.float16)
    best = []
    for rows, columns, inner in _TILES:
        grid = (triton.cdiv(size, rows) * triton.cdiv(size, columns),)
        tiles = {"BM": rows, "BN": columns, "BK": inner}
        best.append(ctx.launch(matmul, grid, a, b, c, size, size, size, **tiles))
    ctx.synchronize()
    return 2 * size**3 / min(each.cost.duration_ps for each in best)


def _add(ctx, size: int) -> float:
    """Return GB/s of an addition."""
    x, y, out = (ctx.empty(size) for _ in range(3))
    done = ctx.launch(added, (triton.cdiv(size, 1024),), x, y, out, size, BLOCK=1024)
    ctx.synchronize()
    return 12 * size / done.cost.duration_ps * 1e3


RUNNERS: dict[str, Callable[..., float]] = {
    "attention": _attention, "backward": _backward, "matmul": _matmul, "add": _add,
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
