"""NCCL Inspector's records."""

import json
from pathlib import Path

import pytest

from simrank.bench.inspector import inspector_rows, is_inspector
from simrank.bench.json_parts import read_parts
from simrank.errors import ConfigError

# As documented in NVIDIA/nccl: ext-profiler/inspector/README.md and its exporter's README.md.
DOCUMENTED = (Path(__file__).parent / "inspector" / "documented.json").read_text()


def rows_of(*texts):
    parts = [part for i, text in enumerate(texts) for part in read_parts(text, f"{i}.log")]
    assert is_inspector(parts[0])
    return inspector_rows(parts, "0.log")


def record(rank=0, number=1, time_us=10, comm="0x1", **changes):
    """Return a record of one rank, of a pair on one node."""
    perf = {
        "coll": "AllReduce",
        "coll_sn": number,
        "coll_msg_size_bytes": 1024,
        "coll_exec_time_us": time_us,
    }
    header = {"id": comm, "rank": rank, "n_ranks": 2, "nnodes": 1}
    return {
        "header": header | {key: value for key, value in changes.items() if key in header},
        "coll_perf": perf | {key: value for key, value in changes.items() if key in perf},
    }


def lines(*records):
    return "".join(json.dumps(each) + "\n" for each in records)


def test_the_documented_records_have_the_documented_bandwidths():
    """The bytes of reduce_scatter are one rank's part; nccl-tests' size is the whole."""
    reduce_scatter, all_reduce = sorted(rows_of(DOCUMENTED), key=lambda row: row.size_bytes)
    assert (all_reduce.collective, all_reduce.num_ranks) == ("all_reduce", 8)
    assert all_reduce.algbw_GBps == pytest.approx(277.210914)
    assert all_reduce.busbw_GBps == pytest.approx(485.119099)
    assert (reduce_scatter.size_bytes, reduce_scatter.ranks_per_host) == (32 * 65536, (8, 8, 8, 8))
    assert reduce_scatter.algbw_GBps == pytest.approx(19.065018)
    assert reduce_scatter.busbw_GBps == pytest.approx(18.469236)


def test_a_time_is_the_median_of_the_slowest_ranks():
    """Whichever file a rank's record stands in."""
    mine = lines(*(record(0, number, time) for number, time in enumerate((10, 50, 12))))
    other = lines(*(record(1, number, time) for number, time in enumerate((11, 20, 90))))
    (row,) = rows_of(mine, other)
    assert row.time_us == 50  # Of 11, 50 and 90.


def test_communicators_count_their_calls_apart():
    """Two with the same number are two repeats."""
    (row,) = rows_of(lines(record(comm="0x1", time_us=10), record(comm="0x2", time_us=20)))
    assert row.time_us == 15


def test_a_header_holds_until_the_next():
    """Since version 4.3 it stands once, with statistics, before its records."""
    marker = {"header": record()["header"], "dump_stats": {"coll_records": 1}}
    perf = {"coll_perf": record()["coll_perf"]}
    assert rows_of(lines(marker, perf)) == rows_of(lines(record()))
    with pytest.raises(ConfigError, match=r"1.log:1: header: .* in a dump_stats before it"):
        rows_of(lines(marker, perf), lines(perf))


def test_messages_and_single_ranks_are_left_out():
    """Sends, the proxy's steps, and copies of one rank."""
    others = [
        record(coll="Send"),
        record(n_ranks=1),
        {"header": {}, "p2p_perf": {}},
        {"proxy_trace": {}},
    ]
    assert len(rows_of(lines(*others, record()))) == 1
    with pytest.raises(ConfigError, match=r"expected coll_perf of a collective .* got none"):
        rows_of(lines(*others))


def test_nodes_that_divide_no_ranks_have_one_more_or_less():
    """Hosts are not listed."""
    (row,) = rows_of(lines(record(n_ranks=8, nnodes=3)))
    assert row.ranks_per_host == (3, 3, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coll": "AllRefuse"}, r"coll_perf.coll: expected one of AllReduce.* got \"AllRefuse\""),
        ({"time_us": 0}, "coll_perf.coll_exec_time_us: expected a time .* got 0"),
        ({"time_us": "9"}, 'coll_exec_time_us: .* got "9"'),
        ({"n_ranks": 1 << 70}, "header.n_ranks: expected a whole number"),
        ({"nnodes": 3}, "header.nnodes: expected a whole number from 1 to 2, got 3"),
        ({"coll_msg_size_bytes": 1.5}, "coll_perf.coll_msg_size_bytes: .* got 1.5"),
        ({"number": None}, "coll_perf.coll_sn: .* got null"),
        ({"comm": 5}, "header.id: expected a string, got 5"),
    ],
)
def test_what_is_wrong_is_named_with_line_and_key(changes, message):
    """The line on which its record begins."""
    with pytest.raises(ConfigError, match=message) as caught:
        rows_of(lines(record(), record(**changes)))
    assert str(caught.value).startswith("0.log:2: ")
