"""Special registers: who a lane is, and what time it is."""

import pytest
import triton
import triton.language as tl

import simrank
from simrank.errors import UnsupportedError

from ..assembly import unary


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
