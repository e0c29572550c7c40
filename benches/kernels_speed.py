"""Speed of simulated kernels against Triton's own interpreter, in one run.

`python benches/kernels_speed.py [NAME...]` prints, per kernel, wall milliseconds and the ratios.
The interpreter runs in a process of its own (it must be switched on before triton is imported);
simulated kernels run inside a rank, where the standard clocks are simulated: hence a clock taken
before the Context.

The blocking all-reduce has 8 ranks of 24 programs that wait for one another. The interpreter runs
one program after the other and would spin for ever, so here it is driven: a greenlet per program,
which gives way when a compare-and-swap failed, and its patches of the language left in place.
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
BLOCKING = "blocking_all_reduce"


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


@triton.jit
def blocking_all_reduce(
    buffers, pads, out_ptr, n, rank, WORLD_SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    pid = tl.program_id(0)
    buffers = buffers.to(tl.pointer_type(tl.int64))
    pads = pads.to(tl.pointer_type(tl.int64))
    for crossing in tl.static_range(2):
        if crossing == 1:
            for start in range(pid * BLOCK, n, tl.num_programs(0) * BLOCK):
                offs = start + tl.arange(0, BLOCK)
                total = tl.zeros((BLOCK,), tl.float32)
                for peer in range(WORLD_SIZE):
                    theirs = tl.load(buffers + peer).to(tl.pointer_type(tl.float32))
                    total += tl.load(theirs + offs, mask=offs < n)
                tl.store(out_ptr + offs, total, mask=offs < n)
        for peer in range(WORLD_SIZE):
            pad = tl.load(pads + peer).to(tl.pointer_type(tl.int32))
            signal = pad + pid * WORLD_SIZE + rank
            while tl.atomic_cas(signal, 0, 1, sem="release", scope="sys") != 0:
                pass
        for peer in range(WORLD_SIZE):
            pad = tl.load(pads + rank).to(tl.pointer_type(tl.int32))
            signal = pad + pid * WORLD_SIZE + peer
            while tl.atomic_cas(signal, 1, 0, sem="acquire", scope="sys") != 1:
                pass


def _normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def cases():
    """Return per kernel: the kernel, grid, arrays (outputs last) and other arguments."""
    n = 500 * 1024 - 100
    big = _normal(512, 512)
    heads = _normal(4, 512, 64)
    tiles = _normal(96, 256)  # Of about half of them the sum is positive: every branch diverges.
    few_differ = abs(tiles)
    few_differ[[17, 40, 66]] *= -1  # Three programs go another way, each at one tile.
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
        "persistent": (persistent, (12,), [few_differ, np.zeros_like(tiles)], [96, 256]),
        "persistent_random": (persistent, (12,), [tiles, np.zeros_like(tiles)], [96, 256]),
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


RANKS, PROGRAMS, COUNT, BLOCK = 8, 24, 24 * 256, 64


def stock_blocking(as_tensor):
    """Return a function that runs the blocking all-reduce in Triton's interpreter."""
    from greenlet import getcurrent, greenlet  # noqa: PLC0415 - only the interpreter's process
    from triton.runtime import interpreter  # noqa: PLC0415 - as above

    builder = interpreter.interpreter_builder
    swap, hub = builder.create_atomic_cas, getcurrent()

    def swap_or_give_way(pointers, expected, value, *rest):
        seen = swap(pointers, expected, value, *rest)
        if (seen.data != expected.data).any():
            hub.switch()
        return seen

    builder.create_atomic_cas = swap_or_give_way
    inputs = _normal(RANKS, COUNT)
    pads = np.zeros((RANKS, PROGRAMS * RANKS), np.int32)
    outputs = np.zeros_like(inputs)
    addresses = [np.array([row.ctypes.data for row in rows]) for rows in (inputs, pads)]

    def run():
        interpreter._patch_lang(blocking_all_reduce.fn)  # noqa: SLF001 - and never undone
        body = blocking_all_reduce.rewrite()
        builder.set_grid_dim(PROGRAMS, 1, 1)
        waiting = []
        for rank in range(RANKS):
            given = [*(as_tensor(table) for table in addresses), as_tensor(outputs[rank])]
            tensors = [interpreter._implicit_cvt(x) for x in (*given, COUNT, rank)]  # noqa: SLF001
            waiting += [
                (pid, greenlet(lambda t=tensors: body(*t, RANKS, BLOCK))) for pid in range(PROGRAMS)
            ]
        while waiting:
            for pid, program in waiting:
                builder.set_grid_idx(pid, 0, 0)
                program.switch()
            waiting = [(pid, program) for pid, program in waiting if not program.dead]
        assert not pads.any(), "each signal was taken"
        assert np.allclose(outputs, inputs.sum(axis=0), atol=1e-5)

    return run


def stock(names):
    """Print the interpreter's times as JSON; called with TRITON_INTERPRET=1."""
    sys.path.insert(0, str(ROOT / "tests" / "kernels"))
    from stock import ArrayAsTensor  # noqa: PLC0415 - its folder was added just now

    found = {}
    for name in names:
        if name == BLOCKING:
            found[name] = best_ms(stock_blocking(ArrayAsTensor))
            continue
        kernel, grid, arrays, rest = cases()[name]
        tensors = [ArrayAsTensor(array) for array in arrays]
        found[name] = best_ms(lambda k=kernel, g=grid, t=tensors, r=rest: k[g](*t, *r))
    print(json.dumps(found))


def simulated_blocking():
    """Return milliseconds of one blocking all-reduce among the simulated ranks."""
    import simrank  # noqa: PLC0415 - not in the interpreter's process
    import simrank.distributed as dist  # noqa: PLC0415 - as above
    from simrank.distributed import symmetric_memory  # noqa: PLC0415 - as above

    inputs, found = _normal(RANKS, COUNT), []

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symmetric_memory.empty(COUNT, dtype=simrank.float32)
        buffer.copy_(ctx.from_numpy(inputs[rank]))
        handle = symmetric_memory.rendezvous(buffer)
        out = ctx.empty(COUNT, dtype=simrank.float32)

        def run():
            blocking_all_reduce[(PROGRAMS,)](
                handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, COUNT, rank, RANKS, BLOCK
            )
            dist.barrier()
            ctx.current_stream().synchronize()

        found.append(best_ms(run))
        assert np.allclose(out.numpy(), inputs.sum(axis=0), atol=1e-5)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=RANKS)
    return min(found)


def simulated(names):
    """Return milliseconds per kernel and mode."""
    import simrank  # noqa: PLC0415 - not in the interpreter's process

    found = {}

    def measure(ctx):
        for name in names:
            if name == BLOCKING:
                continue
            kernel, grid, arrays, rest = cases()[name]
            tensors = [ctx.from_numpy(array) for array in arrays]
            for mode in ("one-by-one", "batched"):

                def run(mode=mode, kernel=kernel, grid=grid, tensors=tensors, rest=rest):
                    ctx.wait(kernel[grid](*tensors, *rest, mode=mode))

                found[name, mode] = best_ms(run)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda _rank: measure(ctx), nprocs=1)
    if BLOCKING in names:
        found[BLOCKING, "one-by-one"] = simulated_blocking()
    return found


def main():
    """Measure and print a table."""
    names = sys.argv[1:] or [*cases(), BLOCKING]
    if os.environ.get("TRITON_INTERPRET") == "1":
        stock(names)
        return
    command = [sys.executable, __file__, *names]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    output = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    theirs, ours = json.loads(output), simulated(names)
    print(f"triton {triton.__version__}, numpy {np.__version__}, {platform.processor()}")
    print(f"{'kernel':20} {'stock ms':>9} {'one by one':>18} {'batched':>18}")
    for name in names:
        row = [f"{theirs[name]:9.1f}"] + [
            f"{ours[name, mode]:9.2f} {theirs[name] / ours[name, mode]:7.1f}x"
            for mode in ("one-by-one", "batched")
            if (name, mode) in ours
        ]
        print(f"{name:20} {' '.join(row)}")


if __name__ == "__main__":
    main()
