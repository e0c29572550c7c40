"""What triton has compiled is launched, and says what it takes."""

import pytest
import triton
import triton.language as tl
from triton.compiler import ASTSource

import simrank
from simrank.errors import UnsupportedError


@triton.jit
def doubled(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, 2 * tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def _compiled():
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(fn=doubled, signature=signature, constexprs={(3,): 64})
    target = triton.runtime.driver.active.get_current_target()
    return triton.compile(
        source, target=target, options={"num_warps": 4, "enable_fp_fusion": False}
    )


def test_what_a_program_has_compiled_itself_is_launched(run):
    """With its own constants, whatever stands at their place."""

    def body(rank, ctx):
        x, out = ctx.arange(100, dtype=simrank.float32), ctx.zeros(100)
        kernel = _compiled()
        kernel[2, 1, 1](x, out, 100, None)
        assert kernel.n_regs > 0
        assert kernel.n_spills == 0
        assert out.tolist() == [2.0 * i for i in range(100)]

    run(body, 1)


def test_a_compiled_kernel_runs_on_the_current_stream_only(run):
    """A number of a stream that is not current is refused by name."""

    def body(rank, ctx):
        x = ctx.zeros(64)
        with pytest.raises(UnsupportedError, match="on stream 0x7, which is not the current one"):
            _compiled()[1, 1, 1](x, x, 64, None, stream=7)

    run(body, 1)


def test_a_launch_says_what_the_compiler_makes_of_its_kernel(run):
    """As Triton's, which returns what it compiled; asked for before the launch ends, or after."""

    def body(rank, ctx):
        x, out = ctx.ones(100), ctx.zeros(100)
        kernel = doubled[2,](x, out, 100, BLOCK=64, num_warps=2)
        for _ in range(2):
            assert kernel.n_regs > 0
            assert kernel.n_spills == 0
            assert kernel.metadata.num_warps == 2
            assert "doubled" in kernel.asm["ptx"]
            ctx.synchronize()
        again = doubled[2,](x, out, 100, BLOCK=64, num_warps=2)
        other = doubled[2,](x, out, 100, BLOCK=64, num_warps=4)
        assert kernel.hash == again.hash != other.hash

    run(body, 1)


def test_registers_of_amds_binaries_are_refused_by_name(run):
    """The compiler builds them, and nothing reads them."""

    def body(rank, ctx):
        with pytest.raises(UnsupportedError, match="MI300"):
            _compiled()[1, 1, 1](ctx.zeros(64), ctx.zeros(64), 64, None)

    run(body, 1, cluster="mi300x")
