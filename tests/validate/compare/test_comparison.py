"""Two sides held against each other: what counts as a difference, and on which ranks."""

from dataclasses import replace

import pytest

from simrank.validate.compare.comparison import (
    COLLECTIVES,
    ENDINGS,
    RESULTS,
    compared,
    is_same_device,
)
from simrank.validate.compare.differences import Tolerance
from simrank.validate.compare.program import DIED, RAISED, WAITS, Issued, Job, RankRecord, RunSide

JOB = Job("train.py", "step", (), 4, "nccl", makes_group=False, uses_torch=True)
CALL = Issued(
    "all_reduce", {"Float": 4}, {"Float": 4}, (0, 1, 2, 3), "Float[4]", ((4,),), "/p/train.py", 7
)


def both(mine, theirs, *, job=JOB):
    """Compare four ranks, of which some are given."""
    sides = []
    for given in (mine, theirs):
        records = [RankRecord(rank, value=1) for rank in range(job.num_ranks)]
        for record in given:
            records[record.rank] = record
        sides.append(RunSide("somewhere", records, device="H100 SXM"))
    return compared(job, *sides, Tolerance())


def facts(found):
    return [(each.topic, each.ranks) for each in found.findings]


def test_equal_sides_have_no_findings():
    """Values, endings and calls."""
    records = [RankRecord(rank, value=1, collectives=[CALL]) for rank in range(4)]
    assert facts(both(records, records)) == []


def test_ranks_with_the_same_difference_are_one_finding():
    """Also where each has other numbers."""
    found = both([], [RankRecord(rank, value=rank + 5) for rank in (1, 2)])
    assert facts(found) == [(RESULTS, (1, 2))]
    assert found.findings[0].num_texts == 2


@pytest.mark.parametrize(
    ("mine", "theirs", "is_alike"),
    [
        (
            RankRecord(2, RAISED, error="ValueError"),
            RankRecord(2, RAISED, error="ValueError"),
            True,
        ),
        (RankRecord(2, RAISED, error="ValueError"), RankRecord(2, RAISED, error="KeyError"), False),
        (RankRecord(2, RAISED, error="ValueError"), RankRecord(2, value=1), False),
        (RankRecord(2, WAITS), RankRecord(2, WAITS), True),
        (RankRecord(2, WAITS), RankRecord(2, DIED), False),
        (
            RankRecord(2, RAISED, error="WaitTimeoutError", error_kinds=("RuntimeError",)),
            RankRecord(2, RAISED, error="RuntimeError"),
            True,
        ),
        (
            RankRecord(2, WAITS, error="all_reduce #1 on group 'a'"),
            RankRecord(2, WAITS, error="broadcast #1 on group 'a'"),
            False,
        ),
        (
            RankRecord(2, WAITS, error="all_reduce #1 on group 'a'"),
            RankRecord(2, WAITS, error="running, in no collective"),
            True,
        ),
    ],
)
def test_endings_are_alike_or_not(mine, theirs, is_alike):
    """Same way, same class; a class of simrank's is what it derives from."""
    assert facts(both([mine], [theirs])) == ([] if is_alike else [(ENDINGS, (2,))])


@pytest.mark.parametrize(
    "change",
    [
        {"op": "broadcast"},
        {"elements": {"Float": 8}},
        {"elements": {"Double": 4}},
        {"results": {"Float": 8}},
        {"ranks": (0, 1)},
    ],
)
def test_calls_differ_in_what_they_move_and_where(change):
    """Operation, types, sizes, group: not the line."""
    other = replace(CALL, **change)
    found = both(
        [RankRecord(0, value=1, collectives=[CALL])], [RankRecord(0, value=1, collectives=[other])]
    )
    assert facts(found) == [(COLLECTIVES, (0,))]
    assert (found.findings[0].file, found.findings[0].line) == ("/p/train.py", 7)
    elsewhere = replace(CALL, line=9)
    mine, theirs = (RankRecord(0, value=1, collectives=[each]) for each in (CALL, elsewhere))
    assert facts(both([mine], [theirs])) == []


def test_a_list_that_was_cut_off_is_no_second_difference():
    """A rank that raised on one side issued fewer calls there."""
    mine = RankRecord(0, RAISED, error="ValueError", collectives=[CALL])
    theirs = RankRecord(0, value=1, collectives=[CALL, CALL])
    assert facts(both([mine], [theirs])) == [(ENDINGS, (0,))]


def test_what_real_processes_make_of_a_mismatch_is_a_note():
    """They fail somehow; if they do not fail at all, that is a difference."""
    mine = RankRecord(0, RAISED, error="CollectiveMismatchError")
    found = both([mine], [RankRecord(1, WAITS), RankRecord(0, value=1)])
    assert facts(found) == []
    assert "mismatch" in found.notes[0]
    assert facts(both([mine], [])) == [(ENDINGS, (0,))]


def test_what_was_not_seen_is_told():
    """Calls that no recorder had room for, and nodes that only one side has."""
    found = both([], [RankRecord(0, value=1, num_lost=7)])
    assert found.notes == [
        "the first 7 calls are not compared: TORCH_FR_BUFFER_SIZE is too small for them"
    ]
    sides = [RunSide("x", [RankRecord(rank) for rank in range(4)], per_node=n) for n in (2, None)]
    assert "LOCAL_RANK is 0-1" in compared(JOB, *sides, Tolerance()).notes[0]


def test_times_stand_beside_each_other_only_for_the_same_device():
    """Slowest ranks; another GPU, or a host, is told instead."""
    mine = [RankRecord(rank, value=1, time_us=80.0 + rank) for rank in range(4)]
    theirs = [RankRecord(rank, value=1, time_us=100.0) for rank in range(4)]
    (line,) = both(mine, theirs).times
    assert line.startswith("simulated 83.0 us on the slowest rank, measured 100.0 us (-17.0 %)")
    (line,) = both(mine, theirs, job=replace(JOB, backend="gloo")).times
    assert line.startswith("not compared: gloo runs on hosts")


@pytest.mark.parametrize(
    ("described", "found", "is_same"),
    [
        ("H100 SXM", "NVIDIA H100 80GB HBM3", True),
        ("A100 SXM 80 GB", "NVIDIA A100-SXM4-80GB", True),
        ("H100 SXM", "NVIDIA H200", False),
        ("H100 SXM", "", False),
        ("GPU", "GPU", False),
    ],
)
def test_a_gpu_is_told_by_its_model(described, found, is_same):
    """The first word with letters and digits."""
    assert is_same_device(described, found) == is_same
