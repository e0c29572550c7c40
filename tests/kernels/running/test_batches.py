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


@pytest.fixture
def on_rank():
    """Run a function on one rank of a fresh Context."""

    def run(body):
        with simrank.Context("hgx_h100") as ctx:
            ctx.multiprocessing.spawn(lambda rank: body(ctx), nprocs=1)

    return run


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
