"""Locks, conditions and queues of the standard library between ranks (E7)."""

import queue
import threading
import time

import pytest

import simrank
import simrank.multiprocessing as mp
from simrank import Context
from simrank.errors import DeadlockError, LivelockError, SpawnException, UnsupportedError

# The programs here are users' programs; names are looked up within the Context, where they differ.
# ruff: noqa: PLW0108


PS_PER_S = 10**12
_ORIGINALS = (threading.Lock, threading.RLock, queue.SimpleQueue, threading._allocate_lock)


def run(body, num_ranks, make=lambda: None):
    """Run `body(rank, ctx, shared)` on ranks; `shared` is made within the Context."""
    with Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, (ctx, make()), nprocs=num_ranks)
    return ctx


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore", "BoundedSemaphore"])
def test_a_contended_lock_passes_from_rank_to_rank_in_order(kind):
    """Each holds it for a second of simulated time; the one that waited longest is next."""
    order = []

    def body(rank, ctx, lock):
        with lock:
            time.sleep(1)
            order.append((rank, ctx.now_ps // PS_PER_S))

    run(body, 4, lambda: getattr(threading, kind)())

    assert order == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_two_locks_taken_in_opposite_order_are_a_deadlock_that_names_the_holders():
    """The report is proved and says which rank holds what the other waits for."""

    def body(rank, _ctx, two):
        with two[rank]:
            time.sleep(1)
            with two[1 - rank]:
                pass

    with pytest.raises(DeadlockError) as caught:
        run(body, 2, lambda: (threading.Lock(), threading.Lock()))

    assert caught.value.time_ps == PS_PER_S
    states = [(s.ranks, s.state, s.file.rpartition("/")[2]) for s in caught.value.waits]
    assert states == [
        ((0,), "a lock held by rank 1", "test_locks.py"),
        ((1,), "a lock held by rank 0", "test_locks.py"),
    ]


def test_a_lock_whose_holder_ended_is_reported_so():
    """A rank that returns without a release is the culprit."""

    def body(rank, _ctx, lock):
        lock.acquire()
        assert rank == 0

    with pytest.raises(DeadlockError, match="a lock held by rank 0, which has ended"):
        run(body, 2, threading_lock)


def threading_lock():
    """Make a lock where it is needed."""
    return threading.Lock()


def test_a_time_limit_of_acquire_passes_simulated_time():
    """`acquire(timeout=...)` returns False after exactly that long."""
    seen = []

    def body(rank, ctx, lock):
        if rank == 0:
            with lock:
                time.sleep(10)
        else:
            time.sleep(1)
            seen.append((lock.acquire(timeout=3), ctx.now_ps))
            seen.append((lock.acquire(timeout=30), ctx.now_ps))
            lock.release()

    run(body, 2, threading_lock)

    assert seen == [(False, 4 * PS_PER_S), (True, 10 * PS_PER_S)]


def test_a_release_is_seen_at_the_releasing_ranks_own_time():
    """Charges that were made before it lie before it for the next holder too (E8)."""
    seen = []

    def body(rank, ctx, lock):
        if rank == 0:
            lock.acquire()
            time.sleep(1)
            ctx.engine.charge(5000, "launch")
            lock.release()
        else:
            lock.acquire()
            seen.append(ctx.now_ps)

    run(body, 2, threading_lock)

    assert seen == [PS_PER_S + 5000]


def test_trying_a_lock_in_a_loop_lets_others_run():
    """A vain try is a charged poll (E8), so the holder comes to its release."""

    def body(rank, _ctx, lock):
        if rank == 0:
            with lock:
                time.sleep(1)
        else:
            while not lock.acquire(blocking=False):
                pass

    assert run(body, 2, threading_lock).now_ps >= PS_PER_S


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("Queue", "inside"),
        ("Queue", "before"),
        ("LifoQueue", "inside"),
        ("PriorityQueue", "before"),
        ("SimpleQueue", "inside"),
    ],
)
def test_a_queue_carries_items_between_ranks(kind, where):
    """`get` waits for `put`; queues built of conditions also work if made before the Context."""
    made = getattr(queue, kind)() if where == "before" else None
    got = []

    def body(rank, ctx, items):
        if rank == 0:
            for number in range(3):
                time.sleep(1)
                items.put(number)
        else:
            got.extend((items.get(), ctx.now_ps // PS_PER_S) for _ in range(3))

    run(body, 2, lambda: made if made is not None else getattr(queue, kind)())

    assert got == [(0, 1), (1, 2), (2, 3)]


def test_a_bounded_queue_holds_its_sender_back():
    """`put` on a full queue waits until somebody takes an item."""
    times = []

    def body(rank, ctx, items):
        if rank == 0:
            for number in range(3):
                items.put(number)
                times.append(ctx.now_ps // PS_PER_S)
        else:
            for _ in range(3):
                time.sleep(1)
                items.get()

    run(body, 2, lambda: queue.Queue(maxsize=1))

    assert times == [0, 1, 2]


def test_a_get_with_a_time_limit_raises_empty_at_that_time():
    """The time limit of `get` is simulated."""

    def body(_rank, _ctx, items):
        with pytest.raises(queue.Empty):
            items.get(timeout=5)

    ctx = run(body, 1, queue.Queue)

    assert 5 * PS_PER_S <= ctx.now_ps < 5 * PS_PER_S + 10**6


@pytest.mark.parametrize("ask", ["get_nowait", "empty"])
def test_asking_an_empty_queue_in_a_loop_lets_others_run(ask):
    """A vain look at a queue is a charged poll (E8)."""

    def body(rank, _ctx, items):
        if rank == 0:
            time.sleep(0.001)
            items.put(1)
            return
        while True:
            try:
                if not getattr(items, ask)():
                    break
                if ask == "get_nowait":
                    break
            except queue.Empty:
                pass

    assert run(body, 2, queue.Queue).now_ps >= 10**9


def test_an_empty_queue_that_nobody_fills_is_a_deadlock():
    """The report says what the rank waits for, at the program's line."""
    with pytest.raises(DeadlockError) as caught:
        run(lambda _rank, _ctx, items: items.get(), 1, queue.Queue)

    (state,) = caught.value.waits
    assert state.state == "a notification of a Condition, Event, Semaphore or Queue"
    assert state.file.endswith("test_locks.py")


def test_asking_an_event_that_nobody_sets_is_a_suspected_livelock():
    """`while not event.is_set(): pass` ends in a report, not in a hang."""

    def body(_rank, _ctx, event):
        while not event.is_set():
            pass

    with pytest.raises(LivelockError, match=r"Event\.is_set\(\)"):
        run(body, 1, threading.Event)


def test_an_event_wakes_everybody_who_waits():
    """All waiters go on at the time it is set."""
    times = []

    def body(rank, ctx, event):
        if rank == 0:
            time.sleep(2)
            event.set()
        else:
            assert event.wait()
            times.append(ctx.now_ps)

    run(body, 4, threading.Event)

    assert times == [2 * PS_PER_S] * 3


def test_a_barrier_lets_all_ranks_go_at_the_last_arrival():
    """`threading.Barrier` works between ranks."""
    times = []

    def body(rank, ctx, barrier):
        time.sleep(rank)
        barrier.wait()
        times.append(ctx.now_ps)

    run(body, 4, lambda: threading.Barrier(4))

    assert times == [3 * PS_PER_S] * 4


def test_a_condition_waits_for_its_predicate():
    """`wait_for` with a time limit reads the clock without giving the lock away."""
    box = []
    seen = []

    def body(rank, ctx, condition):
        with condition:
            if rank == 0:
                condition.wait_for(lambda: len(box) == 2, timeout=100)
                seen.append(ctx.now_ps)
            else:
                box.append(rank)
                condition.notify_all()

    run(body, 3, threading.Condition)

    assert seen == [0]


def test_the_hub_waits_by_driving():
    """The main program takes what ranks put, and waits for a lock that a rank holds."""

    def body(_rank, lock, items):
        with lock:
            items.put("hello")
            time.sleep(3)

    with Context("hgx_h100") as ctx:
        lock, items = threading.Lock(), queue.Queue()
        started = ctx.multiprocessing.spawn(body, (lock, items), nprocs=1, join=False)
        assert items.get() == "hello"
        with lock:
            assert ctx.now_ps == 3 * PS_PER_S
        assert started.join()


def test_the_hub_is_told_that_nobody_will_release_a_lock():
    """A deadlock of the main program with itself is an error, not a hang."""
    with Context("hgx_h100"):
        lock = threading.Lock()
        lock.acquire()
        with pytest.raises(DeadlockError, match="a lock held by the main program"):
            lock.acquire()
        lock.release()


def test_threads_inside_a_rank_are_an_error_by_name():
    """A real thread would run beside simulated time."""
    with pytest.raises(SpawnException, match=r"threading\.Thread\.start") as caught:
        run(lambda *_: threading.Thread(target=print).start(), 1)

    assert type(caught.value.errors[0]) is UnsupportedError


def test_threads_of_the_main_program_go_on_working():
    """Outside ranks a lock made within a Context is an ordinary lock between threads."""
    items, order = queue.Queue(), []
    with Context("hgx_h100"):
        lock = threading.Lock()

        def work():
            with lock:
                order.append(items.get())

        with lock:
            thread = threading.Thread(target=work)
            thread.start()
            order.append("first")
        items.put("second")
        thread.join()

    assert order == ["first", "second"]


def test_a_failing_rank_frees_the_waiters_of_its_lock():
    """Siblings that wait for a lock are aborted; the lock is free afterwards."""
    with Context("hgx_h100") as ctx:
        lock = threading.Lock()

        def body(rank):
            with lock:
                time.sleep(1)
                if rank == 0:
                    raise ValueError("root cause")

        with pytest.raises(SpawnException) as caught:
            ctx.multiprocessing.spawn(body, nprocs=3)

        assert list(caught.value.errors) == [0]
        assert not lock.locked()


def test_a_reentrant_lock_belongs_to_its_rank():
    """A rank takes it again at once; another may not release it."""

    def body(rank, _ctx, lock):
        if rank == 0:
            with lock, lock:
                time.sleep(1)
        else:
            with pytest.raises(RuntimeError, match="un-acquired"):
                lock.release()

    run(body, 2, lambda: threading.RLock())


def test_a_plain_lock_refuses_wrong_calls_as_the_original():
    """Releasing a free lock and odd arguments are the standard library's errors."""
    with Context("hgx_h100"):
        lock = threading.Lock()
        with pytest.raises(RuntimeError, match="release unlocked lock"):
            lock.release()
        with pytest.raises(ValueError, match="non-blocking"):
            lock.acquire(False, 1)
        with pytest.raises(ValueError, match="non-negative"):
            lock.acquire(True, -2)


def test_the_last_exit_restores_the_factories():
    """`threading` and `queue` are as before."""
    with Context("hgx_h100"):
        assert threading.Lock is not _ORIGINALS[0]

    after = (threading.Lock, threading.RLock, queue.SimpleQueue, threading._allocate_lock)
    assert after == _ORIGINALS


@pytest.mark.parametrize("kind", ["event", "queue", "lock"])
def test_what_a_rank_shares_is_seen_at_its_own_host_clock(kind):
    """A rank that has issued a thousand kernels is 2 ms ahead; nobody sees its signal before."""
    import queue
    import threading

    seen_ps = []

    def program(rank, ctx):
        if rank == 0:
            if kind == "lock":
                lock.acquire()
            for _ in range(1000):
                ctx.empty(1).fill_(0)
            if kind == "event":
                event.set()
            elif kind == "queue":
                box.put(1)
            else:
                lock.release()
        else:
            ctx.wait(ctx.timer(100))
            if kind == "event":
                event.wait()
            elif kind == "queue":
                box.get()
            else:
                with lock:
                    pass
            seen_ps.append(ctx.now_ps)

    with simrank.Context("hgx_h100") as outer:
        lock = threading.Lock()
        event, box = threading.Event(), queue.Queue()
        outer.multiprocessing.spawn(program, (outer,), nprocs=2)
    assert seen_ps[0] >= 2 * 10**9


# ---- Loops that read what ranks share ----

SHARED = {
    "value": (lambda: mp.Value("i", 0), lambda v: v.value, lambda v: setattr(v, "value", 1)),
    "array": (lambda: mp.Array("i", 2), lambda a: a[1], lambda a: a.__setitem__(1, 1)),
    "whole array": (lambda: mp.Array("i", 2), sum, lambda a: a.__setitem__(1, 1)),
    "dict": (mp.Manager().dict, lambda d: d.get("go"), lambda d: d.update(go=1)),
    "key": (mp.Manager().dict, lambda d: "go" in d, lambda d: d.setdefault("go", 1)),
    "list": (mp.Manager().list, len, lambda seen: seen.append(1)),
    "namespace": (
        lambda: mp.Manager().Namespace(go=0),
        lambda n: n.go,
        lambda n: setattr(n, "go", 1),
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_loop_that_reads_what_is_shared_goes_on_when_it_changes(run, name):
    """On three ranks and in the time that the fourth takes; nobody waits for the processor."""
    make, read, change = SHARED[name]
    shared = make()

    def program(rank):
        if rank == 3:
            time.sleep(0.01)
            change(shared)
        while not read(shared):
            pass

    ctx = run(lambda rank, ctx: program(rank), 4)
    assert 0.01 * PS_PER_S <= ctx.now_ps < 0.013 * PS_PER_S


def test_a_loop_that_reads_two_values_in_turn_goes_on_too(run):
    """What is read again is what counts, not that it is read in a row."""
    first, second = mp.Value("i", 0), mp.Value("i", 0)

    def program(rank, ctx):
        if rank == 1:
            time.sleep(0.01)
            first.value = second.value = 1
        while not (first.value and second.value):
            _ = second.value

    run(program, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_a_loop_that_reads_what_nobody_changes_is_a_livelock(run, name):
    """Suspected, with the line; it does not hang."""
    make, read, _ = SHARED[name]
    shared = make()

    def program(rank, ctx):
        while not read(shared):
            pass

    with pytest.raises(LivelockError, match=r"ranks 0-3: .* that no rank changes at test_locks.py"):
        run(program, 4)


@pytest.mark.slow
def test_a_loop_that_pops_what_never_comes_is_a_livelock(run):
    """An attempt that fails is a read."""
    shared = mp.Manager().dict()

    def program(rank, ctx):
        while True:
            try:
                shared.pop("go")
            except KeyError:
                continue

    with pytest.raises(LivelockError, match="a ManagedDict that no rank changes"):
        run(program, 2)


def test_a_loop_that_takes_a_lock_to_look_goes_on_when_another_rank_has_changed_what_it_reads(run):
    """Nobody else ever holds the lock at the same time, so it never has to wait."""
    lock, seen = mp.Lock(), []

    def program(rank, ctx):
        if rank == 1:
            time.sleep(0.001)
            seen.append(rank)
        while True:
            with lock:
                if seen:
                    break

    run(program, 2)


def test_the_main_program_may_read_what_its_ranks_change(ctx):
    """Its loop drives the ranks."""
    value = mp.Value("i", 0)

    def program(rank):
        time.sleep(1)
        value.value = 1

    processes = ctx.multiprocessing.spawn(program, nprocs=1, join=False)
    while not value.value:
        pass
    processes.join()
    assert ctx.now_ps == PS_PER_S


def test_counting_and_looking_now_and_then_takes_no_time(run):
    """A write is something done; a few reads are no loop that waits; a lock may be taken often."""
    value, seen, lock = mp.Value("i", 0), mp.Manager().dict(), threading.RLock()

    def program(rank, ctx):
        for number in range(200):
            with value.get_lock():
                value.value += 1
            seen[number] = rank
        for number in range(200):
            assert seen[number] == rank
        for _ in range(900):
            with lock:
                pass

    assert run(program, 1).now_ps == 0
    assert value.value == 200


def test_a_loop_that_tries_a_semaphore_goes_on_when_it_is_released(run):
    """As any attempt in vain; that nobody releases it is a livelock."""
    semaphore = mp.Semaphore(0)

    def program(rank, ctx, releases):
        if rank == 1 and releases:
            time.sleep(0.01)
            semaphore.release()
            return
        while not semaphore.acquire(block=False):
            pass

    run(program, 2, True)
    with pytest.raises(LivelockError, match=r"Semaphore\.acquire\(\)"):
        run(program, 2, False)
