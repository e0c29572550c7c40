"""What warps read of shared memory for their dots, as PTX says: its loops, and nothing around."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.kernels.compiler import metadata as operands

MULTIPLY = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1};\n"
READ = "ldmatrix.sync.aligned.m8n8.x{}.shared.b16 {{%r1}}, [%r2];\n"
FLOPS = 2 * 16 * 8 * 16


def loop(label, body):
    """A loop as LLVM writes it."""
    return f"$L__BB0_{label}: // Header: Depth=1\n{body}@%p1 bra $L__BB0_{label};\n"


@given(st.integers(1, 9), st.integers(0, 9), st.sampled_from([1, 2, 4]), st.integers(0, 9))
def test_loops_count_and_what_is_around_them_does_not(num_dots, num_reads, width, num_outside):
    """It runs once, where a loop runs many times."""
    body = MULTIPLY * num_dots + READ.format(width) * num_reads
    around = READ.format(4) * num_outside
    found = operands.operand_bytes_per_flop(around + loop(2, body) + around)
    assert found == pytest.approx(num_reads * width * 128 / (num_dots * FLOPS))


def test_of_nested_loops_the_innermost_with_dots_count():
    """A loop without dots within one that has them is no better a sample, so the outer counts."""
    inner = loop(3, MULTIPLY + READ.format(4))
    nested = loop(2, READ.format(4) * 7 + inner)
    assert operands.operand_bytes_per_flop(nested) == pytest.approx(512 / FLOPS)
    others = loop(2, MULTIPLY + READ.format(2) + loop(3, "add.s32 %r1, %r1, 1;\n"))
    assert operands.operand_bytes_per_flop(others) == pytest.approx(256 / FLOPS)


def test_without_loops_all_of_it_counts():
    """A short loop is unrolled."""
    assert operands.operand_bytes_per_flop(MULTIPLY + READ.format(4)) == pytest.approx(512 / FLOPS)


@pytest.mark.parametrize("ptx", ["", READ.format(4), "wgmma.mma_async.sync.aligned.m64n64k16;"])
def test_without_dots_of_warps_nothing_is_read_for_them(ptx):
    """Groups of warps read as they multiply."""
    assert operands.operand_bytes_per_flop(ptx) == 0.0


def test_a_branch_ahead_is_no_loop():
    """An `if` around reads makes no loop of them."""
    skipped = "@%p1 bra $L__BB0_4;\n" + READ.format(4) + "$L__BB0_4:\n"
    found = operands.operand_bytes_per_flop(skipped + loop(5, MULTIPLY + READ.format(1)))
    assert found == pytest.approx(128 / FLOPS)
