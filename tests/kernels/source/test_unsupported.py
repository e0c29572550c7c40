"""What the compiler has no code for, refused where it would be compiled."""

import pytest
import triton
import triton.language as tl

LIMIT = 4


@triton.jit
def behind_a_constant(out, FLAG: tl.constexpr):
    if FLAG:
        import math  # noqa: F401
    tl.store(out, 1)


@triton.jit
def behind_a_value(out, FLAG: tl.constexpr):
    if tl.load(out) == 7:
        del FLAG
    tl.store(out, 1)


@triton.jit
def behind_the_end(out, FLAG: tl.constexpr):
    if not FLAG:
        tl.store(out, 1)
    else:
        tl.store(out, LIMIT)


@triton.jit
def goes_through_a_tuple(out, FLAG: tl.constexpr):
    if FLAG:
        for number in (1, 2):
            tl.store(out, number)
    tl.store(out, 1)


@triton.jit
def returns_in_a_loop(out, FLAG: tl.constexpr):
    for _ in range(4):
        if FLAG:
            return
    tl.store(out, 1)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (behind_a_constant, "Import"),
        (behind_the_end, "LIMIT"),
        (goes_through_a_tuple, "iterators"),
        (returns_in_a_loop, "return"),
    ],
)
def test_a_side_that_is_not_compiled_may_have_anything(on_rank, kernel, words):
    """The condition is a compile-time constant: only the chosen side is read."""

    def body(ctx):
        out = ctx.zeros(1, dtype="int32")
        kernel[(1,)](out, FLAG=False)
        assert out.item() == 1
        with pytest.raises(triton.CompilationError, match=words):
            kernel[(1,)](out, FLAG=True)
            ctx.cuda.synchronize()

    on_rank(body)


def test_both_sides_of_a_condition_on_a_value_are_compiled(on_rank):
    """So one that is never taken is refused too."""

    def body(ctx):
        with pytest.raises(triton.CompilationError, match="Delete"):
            behind_a_value[(1,)](ctx.zeros(1, dtype="int32"), FLAG=False)
            ctx.cuda.synchronize()

    on_rank(body)
