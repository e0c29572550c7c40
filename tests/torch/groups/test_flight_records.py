"""Dumps of the flight recorder, read by torch's own analyser, agree with simrank's verdict.

What the analyser cannot see is said where it is tested.
"""

import logging
import pickle

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as bindings
from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.fr_logger import (
    FlightRecorderLogger,
)
from torch.distributed.flight_recorder.components.types import MatchState

import simrank
from simrank.errors import (
    CollectiveMismatchError,
    DeadlockError,
    SpawnException,
)
from tests.torch.collectives import all_gather_single, reduce_scatter_single


def finishes(rank, backend):
    device = torch.device("cuda", rank) if backend == "nccl" else None
    dist.init_process_group(backend, device_id=device)
    world = dist.get_world_size()
    if backend == "nccl":
        torch.cuda.set_device(rank)
        torch.set_default_device("cuda")
    x, parts = torch.ones(4), [torch.ones(4) for _ in range(world)]
    whole = torch.ones(4 * world)
    dist.all_reduce(x)
    dist.broadcast(x, 1)
    dist.reduce(x, 1)
    dist.all_gather(parts, x)
    all_gather_single(whole, x)
    reduce_scatter_single(x, whole)
    dist.gather(x, parts if rank == 1 else None, dst=1)
    dist.scatter(x, parts if rank == 1 else None, src=1)
    dist.all_to_all_single(torch.ones(world), torch.ones(world))
    dist.all_gather_object([None] * world, rank)
    group = dist.new_group([0, 1], group_desc="pair")
    if rank < 2:
        dist.all_reduce(x, group=group)
    dist.barrier()


def skipped(rank):
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(2))
    if rank != 2:
        dist.all_reduce(torch.ones(2))  # here


def shapes_differ(rank):
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(2 + rank // 2))  # here


def other_order(rank):
    dist.init_process_group("gloo")
    x = torch.ones(2)
    if rank == 0:
        dist.broadcast(x, 0)  # here
    dist.all_reduce(x)
    if rank != 0:
        dist.broadcast(x, 0)


def half_made(rank):
    dist.init_process_group("gloo")
    if rank != 2:
        group = dist.new_group([0, 1, 2])
        dist.barrier(group)  # here


def unmatched(rank):
    dist.init_process_group("gloo")
    if rank == 0:
        dist.recv(torch.ones(2), 1)  # here


def cycle(rank):
    dist.init_process_group("gloo")
    dist.recv(torch.ones(2), (rank + 1) % 3)  # here


def run(program, folder, *args, nprocs=3):
    """Run a program with a recorder; return its failure, or None."""
    try:
        with simrank.Context.for_ranks(nprocs, flight_recorder=folder) as ctx:
            ctx.multiprocessing.spawn(program, args, nprocs=nprocs, share_args=True)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    return None


def analysed(folder):
    """Return the analyser's database, and what it says."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = FlightRecorderLogger().logger
    logger.addHandler(handler)
    try:
        fr_trace.main([str(folder), "-p", "nccl_trace_rank_", "-o", str(folder / "database")])
    finally:
        logger.removeHandler(handler)
    with open(folder / "database", "rb") as file:
        _, database = pickle.load(file)
    return database, said


def marked(program):
    """Return the number of the program's line that is marked."""
    code, first = program.__code__, program.__code__.co_firstlineno
    with open(code.co_filename) as file:
        lines = file.read().splitlines()
    return next(n for n in range(first, len(lines)) if lines[n - 1].endswith("# here"))


def is_failed(collective):
    """Whether the analyser holds something against a call: `pass_check` misses missing ranks."""
    return not collective.pass_check or bool(collective.missing_ranks)


def reported(program, folder):
    """Return simrank's verdict and the analyser's first failed collective, with its text."""
    error = run(program, folder)
    database, said = analysed(folder)
    failed = [each for each in database.collectives if is_failed(each)]
    assert failed, said
    assert failed[0].collective_frames[0]["line"] == marked(program)
    return error, failed[0], said


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_analyser_finds_nothing_in_a_run_that_is_right(tmp_path, backend):
    """It knows every name, matches every size, and counts as many collectives as were called."""
    assert run(finishes, tmp_path, backend) is None
    database, said = analysed(tmp_path)
    assert [each for each in database.collectives if is_failed(each)] == [], said
    assert {each.collective_state for each in database.collectives} == {"completed"}
    assert {group.desc: group.size for group in database.groups} == {"default_pg": 3, "pair": 2}


def test_a_skipped_collective_is_missing_on_the_rank_that_simrank_names(tmp_path):
    """As in simrank's report: rank 2 has not called it."""
    error, failed, _ = reported(skipped, tmp_path)
    assert isinstance(error, DeadlockError)
    assert [s.ranks for s in error.waits if not s.waits] == [(2,)]
    assert failed.collective_seq_id == 2
    assert failed.missing_ranks == {2}


def test_shapes_that_differ_are_a_size_mismatch(tmp_path):
    """The analyser blames the ranks that differ from rank 0; simrank shows both calls.

    simrank raises at the second call that differs; ranks that have not called yet are missing.
    """
    error, failed, said = reported(shapes_differ, tmp_path)
    (mismatch, *_) = error.errors.values()
    assert isinstance(mismatch, CollectiveMismatchError)
    kinds = {rank: c.type_of_mismatch.state for rank, c in failed.mismatch_collectives.items()}
    assert kinds == {2: MatchState.SIZE_OR_SYNTAX_MISMATCH}, said


def test_another_order_is_a_type_mismatch_where_all_ranks_have_called(tmp_path):
    """The simulation raises at the first call that differs, so ranks behind it may be missing."""
    error, failed, said = reported(other_order, tmp_path)
    assert isinstance(error, SpawnException)
    (mismatch, *_) = error.errors.values()
    assert isinstance(mismatch, CollectiveMismatchError)
    assert failed.collective_seq_id == mismatch.seq == 1
    assert any("missing ranks" in line for line in said) or failed.mismatch_collectives


def test_a_group_that_one_rank_never_made_misses_that_rank(tmp_path):
    """The analyser sees the call that is missing, not that `new_group` was never called."""
    error, failed, _ = reported(half_made, tmp_path)
    assert isinstance(error, DeadlockError)
    assert any("never called new_group" in s.state for s in error.waits)
    assert failed.missing_ranks == {2}


def test_a_receive_without_a_send_misses_the_other_members(tmp_path):
    """The analyser takes a message for a call of all members: it cannot name rank 1 alone."""
    error, failed, _ = reported(unmatched, tmp_path)
    assert isinstance(error, DeadlockError)
    assert failed.collective_name == "gloo:recv 0<-1"
    assert failed.missing_ranks == {1, 2}


def test_a_cycle_of_receives_is_a_mismatch_without_the_cycle(tmp_path):
    """The analyser compares pairs of calls: simrank alone says that they wait in a cycle."""
    error, failed, _ = reported(cycle, tmp_path)
    assert "0 -> 1 -> 2 -> 0" in error.to_fix
    assert set(failed.mismatch_collectives) == {1, 2}


def asks(rank, answers):
    dist.init_process_group("gloo")
    work = dist.all_reduce(torch.ones(2), async_op=True)
    answers[rank] = pickle.loads(bindings._dump_fr_trace(onlyActive=True))
    work.wait()
    answers[rank, "after"] = pickle.loads(bindings._dump_nccl_trace(includeStackTraces=False))


def test_ranks_can_ask_for_their_own_dump(tmp_path):
    """As torch's programs do; the dump has torch's keys, and not those that were left out."""
    answers = {}
    assert run(asks, tmp_path, answers, nprocs=2) is None
    (entry,) = answers[1]["entries"]
    assert entry["profiling_name"] == "gloo:all_reduce"
    assert entry["frames"][0]["name"] == "asks"
    (entry,) = answers[1, "after"]["entries"]
    assert entry["state"] == "completed"
    assert "frames" not in entry
