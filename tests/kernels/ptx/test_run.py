"""Lanes that go round a loop."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
from simrank.errors import UnsupportedError

from ..assembly import applied, unary
from ..warps import ballot, launched, put, take, thread


@triton.jit
def bounded_wait(flag, out):
    rounds = tl.inline_asm_elementwise(
        """
        {
            .reg .pred %p<2>;
            .reg .u32 %v, %n;
            mov.u32 %n, 0;
            again:
                add.u32 %n, %n, 1;
                nanosleep.u32 100;
                ld.acquire.sys.u32 %v, [$1];
                setp.ne.u32 %p0, %v, 0;
                setp.lt.and.u32 %p1, %n, 20, !%p0;
                @%p0 bra done;
                setp.lt.u32 %p1, %n, 20;
                @%p1 bra again;
            done:
            mov.u32 $0, %n;
        }
        """,
        "=r,l", [flag], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    tl.store(out, rounds)


def test_a_loop_that_counts_its_rounds_ends_by_itself(run):
    """It is polled in time, not parked for ever."""

    def body(rank, ctx):
        out = ctx.zeros(1, dtype=simrank.int32)
        bounded_wait[(1,)](ctx.zeros(1, dtype=simrank.int32), out)
        assert out.item() == 20

    run(body, 1)


# ---- conversions round and saturate as hardware does ----


def test_conversions_round_and_saturate(run):
    """To integers toward zero; NaN gives zero."""
    values = np.array([1.9, -1.9, 3e10, np.nan], np.float32)
    found = applied(
        run, "cvt.rzi.s32.f32 $0, $1;", values, kind=tl.int32, constraints="=r,f", out="int32"
    )
    assert found.tolist() == [1, -1, 2**31 - 1, 0]


@triton.jit
def to_fp8(x, out, N: tl.constexpr):
    offs = tl.arange(0, N)
    found = tl.inline_asm_elementwise(
        "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;",
        "=h,r,r",
        [tl.load(x + offs)],
        dtype=tl.float8e4nv,
        is_pure=True,
        pack=2,
    )
    tl.store(out + offs, found)


def test_pairs_of_fp8_saturate(run):
    """The first source of the instruction goes to the upper half."""

    def body(rank, ctx):
        x = np.array([0.3, -1.0, 500.0, 448.0], np.float32)
        out = ctx.zeros(4, dtype=simrank.float8_e4m3fn)
        to_fp8[(1,)](ctx.from_numpy(x), out, N=4)
        assert out.float().tolist() == [0.3125, -1.0, 448.0, 448.0]

    run(body, 1)


@triton.jit
def four_bit_pairs(x, out, wide, N: tl.constexpr):
    offs = tl.arange(0, N)
    low, high = tl.split(tl.load(x + tl.arange(0, 2 * N)).reshape((N, 2)))
    packed = tl.inline_asm_elementwise(
        """
        {
            .reg .b8 pair;
            cvt.rn.satfinite.e2m1x2.f32 pair, $2, $1;
            cvt.u32.u8 $0, pair;
        }
        """,
        "=r,r,r", [low, high], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(out + offs, packed)
    both = tl.inline_asm_elementwise(
        "{ .reg .b8 pair; cvt.u8.u32 pair, $1; cvt.rn.f16x2.e2m1x2 $0, pair; }",
        "=r,r", [packed], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(wide + 2 * offs, (both & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True))
    tl.store(wide + 2 * offs + 1, (both >> 16).to(tl.int16).to(tl.float16, bitcast=True))


def test_pairs_of_four_bit_floats_round_to_even_and_saturate(run):
    """The first source of the instruction goes to the upper four bits, and comes back from them."""
    given = np.float32([0.25, 0.75, 1.25, -1.75, 2.5, 5.0, 100, -np.inf])
    wanted = [0.0, 1.0, 1.0, -2.0, 2.0, 4.0, 6.0, -6.0]

    def body(rank, ctx):
        out, wide = ctx.zeros(4, dtype=simrank.int32), ctx.zeros(8, dtype=simrank.float16)
        four_bit_pairs[(1,)](ctx.from_numpy(given), out, wide, N=4)
        assert wide.tolist() == wanted
        assert out.tolist() == [0x20, 0xC2, 0x64, 0xF7]

    run(body, 1)


@pytest.mark.parametrize(
    ("rounding", "wanted"),
    [("rp", [127, 128, 128, 0, 254, 255, 129, 0]), ("rz", [127, 127, 127, 0, 254, 255, 129, 0])],
)
def test_powers_of_two_are_rounded_up_or_toward_zero(run, rounding, wanted):
    """The scales of microscaling formats: a biased exponent of eight bits."""
    asm = (
        f"{{ .reg .b16 p; cvt.{rounding}.satfinite.ue8m0x2.f32 p, 0f00000000, $1; "
        "cvt.u32.u16 $0, p; }"
    )
    given = np.float32([1.0, 1.5, -1.1, 0.0, np.inf, np.nan, 4.0, 2.0**-127])
    found = applied(run, asm, given, kind=tl.int32, out=simrank.int32)
    assert (found & 0xFF).tolist() == wanted


# ---- special registers: who a lane is, and what time it is ----


@triton.jit
def who(out, asm_unused):
    pid = tl.program_id(0)
    block, blocks, threads = tl.inline_asm_elementwise(
        "mov.u32 $0, %ctaid.x; mov.u32 $1, %nctaid.x; mov.u32 $2, %ntid.x;",
        "=r,=r,=r", [], dtype=(tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(out + pid * 3, block)
    tl.store(out + pid * 3 + 1, blocks)
    tl.store(out + pid * 3 + 2, threads)


def test_special_registers_say_who_runs_even_in_lockstep(run):
    """One lane stands for 32 x num_warps threads."""

    def body(rank, ctx):
        out = ctx.zeros(12, dtype=simrank.int32)
        operation = who[(4,)](out, 0, num_warps=8)
        assert operation.mode == "batched"
        assert out.tolist() == [n for pid in range(4) for n in (pid, 4, 256)]

    run(body, 1)


@triton.jit
def timed_on_amd(x, out, clock):
    tl.inline_asm_elementwise("s_waitcnt vmcnt(0)", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    now = tl.inline_asm_elementwise(
        """s_waitcnt vmcnt(0)
        s_memrealtime $0
        s_waitcnt lgkmcnt(0)""",
        "=s", [], dtype=tl.int64, is_pure=False, pack=1,
    )  # fmt: skip
    tl.store(clock + tl.program_id(0), now)
    tl.store(out + tl.program_id(0), tl.load(x + tl.program_id(0)))


def test_waits_and_the_clock_of_amd_are_known(run):
    """Its counter runs at 100 MHz; other instructions of AMD's are refused by name."""

    def body(rank, ctx):
        out, clock = ctx.zeros(2), ctx.zeros(2, dtype=simrank.int64)
        for _ in range(2):
            before_ps = ctx.now_ps
            timed_on_amd[(2,)](ctx.ones(2), out, clock)
            ctx.synchronize()
            assert before_ps // 10_000 <= min(clock.tolist()) <= ctx.now_ps // 10_000
        assert out.tolist() == [1.0, 1.0]
        with pytest.raises(simrank.errors.UnsupportedError, match="s_getreg_b32"):
            unary[(1,)](
                ctx.zeros(2), out, ASM="s_getreg_b32 $0, hwreg(HW_REG_XCC_ID, 0, 16)",
                CONSTRAINTS="=s,r", KIND=tl.int32, N=2,
            )  # fmt: skip
            ctx.synchronize()

    run(body, 1, cluster="mi300x")


@triton.jit
def meet_in_the_workspace(out):
    high, low = tl.inline_asm_elementwise(
        "mov.u32 $0, %envreg1; mov.u32 $1, %envreg2;",
        "=r,=r",
        [],
        dtype=(tl.uint32, tl.uint32),
        is_pure=True,
        pack=1,
    )
    address = (high.to(tl.uint64) << 32) | low
    counter = tl.cast(address, tl.pointer_type(tl.int32), bitcast=True) + 1
    tl.atomic_add(counter, 1)
    while tl.atomic_add(counter, 0) != tl.num_programs(0):
        pass
    tl.store(out + tl.program_id(0), 1)


def test_programs_of_a_cooperative_launch_share_a_workspace(run):
    """Zero at the start of each; other launches have none."""

    def body(rank, ctx):
        for _ in range(2):
            out = ctx.zeros(5, dtype=simrank.int32)
            meet_in_the_workspace[(5,)](out, launch_cooperative_grid=True)
            assert out.tolist() == [1] * 5
        meet_in_the_workspace[(5,)](out)
        with pytest.raises(UnsupportedError, match="launch_cooperative_grid=True"):
            ctx.synchronize()

    run(body, 1, races="error")


# ---- what threads of a warp tell each other ----


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
