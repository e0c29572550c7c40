"""The lifecycle of Contexts and ranks: the core runs alone, extensions take part in order."""

from __future__ import annotations

import multiprocessing.util
import os
import signal
import subprocess
import sys
import time

import pytest

import simrank
import simrank.distributed as dist
from simrank.engine import Engine, Handle
from simrank.errors import ProcessExitedException, UnsupportedError
from simrank.ranks import lifecycle
from simrank.ranks.current import engines
from simrank.ranks.extensions import Extension, register_extension, remove_extension

CORE_ALONE = """
import simrank
from simrank.ranks import extensions
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
    register_extension(lambda: extension)
    yield extension
    remove_extension(extension)


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
    register_extension(lambda: broken)
    try:
        with pytest.raises(OSError, match="no room"):
            lifecycle.enter(Engine())
    finally:
        remove_extension(broken)
    assert engines == []
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(work, nprocs=2)


# ---- process ids of ranks: as different as those of processes, and the same in every run ----

CARRIERS = ["greenlet", "thread"]


def ids(carrier):
    """Return the ids that ranks of two spawns find, and what the spawns say of them."""
    found, real = [], os.getpid()

    def inner(rank):
        found.append((os.getpid(), os.getppid()))

    def program(rank, ctx):
        found.append((os.getpid(), os.getppid()))
        if rank == 1:
            ctx.multiprocessing.spawn(inner, nprocs=2)

    with simrank.Context("hgx_h100", carrier=carrier) as ctx:
        started = ctx.multiprocessing.spawn(program, (ctx,), nprocs=2, join=False)
        started.join()
        assert os.getpid() == real
        assert [pid for pid, _ in found[:2]] == started.pids()
        assert [parent for _, parent in found[:2]] == [real, real]
        assert [parent for _, parent in found[2:]] == [found[1][0]] * 2
    return [pid for pid, _ in found]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_each_rank_has_a_number_of_its_own_that_repeats(carrier):
    """Nested spawns too; parents are who spawned."""
    first = ids(carrier)
    assert len(set(first)) == 4
    assert first == ids(carrier)
    assert os.getpid() not in first


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_signal_for_another_rank_ends_that_one(carrier):
    """By its number, and nobody else of the machine; 0 asks whether it lives."""
    asked = []

    def program(rank, ctx):
        me = os.getpid()
        if rank == 0:
            os.kill(me + 1, 0)
            os.kill(me + 1, signal.SIGKILL)
            ctx.engine.sleep(10)
            with pytest.raises(ProcessLookupError):
                os.kill(me + 1, 0)
            asked.append(rank)
        ctx.engine.sleep(1000)

    with (
        pytest.raises(ProcessExitedException) as caught,
        simrank.Context("hgx_h100", carrier=carrier, on_failure="continue") as ctx,
    ):
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    assert (caught.value.error_index, caught.value.exit_code) == (1, -signal.SIGKILL)
    assert asked == [0]


def polls(ctx, done):
    """Look at the clock until the handle is complete."""
    while not done.complete:
        time.monotonic()


DONE_NS = 1000  # When the victim would run on.
VICTIMS = {
    "starts": lambda ctx, done: None,
    "sleeps": lambda ctx, done: ctx.engine.sleep(DONE_NS * 1000),
    "sleeps on its clock": lambda ctx, done: time.sleep(DONE_NS / 1e9),
    "polls": polls,
    "waits": lambda ctx, done: ctx.engine.wait(done),
    "waits in time": lambda ctx, done: ctx.engine.wait_at_most(done, DONE_NS * 1000),
    "is woken with its killer": lambda ctx, done: ctx.engine.wait(done),
}


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_killed_rank_is_never_resumed_while_others_run_on(carrier, victim):
    """Whatever it was doing: nothing that it waited for wakes it, at any later time."""
    done, ran, resumed = Handle(), [], []

    def program(rank, ctx):
        pid = os.getpid()
        if rank == 1:
            ran.append(rank)
            VICTIMS[victim](ctx, done)
            resumed.append(rank)
            return
        if rank == 2:
            ctx.engine.sleep(20)
            if victim == "is woken with its killer":
                done.finish(ctx.engine)
        elif victim == "is woken with its killer":
            ctx.engine.wait(done)
        elif victim != "starts":
            ctx.engine.sleep(10)
        if rank == 0:
            os.kill(pid + 1, signal.SIGKILL)
            ctx.engine.sleep(10 * DONE_NS * 1000)
            if not done.complete:
                done.finish(ctx.engine)
            ctx.engine.sleep(10)
            ran.append(rank)

    with (
        pytest.raises(ProcessExitedException, match="process 1 terminated"),
        simrank.Context("hgx_h100", carrier=carrier, on_failure="continue") as ctx,
    ):
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
    assert ran == ([0] if victim == "starts" else [1, 0])
    assert resumed == []


def test_a_signal_for_another_rank_that_handles_it_is_refused(run):
    """It would have to run the handler at once; one that ignores it ignores it."""

    def program(rank, ctx):
        if rank == 1:
            signal.signal(signal.SIGTERM, print)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        ctx.engine.sleep(10)
        if rank == 0:
            os.kill(os.getpid() + 1, signal.SIGUSR1)
            with pytest.raises(UnsupportedError, match="which handles it, from another rank"):
                os.kill(os.getpid() + 1, signal.SIGTERM)
        ctx.engine.sleep(10)

    run(program, 2)


def test_what_is_no_rank_s_number_is_the_system_s(run):
    """A child is signalled as ever, and finds the real process as its parent."""

    def program(rank, ctx):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            os.kill(child.pid, signal.SIGKILL)
        assert child.returncode == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            os.kill(os.getpid() + 1000, signal.SIGKILL)

    run(program, 1)


def test_the_standard_library_finds_the_real_process(run):
    """A finalizer of multiprocessing would take itself for a forked one's."""
    ran = []

    def program(rank, ctx):
        multiprocessing.util.Finalize(None, ran.append, (rank,), exitpriority=0)()

    run(program, 2)
    assert ran == [0, 1]


def test_a_package_that_ranks_share_does_not_take_them_for_forked(run):
    """By the number: filelock forgets its open files in a child that was forked."""
    kept = {"os": os, "__name__": "filelock._api"}
    exec("pid = os.getpid()\nwas_forked = lambda: os.getpid() != pid", kept)  # noqa: S102 - of that name

    def program(rank, ctx):
        assert not kept["was_forked"]()
        assert os.getpid() != kept["pid"]

    run(program, 2)


def test_psutil_finds_the_process_under_the_number_of_the_rank(run):
    """As programs ask for their memory: `psutil.Process(os.getpid())`."""
    psutil = pytest.importorskip("psutil")

    def program(rank, ctx):
        assert psutil.Process(os.getpid()).memory_info().rss > 0
        assert psutil.Process(os.getpid()) == psutil.Process()

    run(program, 2)
