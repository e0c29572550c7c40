"""What tests of kernels share: launches on arrays, and one instruction on an array."""

import triton
import triton.language as tl


@triton.jit
def unary(
    x, out, ASM: tl.constexpr, CONSTRAINTS: tl.constexpr, KIND: tl.constexpr, N: tl.constexpr
):
    offs = tl.program_id(0) * N + tl.arange(0, N)
    found = tl.inline_asm_elementwise(
        ASM, CONSTRAINTS, [tl.load(x + offs)], dtype=KIND, is_pure=True, pack=1
    )
    tl.store(out + offs, found)


def applied(run, asm, values, *, kind, constraints="=r,r", out=None):
    """Return what assembly makes of an array."""
    found = []

    def body(rank, ctx):
        x = ctx.from_numpy(values)
        result = ctx.zeros(len(values), dtype=out or values.dtype)
        unary[(2,)](x, result, ASM=asm, CONSTRAINTS=constraints, KIND=kind, N=len(values) // 2)
        found.append(result.numpy())

    run(body, 1)
    return found[0]


def launch(ctx, kernel, inputs, out, grid=(1,), **constants):
    """Launch on arrays; return the output as an array."""
    tensors = [ctx.from_numpy(array) for array in (*inputs, out)]
    kernel[grid](*tensors, **constants)
    return tensors[-1].numpy()
