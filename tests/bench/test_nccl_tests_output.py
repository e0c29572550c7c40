"""What nccl-tests prints is read as it is pasted."""

from pathlib import Path

import pytest

from simrank.bench.nccl_tests_output import is_nccl_tests, parse_nccl_tests
from simrank.errors import ConfigError

# The form of NVIDIA/nccl-tests' README and of src/common.cu.
OUTPUT = (Path(__file__).parent / "nccl_tests" / "all_reduce.txt").read_text()


def test_what_ran_and_on_which_ranks_is_read_from_the_comments():
    """Sizes of nothing are left out; times are those of out-of-place."""
    rows = parse_nccl_tests(OUTPUT, "out.txt")
    assert [(row.collective, row.num_ranks, row.dtype) for row in rows] == [
        ("all_reduce", 2, "float32")
    ] * 2
    assert [(row.size_bytes, row.time_us) for row in rows] == [(8, 12.9), (134217728, 500.0)]
    assert rows[1].busbw_GBps == pytest.approx(268.44, abs=0.01)


def test_what_the_output_does_not_say_may_be_said():
    """Lines alone, as people paste them."""
    (line,) = [line for line in OUTPUT.splitlines() if line.startswith("   134217728")]
    (row,) = parse_nccl_tests(line, "pasted", "alltoall", 16)
    assert (row.collective, row.num_ranks) == ("all_to_all", 16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OUTPUT.replace("all_reduce_perf", ""), "nothing that says it"),
        (OUTPUT.replace("all_reduce_perf", "hypercube_perf"), "got hypercube"),
        (OUTPUT.replace("#  Rank", "#  rang"), "--num-ranks 8"),
        (OUTPUT.replace("12.90", "x"), r"out.txt:13: time: expected a time in microseconds"),
        (OUTPUT.replace("12.90", "-1"), r"out.txt:13: time: expected a time in microseconds"),
        (OUTPUT.replace("float", "f33"), r"out.txt:12: type: expected one of"),
        (OUTPUT[: OUTPUT.index("    12.90")], r"out.txt:13: expected size, count"),
        ("# all_reduce_perf\n#  Rank  0\n", "lines of size, count"),
    ],
)
def test_malformed_output_is_named_with_its_line(text, message):
    """File, line and what was expected."""
    with pytest.raises(ConfigError, match=message):
        parse_nccl_tests(text, "out.txt")


def test_a_table_is_told_from_output():
    """By its first line."""
    assert is_nccl_tests(OUTPUT)
    assert is_nccl_tests("  8 2 float sum -1 12.9 0 0 0 12.8 0 0 0")
    assert not is_nccl_tests("system,op,nranks,bytes,dtype,time_us\n")
