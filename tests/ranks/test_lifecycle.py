"""The lifecycle of Contexts and ranks: the core runs alone, extensions take part in order."""

from __future__ import annotations

import subprocess
import sys

import pytest

import simrank
import simrank.distributed as dist
from simrank.engine import Engine
from simrank.ranks import lifecycle
from simrank.ranks.current import engines
from simrank.ranks.extensions import Extension, extensions

CORE_ALONE = """
from simrank.ranks import extensions
import simrank
extensions._loaders.clear()
import simrank.distributed as dist

def work(rank, ctx):
    dist.init_process_group("nccl")
    x = ctx.full((1024,), float(rank))
    dist.all_reduce(x)
    assert x[0].item() == 6.0

with simrank.Context("hgx_h100") as ctx:
    ctx.multiprocessing.spawn(work, args=(ctx,), nprocs=4)
    print(ctx.now_ps, ctx.findings)

def hang(rank, ctx):
    dist.init_process_group("nccl")
    if rank:
        dist.all_reduce(ctx.zeros(4))
        ctx.cuda.synchronize()

with simrank.Context("hgx_h100") as ctx:
    try:
        ctx.multiprocessing.spawn(hang, args=(ctx,), nprocs=4)
    except simrank.errors.DeadlockError as error:
        print(str(error).splitlines()[1])
"""


class Notes(Extension):
    """Notes the calls that it gets."""

    def __init__(self):
        self.calls = []

    def install(self):
        self.calls.append("install")

    def remove(self):
        self.calls.append("remove")

    def plan_spawn(self, plan):
        self.calls.append(f"plan {plan.nprocs} on {plan.carrier}")

    def make_rank(self, plan, program):
        self.calls.append(f"make {program.rank}")

    def wrap_rank(self, plan, program, run):
        def wrapped():
            self.calls.append(f"begin {program.rank}")
            run()
            self.calls.append(f"end {program.rank}")

        return wrapped

    def drop_rank(self, program):
        self.calls.append(f"drop {program.rank}")

    def surface_error(self, error):
        self.calls.append(f"surface {error}")


@pytest.fixture
def notes():
    """An extension that is registered for one test, after the others."""
    extension = Notes()
    extensions().append(extension)
    yield extension
    extensions().remove(extension)


def work(rank):
    dist.init_process_group("nccl")


def fail(rank):
    if rank == 1:
        raise ValueError("rank 1 fails")
    dist.init_process_group("nccl")
    dist.barrier()


def test_the_core_runs_without_any_extension():
    """Spawn, collectives, host reads and hang reports need neither isolation nor kernels."""
    command = [sys.executable, "-c", CORE_ALONE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.split()[0].isdigit()
    assert first.endswith("[]")
    assert "rank 0: returned" in second or "ranks 1-3" in second


def test_an_extension_takes_part_in_each_step_of_a_spawn(notes):
    """It installs with the first Context, wraps each rank, and is removed with the last Context."""
    with simrank.Context("hgx_h100") as ctx, simrank.Context("hgx_h100"):
        ctx.multiprocessing.spawn(work, nprocs=2)
    assert notes.calls == [
        "install", "plan 2 on greenlet", "make 0", "make 1",
        "begin 0", "end 0", "begin 1", "end 1", "remove",
    ]  # fmt: skip


def test_an_extension_drops_aborted_ranks_and_sees_the_error(notes):
    """A rank that fails ends its group: the extension drops every rank, then gets the error."""
    with simrank.Context("hgx_h100") as ctx, pytest.raises(simrank.errors.SpawnException):
        ctx.multiprocessing.spawn(fail, nprocs=2)
    assert notes.calls[-4:-1] == ["drop 0", "drop 1", "surface rank 1 fails"]


def test_a_failed_install_is_undone_and_no_context_counts_as_entered():
    """All extensions are removed, and the next Context starts as the first one."""

    class Broken(Extension):
        def install(self):
            raise OSError("no room")

    broken = Broken()
    extensions().append(broken)
    try:
        with pytest.raises(OSError, match="no room"):
            lifecycle.enter(Engine())
    finally:
        extensions().remove(broken)
    assert engines == []
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(work, nprocs=2)
