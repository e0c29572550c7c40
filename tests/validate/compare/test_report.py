"""A comparison as text, Markdown, a page and plain data."""

import json

import pytest

from simrank.validate.compare import report
from simrank.validate.compare.comparison import compared
from simrank.validate.compare.differences import Tolerance
from simrank.validate.compare.program import RAISED, WAITS, Issued, Job, RankRecord, RunSide

MANY = 200


def job(num_ranks):
    return Job("train.py", "step", (), num_ranks, "gloo", makes_group=False, uses_torch=True)


def call(line):
    return Issued(
        "all_reduce", {"Float": line}, {}, tuple(range(MANY)), "Float[4]", ((4,),), "t.py", line
    )


def of_many(shift):
    """Return a side of many ranks, each with its own value and other calls than its neighbour."""
    records = [
        RankRecord(
            rank, value={"x": rank + shift, "y": [0.5] * 3}, collectives=[call(rank % 40 + shift)]
        )
        for rank in range(MANY)
    ]
    records[0].time_us = 5.0
    records[3] = RankRecord(
        3, RAISED, error="ValueError", text="bad | <shard>", file="/p/t.py", line=4
    )
    records[4] = RankRecord(4, WAITS, error="all_reduce #1 on group 'default_pg'")
    return RunSide("hgx_h100", records, "a failure\n  with lines")


@pytest.fixture
def found():
    return compared(job(MANY), of_many(0), of_many(1), Tolerance())


def test_the_text_is_short_whatever_there_is(found):
    """Ranks as ranges, at most 16 lines for two hundred ranks, each of sane length."""
    lines = report.text(found)
    assert len(lines) <= 16
    assert max(map(len, lines)) < 300
    assert lines[0] == "train.py:step on 200 ranks, gloo"
    assert "rank 3 raised ValueError at t.py:4: bad | <shard>; rank 4 waits forever" in lines[1]
    assert lines[-1] == "the sides differ: 41 differences"


def test_one_side_alone_shows_what_it_did(found):
    """Results and calls of the simulated ranks."""
    alone = compared(job(MANY), of_many(0), None, Tolerance())
    lines = report.text(alone)
    assert len(lines) <= 16
    assert lines[-1] == "not compared: the real side was skipped"
    assert any("all_reduce Float[4] on ranks 0-199 at t.py:1" in line for line in lines)
    assert report.to_json(alone)["agree"] is None
    assert "real" not in report.to_json(alone)["ranks"][0]


def test_sides_that_failed_alike_agree_and_it_is_said():
    """Nobody shall take a crash on both sides for a test that passed."""
    both = compared(job(MANY), of_many(0), of_many(0), Tolerance())
    assert report.text(both)[-1] == "the sides agree: ranks 3-4 failed on both"


def test_the_json_file_has_every_fact(found):
    """These keys, of all ranks and all differences."""
    reported = json.loads(json.dumps(report.to_json(found)))
    assert list(reported) == [
        "simrank", "program", "backend", "num_ranks", "tolerance", "agree", "sides", "notes",
        "differences", "ranks",
    ]  # fmt: skip
    assert (reported["agree"], len(reported["differences"]), len(reported["ranks"])) == (
        False,
        41,
        MANY,
    )
    assert reported["ranks"][3]["real"] == {
        "ending": "raised", "error": "ValueError", "text": "bad | <shard>", "file": "/p/t.py",
        "line": 4, "num_collectives": 0, "num_messages": 0, "time_us": None,
    }  # fmt: skip
    assert reported["ranks"][0]["real"]["time_us"] is None  # gloo's.
    assert list(reported["differences"][0]) == ["topic", "ranks", "text", "file", "line"]


def test_the_page_and_markdown_have_all_differences_and_no_markup_of_the_users(found):
    """Rows of a table each; texts are escaped."""
    page, text = report.page(found), report.markdown(found)
    assert page == report.page(found)
    assert "<shard>" not in page
    assert text.count("\n| ") == 42
    assert "with lines" in page
