"""Lanes that go round a loop."""

import triton
import triton.language as tl

import simrank


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
