"""A program that tries again and again is followed to its end: a try that fails changes nothing."""

import multiprocessing
import queue

import pytest

from tests.timings.test_processes import verdict_of
from tests.timings.test_search import ends, outputs, say


def again(attempt, error):
    """Try until there is no error."""
    while True:
        try:
            return attempt()
        except error:
            pass


def while_not(attempt):
    """Try until it works."""
    while not attempt():
        pass


def _giver(shared):
    shared["queue"].put(1)
    shared["value"].value = 1
    shared["event"].set()
    shared["semaphore"].release()
    shared["pipe"][1].send(1)
    shared["lock"].release()


WAITS = {
    "a try to take a lock": lambda shared: while_not(lambda: shared["lock"].acquire(False)),
    "a lock with a limit": lambda shared: while_not(lambda: shared["lock"].acquire(timeout=0.01)),
    "a semaphore": lambda shared: while_not(lambda: shared["semaphore"].acquire(False)),
    "a semaphore with a limit": lambda shared: while_not(
        lambda: shared["semaphore"].acquire(timeout=0.01)
    ),
    "get_nowait": lambda shared: again(shared["queue"].get_nowait, queue.Empty),
    "get with a limit": lambda shared: again(lambda: shared["queue"].get(timeout=0.1), queue.Empty),
    "empty": lambda shared: while_not(lambda: not shared["queue"].empty()),
    "qsize": lambda shared: while_not(shared["queue"].qsize),
    "a value": lambda shared: while_not(lambda: shared["value"].value),
    "is_set": lambda shared: while_not(shared["event"].is_set),
    "a wait with a limit": lambda shared: while_not(lambda: shared["event"].wait(0.1)),
    "a poll of a pipe": lambda shared: while_not(shared["pipe"][0].poll),
    "a poll with a limit": lambda shared: while_not(lambda: shared["pipe"][0].poll(0.1)),
}


def _shared(context):
    lock = context.Lock()
    lock.acquire()
    return {
        "queue": context.Queue(), "value": context.Value("i", 0), "event": context.Event(),
        "semaphore": context.Semaphore(0), "pipe": context.Pipe(duplex=False), "lock": lock,
    }  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_a_loop_of_tries_ends_in_every_timing(name):
    """The other process is always done in the end."""
    wait = WAITS[name]

    def body(rank, ctx, _):
        shared = _shared(multiprocessing)
        giver = multiprocessing.Process(target=_giver, args=(shared,))
        giver.start()
        wait(shared)
        say("done")
        giver.join()

    assert verdict_of(body).problems == []


ONCE = {
    "a lock with a limit": lambda shared: shared["lock"].acquire(timeout=0.01),
    "a try to take a lock": lambda shared: shared["lock"].acquire(False),
    "a semaphore with a limit": lambda shared: shared["semaphore"].acquire(timeout=0.01),
    "a wait with a limit": lambda shared: shared["event"].wait(0.1),
    "full": lambda shared: shared["queue"].qsize() == 1,
}


@pytest.mark.parametrize("name", ONCE)
def test_a_single_try_may_fail(name):
    """Unless it comes after the end of the other process."""
    attempt = ONCE[name]

    def body(after):
        def run(rank, ctx, _):
            shared = _shared(multiprocessing)
            giver = multiprocessing.Process(target=_giver, args=(shared,))
            giver.start()
            if after:
                giver.join()
            say(attempt(shared))
            giver.join()

        return run

    assert outputs(verdict_of(body(after=False))) == {("True", ""), ("False", "")}
    assert outputs(verdict_of(body(after=True))) == {("True", "")}


def _worker(tasks, results):
    for number in iter(tasks.get, None):
        results.put(number * 10)
        tasks.task_done()


def test_a_queue_of_tasks_is_worked_off_in_any_order():
    """Two workers share it; sorted, their results are always the same."""

    def body(rank, ctx, _):
        tasks, results = multiprocessing.JoinableQueue(), multiprocessing.Queue()
        workers = [multiprocessing.Process(target=_worker, args=(tasks, results)) for _ in range(2)]
        for each in workers:
            each.start()
        for number in (1, 2):
            tasks.put(number)
        tasks.join()
        found = [results.get() for _ in range(2)]
        say(found if rank < 0 else sorted(found))
        for _ in workers:
            tasks.put(None)
        for each in workers:
            each.join()
        say(results.empty())

    assert verdict_of(body).problems == []


def _put_twice(room):
    room.put(1)
    room.put(2)


def test_a_put_into_a_full_queue_fails_or_another_one_waits():
    """A put without a wait may come too late: the other has filled it; else the other waits."""

    def body(wait):
        def run(rank, ctx, _):
            room = multiprocessing.Queue(1)
            putter = multiprocessing.Process(target=_put_twice, args=(room,))
            putter.start()
            say(room.get())
            if wait:
                say(room.get())
            else:
                room.put(3, block=False)
            putter.join()

        return run

    assert verdict_of(body(wait=True)).problems == []
    assert ends(verdict_of(body(wait=False))) == {"rank 0", "DeadlockError"}
