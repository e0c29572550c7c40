"""Errors of real runs: their text, their facts, and which are the machine's."""

from __future__ import annotations

import pickle

import pytest

from simrank.errors import (
    InactiveRanksError,
    ProcessExitedException,
    ProcessRaisedException,
    RanksPartedError,
    RanksRaisedError,
    SpawnException,
    TooFewDevicesError,
    WorkerDiedError,
    WorkerFacts,
)


def test_a_report_has_a_line_per_set_of_ranks_and_each_text_once():
    """States, what was done, tracebacks, stacks, output."""
    error = RanksRaisedError(
        "case 3: 2 of 4 rank(s) raised",
        [
            WorkerFacts(3, "raised ValueError: x", traceback="Traceback\nValueError: x\n"),
            WorkerFacts(0, "all_reduce #1 on group 'g'", "/a/b.py", 7, waits=True),
            WorkerFacts(1, "all_reduce #1 on group 'g'", "/a/b.py", 7, waits=True),
            WorkerFacts(2, "raised ValueError: x", traceback="Traceback\nValueError: x\n"),
        ],
        errors={},
        case=3,
        end=["the workers were killed"],
    )
    assert str(error) == (
        "case 3: 2 of 4 rank(s) raised\n"
        "  ranks 0-1: all_reduce #1 on group 'g' at b.py:7\n"
        "  ranks 2-3: raised ValueError: x\n"
        "  the workers were killed\n"
        "--- ranks 2-3 ---\n"
        "Traceback\n"
        "ValueError: x"
    )
    assert sorted(error.tracebacks) == [2, 3]
    assert list(error.facts) == [0, 1, 2, 3]


def test_a_crash_has_its_end_its_stacks_and_its_output():
    """Each by rank."""
    fact = WorkerFacts(1, "died", ended="killed by SIGSEGV", stacks="at f", output="bye\n", pid=7)
    error = WorkerDiedError("rank 1 died", [fact])
    assert str(error).splitlines()[2:] == [
        "--- stacks of rank 1 ---",
        "at f",
        "--- output of rank 1 ---",
        "bye",
    ]
    assert (error.ended, error.pids) == ({1: "killed by SIGSEGV"}, {1: 7})


def test_10_000_ranks_are_told_in_few_lines():
    """As everywhere."""
    facts = [WorkerFacts(rank, f"barrier #{rank % 40} on group 'g'") for rank in range(10_000)]
    assert len(str(RanksPartedError("hang", facts, waits_for={})).splitlines()) <= 16


def test_errors_of_workers_travel():
    """With their facts."""
    diverged_at = RanksPartedError("hang", [WorkerFacts(0, "x")], waits_for={0: [1]})
    for error in (
        diverged_at,
        TooFewDevicesError("nccl", 4, 0),
        InactiveRanksError("barrier", [1]),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))
    assert pickle.loads(pickle.dumps(diverged_at)).waits_for == {0: (1,)}
    assert str(TooFewDevicesError("nccl", 4, 0)) == "backend 'nccl' needs 4 GPUs, but found 0"


# ---- how ranks end other than by returning: types are kept, and notes added ----


def test_a_failing_rank_keeps_its_type_and_gains_a_note(run):
    """All root causes are in `errors`."""

    def body(rank, _ctx):
        if rank % 2:
            raise KeyError(rank)

    with pytest.raises(SpawnException) as caught:
        run(body, 4)

    error = caught.value
    assert isinstance(error, ProcessRaisedException)
    assert {rank: type(e) for rank, e in error.errors.items()} == {1: KeyError, 3: KeyError}
    assert error.errors[1].__notes__ == ["simrank: raised by rank 1 at t=0.000 us"]
    assert error.error_index == 1


def test_a_rank_that_exits_with_a_code_is_told_apart_from_one_that_raises(run):
    """As torch: its code is kept, and no traceback is made up."""

    def body(rank, _ctx):
        if rank == 2:
            raise SystemExit(7)

    with pytest.raises(ProcessExitedException) as caught:
        run(body, 4)

    assert (caught.value.error_index, caught.value.exit_code) == (2, 7)
    assert str(caught.value) == "process 2 terminated with exit code 7"
