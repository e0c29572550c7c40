"""What torch's own analyser gets wrong, on the records of small jobs, and what is said here."""

import os
import pickle

import pytest

import simrank.distributed as dist
from simrank.diagnose import diagnose, read_records
from simrank.distributed.flight_recorder import PREFIX
from simrank.errors import FlightRecordError

from . import jobs, torchs_analyser
from .test_causes import FAULTS, loop

pytest.importorskip("torch")


def both(folder):
    """Return the ranks that both name for the records of a folder, or an error of its own."""
    found = diagnose(read_records([folder]))
    theirs = torchs_analyser.said(folder)
    return () if found.cause is None else found.cause.ranks, theirs.error or theirs.ranks


def skipped(rank, ctx):
    loop(rank, ctx, FAULTS["skipped"][0])


def pipeline(rank, ctx):
    for _ in range(3):
        if rank:
            dist.recv(ctx.ones(4), rank - 1)
        if rank < 3:
            dist.send(ctx.ones(4), rank + 1)
    ctx.synchronize()


def test_both_find_a_call_that_is_left_out(tmp_path):
    """As long as all calls are of one group, and all ranks have a record."""
    jobs.said(tmp_path, skipped)
    assert both(tmp_path) == ((2,), (2,))


def test_it_names_others_where_one_record_is_missing(tmp_path):
    """Of a rank that crashed, say."""
    jobs.said(tmp_path, skipped)
    (tmp_path / f"{PREFIX}0").unlink()
    assert both(tmp_path) == ((2,), (1, 3))


def test_it_looks_at_one_group_at_a_time_and_names_who_waits(tmp_path):
    """Rank 0 calls two groups in another order than its peers; rank 1 waits for it."""

    def program(rank, ctx):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        for step in range(4):
            calls = [
                lambda: dist.all_reduce(ctx.ones(8), group=pairs[rank // 2]),
                lambda: dist.all_gather_into_tensor(ctx.zeros(32), ctx.ones(8)),
            ]
            for call in calls[::-1] if (rank, step) == (0, 2) else calls:
                call()
                ctx.synchronize()

    jobs.said(tmp_path, program)
    assert both(tmp_path) == ((0,), (1,))


def test_it_accuses_ranks_of_a_right_pipeline_that_has_ended(tmp_path):
    """Ranks that send, or receive, more than others are 'missing' to it."""
    jobs.said(tmp_path, pipeline)
    assert both(tmp_path) == ((), (2, 3))


def test_it_fails_on_the_records_of_gloo(tmp_path):
    """Whose groups stand below one name, which is empty."""
    jobs.said(tmp_path, skipped)
    for path in tmp_path.iterdir():
        record = pickle.loads(path.read_bytes())
        record["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
        for entry in record["entries"]:
            entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "gloo:")
        path.write_bytes(pickle.dumps(record))
    ours, theirs = both(tmp_path)
    assert ours == (2,)
    assert theirs.startswith("KeyError")


class Evil:
    """Makes a folder as it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):  # noqa: D105 - pickle's
        return os.mkdir, (str(self.path),)


def test_it_runs_what_a_record_asks_for(tmp_path):
    """Records come from other people's jobs, too; here they are plain data."""
    folder, trace = tmp_path / "records", tmp_path / "ran"
    folder.mkdir()
    (folder / f"{PREFIX}0").write_bytes(pickle.dumps({"entries": [], "pg_config": Evil(trace)}))
    with pytest.raises(FlightRecordError, match="nothing was run"):
        read_records([folder])
    assert not trace.exists()
    torchs_analyser.said(folder)
    assert trace.exists()
