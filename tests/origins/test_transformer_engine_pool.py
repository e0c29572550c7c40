"""TransformerEngine PR 3074: a pool of workers for a test session, with a channel of its own.

Numbers 1 to 15 are its requirements, a to d the gaps that it left. Gap a is shown on simulated
ranks too. Tests that kill workers are slow: the next case starts fresh ones.
"""

import io
import os
import signal

import pytest

import simrank
import simrank.distributed as dist
from simrank import validate
from simrank.errors import (
    ChannelError,
    InfrastructureError,
    PoolStartError,
    RanksPartedError,
    RanksRaisedError,
    SpawnException,
    WorkerDiedError,
    WorkerTimeoutError,
)
from simrank.validate import Limits, Options, WorkerPool
from simrank.validate.channel import Assembler, Frame, FrameKind
from simrank.validate.process import MAX_CHARS, MAX_LINES

from . import cases


@pytest.fixture(scope="module", name="pool")
def fixture_pool():
    """Two plain processes that the tests of this file share."""
    with WorkerPool(2, None, 20) as shared:
        shared.start()
        yield shared


def test_a_pool_starts_its_workers_when_they_are_needed(pool):
    """1: a pool has one number of ranks, and the same workers from case to case."""
    assert WorkerPool(4, None).pids == []
    pids = pool.run(os.getppid)
    assert pool.run(os.getppid) == pids == pool.pids
    assert len(set(pids)) == 2


def test_a_request_is_a_function_and_its_arguments(pool):
    """2: arguments keep their types; a frame of an unknown kind is an error of its own type."""
    assert pool.run(cases.rank_and, {"dtype": 16}) == [(0, {"dtype": 16}), (1, {"dtype": 16})]
    unknown = bytearray(bytes(Frame(FrameKind.RUN, 1)))
    unknown[4] = 99
    with pytest.raises(ChannelError, match="unknown kind 99"):
        Assembler().feed(bytes(unknown))


def test_an_error_has_the_traceback_of_every_rank(pool):
    """3: not only that of the lowest rank that failed."""
    with pytest.raises(RanksRaisedError) as caught:
        pool.run(cases.raise_on, [0, 1])
    assert sorted(caught.value.tracebacks) == [0, 1]
    assert caught.value.tracebacks[1].endswith("ValueError: boom 1\n")


def test_every_rank_runs_the_request(pool):
    """4: results come back by rank; without a rank 0 that gathers them."""
    assert pool.run(validate.rank) == [0, 1]
    assert pool.run(validate.rank, ranks=[1]) == [1]


def test_standard_output_is_not_the_channel(pool):
    """5: on rank 0 as on the other ranks; the channel is a socket with another descriptor."""
    assert pool.run(cases.kinds_of_standard_output) == [[False, False]] * 2


def test_foreign_bytes_do_not_reach_the_channel(pool):
    """6: they are in the output of their rank, whatever writes them."""
    assert pool.run(cases.write, b"NCCL version 2.27\n") == [18, 18]
    assert [pool.output(rank) for rank in range(2)] == ["NCCL version 2.27\n"] * 2


def test_a_case_has_90_seconds(monkeypatch):
    """7: the pool or the call may say otherwise, and a variable makes all limits longer."""
    assert WorkerPool(1, None).limits.case_s == 90.0
    assert WorkerPool(1, None, timeout=7).limits.case_s == 7.0
    monkeypatch.setenv("SIMRANK_TIMEOUT_FACTOR", "2")
    assert WorkerPool(1, None).limits.case_s == 180.0


@pytest.mark.slow
def test_a_worker_that_dies_has_an_error_of_its_own_type(tmp_path):
    """8, 9: with the rank, how it ended, and the tail of its output."""
    options = Options(retry=False)
    with WorkerPool(2, None, 20, options=options) as two, pytest.raises(WorkerDiedError) as caught:
        two.run(cases.end_process, str(tmp_path / "died"))
    assert caught.value.ended == {1: "exited with code 7"}
    assert "--- output of rank 1 ---\nlast words" in str(caught.value)


def test_the_tail_of_the_output_has_200_lines_and_4000_characters(pool):
    """9: the last ones."""
    assert (MAX_LINES, MAX_CHARS) == (200, 4_000)
    pool.run(cases.write, b"".join(b"%d\n" % n for n in range(1000)))
    assert pool.output(1).splitlines() == [str(n) for n in range(800, 1000)]


@pytest.mark.slow
def test_after_a_failure_the_next_case_has_fresh_workers(pool):
    """10: where ranks are out of step; if all have answered, nothing is killed."""
    pids = pool.run(os.getppid)
    with pytest.raises(RanksRaisedError):
        pool.run(cases.raise_on, [1])
    assert pool.run(os.getppid) == pids
    with pytest.raises(RanksRaisedError, match="the workers were killed"):
        pool.run(cases.raise_beside_an_all_reduce, 1)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not set(pool.run(os.getppid)) & set(pids)


@pytest.mark.slow
def test_an_infrastructure_failure_is_retried_once(tmp_path):
    """11: the pool says so; an error of the case is not retried."""
    echo = io.StringIO()
    with WorkerPool(2, None, 20, options=Options(echo=echo)) as two:
        assert two.run(cases.end_process, str(tmp_path / "died")) == ["alive"] * 2
        assert two.num_starts == 2
        with pytest.raises(RanksRaisedError):
            two.run(cases.raise_on, [0])
        assert two.num_starts == 2
    assert "[pool] case 1: rank 1 died: exited with code 7; once more" in echo.getvalue()


def test_a_case_starts_from_the_state_of_the_first(pool):
    """12: environment, folder and seeds are reset before each case, and arguments are copies."""
    first = pool.run(cases.state)
    pool.run(cases.spoil)
    assert pool.run(cases.state) == first
    numbers = [1]
    assert [pool.run(cases.append, numbers) for _ in range(2)] == [[[1, 0]] * 2] * 2
    assert numbers == [1]


@pytest.mark.slow
def test_process_groups_are_made_once_per_pool():
    """13: with torch; the case is given the group of the pool."""
    pytest.importorskip("torch", reason="torch is not installed")
    with WorkerPool(2, "gloo", 60) as two:
        assert two.run(cases.group) == two.run(cases.group)


@pytest.mark.slow
def test_closing_a_pool_ends_in_bounded_time():
    """14: workers are told to leave, and killed when `Limits.end_s` has passed."""
    two = WorkerPool(2, None, options=Options(limits=Limits(end_s=0.3)))
    pids = two.run(os.getppid)
    os.kill(pids[0], signal.SIGSTOP)  # It does not hear that it should leave.
    two.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_every_case_has_its_duration(pool):
    """15: beside its results or its error."""
    outcomes = pool.map(cases.raise_on, [([],), ([1],)])
    assert [outcome.error is None for outcome in outcomes] == [True, False]
    assert all(outcome.duration_s > 0 for outcome in outcomes)


def test_an_asymmetric_failure_is_reported_at_once_on_simulated_ranks():
    """a: the error keeps its type, and no time passes for the peers inside the collective."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank == 1:
            raise ValueError("boom")
        x = ctx.ones(4)
        dist.all_reduce(x)
        x.tolist()

    with pytest.raises(SpawnException) as caught, simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    assert [(rank, type(error)) for rank, error in caught.value.errors.items()] == [(1, ValueError)]
    assert ctx.now_ps < 10**9


@pytest.mark.slow
def test_an_asymmetric_failure_is_reported_at_once_on_real_processes(pool):
    """a: with the traceback, and the collective in which the peer waits; no time limit passes."""
    with pytest.raises(RanksRaisedError, match="boom 1") as caught:
        pool.run(cases.raise_beside_an_all_reduce, 1)
    assert caught.value.facts[0].doing == "all_reduce #1 on group 'workers'"
    assert "in raise_beside_an_all_reduce" in caught.value.tracebacks[1]


def test_a_partial_line_does_not_block_the_pool(pool):
    """b: frames have a known length, and half a frame is kept until the rest arrives."""
    assert pool.run(cases.write, b'{"ok": tru') == [10, 10]
    assembler, wire = Assembler(), bytes(Frame(FrameKind.RETURNED, 7, b"result"))
    assert assembler.feed(wire[:10]) == []
    assert assembler.feed(wire[10:]) == [Frame(FrameKind.RETURNED, 7, b"result")]


def test_failures_have_types(pool):
    """c: the text of an error decides nothing, so this case is not retried."""
    for kind in (WorkerDiedError, WorkerTimeoutError, PoolStartError):
        assert issubclass(kind, InfrastructureError)
    for kind in (RanksRaisedError, RanksPartedError, ChannelError):
        assert not issubclass(kind, InfrastructureError)
    num_starts = pool.num_starts
    with pytest.raises(RanksRaisedError, match="timed out"):
        pool.run(cases.raise_on, [0], "pool worker died mid-request; timed out")
    assert pool.num_starts == num_starts


@pytest.mark.slow
def test_a_case_gives_the_same_on_fresh_workers_as_on_used_ones(pool):
    """d: so a number that the reuse of workers changes is found."""
    assert pool.run(cases.state) == pool.run(cases.state, fresh=True)
