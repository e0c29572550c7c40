"""Files of NCCL's example tuner plugin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.config.tuner import (
    ALGORITHMS,
    COLLECTIVES,
    COLUMNS,
    MAX_BYTES,
    PROTOCOLS,
    TunerRow,
    load_tuner,
    parse_tuner,
    tuner_text,
)
from simrank.errors import ConfigError

# The example of NVIDIA/nccl ext-tuner/example/README.md.
DOCUMENTED = """\
# Single-node, small allreduce: use tree algorithm, registered buffers only
allreduce,0,65536,tree,simple,2,1,-1,-1,1

# 4-node, 32-rank setup: medium allreduce, single pipeline op, non-registered buffers
allreduce,65537,1048576,ring,simple,4,4,32,1,0

# Any topology: large allreduce with LL128, multiple pipeline ops, any buffer type
allreduce,1048577,4294967295,ring,ll128,-1,-1,-1,4,-1

# Single-node broadcast: prefer tree, any pipeOps, registered buffers (backward compatible)
broadcast,0,32768,tree,simple,-1,1,-1

# Multi-node broadcast: optimized for non-registered buffers, single pipeline op
broadcast,32769,4294967295,ring,simple,2,-1,-1,1,0
"""
ROW = "allreduce,0,65536,tree,ll,-1,2,16"


def test_the_documented_example_is_read(tmp_path):
    """With the lines of its rows; the last two cells may be left out."""
    path = tmp_path / "tuner.conf"
    path.write_text(DOCUMENTED)
    rows = load_tuner(path)
    assert [row.line for row in rows] == [2, 5, 8, 11, 14]
    where = str(path)
    assert rows[0] == TunerRow(where, 2, "all_reduce", 0, 65536, "tree", "simple", 2, 1, -1, -1, 1)
    assert rows[3] == TunerRow(where, 11, "broadcast", 0, 32768, "tree", "simple", -1, 1)


def test_spaces_and_a_heading_are_no_part_of_rows():
    """As a spreadsheet writes them; the byte order mark, too."""
    text = "\ufeff" + ",".join(COLUMNS) + "\r\n allreduce , 0,65536, tree,ll ,-1,2,16\r\n"
    assert parse_tuner(text, "f") == (
        TunerRow("f", 2, "all_reduce", 0, 65536, "tree", "ll", -1, 2, 16),
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("allreduce,0,65536,tree,ll", "f:1: expected 8 to 10 cells: .*, got 5"),
        (ROW + ",-1,0,1", "f:1: expected 8 to 10 cells: .*, got 11"),
        (
            ROW.replace("tree", "Tree"),
            "f:1: algorithm: expected one of .* got Tree\n.*write `tree`",
        ),
        (ROW.replace("ll", "LL", 1).lower().replace("ll,-1", "LL,-1"), "f:1: protocol: .*`ll`"),
        (ROW.replace("allreduce", "all_reduce"), "collective_type: .* write `allreduce`"),
        (ROW.replace(",0,", ",x,"), "min_bytes: expected a whole number from 0 to .* got x"),
        (ROW.replace(",0,", ",,"), "min_bytes: .* got nothing"),
        (ROW.replace("65536", "-1"), "max_bytes: expected a whole number from 0"),
        (ROW.replace(",0,65536", ",9,8"), "max_bytes: expected a whole number from 9 to .* got 8"),
        (ROW.replace("65536", str(MAX_BYTES + 1)), "max_bytes: expected a whole number"),
        (ROW.replace("65536", "9" * 5000), "max_bytes: expected a whole number"),
        (ROW.replace("65536", "\u00b2"), "max_bytes: expected a whole number"),
        (ROW.replace("-1", "-2"), "channels: expected a whole number from -1"),
        (ROW + ",-1,2", "regBuff: expected a whole number from -1 to 1, got 2"),
    ],
)
def test_a_wrong_row_is_named_with_line_and_column(row, message):
    """Where the plugin would take another name, or leave the row out."""
    with pytest.raises(ConfigError, match="(?s)" + message):
        parse_tuner(row, "f")


def test_all_wrong_rows_are_named():
    """Good rows between them do not hide the next."""
    with pytest.raises(ConfigError) as caught:
        parse_tuner(f"x\n{ROW}\n\ny\n", "f")
    assert [problem.line for problem in caught.value.problems] == [1, 4]


COUNTS = st.integers(-1, 1 << 20)
ROWS = st.builds(
    lambda sizes, *rest: (min(sizes), max(sizes), *rest),
    st.tuples(st.integers(0, MAX_BYTES), st.integers(0, MAX_BYTES)),
    st.sampled_from(ALGORITHMS),
    st.sampled_from(PROTOCOLS),
    *[COUNTS] * 4,
    st.integers(-1, 1),
)


@given(cells=st.lists(ROWS, max_size=5), names=st.sampled_from(list(COLLECTIVES.values())))
def test_what_is_written_is_read_again(cells, names):
    """Every cell of every row."""
    rows = tuple(TunerRow("f", line, names, *each) for line, each in enumerate(cells, 2))
    assert parse_tuner(tuner_text(rows), "f") == rows


@given(data=st.data())
def test_a_damaged_file_ends_in_rows_or_in_what_is_wrong_with_it(data):
    """No traceback."""
    text = DOCUMENTED
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 20))
        text = text[:at] + data.draw(st.text(max_size=3)) + text[at + cut :]
    try:
        rows = parse_tuner(text, "f")
    except ConfigError as error:
        lines = [problem.line for problem in error.problems]
    else:
        lines = [row.line for row in rows]
        assert all(0 <= row.min_bytes <= row.max_bytes <= MAX_BYTES for row in rows)
    assert lines == sorted(set(lines))
