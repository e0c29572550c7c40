"""The rank and the line at fault, from records of jobs with a known fault."""

import os
import pickle

import pytest

import simrank.distributed as dist
from simrank.diagnose import diagnose, read_records
from simrank.distributed.flight_recorder import PREFIX

from . import hung_jobs
from .jobs import said


def loop(rank, ctx, fault=lambda *_: None):
    """Five steps of a collective of each kind; a fault may take the place of a call."""
    for step in range(5):
        for number, call in enumerate((reduce, share, gather)):
            if fault(rank, step, number, ctx) is None:
                call(ctx)
        ctx.synchronize()


def reduce(ctx):
    dist.all_reduce(ctx.ones(8))


def share(ctx):
    dist.broadcast(ctx.ones(4), 0)


def gather(ctx):
    dist.all_gather_into_tensor(ctx.zeros(16), ctx.ones(4))


def at(culprit, number, do):
    """Return a fault of one rank at one call of its fourth step."""

    def fault(rank, step, own, ctx):
        return (do(ctx) or True) if (rank, step, own) == (culprit, 3, number) else None

    return fault


FAULTS = {
    "skipped": (at(2, 1, lambda _: None), "skipped", "share"),
    "additional": (at(1, 1, lambda ctx: (share(ctx), share(ctx))), "additional", "share"),
    "size": (at(3, 0, lambda ctx: dist.all_reduce(ctx.ones(9))), "size", "<lambda>"),
    "dtype": (at(3, 0, lambda ctx: dist.all_reduce(ctx.ones(8, dtype="float64"))), "dtype", "<lam"),
    "another call": (at(0, 2, lambda _: dist.barrier()), "op", "<lambda>"),
    "swapped": (at(1, 0, lambda ctx: (share(ctx), reduce(ctx))), "order", "share"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_rank_the_kind_and_the_line_of_a_fault_are_named(name, tmp_path):
    """Each fault is in the fourth of five steps."""
    fault, kind, function = FAULTS[name]
    culprit = {"skipped": 2, "additional": 1, "another call": 0, "swapped": 1}.get(name, 3)
    cause = said(tmp_path, lambda rank, ctx: loop(rank, ctx, fault)).cause
    assert (cause.ranks, cause.kind) == ((culprit,), kind)
    assert cause.place.function.startswith(function)


def test_a_rank_that_left_is_named_and_its_peers_are_victims(tmp_path):
    """In all groups: those of other pairs wait for the victims."""

    def program(rank, ctx):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        for step in range(4):
            if (rank, step) == (3, 2):
                return
            dist.all_reduce(ctx.ones(4), group=pairs[rank // 2])
            ctx.synchronize()
            reduce(ctx)
            ctx.synchronize()

    cause = said(tmp_path, program).cause
    assert (cause.kind, cause.ranks, cause.victims) == ("absent", (3,), {0, 1, 2})


def test_groups_in_two_orders_are_a_ring_and_its_odd_rank_is_named(tmp_path):
    """Hosts wait after each call."""

    def program(rank, ctx):
        groups = [dist.new_group([0, 1, 2, 3], group_desc=name) for name in "ab"]
        for step in range(4):
            for group in groups[:: -1 if (rank, step) == (1, 2) else 1]:
                dist.all_reduce(ctx.ones(4), group=group)
                ctx.synchronize()

    cause = said(tmp_path, program).cause
    assert cause.ranks == (1,)
    assert "wait for each other in a ring" in cause.what


def test_a_message_that_is_never_sent_is_its_senders(tmp_path):
    """Later ones of the same pair take its place."""

    def program(rank, ctx):
        for step in range(4):
            if rank > 0:
                dist.recv(ctx.zeros(4), rank - 1)
            if rank < 3 and (rank, step) != (1, 2):
                dist.send(ctx.ones(4), rank + 1)
        dist.barrier()

    cause = said(tmp_path, program).cause
    assert cause.ranks == (1,)
    assert cause.kind in ("message", "skipped")


def test_a_second_root_is_named(tmp_path):
    """It was not the root of this line before."""

    def program(rank, ctx):
        for step in range(4):
            root = 2 if (rank, step) == (2, 3) else 0
            parts = [ctx.zeros(4) for _ in range(4)] if rank == root else None
            dist.gather(ctx.ones(4), parts, dst=root)
            ctx.synchronize()

    cause = said(tmp_path, program).cause
    assert (cause.kind, cause.ranks) == ("root", (2,))


def test_nobody_is_accused_where_all_came(tmp_path):
    """Two roots of a broadcast: records do not have them, and the answer says so."""

    def program(rank, ctx):
        loop(rank, ctx)
        dist.broadcast(ctx.ones(4), 1 if rank == 3 else 0)
        ctx.synchronize()

    cause = said(tmp_path, program).cause
    assert (cause.kind, cause.ranks, cause.confidence) == ("arrived", (), "low")
    assert "roots" in cause.why


def test_a_right_run_has_no_cause(tmp_path):
    """All of its calls have ended."""
    found = said(tmp_path, loop)
    assert found.cause is None
    assert "NO HANG: every recorded call has ended" in str(found)


def test_calls_that_are_under_way_are_no_hang(tmp_path):
    """Of real hosts: a record that is hardly older than its rank's newest call."""
    said(tmp_path, loop)
    for age_s, hangs in ((0.2, False), (600, True)):
        for path in tmp_path.iterdir():
            record = pickle.loads(path.read_bytes())
            entries = record["entries"] = record["entries"][:10]
            for number, entry in enumerate(entries):
                entry["time_created_ns"] = 10**18 + number
                entry["retired"], entry["state"] = (
                    number < 9,
                    "started" if number == 9 else "completed",
                )
            if path.name.endswith("2"):
                del entries[9:]
            path.write_bytes(pickle.dumps(record))
            os.utime(path, (10**9 + age_s, 10**9 + age_s))
        found = diagnose(read_records([tmp_path]), replay=False)
        assert (found.cause is not None) == hangs
        assert "calls are under way" in str(found) or hangs


def test_no_rank_is_named_where_records_are_of_unlike_moments(tmp_path):
    """Peers went on from a call to which one rank had not come as its record was written."""
    said(tmp_path, loop)
    path = tmp_path / f"{PREFIX}1"
    record = pickle.loads(path.read_bytes())
    del record["entries"][7:]
    record["entries"][-1] |= {"retired": False, "state": "scheduled"}
    record["pg_status"] = {}
    path.write_bytes(pickle.dumps(record))
    found = diagnose(read_records([tmp_path]))
    assert found.cause is None
    assert "rank 1's ends before all_gather_into_tensor #" in str(found)
    assert found.as_dict()["older"][0][0] == 1


def as_of_gloo(folder, *, stacks=""):
    """Make a job's records such as gloo leaves: without messages, and states."""
    for path in folder.iterdir():
        record = pickle.loads(path.read_bytes())
        record["entries"] = [each for each in record["entries"] if not each["is_p2p"]]
        for entry in record["entries"]:
            entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "gloo:")
        path.write_bytes(pickle.dumps(record))
        if stacks:
            text = f'Process 1: train.py\nThread 1 (idle): "MainThread"\n    {stacks}\n'
            (folder / f"stack_{path.name[-1]}.txt").write_text(text)


def test_a_rank_of_gloo_that_has_not_come_may_wait_in_a_message(tmp_path):
    """Its records have none: the rank is named, never with high confidence."""

    def program(rank, ctx):
        loop(rank, ctx)
        if rank == 2:
            dist.recv(ctx.ones(4), 3)
            ctx.synchronize()
        loop(rank, ctx)

    said(tmp_path, program)
    as_of_gloo(tmp_path)
    found = diagnose(read_records([tmp_path]))
    assert (found.cause.kind, found.cause.ranks) == ("absent", (2,))
    assert found.confidence == "medium"
    assert "or in a message: gloo does not record them" in str(found)


def test_ranks_of_gloo_that_all_wait_for_messages_are_told_by_their_stacks(tmp_path):
    """No recorded call is unfinished."""

    def program(rank, ctx):
        loop(rank, ctx)
        dist.recv(ctx.ones(4), (rank + 1) % 4)

    said(tmp_path, program)
    as_of_gloo(tmp_path, stacks="recv (torch/distributed/distributed_c10d.py:2512)")
    found = diagnose(read_records([tmp_path]))
    assert found.cause is None
    assert "NO UNFINISHED CALL" in str(found)
    assert "ranks 0-3: at distributed_c10d.py:2512 in recv" in str(found)


def test_the_last_call_of_a_loop_that_is_left_out_is_skipped(tmp_path):
    """The way out of the loop leads over it, on all other ranks."""

    def program(rank, ctx):
        loop(rank, ctx)
        if rank != 1:
            share(ctx)
        dist.barrier()
        ctx.synchronize()

    found = said(tmp_path, program, replay=True)
    assert (found.cause.kind, found.cause.ranks) == ("skipped", (1,))
    assert found.cause.place.function == "share"
    assert found.confidence == "high"


def test_a_rank_without_a_record_is_suspected_and_never_sure(tmp_path):
    """It may be dead, or its record lost."""

    def program(rank, ctx):
        if rank == 2:
            return
        loop(rank, ctx)

    said(tmp_path, program)
    (tmp_path / f"{PREFIX}2").unlink()
    found = diagnose(read_records([tmp_path]))
    assert (found.cause.kind, found.cause.ranks) == ("no record", (2,))
    assert found.confidence == "medium"
    assert "rank 2 left no record" in str(found)


def test_rings_that_overran_change_nothing(tmp_path):
    """The numbers of collectives are absolute."""
    program = lambda rank, ctx: loop(rank, ctx, FAULTS["skipped"][0])  # noqa: E731 - one line
    whole = said(tmp_path, program).cause
    for path in tmp_path.iterdir():
        record = pickle.loads(path.read_bytes())
        record["entries"] = record["entries"][-8:]
        path.write_bytes(pickle.dumps(record))
    cut = diagnose(read_records([tmp_path]), replay=False).cause
    assert (cut.kind, cut.ranks, cut.place) == (whole.kind, whole.ranks, whole.place)


@pytest.mark.parametrize("seed", range(9))
def test_random_programs_with_a_fault_name_its_rank(seed, tmp_path):
    """One of each kind of fault."""
    job = hung_jobs.job(seed, tmp_path)
    assert job is None or job.program.culprit in hung_jobs.said(job).cause.ranks


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("kept", [{}, {"keeps": 20}, {"stacks": False}], ids=["all", "20", "bare"])
def test_many_random_programs_name_its_rank(part, kept, tmp_path):
    """In nine of ten of each 50; with high confidence in a wrong one at most in one of 100."""
    num = num_right = num_wrong = 0
    for seed in range(20_000 + 50 * part, 20_000 + 50 * (part + 1)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        job = hung_jobs.job(seed, folder)
        if job is not None:
            hung_jobs.changed(job.folder, **kept)
            found = hung_jobs.said(job, replay=True)
            num += 1
            num_right += found.cause is not None and found.cause.ranks == (job.program.culprit,)
            num_wrong += found.confidence == "high" and job.program.culprit not in found.cause.ranks
    assert num_right >= 0.9 * num
    assert num_wrong <= 0.01 * num
