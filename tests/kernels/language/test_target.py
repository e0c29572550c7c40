"""What kernels ask about their device."""

import pytest

import simrank

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from triton.language.extra.cuda import (  # noqa: E402
    gdc_launch_dependents,
    gdc_wait,
    globaltimer,
    num_threads,
    num_warps,
    smid,
)


@triton.jit
def about_the_device(out):
    gdc_wait()
    begin = globaltimer()
    tl.store(out, num_warps())
    tl.store(out + 1, num_threads())
    tl.store(out + 2, smid() == tl.program_id(0))
    tl.store(out + 3, globaltimer() >= begin)
    gdc_launch_dependents()


def test_kernels_ask_about_their_device(on_rank):
    """The launch's warps, the SM, and simulated time."""

    def body(ctx):
        out = ctx.zeros(4, dtype=simrank.int64)
        about_the_device[(1,)](out, num_warps=8)
        assert out.tolist() == [8, 256, 1, 1]

    on_rank(body)
