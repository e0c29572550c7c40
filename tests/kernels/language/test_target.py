"""What kernels ask about their device."""

import triton
import triton.language as tl
from triton.language.extra.cuda import (
    gdc_launch_dependents,
    gdc_wait,
    globaltimer,
    num_threads,
    num_warps,
    smid,
)

import simrank


@triton.jit
def about_the_device(out):
    gdc_wait()
    begin = globaltimer()
    tl.store(out, num_warps())
    tl.store(out + 1, num_threads())
    tl.store(out + 2, smid() == tl.program_id(0))
    tl.store(out + 3, globaltimer() >= begin)
    gdc_launch_dependents()


@triton.jit
def timed(out, x):
    begin = globaltimer()
    values = tl.zeros((1024,), tl.float32)
    for _ in range(100):
        values = tl.exp(values)
    middle = globaltimer()
    total = tl.sum(tl.load(x + tl.arange(0, 1024)))
    tl.store(out + 3 * tl.program_id(0), middle - begin)
    tl.store(out + 3 * tl.program_id(0) + 1, globaltimer() - middle)
    tl.store(out + 3 * tl.program_id(0) + 2, (total + tl.sum(values)).to(tl.int64))


def test_the_timer_moves_with_what_a_program_does(on_rank):
    """Operations take time between two looks, and so do loads."""

    def body(ctx):
        out, x = ctx.zeros(2, 3, dtype=simrank.int64), ctx.zeros(1024)
        timed[(2,)](out, x)
        assert all(computed > 0 and loaded > 0 for computed, loaded, _ in out.tolist())

    on_rank(body)


def test_kernels_ask_about_their_device(on_rank):
    """The launch's warps, the SM, and simulated time."""

    def body(ctx):
        out = ctx.zeros(4, dtype=simrank.int64)
        about_the_device[(1,)](out, num_warps=8)
        assert out.tolist() == [8, 256, 1, 1]

    on_rank(body)
