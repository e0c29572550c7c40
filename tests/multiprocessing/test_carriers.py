"""Ranks on threads: the texts, times and timelines of ranks on greenlets."""

import asyncio
import ctypes
import io
import json
import pdb
import signal
import sys
import threading
import time
from functools import partial

import pytest

import simrank
import simrank.distributed as dist
from simrank.engine import Handle
from simrank.errors import RankAborted, SpawnException
from simrank.trace import Timeline

US = 1e-6


def outcome(program, carrier, nprocs=4, **options):
    """Run a program; return what it raised as text and as facts, its timeline and its time."""
    timeline, raised = Timeline(), None
    with simrank.Context("hgx_h100", carrier=carrier, races="off", **options) as ctx:
        ctx.observe(timeline)
        try:
            ctx.multiprocessing.spawn(partial(program, ctx=ctx), nprocs=nprocs)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - all are compared
            facts = error.to_json() if hasattr(error, "to_json") else None
            notes = getattr(error, "__notes__", [])
            raised = (type(error).__name__, str(error), notes, json.dumps(facts, default=str))
    return raised, json.dumps(timeline.events()), ctx.now_ps, ctx.findings


def reduce_and_wait(rank, ctx):
    """Ranks that are late, collectives, streams and host reads."""
    dist.init_process_group("nccl")
    time.sleep(rank * US)
    x = ctx.full((1000,), float(rank))
    work = dist.all_reduce(x, async_op=True)
    time.sleep(US)
    work.wait()
    assert x.sum().item() == 6000.0
    peer = rank ^ 1
    dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, x, peer)])
    with ctx.cuda.stream(ctx.cuda.Stream()):
        (x + 1).cpu()


def send_and_hang(rank, ctx):
    """A receive that nobody sends."""
    dist.init_process_group("gloo")
    if rank:
        dist.recv(ctx.ones(4, device="cpu"), src=0)


def mismatch(rank, ctx):
    """Two different calls."""
    dist.init_process_group("nccl")
    x = ctx.ones(4)
    dist.all_reduce(x) if rank else dist.broadcast(x, src=0)
    x.cpu()


def fail(rank, ctx):
    """Two root causes, in a function of their own."""
    time.sleep(US)
    if rank in (1, 2):
        raise ValueError(f"asked to fail on {rank}")
    ctx.wait(Handle())


def exit_early(rank, ctx):
    """A status."""
    time.sleep(US)
    if rank == 1:
        sys.exit(3)
    ctx.wait(Handle())


def interrupt(rank, ctx):
    """As Ctrl-C in a rank."""
    if rank == 1:
        raise KeyboardInterrupt
    ctx.wait(Handle())


def swallow(rank, ctx):
    """One rank ends late, and none is left."""
    try:
        dist.init_process_group("nccl")
        if rank == 2:
            raise ValueError("of rank 2")
        dist.barrier()
    except RankAborted:
        time.sleep(US)


def nest(rank, ctx):
    """A spawn inside a rank."""

    def inner(inner_rank):
        time.sleep((rank + inner_rank) * US)
        dist.init_process_group("gloo")
        dist.all_reduce(ctx.ones(4, device="cpu"))
        if rank == 3 and inner_rank:
            raise ValueError("of an inner rank")

    ctx.multiprocessing.spawn(inner, nprocs=2)


def poll(rank, ctx):
    """What never changes."""
    event = threading.Event()
    while rank == 0 and not event.is_set():
        ctx.engine.charge(1, "work")


def loop(rank, ctx):
    """An event loop of each rank's own."""

    async def main():
        await asyncio.gather(*(asyncio.sleep(number * rank * US) for number in range(3)))

    asyncio.run(main())
    assert threading.current_thread().name in (f"rank {rank}", "MainThread")


@pytest.mark.parametrize(
    "program",
    [
        reduce_and_wait, send_and_hang, mismatch, fail, exit_early, interrupt, swallow, nest, poll,
        loop,
    ],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_what_a_program_shows_does_not_depend_on_its_carrier(program):
    """Errors with their texts, notes and facts; the timeline, byte for byte; the time."""
    assert outcome(program, "thread") == outcome(program, "greenlet")


def test_locks_of_the_standard_library_are_waits_on_threads_too():
    """A lock that is never given back is a deadlock with the line of each rank."""

    def program(rank, ctx):
        del ctx
        with guard:
            time.sleep(US)
        last.acquire() if rank != 2 else time.sleep(US)

    found = []
    for carrier in ("thread", "greenlet"):
        with simrank.Context("hgx_h100"):
            guard, last = threading.Lock(), threading.Lock()
        found.append(outcome(program, carrier))
    assert found[0] == found[1]
    assert found[0][0][0] == "DeadlockError"


def test_on_failure_continue_works_on_threads():
    """What waits for a rank that died raises, the others run on."""
    options = {"on_failure": "continue"}
    assert outcome(fail, "thread", **options) == outcome(fail, "greenlet", **options)


@pytest.mark.parametrize("seed", [1, 2])
def test_seeds_and_delays_draw_the_same_on_threads(seed):
    """What is late does not depend on the carrier."""
    options = {"seed": seed, "delays": seed}
    found = outcome(reduce_and_wait, "thread", **options)
    assert found == outcome(reduce_and_wait, "greenlet", **options)


def test_a_debugger_prompts_in_a_rank_on_a_thread(ctx_on_threads):
    """The others stand still, and its first line says who and when."""
    out = io.StringIO()

    def stopping(rank, stdin):
        time.sleep(US)
        number = rank * 10
        if rank == 1:
            pdb.Pdb(stdin=stdin, stdout=out, nosigint=True, readrc=False).set_trace()
        number += 1
        time.sleep(US)

    spawn = ctx_on_threads.multiprocessing.spawn
    spawn(stopping, (io.StringIO("p number\nc\n"),), nprocs=2, share_args=True)

    first, *_, value, _ = out.getvalue().split("\n")
    assert first == "simrank: rank 1 at t=1.000 us"
    assert value == "(Pdb) 10"


@pytest.fixture
def ctx_on_threads():
    """A Context whose ranks are threads; none of them outlives it."""
    before = set(threading.enumerate())
    with simrank.Context("hgx_h100", carrier="thread") as context:
        yield context
    assert set(threading.enumerate()) <= before


def test_ranks_on_threads_have_their_own_names(ctx_on_threads):
    """In logs and debuggers; what they start is no daemon, as in a process."""
    names = []

    def program(_rank):
        time.sleep(US)
        names.append((threading.current_thread().name, threading.current_thread().daemon))

    ctx_on_threads.multiprocessing.spawn(program, nprocs=2)
    assert names == [("rank 0", False), ("rank 1", False)]


def test_tasks_of_a_rank_on_a_thread_are_greenlets(ctx_on_threads):
    """Only ranks are threads: `ctx.start` and kernels stay cheap."""
    seen = []

    def program(_rank):
        task = ctx_on_threads.start(
            lambda: seen.append((threading.current_thread().name, dist.get_rank()))
        )
        dist.init_process_group("gloo")
        del task
        dist.barrier()

    ctx_on_threads.multiprocessing.spawn(program, nprocs=2)
    assert seen == [("MainThread", 0), ("MainThread", 1)]


def test_an_error_in_the_main_program_leaves_no_thread():
    """Ranks that nobody joined are ended, where greenlets would be dropped."""
    before, ended = set(threading.enumerate()), []

    def waiting(rank, ctx):
        try:
            ctx.wait(Handle())
        finally:
            ended.append(rank)

    def fails():
        with simrank.Context("hgx_h100", carrier="thread") as ctx:
            ctx.multiprocessing.spawn(waiting, (ctx,), nprocs=2, join=False)
            ctx.engine.step()
            raise ValueError("in the main program")

    with pytest.raises(ValueError, match="in the main program"):
        fails()
    assert ended == [0, 1]
    assert set(threading.enumerate()) <= before


def test_a_context_with_an_unknown_carrier_is_refused():
    """With the choices."""
    with pytest.raises(ValueError, match="carrier='fiber'; choices: auto, greenlet, thread"):
        simrank.Context("hgx_h100", carrier="fiber")


# ---- the kill switch ----


def spin(rank, log):
    """Interrupt the run, and compute on; ends at once, and after seconds if that fails."""
    sum(range(10**5))  # The hub sleeps by now.
    signal.pthread_kill(MAIN, signal.SIGINT)
    for _ in range(10**9):
        pass
    log.append(f"rank {rank} was not interrupted")


def spin_at_once(rank, log):
    """In the first turn."""
    spin(rank, log)


def spin_after_a_collective(rank, log):
    """In a turn that came from another rank, not from the hub."""
    dist.init_process_group("gloo")
    dist.barrier()
    if rank == 3:
        spin(rank, log)
    dist.barrier()


def spin_in_a_callback(rank, log):
    """Below a function of C."""
    sorted([3, 1, 2], key=lambda _: spin(rank, log))


def spin_in_a_thread(rank, log):
    """In a thread that the rank has started."""
    threading.Thread(target=spin, args=(rank, log)).start()
    time.sleep(US)


MAIN = threading.main_thread().ident


@pytest.mark.parametrize(
    "program", [spin_at_once, spin_after_a_collective, spin_in_a_callback, spin_in_a_thread]
)
def test_ctrl_c_ends_ranks_on_threads_that_never_wait(program):
    """All eight, wherever they are."""
    before, log = set(threading.enumerate()), []
    with (
        pytest.raises(KeyboardInterrupt) as caught,
        simrank.Context("hgx_h100", carrier="thread") as ctx,
    ):
        ctx.multiprocessing.spawn(program, (log,), nprocs=8, share_args=True)
    assert log == []
    assert "simrank: interrupted at" in caught.value.__notes__[0]
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_ranks_that_wait_below_a_function_of_c_are_ended_there(carrier, monkeypatch):
    """What C swallows is raised again at the next wait."""
    ended, swallowed = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda reported: swallowed.append(reported.exc_type))
    compare_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def program(rank, ctx):
        def wait(*_):
            ctx.wait(Handle())
            return 0

        time.sleep(US)
        try:
            if rank == 0:
                sorted([2, 1], key=wait)
            elif rank == 1 and carrier == "thread":  # A greenlet may not leave C's stack there.
                numbers = (ctypes.c_int * 2)(2, 1)
                ctypes.CDLL(None).qsort(numbers, 2, 4, compare_type(wait))
                wait()
            elif rank == 2:
                time.sleep(US)
                raise ValueError("of rank 2")
        finally:
            ended.append(rank)

    with (
        pytest.raises(SpawnException, match="of rank 2"),
        simrank.Context("hgx_h100", carrier=carrier) as ctx,
    ):
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
    assert sorted(ended) == [0, 1, 2]
    assert swallowed == [RankAborted] * (carrier == "thread")
