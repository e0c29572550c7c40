"""Threads that ranks start: tasks of the same rank, in one order, with the ends of a process."""

# Names are looked up within the Context, where they differ.

import _thread
import asyncio
import concurrent.futures
import contextvars
import io
import json
import os
import queue
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace

import pytest

import simrank
import simrank.distributed as dist
from simrank.engine import Handle
from simrank.errors import DeadlockError, RankAborted, SpawnException, UnsupportedError
from simrank.isolation import libraries
from simrank.trace import Timeline

US = 1e-6


@pytest.fixture(name="spawn")
def fixture_spawn():
    """Return what runs a program on threads; none of them outlives it."""
    before = set(threading.enumerate())

    def spawn(program, nprocs=2, *args, **options):
        with simrank.Context("hgx_h100", carrier="thread", **options) as ctx:
            ctx.multiprocessing.spawn(program, args, nprocs=nprocs, share_args=True)
        return ctx

    yield spawn
    assert set(threading.enumerate()) <= before


# ---- who they are ----


def test_a_thread_of_a_rank_is_that_rank(spawn):
    """Its number, environment, arguments, random numbers and devices; its own contextvars."""
    seen, variable = [], contextvars.ContextVar("variable", default="unset")

    def program(rank, ctx):
        dist.init_process_group("gloo")
        os.environ["OWN"] = str(rank)
        variable.set("of the main thread")
        random.seed(rank)

        def work():
            facts = (dist.get_rank(), os.environ["OWN"], variable.get(), random.random())
            seen.append((*facts, str(ctx.ones(1).device)))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    draws = [random.Random(rank).random() for rank in range(2)]
    assert seen == [(r, str(r), "unset", draws[r], f"cuda:{r}") for r in range(2)]


def test_a_thread_has_what_threading_says_of_it(spawn):
    """Names, numbers, states, and the list of a rank's own threads alone."""
    facts = []

    def work(gate, found):
        me = threading.current_thread()
        found.append(me)
        found.append((me.ident == threading.get_ident(), me.native_id == threading.get_native_id()))
        found.append(me is threading.main_thread())
        gate.wait()

    def program(rank):
        gate, found = threading.Event(), []
        main = threading.current_thread()
        thread = threading.Thread(target=work, args=(gate, found), name=f"w{rank}")
        before = thread.is_alive(), thread.ident
        thread.start()
        facts.append((before, thread.is_alive(), main is threading.main_thread(), main.is_alive()))
        assert threading.enumerate() == [main, thread]
        assert threading.active_count() == 2
        with pytest.raises(RuntimeError, match="threads can only be started once"):
            thread.start()
        gate.set()
        thread.join()
        thread.join()
        assert found == [thread, (True, True), False]
        facts.append((thread.is_alive(), thread.name, repr(thread)[:11]))
        assert threading.enumerate() == [main]
        with pytest.raises(RuntimeError, match="cannot join current thread"):
            main.join()

    spawn(program)
    each = [((False, None), True, True, True)] * 2
    assert facts[:2] == each
    assert [fact[:2] for fact in facts[2:]] == [(False, "w0"), (False, "w1")]


def test_what_is_local_to_a_thread_is_its_own(spawn):
    """And gone with it."""
    seen = []

    def program(rank):
        local = threading.local()
        local.value = rank

        def work():
            seen.append(hasattr(local, "value"))
            local.value = "of the thread"

        threading.Thread(target=work).start()
        time.sleep(US)
        seen.append(local.value)

    spawn(program)
    assert sorted(map(str, seen)) == ["0", "1", "False", "False"]


def test_names_of_threads_are_counted_by_each_rank(spawn):
    """As by each process; an executor joins its threads in their order, not that of addresses."""
    names = []

    def program(rank):
        names.append(threading.Thread(target=print).name)
        for _ in range(2):
            with ThreadPoolExecutor(2) as executor:
                executor.submit(time.sleep, US)
                executor.submit(time.sleep, US)
                names.extend(thread.name for thread in executor._threads)

    spawn(program)
    executors = [f"ThreadPoolExecutor-{first}_{number}" for first in (0, 1) for number in (0, 1)]
    assert names[0] == "Thread-1 (print)"
    assert sorted(names) == sorted(["Thread-1 (print)", *executors] * 2)


def test_each_native_thread_of_a_rank_is_set_up_and_tidied(spawn, monkeypatch):
    """The first one too, whatever its program does; on greenlets none is."""
    log = []

    class State:
        turn = SimpleNamespace(enter=lambda: None, leave=lambda: None)

        def __init__(self, program):
            self.rank = program.rank

        def begin(self):
            log.append(("begins", self.rank, threading.current_thread().name))

        def end(self):
            log.append(("ends", self.rank, threading.current_thread().name.split("'")[-2:][0]))

    def program(rank):
        threading.Thread(target=lambda: 1 // 0, name="another").start()
        threading.excepthook = lambda _: None

    library = libraries.RegisteredLibrary(lambda module: [], State)
    monkeypatch.setattr(libraries, "_libraries", {"json": lambda: library})
    spawn(program, 1)
    assert log == [
        ("begins", 0, "rank 0"), ("begins", 0, "another"), ("ends", 0, "another"),
        ("ends", 0, "rank 0"),
    ]  # fmt: skip
    log.clear()
    with simrank.Context("hgx_h100", carrier="greenlet") as ctx:
        ctx.multiprocessing.spawn(lambda rank: None, nprocs=1)
    assert log == []


# ---- time and order ----


def test_a_thread_starts_at_its_starters_clock_and_blocks_nobody(spawn):
    """Its sleeps are its own; `start` neither yields nor takes time."""
    log = []

    def program(rank):
        time.sleep((rank + 1) * US)

        def work():
            log.append((rank, "thread", round(time.monotonic() / US)))
            time.sleep(10 * US)
            log.append((rank, "thread", round(time.monotonic() / US)))

        thread = threading.Thread(target=work)
        thread.start()
        log.append((rank, "main", round(time.monotonic() / US)))
        time.sleep(5 * US)
        log.append((rank, "main", round(time.monotonic() / US)))
        thread.join()
        log.append((rank, "main", round(time.monotonic() / US)))

    spawn(program, 1)
    assert log == [
        (0, "main", 1), (0, "thread", 1), (0, "main", 6), (0, "thread", 11), (0, "main", 11)
    ]  # fmt: skip


def test_joins_have_time_limits_in_simulated_time(spawn):
    """And a limit of zero only asks."""
    seen = []

    def program(rank):
        thread = threading.Thread(target=time.sleep, args=(10 * US,))
        thread.start()
        thread.join(4 * US)
        seen.append((thread.is_alive(), round(time.monotonic() / US)))
        thread.join(0)
        seen.append(thread.is_alive())
        thread.join(100 * US)
        seen.append((thread.is_alive(), round(time.monotonic() / US)))

    spawn(program, 1)
    assert seen == [(True, 4), True, (False, 10)]


def pipeline(rank, log):
    """A loader, a pool, a timer and an executor in each rank, and collectives in two threads."""
    dist.init_process_group("gloo")
    items, done = queue.Queue(2), threading.Event()

    def load():
        for number in range(5):
            time.sleep(random.random() * US)
            items.put(number)
        items.put(None)

    def square(number):
        time.sleep(number * US)
        return number * number

    loader = threading.Thread(target=load, name="loader")
    loader.start()
    threading.Timer(3 * US, done.set).start()
    with ThreadPoolExecutor(3) as executor:
        futures = []
        while (number := items.get()) is not None:
            futures.append(executor.submit(square, number))
        log.append((rank, [future.result() for future in futures], time.monotonic()))
    done.wait()
    with ThreadPool(2) as pool:
        log.append((rank, pool.map(square, range(4)), time.monotonic()))
    dist.barrier()
    log.append((rank, "end", time.monotonic()))


@pytest.mark.parametrize("seed", [0, 1])
def test_programs_of_many_threads_give_the_same_in_every_run(spawn, seed):
    """Values, order and times."""
    runs = []
    for _ in range(3):
        log = []
        ctx = spawn(pipeline, 3, log, seed=seed)
        runs.append((log, ctx.now_ps))
    assert runs[0] == runs[1] == runs[2]
    assert [values for _, values, _ in runs[0][0][:3]] == [[0, 1, 4, 9, 16]] * 3
    assert {str(values) for _, values, _ in runs[0][0][3:6]} == {"[0, 1, 4, 9]"}


def test_threads_do_the_same_when_somebody_observes(spawn):
    """With the hub between any two of them, and to the byte in what is seen."""
    runs = []
    for is_observed in (True, False, True):
        log, timeline = [], Timeline()
        with simrank.Context("hgx_h100", carrier="thread") as ctx:
            if is_observed:
                ctx.observe(timeline)
            ctx.multiprocessing.spawn(pipeline, (log,), nprocs=4, share_args=True)
        runs.append((log, ctx.now_ps, json.dumps(timeline.events())))
    assert runs[0][:2] == runs[1][:2]
    assert runs[0] == runs[2]


def test_collectives_in_a_thread_overlap_with_its_rank(spawn):
    """Each on a group of its own, as nccl allows."""
    seen = []

    def program(rank):
        dist.init_process_group("gloo")
        other = dist.new_group()

        def work(results):
            x = simrank.ones(4, device="cpu") * (rank + 1)
            dist.all_reduce(x, group=other)
            results.append(x.sum().item())

        results = []
        thread = threading.Thread(target=work, args=(results,))
        thread.start()
        x = simrank.ones(4, device="cpu")
        dist.all_reduce(x)
        thread.join()
        seen.append((x.sum().item(), results))

    spawn(program, 4)
    assert seen == [(16.0, [40.0])] * 4


def test_low_threads_run_and_have_numbers(spawn):
    """`_thread.start_new_thread`: what they raise goes to `sys.unraisablehook`."""
    seen = []

    def program(rank):
        done, idents = threading.Event(), []

        def work(value, *, key):
            idents.append(threading.get_ident())
            seen.append((value, key))
            done.set()

        ident = _thread.start_new_thread(work, (rank,), {"key": "k"})
        done.wait()
        assert idents == [ident]

    spawn(program)
    assert seen == [(0, "k"), (1, "k")]


def test_asyncio_may_use_threads_of_a_rank(spawn):
    """`to_thread`, which waits for a thread of the same rank."""
    seen = []

    def slow(number):
        time.sleep(number * US)
        return number

    async def main():
        return await asyncio.gather(*(asyncio.to_thread(slow, number) for number in (3, 2)))

    def program(rank):
        seen.append((asyncio.run(main()), time.monotonic() < 10 * US))

    spawn(program)
    assert seen == [([3, 2], True)] * 2


# ---- ends ----


def test_a_rank_that_returns_waits_for_its_threads_and_ends_daemons(spawn):
    """As a process does at exit, in simulated time."""
    log = []

    def program(rank):
        def work():
            time.sleep(10 * US)
            log.append("worked")

        def watch():
            try:
                threading.Event().wait()
            except RankAborted:
                log.append("ended")
                raise

        threading.Thread(target=work).start()
        threading.Thread(target=watch, daemon=True).start()

    ctx = spawn(program, 1)
    assert log == ["worked", "ended"]
    assert ctx.now_ps >= 10_000_000


def test_an_executor_that_nobody_shuts_down_does_not_keep_its_rank(spawn):
    """Its idle threads end with the rank."""
    seen, kept = [], []

    def program(rank):
        kept.append(ThreadPoolExecutor(2))
        seen.append(kept[-1].submit(pow, 2, rank).result())

    spawn(program)
    assert seen == [1, 2]


def test_what_a_thread_raises_goes_to_the_excepthook_and_its_rank_goes_on(spawn):
    """With its name; SystemExit is silent."""
    shown, seen = io.StringIO(), []

    def program(rank):
        threads = [
            threading.Thread(target=lambda: 1 // 0, name="divides"),
            threading.Thread(target=sys.exit, args=(3,)),
        ]
        threading.excepthook = threading.__excepthook__
        with redirect_stderr(shown):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        seen.append(rank)

    spawn(program, 1)
    assert seen == [0]
    assert shown.getvalue().startswith("Exception in thread divides:\nTraceback")
    assert shown.getvalue().count("Traceback") == 1


def test_threads_end_with_their_ranks_when_one_fails(spawn):
    """At their waits, also those that had not run yet."""
    ended = []

    def program(rank):
        def work(name):
            try:
                threading.Event().wait()
            finally:
                ended.append((rank, name))

        threading.Thread(target=work, args=("first",)).start()
        time.sleep(US)
        threading.Thread(target=work, args=("late",)).start()
        if rank == 1:
            raise ValueError("of rank 1")
        threading.Event().wait()

    with pytest.raises(SpawnException, match="of rank 1") as caught:
        spawn(program)
    assert len(caught.value.errors) == 1
    assert (0, "first") in ended
    assert (1, "first") in ended


def test_a_thread_that_swallows_every_abort_is_parked():
    """The run ends all the same; the rank is told of as one that refused."""

    def program(rank, never):
        def stubborn():
            while True:
                try:
                    never.wait()
                except BaseException:  # noqa: BLE001
                    continue

        threading.Thread(target=stubborn, daemon=True, name="stubborn").start()
        time.sleep(US)

    before = set(threading.enumerate())
    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        never = threading.Event()
        ctx.multiprocessing.spawn(program, (never,), nprocs=1, share_args=True)
    left = set(threading.enumerate()) - before
    assert {thread.name for thread in left} == {"stubborn"}
    refused = "  thread 'stubborn' of rank 0 refused to end: it catches RankAborted"
    assert refused in ctx.findings


def test_os_exit_in_a_thread_ends_its_rank():
    """All of it, at once."""
    log = []

    def program(rank):
        def leave():
            time.sleep(US)
            os._exit(0)

        threading.Thread(target=leave).start()
        threading.Event().wait()
        log.append("never")

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=1)
    assert log == []


# ---- reports ----


def test_a_deadlock_names_the_threads_of_ranks_with_their_lines(spawn):
    """And who holds a lock."""
    lines = {}

    def program(rank):
        lock = threading.Lock()
        lock.acquire()

        def work():
            lines["thread"] = sys._getframe().f_lineno + 1
            lock.acquire()

        thread = threading.Thread(target=work, name="reader")
        thread.start()
        lines["main"] = sys._getframe().f_lineno + 1
        thread.join()

    with pytest.raises(DeadlockError) as caught:
        spawn(program)
    here = os.path.basename(__file__)
    states = {state.state: (state.ranks, state.line) for state in caught.value.waits}
    assert states == {
        "the end of thread 'reader'": ((0, 1), lines["main"]),
        "in thread 'reader': a lock held by rank 0": ((0,), lines["thread"]),
        "in thread 'reader': a lock held by rank 1": ((1,), lines["thread"]),
    }
    assert f"rank 1: in thread 'reader': a lock held by rank 1 at {here}" in str(caught.value)


def test_a_rank_that_only_waits_for_its_threads_says_so(spawn):
    """It has returned; what its thread waits for is the cause."""

    def program(rank, never):
        threading.Thread(target=never.wait, name="waits").start()

    with pytest.raises(DeadlockError, match="the end of thread 'waits'"):
        spawn(program, 2, Waits())


class Waits:
    """Waits for ever; no lock, so that it can be made outside."""

    def wait(self):
        """Wait."""
        simrank.ranks.current.current_engine().wait(Handle())


def test_on_greenlets_threads_are_refused_with_the_way_out():
    """The text says how."""
    for call in (
        lambda: threading.Thread(target=print).start(),
        lambda: _thread.start_new_thread(print, ()),
        lambda: concurrent.futures.ThreadPoolExecutor().submit(print),
    ):
        context = simrank.Context("hgx_h100", carrier="greenlet")
        with pytest.raises(SpawnException) as caught, context as ctx:
            ctx.multiprocessing.spawn(lambda rank, call=call: call(), nprocs=1)
        error = caught.value.errors[0]
        assert isinstance(error, UnsupportedError)
        assert 'carrier="thread"' in str(error)
        assert "--carrier thread" in str(error)
