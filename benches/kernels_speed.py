"""Speed of simulated kernels against Triton's own interpreter, in one run.

`python benches/kernels_speed.py [NAME...]` prints, per kernel, wall milliseconds and the ratios.
The interpreter runs in a process of its own (it must be switched on before triton is imported);
simulated kernels run inside a rank, where the standard clocks are simulated: hence a clock taken
before the Context.
"""

# ruff: noqa: ANN001, ANN002, ANN201, ANN202, N803, PLR0913, PLR0917

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import numpy as np
import triton
import triton.language as tl

CLOCKS = (perf_counter,)  # A name of its own would be rebound to simulated time in ranks.
ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 3


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def softmax(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
    num = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * n + cols, num / tl.sum(num, axis=0), mask=cols < n)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    num_n = tl.cdiv(N, BN)
    rows = (pid // num_n) * BM + tl.arange(0, BM)
    cols = (pid % num_n) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * K + inner[None, :]
    b_ptrs = b_ptr + inner[:, None] * N + cols[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=inner[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=inner[:, None] < K - k * BK, other=0.0)
        acc += tl.dot(a, b)
        a_ptrs += BK
        b_ptrs += BK * N
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=mask)


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, T, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    start_m = tl.program_id(0)
    head = tl.program_id(1) * T * D
    rows = start_m * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + head + rows[:, None] * D + d[None, :])
    m = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, (start_m + 1) * BM, BN):
        cols = start + tl.arange(0, BN)
        k = tl.load(k_ptr + head + cols[None, :] * D + d[:, None])
        s = tl.dot(q, k) * scale
        s = tl.where(rows[:, None] >= cols[None, :], s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m - m_new)
        v = tl.load(v_ptr + head + cols[:, None] * D + d[None, :])
        acc = acc * alpha[:, None] + tl.dot(p, v)
        total = total * alpha + tl.sum(p, 1)
        m = m_new
    tl.store(o_ptr + head + rows[:, None] * D + d[None, :], acc / total[:, None])


@triton.jit
def persistent(x_ptr, out_ptr, num_tiles, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        x = tl.load(x_ptr + tile * BLOCK + lanes)
        tl.store(out_ptr + tile * BLOCK + lanes, x)
        if tl.sum(x, axis=0) > 0:
            tl.store(out_ptr + tile * BLOCK + lanes, x * 2)


@triton.jit
def different_trips(x_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid * BLOCK + tl.arange(0, BLOCK))
    for _ in range(pid + 1):
        x = x * 1.0001 + 1.0
    tl.store(out_ptr + pid * BLOCK + tl.arange(0, BLOCK), x)


def _normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def cases():
    """Return per kernel: the kernel, grid, arrays (outputs last) and other arguments."""
    n = 500 * 1024 - 100
    big = _normal(512, 512)
    heads = _normal(4, 512, 64)
    tiles = _normal(96, 256)
    return {
        "vector_add": (vector_add, (500,), [_normal(n), _normal(n), np.zeros(n, "f4")], [n, 1024]),
        "softmax": (
            softmax, (256,), [np.zeros((256, 1000), "f4"), _normal(256, 1000)], [1000, 1024],
        ),
        "matmul": (
            matmul, (64,), [big, big.T.copy(), np.zeros_like(big)], [512, 512, 512, 64, 64, 32],
        ),
        "attention": (
            attention, (8, 4), [heads, heads[::-1].copy(), heads + 1, np.zeros_like(heads)],
            [0.125, 512, 64, 64, 64],
        ),
        "persistent": (persistent, (12,), [tiles, np.zeros_like(tiles)], [96, 256]),
        "different_trips": (
            different_trips, (64,), [tiles[:64].copy(), np.zeros((64, 256), "f4")], [256],
        ),
    }  # fmt: skip


def best_ms(run):
    """Return the shortest of some runs, after one to warm up."""
    run()
    times = []
    for _ in range(ROUNDS):
        begin = CLOCKS[0]()
        run()
        times.append(CLOCKS[0]() - begin)
    return min(times) * 1000


def stock(names):
    """Print the interpreter's times as JSON; called with TRITON_INTERPRET=1."""
    sys.path.insert(0, str(ROOT / "tests" / "kernels"))
    from stock import ArrayAsTensor  # noqa: PLC0415 - its folder was added just now

    found = {}
    for name in names:
        kernel, grid, arrays, rest = cases()[name]
        tensors = [ArrayAsTensor(array) for array in arrays]
        found[name] = best_ms(lambda k=kernel, g=grid, t=tensors, r=rest: k[g](*t, *r))
    print(json.dumps(found))


def simulated(names):
    """Return milliseconds per kernel and mode."""
    import simrank  # noqa: PLC0415 - not in the interpreter's process

    found = {}

    def measure(ctx):
        for name in names:
            kernel, grid, arrays, rest = cases()[name]
            tensors = [ctx.from_numpy(array) for array in arrays]
            for mode in ("one-by-one", "batched"):

                def run(mode=mode, kernel=kernel, grid=grid, tensors=tensors, rest=rest):
                    ctx.wait(kernel[grid](*tensors, *rest, mode=mode))

                found[name, mode] = best_ms(run)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda _rank: measure(ctx), nprocs=1)
    return found


def main():
    """Measure and print a table."""
    names = sys.argv[1:] or list(cases())
    if os.environ.get("TRITON_INTERPRET") == "1":
        stock(names)
        return
    command = [sys.executable, __file__, *names]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    output = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    theirs, ours = json.loads(output), simulated(names)
    print(f"triton {triton.__version__}, numpy {np.__version__}, {platform.processor()}")
    print(f"{'kernel':16} {'stock ms':>9} {'one by one':>18} {'batched':>18}")
    for name in names:
        row = [f"{theirs[name]:9.1f}"] + [
            f"{ours[name, mode]:9.2f} {theirs[name] / ours[name, mode]:7.1f}x"
            for mode in ("one-by-one", "batched")
        ]
        print(f"{name:16} {' '.join(row)}")


if __name__ == "__main__":
    main()
