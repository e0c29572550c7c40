"""Time limits, polls and sleeps, and when a run that only polls is a livelock (E5, E8)."""

import gc
import weakref

import pytest

from simrank.engine import Engine, Handle, Task, TaskGroup, limits
from simrank.errors import DeadlockError, LivelockError, WaitTimeoutError


def run(engine, *bodies):
    """Run bodies as ranks of one group and return the group."""
    tasks = []
    for rank, body in enumerate(bodies):
        task = Task(engine, f"rank {rank}", rank)
        task.carry(body)
        tasks.append(task)
    group = TaskGroup(engine, "the program", tasks)
    group.start()
    engine.run(group)
    return group


@pytest.fixture(name="engine")
def fixture_engine():
    """Return a new engine."""
    return Engine()


def poll_until(engine, is_done, what="a flag", **options):
    """Poll as a program does."""
    while not is_done():
        limits.poll(engine, what, **options)


def test_polls_end_when_something_strong_makes_it_true(engine):
    """However long that takes: a hundred thousand polls of 1 ms are no livelock."""
    handle = engine.timer(2 * 10**12)
    group = run(engine, lambda: poll_until(engine, lambda: handle.complete))

    assert not group.failed
    assert 0 <= engine.now_ps - handle.complete_ps <= limits.MAX_POLL_PS


def test_polls_that_see_one_another_are_no_livelock(engine):
    """A rank that polls for what another poller does is woken by it."""
    flags = []

    def first():
        for _ in range(300):
            limits.poll(engine, "its own count")
        flags.append(True)

    group = run(engine, first, lambda: poll_until(engine, lambda: flags))

    assert not group.failed


@pytest.mark.parametrize("num_polls", [10, 900])
def test_a_program_that_counts_its_polls_is_not_accused(engine, num_polls):
    """It gives up by itself."""

    def body():
        for _ in range(num_polls):
            limits.poll(engine, "a flag")

    assert not run(engine, body, body, body).failed


def test_a_pending_time_limit_keeps_pollers_from_being_accused(engine):
    """Until it fires; then the one that waited ends and what polls may see that."""
    flags = []

    def waiting():
        with pytest.raises(WaitTimeoutError):
            engine.wait(Handle(), timeout_ps=3 * 10**12)
        flags.append(True)

    group = run(engine, waiting, lambda: poll_until(engine, lambda: flags))

    assert not group.failed
    assert engine.now_ps >= 3 * 10**12


def test_a_program_that_reads_the_clock_has_an_hour(engine, monkeypatch):
    """It may have a deadline of its own; beyond an hour it is accused all the same."""
    monkeypatch.setattr(limits, "SLEEP_ROUNDS", 2_000)

    def until(deadline_ps):
        task = engine.current_task()
        while task.clock_ps < deadline_ps:
            limits.poll(engine, "time.time()", reads_clock=True)
            limits.host_sleep(engine, task, 10**12, "time.sleep(1)")

    assert not run(engine, lambda: until(3_000 * 10**12)).failed
    with pytest.raises(LivelockError):
        run(engine, lambda: until(10**18))


def test_progress_starts_the_count_over(engine):
    """Polling between operations that complete is a program at work."""

    def body():
        for _ in range(5):
            for _ in range(900):
                limits.poll(engine, "a flag")
            Handle().finish(engine)

    assert not run(engine, body).failed


def test_blocked_ranks_beside_a_poller_are_in_the_report(engine):
    """A livelock shows everybody, also those that wait for the poller."""
    never = Handle()
    with pytest.raises(LivelockError) as caught:
        run(engine, lambda: engine.wait(never), lambda: poll_until(engine, lambda: False))

    assert [(s.ranks, s.state) for s in caught.value.waits] == [
        ((0,), "a handle"),
        ((1,), "a flag"),
    ]


def test_a_poll_of_the_hub_makes_one_step(engine):
    """The main program drives by asking."""
    handle = engine.timer(10)
    while not handle.complete:
        limits.poll(engine, "a timer")

    assert engine.now_ps == 10


def test_a_hub_that_polls_what_nothing_completes_is_told(engine):
    """A few vain polls are allowed; many are a deadlock."""
    for _ in range(100):
        limits.poll(engine, "is_completed of all_reduce #1")
    with pytest.raises(DeadlockError, match="nothing can complete is_completed of all_reduce #1"):
        poll_until(engine, lambda: False, "is_completed of all_reduce #1")


def test_timed_joins_leave_nothing_behind(engine):
    """A handle that is asked for ever keeps no list of who asked."""
    never = Handle()
    for _ in range(10):
        assert not engine.wait_at_most(never, 5)

    assert not never._callbacks
    assert engine.now_ps == 50
    assert engine.livelock.num_limits == 0


def test_a_time_limit_that_fires_while_others_work_has_no_report(engine):
    """Nothing was stuck: the limit was merely too short."""
    engine.call_at(10**6, lambda: None)

    def body():
        engine.wait(Handle(), timeout_ps=10)

    (failed,) = run(engine, body).failed
    assert type(failed.error) is WaitTimeoutError
    assert not hasattr(failed.error, "__notes__")


def test_a_limit_that_was_met_keeps_nothing_alive(engine):
    """It stays queued until its time, which may be minutes after: memory must not."""
    alive = []

    def body():
        handle = engine.timer(10)
        alive.append(weakref.ref(handle))
        limits.watch(engine, handle, 10**15, lambda: TimeoutError("late"))
        engine.wait(handle)

    gc.disable()
    try:
        run(engine, body)
        assert alive[0]() is None
    finally:
        gc.enable()
