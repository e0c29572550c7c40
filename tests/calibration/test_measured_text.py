"""Every format of measured times is recognised by its content, or refused with file and line."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simrank.calibration.measured_text import (
    inspector_rows,
    is_inspector,
    is_nccl_tests_json,
    nccl_tests_rows,
    rows_by_file,
)
from simrank.config import MeasuredRow
from simrank.config.json_parts import read_parts
from simrank.config.measured import COLUMNS
from simrank.config.yaml_source import read_text
from simrank.errors import ConfigError

HERE = Path(__file__).parent
CSV = ",".join(COLUMNS) + "\n8 GPUs,all_reduce,8,1024,float,10.5,0.1,0.2,somewhere\n"
OUTPUT = (HERE / "nccl_tests" / "all_reduce.txt").read_text()
JSON = (HERE / "nccl_tests" / "all_reduce.json").read_text()
INSPECTOR = (HERE / "inspector" / "documented.json").read_text()
RECORDS = json.loads("[" + INSPECTOR.replace("}\n{", "},{") + "]")
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
TEXTS = {"csv": CSV, "text": OUTPUT, "json": JSON, "inspector": INSPECTOR, "lines": LINES}


def test_the_content_says_which_format_it_is():
    """Names of files do not."""
    found = {name: rows_by_file({"x": text})["x"] for name, text in TEXTS.items()}
    assert {name: len(rows) for name, rows in found.items()} == {
        "csv": 1, "text": 2, "json": 2, "inspector": 2, "lines": 2,
    }  # fmt: skip
    assert found["inspector"] == found["lines"]
    assert {type(row) for rows in found.values() for row in rows} == {MeasuredRow}


def test_a_byte_order_mark_is_no_part_of_a_text():
    """Editors of some systems write it."""
    for text in TEXTS.values():
        assert rows_by_file({"x": "\ufeff" + text}) == rows_by_file({"x": text})


def test_files_of_the_inspector_are_one_table():
    """One per process; others stay apart, in one call."""
    found = rows_by_file({"a.log": LINES, "b.log": LINES, "c.csv": CSV})
    assert {file: len(rows) for file, rows in found.items()} == {"a.log": 2, "c.csv": 1}


def test_runs_behind_each_other_are_read():
    """`cat *.json`."""
    assert len(rows_by_file({"x": JSON + JSON})["x"]) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x: expected a collective"),
        ("a,b\n1,2\n", "x:1: expected the columns system"),
        ("[]", "x:1: expected nccl-tests' JSON .* got nothing"),
        ('\n{"rows": 1}', "x:2: expected nccl-tests' JSON .* got an object with rows"),
        (JSON + INSPECTOR, "x:2: expected nccl-tests' JSON .* got an object with header"),
        (JSON[:900], "x:1: expected JSON, got .* in column"),
    ],
)
def test_a_text_of_no_format_says_what_was_expected(text, message):
    """With file, and line where there is one."""
    with pytest.raises(ConfigError, match=message):
        rows_by_file({"x": text})


@st.composite
def damaged(draw):
    """Return a good file with bytes changed, cut out or cut off."""
    data = bytearray(TEXTS[draw(st.sampled_from(sorted(TEXTS)))].encode())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["flip", "delete", "truncate", "repeat"])):
            case "flip":
                data[at] ^= draw(st.integers(1, 255))
            case "delete":
                del data[at : at + draw(st.integers(1, 40))]
            case "truncate":
                del data[at:]
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 40))]
        if not data:
            break
    return bytes(data)


@given(data=damaged())
@example(data=b"")
@example(data=b"[" * 100_000)
@example(data=CSV.replace("1024", "9" * 400).encode())
@example(data=OUTPUT.replace("134217728", "\u00b2").encode())
def test_a_damaged_file_ends_in_rows_or_in_what_is_wrong_with_it(tmp_path_factory, data):
    """Nothing else: no traceback, and no row that cannot be."""
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(data)
    try:
        found = rows_by_file({"damaged": read_text(path)})
    except ConfigError as error:
        for problem in error.problems:
            assert problem.expected
            assert problem.got
            assert Path(problem.file).name == "damaged"
        return
    for row in (each for rows in found.values() for each in rows):
        assert 0 < row.size_bytes < 1 << 62
        assert 0 < row.time_us < 1 << 62
        assert row.num_ranks >= 1


# ---- NCCL Inspector's records ----

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


# ---- the JSON file of nccl-tests ----

# nccl-tests documents no output: this one is written as its src/util.cu writes (file version 2).
TEXT = (Path(__file__).parent / "nccl_tests" / "all_reduce.json").read_text()


def json_rows(text, **options):
    (run,) = read_parts(text, "out.json")
    assert is_nccl_tests_json(run)
    return nccl_tests_rows(run, **options)


def changed(change):
    """Return the text after a change of its data."""
    data = json.loads(TEXT)
    change(data)
    return json.dumps(data)


def test_command_devices_and_sizes_make_rows():
    """Each device stands for the GPUs of its process; sizes of nothing are left out."""
    rows = json_rows(TEXT)
    assert [(row.collective, row.num_ranks, row.dtype) for row in rows] == [
        ("all_reduce", 8, "float32")
    ] * 2
    assert [(row.size_bytes, row.time_us) for row in rows] == [(1024, 30.25), (1 << 20, 61.5)]
    assert rows[0].ranks_per_host == (4, 4)


def test_what_is_not_said_may_be_said():
    """As for the output on the screen."""
    text = changed(lambda data: (data["args"].clear(), data["config"].clear()))
    (row, _) = json_rows(text, collective="allreduce", num_ranks=8)
    assert (row.collective, row.num_ranks, row.ranks_per_host) == ("all_reduce", 8, ())


@pytest.mark.parametrize(
    ("said", "got"),
    [
        ({"num_ranks": 16}, "1.875 times algbw, as all_reduce has on 16 ranks, got 1.75 times, as"),
        ({"collective": "alltoall"}, "0.875 times algbw, as all_to_all has on 8 ranks, got 1.75"),
    ],
)
def test_what_is_said_against_the_bandwidths_is_refused(said, got):
    """The file knows better."""
    with pytest.raises(ConfigError, match=got):
        json_rows(TEXT, **said)


def test_a_run_that_was_split_is_on_the_ranks_of_a_group():
    """NCCL_TESTS_SPLIT makes communicators of some of the ranks."""

    def split(data):
        data["config"]["devices"][1].update(group=1)
        for result in data["results"]:
            placed = result["out_of_place"]
            placed["bus_bw"] = placed["alg_bw"] * 1.5

    assert json_rows(changed(split))[0].num_ranks == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["args"].clear(), "expected a collective: .* got none"),
        (lambda d: d.pop("config"), "config: expected an object, got nothing"),
        (lambda d: d["config"].update(ngpus="4"), 'config.ngpus: expected a whole .* got "4"'),
        (lambda d: d["config"]["devices"].clear(), "config.devices: expected 1 to .* got 0"),
        (lambda d: d["results"].clear(), "results: expected a size above 0, got none"),
        (lambda d: d["results"][1].update(type="f33"), "type: expected one of"),
        (lambda d: d["results"][1].update(size=-1), r"results\[1\].size: expected a whole"),
        (lambda d: d["results"][1].update(out_of_place=None), "out_of_place: .* got null"),
        (
            lambda d: d["results"][1]["out_of_place"].update(time="nan"),
            r'results\[1\].out_of_place.time: expected a time in microseconds above 0, got "nan"',
        ),
        (
            lambda d: d["results"][1].update(out_of_place={"cpu_time": 3.0}),
            "expected the devices' time, got cpu_time: run it without -C",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_key(change, message):
    """File, line, key, what was expected and what was found."""
    with pytest.raises(ConfigError, match=message) as caught:
        json_rows(changed(change))
    assert str(caught.value).startswith("out.json:1: ")
