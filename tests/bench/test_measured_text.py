"""Every format of measured times is recognised by its content, or refused with file and line."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simrank.bench.measured_text import rows_by_file
from simrank.config import MeasuredRow
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
