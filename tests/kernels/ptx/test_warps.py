"""What threads of a warp tell each other."""

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language import core

import simrank

from ..warps import ballot, take, thread


@core.extern
def put(ptr, value, _semantic=None):
    return tl.inline_asm_elementwise(
        asm="st.release.sys.global.b32 [$1], $2; mov.u32 $0, 0;",
        constraints="=r,l,r",
        args=[ptr, value],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
        _semantic=_semantic,
    )


def launched(ctx, kernel, size, *args, **options):
    out = simrank.zeros(size, dtype=simrank.int32)
    kernel[(1,)](out, *args, **options)
    return out.numpy()


@triton.jit
def talk(out):
    me = thread(0)
    put(out + me * 5, take(me, 3, "idx", 31))
    put(out + me * 5 + 1, take(me, 1, "up", 0))
    put(out + me * 5 + 2, take(me, 2, "down", 31))
    put(out + me * 5 + 3, take(me, 16, "bfly", 31))
    put(out + me * 5 + 4, ballot((me % 32 < 3).to(tl.int32)))


def test_threads_of_a_warp_tell_each_other_values(run):
    """Shuffles, clamped at the warp's ends, and ballots."""

    def body(rank, ctx):
        me = np.arange(64)
        base, lane = me // 32 * 32, me % 32
        expected = [base + 3, base + np.where(lane, lane - 1, 0)]
        expected += [base + np.where(lane < 30, lane + 2, lane), base + (lane ^ 16), me * 0 + 7]
        found = launched(ctx, talk, 320, num_warps=2).reshape(64, 5)
        np.testing.assert_array_equal(found, np.stack(expected, axis=1))

    run(body, 1)


@triton.jit
def registers(out):
    me = thread(0)
    lane, warp, size = tl.inline_asm_elementwise(
        "mov.u32 $0, %laneid; mov.u32 $1, %warpid; mov.u32 $2, %ntid.x;",
        "=r,=r,=r",
        [],
        dtype=(tl.int32, tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )
    put(out + me * 3, lane)
    put(out + me * 3 + 1, warp)
    put(out + me * 3 + 2, size)


@pytest.mark.parametrize(("cluster", "warp"), [("hgx_h100", 32), ("mi300x", 64)])
def test_lanes_and_warps_are_counted_as_the_device_has_them(run, cluster, warp):
    """32 threads of a warp on NVIDIA's devices, 64 on AMD's."""

    def body(rank, ctx):
        found = launched(ctx, registers, 6 * warp, num_warps=2).reshape(-1, 3)
        me = np.arange(2 * warp)
        assert (found == np.stack([me % warp, me // warp, np.full_like(me, 2 * warp)], 1)).all()

    run(body, 1, cluster=cluster)


def test_shuffles_of_nvidia_are_refused_in_warps_of_amd(run):
    """Their masks have 32 bits."""

    def body(rank, ctx):
        launched(ctx, talk, 5 * 64, num_warps=1)
        ctx.synchronize()

    with pytest.raises(Exception, match="warps of 32 threads, is not supported on a device whose"):
        run(body, 1, cluster="mi300x")
