"""The flight recorder: dumps as torch writes them, of runs that hang, fail or end."""

import pickle

import pytest

import simrank
import simrank.distributed as dist
import simrank.errors


def dumps(folder):
    """Return the dumps in a folder by rank."""
    paths = folder.glob("nccl_trace_rank_*")
    return {int(p.name.rpartition("_")[2]): pickle.loads(p.read_bytes()) for p in paths}


def record(tmp_path, program, nprocs=2, **settings):
    """Run a program with a recorder; return its dumps, and its failure if it has one."""
    error = None
    try:
        with simrank.Context.for_ranks(nprocs, flight_recorder=tmp_path, **settings) as ctx:
            ctx.multiprocessing.spawn(program, args=(ctx,), nprocs=nprocs)
    except simrank.errors.SimrankError as failure:
        error = failure
    return dumps(tmp_path), error


def names(dump):
    return [entry["profiling_name"] for entry in dump["entries"]]


def skipped(rank, ctx):
    dist.init_process_group("nccl")
    x = ctx.ones(4)
    dist.all_reduce(x)
    if rank != 1:
        dist.all_reduce(x)
    ctx.synchronize()


def test_a_hang_writes_a_dump_for_every_rank(tmp_path):
    """The rank that has not called has one, too; states are those of the hang."""
    found, error = record(tmp_path, skipped, 3)
    assert isinstance(error, simrank.errors.DeadlockError)
    assert sorted(found) == [0, 1, 2]
    states = {rank: [e["state"] for e in found[rank]["entries"]] for rank in found}
    assert states == {0: ["completed", "started"], 1: ["completed"], 2: ["completed", "started"]}
    assert found[0]["pg_status"]["0"] == {
        "last_enqueued_collective": 2,
        "last_started_collective": 2,
        "last_completed_collective": 1,
    }
    assert found[0]["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}


def differs(rank, ctx):
    dist.init_process_group("nccl")
    if rank == 0:
        dist.all_reduce(ctx.ones(4))
    else:
        dist.broadcast(ctx.ones(3), 1)
    ctx.synchronize()


def test_a_call_that_differs_is_recorded_though_it_raises(tmp_path):
    """It was never issued: it is scheduled, under the number that it would have had."""
    found, _ = record(tmp_path, differs)
    (entry,) = found[1]["entries"]
    assert (entry["profiling_name"], entry["state"]) == ("nccl:broadcast", "scheduled")
    assert (entry["collective_seq_id"], entry["input_sizes"]) == (1, [[3]])
    assert entry["time_discovered_started_ns"] is None


def finishes(rank, ctx):
    dist.init_process_group("nccl")
    for _ in range(5):
        dist.all_reduce(ctx.ones(2, 3, dtype=ctx.bfloat16))
    ctx.synchronize()


def test_a_run_that_ends_well_writes_what_ended_when(tmp_path):
    """In simulated time, with the program's own lines as frames."""
    found, error = record(tmp_path, finishes)
    assert error is None
    entry = found[1]["entries"][-1]
    started, completed = entry["time_discovered_started_ns"], entry["time_discovered_completed_ns"]
    assert entry["time_created_ns"] <= started < completed
    assert entry["duration_ms"] == pytest.approx((completed - started) / 1e6, abs=2e-6)
    assert (entry["input_sizes"], entry["output_dtypes"]) == ([[2, 3]], ["BFloat16"])
    frame = entry["frames"][0]
    assert (frame["name"], frame["filename"]) == ("finishes", __file__)
    assert frame["line"] == finishes.__code__.co_firstlineno + 3


def test_the_buffer_keeps_as_many_calls_as_torch_s_variable_says(tmp_path, monkeypatch):
    """The last ones, which keep their numbers."""
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "2")
    found, _ = record(tmp_path, finishes)
    assert [e["record_id"] for e in found[0]["entries"]] == [3, 4]
    assert [e["collective_seq_id"] for e in found[0]["entries"]] == [4, 5]


def exchanges(rank, ctx):
    dist.init_process_group("nccl")
    mine, theirs = ctx.ones(4), ctx.zeros(4)
    ops = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    if rank == 0:
        dist.send(mine, 1)
    else:
        dist.recv(theirs, 0)
    ctx.synchronize()


def test_a_batch_of_messages_ends_with_the_entry_that_torch_adds(tmp_path):
    """All of one batch have one number; a single message has the next."""
    found, _ = record(tmp_path, exchanges)
    assert names(found[1]) == [
        "nccl:send 1->0",
        "nccl:recv 1<-0",
        "nccl:coalesced",
        "nccl:recv 1<-0",
    ]
    assert [e["p2p_seq_id"] for e in found[1]["entries"]] == [1, 1, 1, 2]
    assert all(e["is_p2p"] and e["state"] == "completed" for e in found[1]["entries"])


def gives_up(rank, ctx):
    dist.init_process_group("nccl")
    dist.all_reduce(ctx.ones(2))
    if rank == 1:
        raise ValueError("planted")
    try:
        dist.barrier()
    finally:
        dist.all_reduce(ctx.ones(2))


def test_a_failing_rank_leaves_the_dumps_of_that_moment(tmp_path):
    """What the others call on their way out is no part of them."""
    found, error = record(tmp_path, gives_up)
    assert "planted" in str(error)
    assert names(found[0]) == ["nccl:all_reduce", "nccl:all_reduce_barrier"]


def raises(rank, ctx):
    dist.init_process_group("nccl")
    x = ctx.ones(4)
    dist.all_reduce(x)
    if rank == 1:
        raise ValueError("planted")
    dist.all_reduce(x)
    ctx.synchronize()


def test_the_peers_of_a_rank_that_raised_have_come_to_where_they_wait_for_it(tmp_path):
    """In the order of turns two of them had not run yet; only the culprit lacks the call."""
    found, error = record(tmp_path, raises, nprocs=4)
    assert "planted" in str(error)
    states = {rank: [entry["state"] for entry in found[rank]["entries"]] for rank in found}
    stuck = ["completed", "started"]
    assert states == {0: stuck, 1: ["completed"], 2: stuck, 3: stuck}


def test_without_a_recorder_nothing_is_kept(tmp_path):
    """The library has none, and no file is written."""
    with simrank.Context.for_ranks(2) as ctx:
        ctx.multiprocessing.spawn(finishes, args=(ctx,), nprocs=2)
    assert ctx.recorder is ctx.comm_library.recorder is None
    assert list(tmp_path.iterdir()) == []
