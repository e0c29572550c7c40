"""The loop: steps, waits, sleeps, time limits, batches and the queue's accounting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.engine import Engine, Handle, Task, TaskGroup
from simrank.errors import DeadlockError, WaitTimeoutError


def start(engine, *bodies):
    """Start bodies as ranks of one group and return the group."""
    tasks = []
    for rank, body in enumerate(bodies):
        task = Task(engine, f"rank {rank}", rank)
        task.carry(body)
        tasks.append(task)
    group = TaskGroup(engine, "the program", tasks)
    group.start()
    return group


@pytest.fixture(name="engine")
def fixture_engine():
    """Return a new engine."""
    return Engine()


def test_step_makes_the_earliest_wakeup_and_skips_void_ones(engine):
    """The clock moves to what happens, never to what was cancelled."""
    log = []
    engine.call_at(20, lambda: log.append(20))
    engine.cancel(engine.call_at(5, lambda: log.append(5)))
    engine.call_at(10, lambda: log.append(10))

    engine.step()

    assert (log, engine.now_ps) == ([10], 10)


def test_step_on_nothing_does_nothing_unless_something_is_unfinished(engine):
    """An empty engine is at rest; a blocked task is a deadlock."""
    engine.step()
    start(engine, lambda: engine.wait(Handle()))
    engine.step()
    with pytest.raises(DeadlockError):
        engine.step()


@given(times=st.lists(st.integers(0, 50), max_size=30))
def test_calls_run_in_order_of_time_then_of_queueing(times):
    """For any set of times the order is that of a stable sort."""
    engine = Engine()
    ran = []
    for number, time_ps in enumerate(times):
        engine.call_at(time_ps, lambda n=number: ran.append((engine.now_ps, n)))
    engine.run()

    assert ran == sorted((time_ps, number) for number, time_ps in enumerate(times))


@given(
    actions=st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.booleans()), max_size=30),
)
def test_idle_and_empty_count_weak_and_void_entries_rightly(actions):
    """Whatever was queued, cancelled or cancelled too late, the counts are those of the queue."""
    engine = Engine()
    wakeups = [
        (engine.call_at(time_ps, lambda: None, weak=weak), void) for time_ps, weak, void in actions
    ]
    while True:
        live = [e for _, _, e in engine._queue if not e.cancelled]
        assert engine.idle == all(entry.weak for entry in live)
        assert engine.is_empty == (not live)
        for wakeup, void in wakeups:
            if void:
                engine.cancel(wakeup)
                engine.cancel(wakeup)
        if engine.is_empty:
            break
        engine.step()
        for wakeup, _ in wakeups[:3]:
            if not wakeup.queued:
                engine.cancel(wakeup)  # It has been made already: left alone.


def test_void_entries_are_removed_before_they_pile_up(engine):
    """A million cancelled time limits do not stay in the queue until they are due."""
    for _ in range(2000):
        engine.cancel(engine.call_at(10**15, lambda: None))

    assert len(engine._queue) < 600


def test_a_wait_with_a_time_limit_ends_by_whichever_is_first(engine):
    """Completion in time leaves nothing behind; the limit raises at its exact time."""
    seen = []

    def body():
        engine.wait(engine.timer(10), timeout_ps=20)
        seen.append(engine.now_ps)
        with pytest.raises(WaitTimeoutError) as caught:
            engine.wait(engine.timer(50), timeout_ps=20)
        seen.append((engine.now_ps, caught.value.time_ps, caught.value.timeout_ps))
        engine.sleep(100)  # The timer that came too late must not wake it.
        seen.append(engine.now_ps)

    engine.run(start(engine, body))

    assert seen == [10, (30, 30, 20), 130]
    assert engine.idle


def test_completion_at_the_very_time_of_the_limit_counts(engine):
    """The handle completes first, so the wait succeeds."""
    handle = engine.timer(20)
    group = start(engine, lambda: engine.wait(handle, timeout_ps=20))
    engine.run(group)

    assert not group.failed


def test_a_time_limit_starts_at_the_tasks_own_clock(engine):
    """Charges that were made before the wait come first."""
    seen = []

    def body():
        engine.charge(1000, "launch")
        with pytest.raises(WaitTimeoutError):
            engine.wait(Handle(), timeout_ps=20)
        seen.append(engine.now_ps)

    engine.run(start(engine, body))

    assert seen == [1020]


def test_the_hub_may_wait_with_a_time_limit(engine):
    """It drives until then, and is told by the same error."""
    never = Handle()
    ticks = []
    engine.call_at(5, lambda: ticks.append(engine.now_ps))
    with pytest.raises(WaitTimeoutError, match="the main program waited"):
        engine.wait(never, timeout_ps=50)

    assert (ticks, engine.now_ps) == ([5], 50)
    assert engine.wait_at_most(never, 50) is False
    assert engine.wait_at_most(engine.timer(5), 50) is True
    assert engine.now_ps == 105


def test_the_hub_may_sleep(engine):
    """Simulated time passes while it drives."""
    engine.sleep(70)

    assert engine.now_ps == 70


def test_a_wait_that_completes_with_an_error_raises_it_in_every_waiter(engine):
    """Also in those that come later."""
    handle, seen = Handle(), []

    def body():
        for _ in range(2):
            with pytest.raises(ValueError, match="broken"):
                engine.wait(handle)
            seen.append(engine.now_ps)

    group = start(engine, body, body)
    engine.call_at(9, lambda: handle.finish(engine, ValueError("broken")))
    engine.run(group)

    assert seen == [9] * 4


@pytest.mark.parametrize("seed", [0, 7])
def test_everything_woken_in_one_wakeup_is_one_entry_in_order(seed):
    """Under seed 0 in order of waiting; another seed permutes, at the same time."""
    engine = Engine(seed=seed)
    handles, order = [Handle() for _ in range(40)], []

    def body(number):
        engine.wait(handles[number])
        order.append((engine.now_ps, number))

    group = start(engine, *[lambda n=n: body(n) for n in range(40)])

    def fire():
        before = len(engine._queue)
        with engine.one_wakeup(), engine.one_wakeup():  # Blocks may nest.
            for handle in handles:
                handle.finish(engine)
        assert len(engine._queue) - before == (1 if seed == 0 else 40)

    engine.call_at(5, fire)
    engine.run(group)

    assert sorted(order) == [(5, number) for number in range(40)]
    assert (order == sorted(order)) == (seed == 0)


def test_a_task_whose_host_clock_is_ahead_is_woken_there(engine):
    """The others of the same wakeup go on at once."""
    handle, seen = Handle(), {}

    def body(rank, cost_ps):
        engine.charge(cost_ps, "launch")
        engine.wait(handle)
        seen[rank] = engine.now_ps

    group = start(engine, lambda: body(0, 500), lambda: body(1, 5))
    engine.call_at(100, lambda: handle.finish(engine))
    engine.run(group)

    assert seen == {0: 500, 1: 100}


def test_a_task_started_by_another_begins_at_that_ones_clock(engine):
    """What its maker was charged for lies before it."""
    seen = []

    def maker():
        engine.charge(300, "launch")
        engine.start_task(lambda: seen.append(engine.now_ps), "made")

    engine.run(start(engine, maker))
    engine.run()

    assert seen == [300]


def test_a_task_without_a_group_raises_in_the_hub(engine):
    """Nobody else could see it."""

    def failing():
        raise ValueError("alone")

    engine.start_task(failing, "a program")

    with pytest.raises(ValueError, match="alone"):
        engine.run()


def test_observers_see_what_a_task_waited_for(engine):
    """From the end of what its host was charged for to the end of the wait."""
    seen = []

    class Observer:
        def on_task_switch(self, *_):
            pass

        def on_host(self, task, name, start_ps, end_ps):
            seen.append((task.name, name, start_ps, end_ps))

    engine.observers.append(Observer())

    def body():
        engine.charge(5, "launch")
        engine.wait(engine.timer(50))

    engine.run(start(engine, body))

    assert seen == [("rank 0", "launch", 0, 5), ("rank 0", "wait: a handle", 5, 50)]
