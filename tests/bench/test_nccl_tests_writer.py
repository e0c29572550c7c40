"""Results as nccl-tests and NCCL Inspector write them are what their readers read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.bench.nccl_tests_writer import (
    INSPECTOR,
    NCCL_TESTS,
    Machine,
    inspector_text,
    machine_of,
    nccl_tests_text,
)
from simrank.bench.series import Row
from simrank.calibration.measured_text import rows_by_file
from simrank.collectives.bounds import busbw_factor
from simrank.config import bench_config_from_mapping
from simrank.config.quantity import DTYPES
from simrank.errors import ConfigError

MACHINE = Machine("hgx_h100", "H100 SXM", 8)
TIMES = st.floats(0.5, 1e6)


def row(collective, num_ranks, size_bytes, time_us, **changes):
    algbw = size_bytes / time_us / 1e3
    return Row(
        **{
            "cluster": "hgx_h100",
            "collective": collective,
            "algorithm": "ring",
            "protocol": None,
            "num_ranks": num_ranks,
            "num_nodes": -(-num_ranks // 8),
            "in_place": False,
            "redop": "sum",
            "root": -1,
            "dtype": "float32",
            "size_bytes": size_bytes,
            "time_us": time_us,
            "algbw_GBps": algbw,
            "busbw_GBps": algbw * busbw_factor(collective, num_ranks),
            "num_wrong": 0,
            "cost_level": "schedule",
            "calibration": None,
            "interval_us": None,
            "channels": 1,
            "measured_us": None,
            "error_pct": None,
            **changes,
        }
    )


@st.composite
def runs(draw, collectives):
    """Rows of one run, sizes once each."""
    collective = draw(st.sampled_from(collectives))
    num_ranks = draw(st.integers(2, 24))
    sizes = draw(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=5, unique=True))
    dtype = draw(st.sampled_from(DTYPES))
    return [
        row(collective, num_ranks, size * num_ranks * 8, draw(TIMES), dtype=dtype) for size in sizes
    ]


@given(runs(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv"]))
def test_what_is_written_as_nccl_tests_is_read_as_it_was(rows):
    """Up to the digits that nccl-tests prints; ranks fill one node after the other."""
    found = rows_by_file({"out.txt": nccl_tests_text(rows, MACHINE)})["out.txt"]
    assert len(found) == len(rows)
    by_size = {each.size_bytes: each for each in found}
    for mine in rows:
        other = by_size[mine.size_bytes]
        assert (other.collective, other.num_ranks) == (mine.collective, mine.num_ranks)
        assert (other.size_bytes, other.dtype) == (mine.size_bytes, mine.dtype)
        assert other.time_us == pytest.approx(mine.time_us, abs=0.0051, rel=5.1e-4)
        assert sum(other.ranks_per_host) == mine.num_ranks
        assert max(other.ranks_per_host) == min(8, mine.num_ranks)


@given(runs(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]))
def test_what_is_written_as_the_inspector_does_is_read_as_it_was(rows):
    """Up to its whole microseconds; its bytes are those of a rank's part, where there are parts."""
    found = rows_by_file({"0.log": inspector_text(rows, MACHINE)})["0.log"]
    times = {each.size_bytes: each.time_us for each in found}
    assert times == {each.size_bytes: max(1, round(each.time_us)) for each in rows}
    assert {each.num_ranks for each in found} == {rows[0].num_ranks}


def test_lines_have_the_columns_that_scripts_cut_out():
    """The widths of src/common.cu: both forms beside each other, `N/A` where one did not run."""
    rows = [
        row("all_reduce", 2, 8, 12.9),
        row("all_reduce", 2, 8, 12.8, in_place=True),
        row("all_reduce", 2, 1 << 27, 500.04),
        row("all_reduce", 2, 1 << 30, 12345.6, num_wrong=None),
    ]
    text = nccl_tests_text(rows, MACHINE)
    small, large, larger = (line for line in text.splitlines() if line[0] == " ")
    assert small == (
        "           8             2     float     sum      -1"
        "    12.90    0.00    0.00       0    12.80    0.00    0.00       0"
    )
    assert large.split()[5:] == ["500.0", "268.41", "268.41", "0", "N/A", "N/A", "N/A", "N/A"]
    assert larger.split()[5:9] == ["12346", "86.97", "86.97", "N/A"]
    assert "# Collective test starting: all_reduce_perf\n" in text
    assert re.search(r"#  Rank  1 Group  0 Pid      0 on      node0 device  1 \[", text)
    assert re.search(r"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : \d", text)


def test_nothing_is_written_of_nothing():
    """A run that ended before its first row."""
    assert nccl_tests_text([], MACHINE) == inspector_text([], MACHINE) == ""


@pytest.mark.parametrize(
    ("changes", "form", "message"),
    [
        ({"collectives": ["all_reduce", "reduce"]}, NCCL_TESTS, "collectives: expected one entry"),
        ({"algorithms": ["ring", "auto"]}, INSPECTOR, "algorithms: expected one entry with --insp"),
        ({"num_ranks": [2, 4]}, NCCL_TESTS, "num_ranks: expected one entry with --nccl-tests"),
        ({"collectives": ["all_to_all"]}, INSPECTOR, "expected one of all_reduce, all_gather, re"),
    ],
)
def test_what_a_form_has_no_words_for_is_refused_before_the_run(changes, form, message):
    """By the key of the benchmark."""
    config = {"cluster": "hgx_h100", "collectives": ["all_reduce"], "sizes": ["1 KiB"]}
    assert machine_of(bench_config_from_mapping(config), form) == MACHINE
    with pytest.raises(ConfigError, match=message):
        machine_of(bench_config_from_mapping(config | changes), form)
