"""Kernels after public reports of faults, each with its mended sibling: cases of `kernels check`.

`FAULTY` is a constant of each kernel, so that both forms are one source.
"""

import triton
import triton.language as tl

import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.kernels import channels


@triton.jit
def missing_mask(x, y, n, FAULTY: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if FAULTY:
        tl.store(y + at, tl.load(x + at, mask=at < n, other=0) + 1)
    else:
        tl.store(y + at, tl.load(x + at, mask=at < n, other=0) + 1, mask=at < n)


def _missing_mask(ctx, faulty):
    x, y = ctx.ones(1000), ctx.empty(1000)
    missing_mask[(4,)](x, y, 1000, FAULTY=faulty, BLOCK=256)


@triton.jit
def histogram(values, counts, FAULTY: tl.constexpr, BLOCK: tl.constexpr):
    value = tl.load(values + tl.program_id(0))
    if FAULTY:
        tl.store(counts + value, tl.load(counts + value) + 1)
    else:
        tl.atomic_add(counts + value, 1)


def _race_between_programs(ctx, faulty):
    values, counts = ctx.arange(64) % 4, ctx.zeros(4, dtype="int32")
    histogram[(64,)](values, counts, FAULTY=faulty, BLOCK=1)


@triton.jit
def split_k(a, b, c, K, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, K, SPLIT * BLOCK):
        left = tl.load(a + at[:, None] * K + start + at[None, :])
        right = tl.load(b + (start + at)[:, None] * BLOCK + at[None, :])
        total = tl.dot(left, right, total)
    tl.atomic_add(c + at[:, None] * BLOCK + at[None, :], total)


def _split_k_without_zeros(ctx, faulty):
    a, b = ctx.randn(16, 128), ctx.randn(128, 16)
    c = ctx.empty(16, 16) if faulty else ctx.zeros(16, 16)
    split_k[(4,)](a, b, c, 128, SPLIT=4, BLOCK=16)


@triton.jit
def add_to(x, total, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0))


_CONFIGS = [triton.Config({"BLOCK": size}) for size in (128, 256)]
tuned = triton.autotune(_CONFIGS, key=["n"])(add_to)
tuned_from_zero = triton.autotune(_CONFIGS, key=["n"], reset_to_zero=["total"])(add_to)


def _autotune_accumulates(ctx, faulty):
    x, total = ctx.ones(500), ctx.zeros(1)
    kernel = tuned if faulty else tuned_from_zero
    kernel[lambda meta: (triton.cdiv(500, meta["BLOCK"]),)](x, total, 500)
    return total


@triton.jit
def promised_stride(x, y, stride, BLOCK: tl.constexpr):
    at, rows = tl.arange(0, BLOCK), tl.program_id(0) * tl.multiple_of(stride, 16)
    tl.store(y + tl.program_id(0) * BLOCK + at, tl.load(x + rows + at))


def _false_multiple_of(ctx, faulty):
    stride = 50 if faulty else 64
    promised_stride[(4,)](ctx.ones(4, stride), ctx.empty(4, 32), stride, BLOCK=32)


@triton.jit
def rotate_halves(x, FAULTY: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    other = tl.program_id(0) * BLOCK + (tl.arange(0, BLOCK) + BLOCK // 2) % BLOCK
    rotated = tl.load(x + at) - tl.load(x + other)
    if not FAULTY:
        tl.debug_barrier()
    tl.store(x + at, rotated)


def _no_barrier_within_a_program(ctx, faulty):
    rotate_halves[(4,)](ctx.randn(4, 256), FAULTY=faulty, BLOCK=256)


@triton.jit
def scale_rows(x, y, stride, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(y + rows * stride + columns, 2 * tl.load(x + rows * N + columns))


def _wrong_stride(ctx, faulty):
    scale_rows[(1,)](ctx.randn(16, 64), ctx.zeros(16, 64), 16 if faulty else 64, M=16, N=64)


@triton.jit
def sample_every(x, y, step, n, FAULTY: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = at * step if FAULTY else at.to(tl.int64) * step
    tl.store(y + at, tl.load(x + index % n))


def _int32_overflow(ctx, faulty):
    x, y = ctx.randn(1000), ctx.empty(4096)
    sample_every[(16,)](x, y, 1_000_003, 1000, FAULTY=faulty, BLOCK=256)


@triton.jit
def copy_tiles(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))


def _tile_never_written(ctx, faulty):
    x, y = ctx.randn(1024), ctx.empty(1024)
    copy_tiles[(1000 // 256 if faulty else triton.cdiv(1000, 256),)](x, y, BLOCK=256)


@triton.jit
def clear_if_negative(x: tl.const, y, n):
    total = 0.0
    for number in range(n):
        total += tl.load(x + number)
    if total < 0:
        tl.store(x, 0.0)
    tl.store(y, total)


@triton.jit
def only_reads(x: tl.const, y, n):
    total = 0.0
    for number in range(n):
        total += tl.load(x + number)
    tl.store(y, total)


def _store_through_a_constant(ctx, faulty):
    kernel = clear_if_negative if faulty else only_reads
    kernel[(1,)](ctx.ones(16), ctx.zeros(1), 16)


@triton.jit
def take_ticket(counter, order, FAULTY: tl.constexpr):
    ticket = tl.atomic_add(counter, 1)
    tl.store(order + (ticket if FAULTY else tl.program_id(0)), tl.program_id(0))


def _order_of_atomics(ctx, faulty):
    counter, order = ctx.zeros(1, dtype="int32"), ctx.zeros(8, dtype="int32")
    take_ticket[(8,)](counter, order, FAULTY=faulty)


@triton.jit
def exchange(buffers, pads, out, rank, step, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(channels.peer_pointer(buffers, 1 - rank, tl.float32) + at, at + rank + step)
    theirs = channels.peer_pointer(pads, 1 - rank, tl.int32)
    mine = channels.peer_pointer(pads, rank, tl.int32)
    tl.atomic_xchg(theirs, step, sem="release", scope="sys")
    while tl.atomic_add(mine, 0, sem="acquire", scope="sys") != step:
        pass
    tl.store(out + at, tl.load(channels.peer_pointer(buffers, rank, tl.float32) + at))


def _stale_signal_pad(ctx, faulty, rank):
    dist.init_process_group("nccl")
    handle = symm_mem.rendezvous(symm_mem.empty(256))
    out = ctx.empty(256)
    for step in (1, 2):
        value = 1 if faulty else step
        exchange[(1,)](
            handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, rank, value, BLOCK=256
        )
        if not faulty:
            handle.barrier(1)  # All have read before the next round writes.


ONE_RANK = {
    "missing_mask": _missing_mask,
    "race_between_programs": _race_between_programs,
    "split_k_without_zeros": _split_k_without_zeros,
    "autotune_accumulates": _autotune_accumulates,
    "false_multiple_of": _false_multiple_of,
    "no_barrier_within_a_program": _no_barrier_within_a_program,
    "wrong_stride": _wrong_stride,
    "int32_overflow": _int32_overflow,
    "tile_never_written": _tile_never_written,
    "store_through_a_constant": _store_through_a_constant,
    "order_of_atomics": _order_of_atomics,
}


def _case(body, faulty):
    def case(ctx):
        body(ctx, faulty)

    return case


for name, body in ONE_RANK.items():
    globals()[f"case_faulty_{name}"] = _case(body, True)
    globals()[f"case_mended_{name}"] = _case(body, False)


def case_faulty_stale_signal_pad(ctx, rank):
    """Two ranks; the second round finds the signal of the first."""
    _stale_signal_pad(ctx, True, rank)


def case_mended_stale_signal_pad(ctx, rank):
    """Two ranks; each round has a signal of its own."""
    _stale_signal_pad(ctx, False, rank)
