"""What a launch returns: what it took, and the same kernel once more."""

import pytest
import triton
import triton.language as tl

import simrank


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


def test_what_was_launched_launches_again_with_other_arguments(on_rank):
    """As triton's compiled kernels do: with all arguments, or without the constants."""

    def body(ctx):
        x, y = ctx.arange(8, dtype=simrank.float32), ctx.ones(8)
        outs = [ctx.zeros(8) for _ in range(3)]
        kernel = add_kernel[(1,)](x, y, outs[0], 8, BLOCK=8)
        kernel[(1, 1, 1)](x, y, outs[1], 4)
        kernel[(2,)](y, y, outs[2], 8, 4)
        assert outs[0].tolist() == [i + 1.0 for i in range(8)]
        assert outs[1].tolist() == [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0]
        assert outs[2].tolist() == [2.0] * 8
        with pytest.raises(TypeError, match=r"'add_kernel' again: 2 arguments for x"):
            kernel[(1,)](x, y)

    on_rank(body)


def test_a_launch_says_what_it_took_and_what_limited_it(on_rank):
    """Once it has ended."""

    def body(ctx):
        n = 1 << 20
        kernel = add_kernel[(n // 1024,)](ctx.ones(n), ctx.ones(n), ctx.empty(n), n, BLOCK=1024)
        with pytest.raises(RuntimeError, match="the cost of add_kernel is known when it has run"):
            _ = kernel.cost
        ctx.synchronize()
        assert kernel.complete
        assert kernel.cost.duration_ps == kernel.complete_ps - kernel.start_ps
        assert kernel.cost.hbm_bytes == 3 * 4 * n
        assert (kernel.grid, kernel.mode) == ((n // 1024, 1, 1), "batched")

    on_rank(body)
