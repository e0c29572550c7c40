"""Programs in lockstep that go different ways."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank


@triton.jit
def collatz_kernel(x_ptr, steps_ptr):
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid)
    steps = 0
    while x != 1:
        if x % 2 == 0:  # noqa: SIM108 - that they differ is the point
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
        tl.store(steps_ptr + pid, steps)


@triton.jit
def branch_per_tile_kernel(x_ptr, out_ptr, num_tiles):
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        x = tl.load(x_ptr + tile)
        if x > 0:
            tl.store(out_ptr + tile, 2 * x)
        else:
            tl.store(out_ptr + tile, -x)


@pytest.mark.parametrize("mode", ["batched", "one-by-one"])
def test_programs_that_go_different_ways_are_split_and_their_stores_undone(on_rank, mode):
    """Every program stores at every step of a loop of its own length."""

    def body(ctx):
        numbers = list(range(1, 40))
        x = ctx.tensor(numbers, dtype=simrank.int32)
        steps = ctx.zeros(len(numbers), dtype=simrank.int32)
        operation = collatz_kernel[(len(numbers),)](x, steps, mode=mode)
        assert steps.tolist() == [collatz(n) for n in numbers]
        assert (operation.num_splits > 0) == (mode == "batched")

    def collatz(n):
        count = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        return count

    on_rank(body)


@pytest.mark.parametrize("num_programs", [12, 64])
def test_programs_that_part_at_every_tile_soon_go_on_with_masks(on_rank, num_programs):
    """What was done in vain is bounded: far fewer splits than there are programs."""
    x = np.random.default_rng(3).standard_normal(num_programs * 20).astype(np.float32)

    def body(ctx):
        out = ctx.zeros(len(x))
        operation = branch_per_tile_kernel[(num_programs,)](ctx.from_numpy(x), out, len(x))
        assert np.array_equal(out.numpy(), np.where(x > 0, 2 * x, -x))
        assert operation.mode == "batched"
        assert 0 < operation.num_splits <= num_programs // 4

    on_rank(body)


# ---- Programs in lockstep that go different ways with masks ----

N = 24  # programs


@triton.jit
def half_or_three_times_and_one(n):
    if n % 2 == 0:  # noqa: SIM108 - a statement is what is tried
        n = n // 2
    else:
        n = 3 * n + 1
    return n


@triton.jit
def steps_to_one(x_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    n = pid + 1
    steps = 0
    while n != 1:
        n = half_or_three_times_and_one(n)
        steps += 1
    tl.store(out_ptr + pid * BLOCK, steps.to(tl.float32))


@triton.jit
def nested_branches(x_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    total = tl.sum(x, axis=0)
    sign = 0.0
    if total > 0:
        y = x * 2
        if pid % 3 == 0:
            y += 1
            sign = 1.0
        elif pid % 3 == 1:
            y = y - tl.load(x_ptr + offs, mask=offs % 2 == 0, other=5.0)
    else:
        y = -x
        for turn in range(pid % 4):
            y += turn
            tl.store(out_ptr + offs, y)
        sign = -1.0
    tl.store(out_ptr + offs, y + sign)


@triton.jit
def loops_of_different_lengths(x_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    best = -float("inf")
    where = 0
    acc = tl.zeros((BLOCK,), tl.float32)
    for step in range(pid % 5, 3 * pid, 2):
        row = tl.load(x_ptr + (step % 24) * BLOCK + lanes)
        acc += row
        top = tl.max(row, axis=0)
        if top > best:
            best, where = top, step
        for inner in range(step % 3):
            acc = acc * 0.5 + inner
    tl.store(out_ptr + pid * BLOCK + lanes, acc + where)


@triton.jit
def atomics_and_products(x_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    tile = lanes[:, None] * BLOCK + lanes[None, :]
    if pid % 2:
        a = tl.load(x_ptr + tile % 384)
        b = tl.dot(a, a, input_precision="ieee")
        if pid % 3:
            b += a
        tl.atomic_add(out_ptr + pid * BLOCK + lanes, tl.sum(b, axis=0))
    else:
        old = tl.atomic_xchg(out_ptr + pid * BLOCK, 3.0)
        tl.store(out_ptr + pid * BLOCK + 1, old + pid)
        (out_ptr + pid * BLOCK + 3).atomic_add(old.sum() if BLOCK == 1 else old + 2)
    offset = x_ptr + pid
    if pid > 11:
        offset += 7
    tl.store(out_ptr + pid * BLOCK + 2, tl.load(offset))


KERNELS = (steps_to_one, nested_branches, loops_of_different_lengths, atomics_and_products)


def ran(run, kernel, mode):
    """Return a kernel's output, and what its launch has counted."""
    x = np.random.default_rng(3).standard_normal((N, 16)).astype(np.float32)
    found = []

    def body(rank, ctx):
        out = ctx.zeros(N, 16)
        launched = ctx.launch(kernel, (N,), ctx.from_numpy(x), out, BLOCK=16, mode=mode)
        values = out.numpy()
        counted = launched.statistics
        traffic = sorted((t.read_bytes, t.written_bytes) for t in counted.traffic.values())
        counts = traffic, counted.flops, counted.num_atomics, counted.num_lanes
        found.append((values, (*counts, counted.num_masked_lanes), launched.num_splits))

    run(body, 1)
    return found[0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_masks_change_neither_bits_nor_counts(run, kernel):
    """Beside every program by itself; no batch was split."""
    values, counts, _ = ran(run, kernel, "one-by-one")
    masked, masked_counts, num_splits = ran(run, kernel, "masked")
    assert masked.tobytes() == values.tobytes()
    assert masked_counts == counts
    assert num_splits == 0


@triton.jit
def the_same_for_all(x_ptr, out_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes, mask=lanes < 9) * tl.load(x_ptr + 5)
    tl.store(out_ptr + tl.program_id(0) * BLOCK + lanes, x)
    tl.store(out_ptr + 383 + lanes * 0, 4.0, mask=lanes < 2)
    tl.store(out_ptr, 1.0)


@triton.jit
def by_address(x_ptr, out_ptr, BLOCK: tl.constexpr):
    pid, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    same = (x_ptr.to(tl.int64) + 4 * lanes).to(tl.pointer_type(tl.float32))
    x = tl.load(same, mask=lanes < 3, other=0.0) + tl.load(same)
    own = (x_ptr.to(tl.int64) + 4 * (lanes + pid)).to(tl.pointer_type(tl.float32))
    x += tl.load(own, mask=(lanes == 0) & (pid == 5), other=0.0)
    tl.store(out_ptr + pid * BLOCK + lanes, x)


def test_loads_by_address_are_counted_as_those_by_tensor_are(run):
    """Also where one lane of all programs is left, or all programs have the same."""
    alone, *others = (ran(run, by_address, m) for m in ("one-by-one", "batched", "masked"))
    assert [other[1] for other in others] == [alone[1], alone[1]]
    assert [other[0].tobytes() for other in others] == [alone[0].tobytes()] * 2


def test_what_all_programs_load_and_store_is_counted_for_each(run):
    """Lockstep does it once; a device does it as often as there are programs."""
    alone, *others = (ran(run, the_same_for_all, m)[1] for m in ("one-by-one", "batched", "masked"))
    assert alone[-2] == N * (16 + 1 + 16 + 16 + 1)
    assert others == [alone, alone]


@pytest.mark.parametrize("kernel", KERNELS)
def test_batches_that_part_soon_end_in_the_same_bits(run, kernel):
    """Whatever mixture of splits and masks is chosen."""
    assert ran(run, kernel, "batched")[0].tobytes() == ran(run, kernel, "one-by-one")[0].tobytes()


@triton.jit
def leaves_early(x_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    if pid % 5 == 3:
        return
    for step in range(pid):
        if step < 7:
            tl.store(out_ptr + pid * BLOCK + step, 1.0)


@triton.jit
def through_a_descriptor(x_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    rows = tl.make_tensor_descriptor(x_ptr, [24, 16], [16, 1], [1, BLOCK])
    if pid % 2:
        row = rows.load([pid, 0])
        tl.store(out_ptr + pid * BLOCK + tl.arange(0, BLOCK), row.reshape(BLOCK))


@pytest.mark.parametrize("kernel", [leaves_early, through_a_descriptor])
def test_what_masks_cannot_do_is_done_without(run, kernel):
    """Leaving early, and what holds pointers out of sight."""
    values, _, _ = ran(run, kernel, "one-by-one")
    masked, _, num_splits = ran(run, kernel, "masked")
    assert masked.tobytes() == values.tobytes()
    assert num_splits > 0


@triton.jit
def out_of_bounds_in_a_branch(x_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    if pid % 2:
        tl.store(x_ptr + pid * 1000, 1.0)


def test_errors_are_those_of_programs_alone(run):
    """They name the programs that did it."""

    def body(rank, ctx):
        out_of_bounds_in_a_branch[(8,)](ctx.zeros(2000), BLOCK=1, mode="masked")
        with pytest.raises(simrank.kernels.memory.addresses.IllegalAccessError, match="program 3"):
            ctx.synchronize()

    run(body, 1)
