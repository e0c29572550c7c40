"""Queues, locks, managers and values between ranks: engine waits, in simulated time."""

import multiprocessing
import time

import pytest

import simrank
import simrank.multiprocessing as mp
from simrank.errors import DeadlockError, LivelockError, SpawnException, UnsupportedError


def test_a_queue_made_before_the_context_carries_values_between_ranks(run):
    """Get waits for put; order is kept; a bounded queue holds its producer back."""
    queue = mp.Queue(maxsize=2)
    got = []

    def program(rank, ctx):
        if rank == 0:
            for item in range(5):
                queue.put(item)
        else:
            ctx.wait(ctx.timer(10**6))
            got.extend(queue.get() for _ in range(5))

    run(program, 2)
    assert got == [0, 1, 2, 3, 4]


def test_a_get_that_nobody_serves_is_a_deadlock(run):
    """It names the rank and its line."""
    queue = mp.SimpleQueue()

    def program(rank, ctx):
        if rank == 1:
            queue.get()

    with pytest.raises(DeadlockError) as caught:
        run(program, 2)
    assert caught.value.waits[0].ranks == (1,)
    assert caught.value.waits[0].file == __file__


def test_a_polling_loop_on_a_managed_dict_that_never_fills_is_reported(run):
    """A livelock, suspected."""
    results = mp.Manager().dict()

    def program(rank, ctx):
        while rank == 0 and len(results) < 3:
            time.sleep(1)

    with pytest.raises(LivelockError):
        run(program, 2)


def test_what_is_in_a_managed_container_is_changed_by_its_methods_alone(run):
    """Elements are handed over as copies, both ways; containers of managers stay what they are."""
    manager = mp.Manager()
    inner, first = manager.list(), [1]
    found, line = manager.dict(kept=first, inner=inner), manager.list([first])

    def program(rank, ctx):
        found["kept"].append(2)
        line[0].append(2)
        for each in [*found.values(), *line, *line[:]]:
            if type(each) is list:
                each.append(2)
        found["inner"].append(rank)
        first.append(3)
        line.append(first)
        first.append(4)

    run(program, 1)
    assert (found["kept"], found.get("kept"), list(line)) == ([1], [1], [[1], [1, 3]])
    assert list(inner) == [0]
    assert dict(found.items())["inner"] is inner
    assert found.pop("kept") == [1]
    assert sorted(found.keys()) == ["inner"]


def test_locks_exclude_across_waits(run):
    """Lock, RLock, Semaphore and Condition."""
    inside = []
    for lock in (mp.Lock(), mp.RLock(), mp.Semaphore(1), mp.Condition()):

        def program(rank, ctx, lock=lock):
            with lock:
                inside.append(rank)
                ctx.wait(ctx.timer(1000))
                assert inside[-1] == rank

        run(program, 3)
    assert len(inside) == 12


def test_barrier_and_event_wait_in_simulated_time(run):
    """Nobody passes before the last; an event wakes everybody."""
    barrier, event = mp.Barrier(3), mp.Event()
    passed = []

    def program(rank, ctx):
        ctx.wait(ctx.timer(1000 * (rank + 1)))
        barrier.wait()
        assert ctx.now_ps >= 3000
        if rank == 0:
            ctx.wait(ctx.timer(5000))
            event.set()
        event.wait()
        passed.append(ctx.now_ps)

    run(program, 3)
    assert min(passed) >= 8000


def test_values_and_arrays_are_shared(run):
    """With their locks, and their length fixed."""
    total, slots = mp.Value("d"), mp.Array("i", 3)
    assert (total.value, list(slots)) == (0.0, [0, 0, 0])

    def program(rank, ctx):
        with total.get_lock():
            before = total.value
            ctx.wait(ctx.timer(1000))
            total.value = before + rank
        slots[rank] = rank * 10

    run(program, 3)
    assert total.value == 3.0
    assert slots[:] == [0, 10, 20]
    with pytest.raises(ValueError, match="length"):
        slots[:] = [1]
    assert len(mp.Array("i", [4, 5])) == 2


def test_a_joinable_queue_joins_when_every_item_is_done(run):
    """task_done and join."""
    queue = mp.JoinableQueue()
    done = []

    def program(rank, ctx):
        if rank == 0:
            for item in range(3):
                queue.put(item)
            queue.join()
            assert done == [0, 1, 2]
        else:
            for _ in range(3):
                ctx.wait(ctx.timer(1000))
                done.append(queue.get())
                queue.task_done()

    run(program, 2)


def test_get_context_has_the_same_names_and_knows_the_methods():
    """Fork and spawn make no difference here; others do not exist."""
    assert mp.get_context("fork").Queue is mp.Queue
    assert mp.get_context().Event is mp.Event
    with pytest.raises(ValueError, match="thread"):
        mp.get_context("thread")


def test_real_processes_are_refused_by_name():
    """Process and Pool say what to use instead."""
    with pytest.raises(UnsupportedError, match=r"multiprocessing\.Process.*\n.*spawn"):
        mp.Process(target=print)
    with pytest.raises(UnsupportedError, match=r"multiprocessing\.Pool"):
        mp.get_context("spawn").Pool(4)


def test_start_processes_runs_ranks_whatever_the_method():
    """As spawn; an unknown method is torch's error."""
    calls = []
    mp.start_processes(
        lambda rank, word: calls.append((rank, word)), ("x",), 2, start_method="fork"
    )
    assert calls == [(0, "x"), (1, "x")]
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        mp.start_processes(print, start_method="thread")


# ---- a pipe to a process: descriptors of its own, and waits that let the other end run ----

LARGE = 1 << 20  # More than a pipe holds.


def run(program, nprocs=2):
    """Run a program on threads, which may start processes."""
    with simrank.Context("hgx_h100", carrier="thread") as context:
        context.multiprocessing.spawn(program, nprocs=nprocs, share_args=True)


def child(end, rank):
    end.send(("ready", rank))
    end.send(len(end.recv()))


def answers(rank):
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs, rank), daemon=True)
    process.start()
    theirs.close()
    assert mine.poll(1)
    assert mine.recv() == ("ready", rank)
    mine.send("x" * LARGE)
    assert mine.recv() == LARGE
    process.join()
    with pytest.raises(EOFError):
        mine.recv()


def test_an_end_that_the_parent_closes_stays_open_in_the_child():
    """The usual idiom; as the child ends, the parent reads the end of the file."""
    run(answers)


def test_what_is_sent_is_a_copy():
    """Later changes do not travel."""

    def program(rank):
        first, last = multiprocessing.Pipe(duplex=False)
        value = {"rank": [rank]}
        last.send(value)
        value["rank"].append("changed")
        assert first.recv() == {"rank": [rank]}

    run(program)


def test_bytes_that_fill_a_pipe_wait_for_the_reader():
    """A native write would wait for ever: the reader is in the same process."""

    def write(end):
        end.send_bytes(b"x" * LARGE)

    def program(rank):
        first, last = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=write, args=(last,))
        process.start()
        assert len(first.recv_bytes()) == LARGE
        process.join()

    run(program)


def test_a_poll_takes_simulated_time():
    """Nobody writes."""

    def program(rank):
        first, _last = multiprocessing.Pipe()
        before = time.monotonic()
        assert not first.poll(2.5)
        assert time.monotonic() - before == pytest.approx(2.5, rel=0.01)

    run(program, 1)


@pytest.mark.slow
def test_a_read_that_nobody_answers_is_reported():
    """As a suspicion, since it polls."""

    def program(rank):
        first, _last = multiprocessing.Pipe()
        first.recv()

    with pytest.raises((SpawnException, simrank.errors.SimrankError), match="recv\\(\\) of a pipe"):
        run(program, 1)


def test_locks_and_semaphores_take_block_as_multiprocessings_do(run):
    """By keyword; a limit of None waits."""

    def program(rank, ctx):
        names = mp.get_context("spawn")
        lock, again, count = names.Lock(), names.RLock(), names.Semaphore(2)
        assert lock.acquire(block=False)
        assert not lock.acquire(block=False)
        assert not lock.acquire(block=True, timeout=0.001)
        assert again.acquire(block=True, timeout=None)
        assert again.acquire(block=False)
        assert count.acquire(block=False)
        assert count.get_value() == 1

    run(program, 1)
