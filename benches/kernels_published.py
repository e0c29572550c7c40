"""Simulated beside published times of Triton kernels: how far an author may trust them.

`python benches/kernels_published.py [--json FILE]` runs the kernels of Triton's tutorials as their
authors tuned them (blocks, warps), with data, on the simulated device, and prints simulated beside
published throughput. Sizes are the smallest published ones: data takes its time.

Sources are in the table below, one per row: issues and pull requests of the named repositories.
"""

# ruff: noqa: ANN001, ANN201, ANN202, ARG001, N803, PLR0913, PLR0917

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import triton
import triton.language as tl

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

# Attention: T, D, causal; blocks of 128 x 64. Products: M = N = K; blocks of 128 x 256 x 64.
CASES = (
    Case("attention", "hgx_h100", (1024, 128, 0), 406.8, _HOPPER_D128),
    Case("attention", "hgx_h100", (2048, 128, 0), 427.8, _HOPPER_D128),
    Case("attention", "hgx_h100", (1024, 64, 1), 217.0, _HOPPER_D64),
    Case("attention", "hgx_h100", (2048, 64, 1), 303.0, _HOPPER_D64),
    Case("attention", "hgx_a100", (1024, 64, 0), 141.4, _TUTORIALS),
    Case("attention", "hgx_a100", (2048, 64, 0), 159.7, _TUTORIALS),
    Case("attention", "hgx_a100", (1024, 64, 1), 111.7, _TUTORIALS),
    Case("attention", "hgx_a100", (2048, 64, 1), 136.5, _TUTORIALS),
    Case("matmul", "hgx_a100", (2560,), 214.2, _MATMUL),
    Case("matmul", "hgx_a100", (2816,), 233.2, _MATMUL),
    Case("matmul", "hgx_a100", (3072,), 230.2, _MATMUL),
)
BM, BN = 128, 64


def _attention(ctx, length: int, dim: int, causal: int) -> float:
    """Return TFLOPS of as many heads as give every SM two blocks; more are as fast."""
    num_heads = 2 * ctx.cluster.device.num_sms // (length // BM)
    q, k, v, o = (ctx.randn(num_heads * length, dim).to(ctx.float16) for _ in range(4))
    sums = ctx.empty(num_heads * length)
    grid = (length // BM, num_heads)
    done = ctx.launch(
        attention, grid, q, k, v, o, sums, 0.1, length, CAUSAL=bool(causal), BM=BM, BN=BN, D=dim
    )
    ctx.synchronize()
    flops = 4 * num_heads * length * length * dim / (2 if causal else 1)
    return flops / done.cost.duration_ps


def _matmul(ctx, size: int) -> float:
    """Return TFLOPS of a square product in fp16."""
    a, b = (ctx.randn(size, size).to(ctx.float16) for _ in range(2))
    c = ctx.empty(size, size, dtype=ctx.float16)
    grid = (triton.cdiv(size, 128) * triton.cdiv(size, 256),)
    done = ctx.launch(matmul, grid, a, b, c, size, size, size, BM=128, BN=256, BK=64)
    ctx.synchronize()
    return 2 * size**3 / done.cost.duration_ps


RUNNERS: dict[str, Callable[..., float]] = {"attention": _attention, "matmul": _matmul}


def simulated(case: Case) -> float:
    """Return the simulated throughput of a case."""
    found = []

    def program(rank, ctx):
        found.append(RUNNERS[case.kernel](ctx, *case.sizes))

    with simrank.Context(case.cluster) as ctx:
        ctx.multiprocessing.spawn(program, args=(ctx,), nprocs=1)
    return found[0]


def main() -> None:
    """Print the table, its mean error and its worst one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    wanted = parser.parse_args()
    rows = []
    print(f"{'kernel':<12}{'cluster':<10}{'sizes':<16}{'simulated':>10}{'published':>10}  error")
    for case in CASES:
        value = simulated(case)
        error = value / case.published - 1
        rows.append({**case._asdict(), "simulated": value, "error": error})
        sizes = "x".join(map(str, case.sizes))
        print(f"{case.kernel:<12}{case.cluster:<10}{sizes:<16}{value:>10.1f}"
              f"{case.published:>10.1f}{error:>+7.0%}  {case.source}")  # fmt: skip
        sys.stdout.flush()
    errors = [abs(row["error"]) for row in rows]
    print(f"mean error {sum(errors) / len(errors):.0%}, worst {max(errors):.0%}")
    if wanted.json:
        wanted.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
