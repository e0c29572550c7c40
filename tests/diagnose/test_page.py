"""The page of a hang: lanes of calls, and lines to the ranks that have not come."""

import re

import simrank.distributed as dist
from simrank.diagnose import diagnose, read_records

from .jobs import said
from .test_causes import FAULTS, loop


def page_of(folder, program, num_ranks=4):
    said(folder, program, num_ranks)
    path = folder / "hang.html"
    diagnose(read_records([folder]), replay=False, page=path)
    return path.read_text("utf-8")


def test_equal_lanes_are_one_and_the_culprits_is_first(tmp_path):
    """Of 16 ranks, of which one left the job."""

    def program(rank, ctx):
        for _ in range(2 if rank == 9 else 4):
            dist.all_reduce(ctx.ones(4))
        ctx.synchronize()

    text = page_of(tmp_path, program, 16)
    names = re.findall(r"<title>ranks ([^<]*)</title>", text)
    assert names == ["9", "0-8, 10-15"]


def test_a_call_that_has_not_ended_is_an_outline_with_its_whole_call(tmp_path):
    """And a line leads to the rank that has not come."""
    text = page_of(tmp_path, lambda rank, ctx: rank == 2 or loop(rank, ctx))
    assert "all_reduce Float[8] #1 of default_pg (0-3) at test_causes.py:" in text
    assert 'fill-opacity="0"' in text
    assert text.count("<path") == 1


def test_names_of_programs_are_escaped(tmp_path):
    """Lines come from files of others."""
    text = page_of(tmp_path, lambda rank, ctx: loop(rank, ctx, FAULTS["size"][0]))
    assert "in &lt;lambda&gt;" in text
    assert "<lambda>" not in text


def test_calls_that_meet_stand_below_each_other(tmp_path):
    """As far as the order of each lane allows."""
    text = page_of(tmp_path, lambda rank, ctx: rank == 2 or loop(rank, ctx))
    boxes = re.findall(r"#(\d+) of default_pg[^<]*</title><rect x=\"(\d+)\"", text)
    assert len({x for number, x in boxes if number == "1"}) == 1
