"""Megatron-LM PR 4139: the teardown of a session in which a rank is stuck.

Numbers 1 to 6 are its requirements; "later" are failures of its guard that later changes repaired.
On simulated ranks a teardown needs no time limit: a hang is proved. Real processes are killed.
"""

import os

import pytest

import simrank
import simrank.distributed as dist
from simrank.cli import main
from simrank.engine import Handle
from simrank.errors import DeadlockError, PeerDiedError, RanksPartedError, SpawnException
from simrank.tp import parallel_state
from simrank.validate import Options, WorkerPool

from . import cases

STUCK = """
import simrank
import simrank.distributed as dist

dist.init_process_group("nccl")
if dist.get_rank() == 1:
    raise ValueError("failed before the all-reduce")
x = simrank.ones(4)
dist.all_reduce(x)
x.tolist()
"""


@pytest.fixture(scope="module", name="pool")
def fixture_pool():
    """Two plain processes that the tests of this file share."""
    with WorkerPool(2, None, 20, options=Options(retry=False)) as shared:
        shared.start()
        yield shared


def test_a_run_with_a_stuck_rank_ends_with_status_1(tmp_path, monkeypatch, capsys):
    """1: rank 1 raises before an all_reduce; rank 0 is aborted there, and the run fails at once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stuck.py").write_text(STUCK)
    with pytest.raises(SystemExit) as end:
        main(["run", "--nproc-per-node", "2", "stuck.py"])
    assert end.value.code == 1
    assert "failed before the all-reduce" in capsys.readouterr().err


def test_a_healthy_rank_finishes_its_work_while_another_hangs(run):
    """2: the hang is reported when nothing else can run."""
    done = []

    def program(rank, ctx):
        if rank == 0:
            ctx.wait(Handle())
        for test in range(3):
            ctx.wait(ctx.timer(2 * 10**12))
            done.append(test)

    with pytest.raises(DeadlockError, match="rank 0: a handle") as caught:
        run(program, 2)
    assert done == [0, 1, 2]
    assert caught.value.time_ps == 6 * 10**12


@pytest.mark.parametrize("state", ["dead", "elsewhere"])
def test_leaving_a_group_needs_no_consent_of_its_members(run, state):
    """3: `destroy_process_group` returns at once, without a barrier or a time limit."""
    left = []

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank == 1:
            if state == "dead":
                raise ValueError
            ctx.wait(Handle())
        dist.destroy_process_group()
        left.append((rank, ctx.now_ps))

    with pytest.raises(SpawnException if state == "dead" else DeadlockError):
        run(program, 2)
    assert left == [(0, 0)]


def test_a_barrier_with_a_dead_member_names_it(run):
    """3: `on_failure="continue"` lets rank 0 run on; its barrier raises at once."""
    seen = []

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank == 1:
            raise ValueError("broken")
        try:
            dist.barrier()
        except PeerDiedError as error:
            seen.append(error.peer)

    with pytest.raises(SpawnException) as caught:
        run(program, 2, on_failure="continue")
    assert seen == [1]
    assert list(caught.value.errors) == [1]


def test_every_case_runs_after_a_failure(pool):
    """4: there is no fail-fast; each case has its results or its error."""
    outcomes = pool.map(cases.raise_on, [([0],), ([],), ([1],)])
    assert [outcome.error is None for outcome in outcomes] == [False, True, False]


@pytest.mark.ranks(2)
def test_model_parallel_state_may_be_destroyed_twice():
    """5: without a state to destroy the call does nothing; afterwards a new one may be made."""
    parallel_state.destroy_model_parallel()
    dist.init_process_group("nccl")
    for size in (2, 1):
        parallel_state.initialize_model_parallel(size)
        assert parallel_state.get_tensor_model_parallel_world_size() == size
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_model_parallel()
        assert not parallel_state.model_parallel_is_initialized()


def test_ranks_of_two_nodes_have_different_numbers():
    """6: `RANK` differs on all ranks, `LOCAL_RANK` repeats on each node."""
    seen = {}

    def program(rank):
        seen[rank] = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])

    with simrank.Context({"name": "h100_ib", "nodes": 2}) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=16)
    assert seen == {rank: (rank, rank % 8) for rank in range(16)}


def test_an_unknown_keyword_of_barrier_is_an_error(run):
    """later: the guard swallowed it, and with it every barrier (issue 4480)."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        with pytest.raises(TypeError, match="time_limit"):
            dist.barrier(time_limit=30)

    run(program, 2)


@pytest.mark.slow
def test_a_rank_that_returned_is_not_waited_for(pool):
    """later: a rank that never enters the collective; the others end before any time limit."""
    with pytest.raises(RanksPartedError) as caught:
        pool.run(cases.leave_out, 1)
    assert caught.value.waits_for == {0: (1,)}
    assert "rank 0 waits for rank 1" in str(caught.value)
