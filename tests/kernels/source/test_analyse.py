"""What a kernel does is read off its source, and that of what it calls."""

import triton
import triton.language as tl

import simrank

NEGATE = tl.constexpr("neg.f32 $0, $1;")
SPIN = "{\n.reg .pred %p;\nspin: ld.global.u32 $0, [$1];\nsetp.eq.u32 %p, $0, 0;\n@%p bra spin;\n}"


@triton.jit
def negate_by_name(x, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.inline_asm_elementwise(
        asm=NEGATE, constraints="=f,f", args=[tl.load(x + offs)], dtype=tl.float32,
        is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(x + offs, found)


@triton.jit
def spin_by_name(flag, text: tl.constexpr):
    tl.inline_asm_elementwise(text, "=r,l", [flag], dtype=tl.int32, is_pure=False, pack=1)


def test_assembly_that_a_name_stands_for_is_read_before_a_kernel_is_taken_to_wait(run):
    """Arithmetic runs in lockstep; what nobody can know yet runs as tasks."""

    def body(rank, ctx):
        x = ctx.arange(64, dtype=simrank.float32)
        assert negate_by_name[(4,)](x, BLOCK=16).mode == "batched"
        assert x.tolist() == [-float(i) for i in range(64)]
        flag = ctx.ones(1, dtype=simrank.int32)
        assert spin_by_name[(1,)](flag, SPIN).mode == "tasks"

    run(body, 1)
