"""Threads that sleep in native locks: a report instead of a process that sleeps."""

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

import simrank
from simrank.engine import Engine, Handle, Task, TimeLimitError, native_sleep
from simrank.engine.native_sleep import NativeWaitError, Sleepers

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells what a thread sleeps in"
)
US = 1e-6
wait_natively = time.sleep  # Never replaced here: a thread of the test waits with it.


class Holder:
    """Has a lock that nobody finds: it is neither a module's nor a class's."""

    def __init__(self):
        self.lock = threading.Lock()


HOLDERS = [Holder()]


def hold_and_wait(rank):
    """Hold a native lock while waiting for the others."""
    with HOLDERS[0].lock:
        time.sleep(US)


def run(program, nprocs=2, **options):
    """Run a program on threads."""
    HOLDERS[0] = Holder()
    with simrank.Context("hgx_h100", carrier="thread", **options) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=nprocs)


@pytest.mark.slow
def test_a_rank_that_sleeps_in_a_native_lock_is_reported_with_who_seems_to_hold_it(monkeypatch):
    """The line where it sleeps, and where the holder waits; the process goes on."""
    monkeypatch.setattr(native_sleep, "_PATIENCE", 2)
    with pytest.raises(NativeWaitError) as caught:
        run(hold_and_wait)

    first = hold_and_wait.__code__.co_firstlineno
    assert caught.value.rank == 1
    assert {(state.ranks, state.state, state.line) for state in caught.value.waits} == {
        ((0,), "time.sleep(1e-06)", first + 3),
        ((1,), "sleeps in a native lock, which rank 0 seems to hold", first + 2),
    }
    assert str(caught.value).startswith("hang (suspected) at t=0.000 us: a rank sleeps in a native")
    run(lambda rank: time.sleep(US))  # And a new run is none the worse.


@pytest.mark.slow
def test_ctrl_c_ends_a_run_whose_rank_sleeps_in_a_native_lock():
    """Within a second, though nothing reaches the thread."""
    main = threading.main_thread().ident

    def interrupt():
        wait_natively(0.2)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    start_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(hold_and_wait)
    assert time.monotonic() - start_s < 2


# What is sent to a thread may arrive in a callback of the collector, where Python drops it: the
# watchdog sends it again.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_a_time_limit_ends_a_run_whose_rank_sleeps_natively():
    """As on greenlets."""
    with pytest.raises(TimeLimitError):
        run(hold_and_wait, time_limit_s=0.2)


def test_a_thread_that_computes_or_reads_is_not_taken_for_a_sleeper(monkeypatch):
    """Only one that sleeps in a lock, at the same place, in a process that does nothing."""
    engine, read, looks = Engine(), os.pipe(), []
    monkeypatch.setattr(native_sleep, "_BUSY_S", 1e9)
    looker = Sleepers()

    def reading():
        os.read(read[0], 1)

    def outside(task):
        while len(looks) < 40:
            looks.append(looker.look(task))
            wait_natively(1e-3)
        os.write(read[1], b"x")

    task = Task(engine, "rank 0", 0)
    task.carry(reading, "thread")
    engine.enrol(task)
    engine.wake([task])
    task.carrier.start()
    thread = threading.Thread(target=outside, args=(task,))
    thread.start()
    engine.run()
    thread.join()
    for end in read:
        os.close(end)

    assert looks == [False] * 40


def test_a_rank_that_drives_a_context_of_its_own_is_no_sleeper(monkeypatch):
    """Its thread sleeps while its own ranks run; their hub looks at them."""
    engine, inner = Engine(), []
    monkeypatch.setattr(native_sleep, "_BUSY_S", 1e9)
    outer = Task(engine, "rank 0", 0)

    def nested():
        own = Engine()
        task = Task(own, "rank 0", 0)
        task.carry(lambda: inner.extend(looker.look(outer) for _ in range(50)), "thread")
        own.enrol(task)
        own.wake([task])
        own.run()

    looker = Sleepers()
    looker.overdue = KeyboardInterrupt()
    outer.carry(nested, "thread")
    engine.enrol(outer)
    engine.wake([outer])
    engine.run()

    assert inner == [False] * 50


def test_who_is_to_be_ended_is_given_up_whatever_it_sleeps_in(monkeypatch):
    """After fewer looks, which the error tells."""
    engine, looker = Engine(), Sleepers()
    monkeypatch.setattr(native_sleep, "_BUSY_S", 1e9)
    task = Task(engine, "rank 0", 0)
    task.carry(lambda: engine.wait(Handle()), "thread")
    engine.enrol(task)
    engine.wake([task])
    engine.step()
    monkeypatch.setattr(native_sleep, "_LOCKSTEP", "another")  # Where its thread sleeps now.
    looker.overdue = KeyboardInterrupt()
    found = [looker.look(task) for _ in range(8)]
    error = looker.error(engine, task)
    task.thrown = SystemExit()
    task.switch()

    assert found == [False] * 5 + [True] * 3
    assert type(error) is KeyboardInterrupt


def look_while(program, monkeypatch, num_looks=8):
    """Return the results of `Sleepers.look` during a program that reads a pipe, and the error."""
    engine, read, looks = Engine(), os.pipe(), []
    monkeypatch.setattr(native_sleep, "_PATIENCE_OF_CALLS", 3)
    looker = Sleepers()

    def outside(task):
        wait_natively(0.02)
        while len(looks) < num_looks:
            looks.append(looker.look(task))
            wait_natively(1e-3)
        os.write(read[1], b"x")

    task = Task(engine, "rank 0", 0)
    task.carry(lambda: program(read[0]), "thread")
    engine.enrol(task)
    engine.wake([task])
    task.carrier.start()
    thread = threading.Thread(target=outside, args=(task,))
    thread.start()
    engine.run()
    thread.join()
    for end in read:
        os.close(end)
    return looks, str(looker.error(engine, task))


def test_a_rank_that_sleeps_in_a_call_of_a_c_library_for_a_minute_is_given_up(monkeypatch):
    """Other processes may compute meanwhile: what counts is that its thread has not been awake."""
    poll = ctypes.CDLL(None).poll

    class Descriptor(ctypes.Structure):
        _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]

    looks, text = look_while(
        lambda end: poll(ctypes.byref(Descriptor(end, 1, 0)), 1, -1), monkeypatch
    )
    assert looks[:3] == [False] * 3
    assert looks[-1] is True
    assert "a rank sleeps in a native call" in text
    assert "to fix: talk to other ranks with torch.distributed, multiprocessing or zmq" in text


def test_a_rank_that_wakes_now_and_then_goes_on(monkeypatch):
    """A download that is slow, say."""

    def program(end):
        while not _readable(end, 1):
            pass

    looks, _ = look_while(program, monkeypatch)
    assert looks == [False] * 8


def _readable(end, timeout_ms):
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return poll.poll(timeout_ms)


def test_a_rank_that_waits_for_a_child_process_goes_on(monkeypatch):
    """As long as the program says."""

    def program(end):
        with subprocess.Popen(["head", "-c", "1"], stdin=end, stdout=subprocess.DEVNULL) as child:
            os.waitpid(child.pid, 0)

    looks, _ = look_while(program, monkeypatch)
    assert looks == [False] * 8


def test_no_frame_is_taken_of_a_thread_that_goes_on(monkeypatch):
    """What a frame holds would be freed at moments of the wall clock: peaks of memory would vary.

    Hubs look every 0.1 s, and threads go on in the middle of a look.
    """
    looked = []
    monkeypatch.setattr(native_sleep, "frame_of_thread", looked.append)
    monkeypatch.setattr(native_sleep, "_call_of", lambda _: "202")
    monkeypatch.setattr(native_sleep, "_num_awake", lambda _: "")
    used_s = iter([1.0, 1.05, 1.15, 1.151])
    monkeypatch.setattr(native_sleep, "process_time", lambda: next(used_s))
    engine, looker = Engine(), Sleepers()
    task = Task(engine, "rank 0", 0)
    task.carry(lambda: None, "thread")

    # The process has computed since the look before, then it has not.
    assert [looker.look(task) for _ in range(4)] == [False] * 4
    assert len(looked) == 1
