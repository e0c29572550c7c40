"""Tasks and groups: failures, aborts of every kind of task, nesting."""

import pytest

from simrank.engine import Engine, Handle, Task, TaskGroup, limits
from simrank.engine.task import MAX_ABORTS
from simrank.errors import RankAborted


def make(engine, *bodies, first_rank=0):
    """Return a group of tasks that is not started."""
    tasks = []
    for rank, body in enumerate(bodies, first_rank):
        task = Task(engine, f"rank {rank}", rank)
        task.carry(body)
        tasks.append(task)
    return TaskGroup(engine, "the program", tasks)


def run(engine, *bodies):
    """Run a group to its end and return it."""
    group = make(engine, *bodies)
    group.start()
    engine.run(group)
    return group


@pytest.fixture(name="engine")
def fixture_engine():
    """Return a new engine."""
    return Engine()


def fail():
    """Raise, as a root cause."""
    raise ValueError("root cause")


def test_a_group_without_tasks_is_complete_at_once(engine):
    """There is nothing to wait for."""
    group = make(engine)
    group.start()

    assert group.complete


def test_ranks_that_fail_at_the_same_time_are_all_root_causes(engine):
    """Those due at that time still run; what fails later is only aborted."""

    def late():
        engine.sleep(1)
        fail()

    group = run(engine, fail, late, fail)

    assert [task.rank for task in group.failed] == [0, 2]
    assert group.complete_ps == 0
    assert type(group.tasks[1].error) is RankAborted


def sleeping(engine):
    engine.sleep(10**9)


def sleeping_weakly(engine):
    limits.host_sleep(engine, engine.current_task(), 10**9, "time.sleep(1)")


def polling(engine):
    while True:
        limits.poll(engine, "a flag")


def waiting(engine):
    engine.wait(Handle())


def waiting_with_a_limit(engine):
    engine.wait(Handle(), timeout_ps=10**9)


@pytest.mark.parametrize(
    "wait", [sleeping, sleeping_weakly, polling, waiting, waiting_with_a_limit]
)
def test_an_abort_reaches_a_task_however_it_waits(engine, wait):
    """It ends at that time, and nothing of it stays queued."""

    def failing():
        engine.sleep(10)
        fail()

    group = run(engine, failing, lambda: wait(engine))

    assert engine.now_ps == group.complete_ps == 10
    assert group.tasks[1].finished
    assert engine.livelock.num_limits == 0
    engine.run()
    assert engine.now_ps == 10


def test_a_task_that_never_started_is_dropped(engine):
    """Its program does not run at all."""
    ran = []
    group = make(engine, lambda: ran.append(1))
    group.start()
    group.abort()
    engine.run()

    assert ran == []
    assert group.complete
    assert not engine.tasks


def test_a_task_that_swallows_the_abort_gets_it_again(engine):
    """At its next wait, a bounded number of times; then it has ended."""
    swallowed = []

    def stubborn():
        for _ in range(5):
            try:
                engine.wait(Handle())
            except SystemExit:
                swallowed.append(engine.now_ps)

    group = run(engine, fail, stubborn)

    assert swallowed == [0] * 5
    assert group.tasks[1].finished
    assert not group.stubborn


def test_a_task_that_swallows_every_abort_is_parked_and_reported(engine):
    """It is never resumed, not even when what it waited for completes."""
    handle = Handle()
    aborts, resumed = [], []

    def stubborn():
        while True:
            try:
                engine.wait(handle)
                resumed.append(True)
            except BaseException:  # noqa: BLE001 - it swallows whatever comes
                aborts.append(1)

    group = run(engine, fail, stubborn)
    handle.finish(engine)
    engine.run()

    assert len(aborts) == MAX_ABORTS
    assert [task.rank for task in group.stubborn] == [1]
    assert group.stubborn[0].parked
    assert not resumed
    assert not engine.tasks


def test_an_aborted_task_may_wait_while_it_cleans_up(engine):
    """Its `finally` gets the next abort there, and the one after."""
    log = []

    def cleaning():
        try:
            engine.wait(Handle())
        finally:
            try:
                engine.wait(Handle())
            finally:
                log.append("clean")

    group = run(engine, fail, cleaning)

    assert log == ["clean"]
    assert not group.stubborn


def test_an_error_raised_while_aborting_is_no_root_cause(engine):
    """Only what ended the group is reported."""

    def careless():
        try:
            engine.wait(Handle())
        except SystemExit:
            raise KeyError("in the clean-up") from None

    group = run(engine, fail, careless)

    assert [task.rank for task in group.failed] == [0]


def test_aborting_a_parent_aborts_what_it_spawned(engine):
    """The innermost ends first."""
    ended = []

    def child():
        try:
            engine.wait(Handle())
        finally:
            ended.append("child")

    def parent():
        inner = make(engine, child)
        inner.start()
        try:
            engine.wait(inner)
        finally:
            ended.append("parent")

    run(engine, parent, fail)

    assert ended == ["child", "parent"]
    assert not engine.tasks


def test_a_task_may_abort_a_group_and_goes_on_when_it_has_ended(engine):
    """The abort itself runs on the hub: only that resumes tasks."""
    log = []

    def child():
        try:
            engine.wait(Handle())
        finally:
            log.append("child")

    def parent():
        inner = make(engine, child, child)
        inner.start()
        engine.sleep(5)
        inner.abort()
        log.append(("parent", inner.complete, engine.now_ps))

    group = run(engine, parent)

    assert log == ["child", "child", ("parent", True, 5)]
    assert not group.failed


def test_a_group_remembers_no_groups_that_ended(engine):
    """A rank that spawns for ever does not grow."""
    counts = []

    def parent():
        for _ in range(5):
            inner = make(engine, lambda: engine.sleep(1))
            inner.start()
            engine.wait(inner)
            counts.append(len(engine.current_task().children))

    run(engine, parent)

    assert counts == [1] * 5


def test_an_error_thrown_into_a_sleep_takes_its_wakeup_along(engine):
    """The sleep it ended does not wake, or keep alive, what comes after."""
    seen = []

    def body():
        task = engine.current_task()

        def interrupt():
            task.thrown = ValueError("from a stream")
            engine.resume(task)

        engine.call_at(10, interrupt)
        with pytest.raises(ValueError, match="from a stream"):
            engine.sleep(1000)
        engine.sleep(5)
        seen.append(engine.now_ps)

    engine.run(make_started(engine, body))
    engine.run()

    assert seen == [15]
    assert engine.now_ps == 15


def test_an_error_thrown_into_a_wait_takes_the_waiter_along(engine):
    """The handle that completes later wakes nobody who sleeps by then."""
    handle, seen = Handle(), []

    def body():
        task = engine.current_task()

        def interrupt():
            task.thrown = ValueError("from a stream")
            engine.resume(task)

        engine.call_at(10, interrupt)
        engine.call_at(20, lambda: handle.finish(engine))
        with pytest.raises(ValueError, match="from a stream"):
            engine.wait(handle)
        engine.sleep(100)
        seen.append((engine.now_ps, task.thrown))

    engine.run(make_started(engine, body))

    assert seen == [(110, None)]


def make_started(engine, *bodies):
    """Return a group that has been started."""
    group = make(engine, *bodies)
    group.start()
    return group


def test_each_task_has_contextvars_of_its_own(engine):
    """What one sets the others do not see."""
    from contextvars import ContextVar

    variable = ContextVar("variable", default=0)
    seen = []

    def body(number):
        variable.set(number)
        engine.sleep(1)
        seen.append(variable.get())

    run(engine, *[lambda n=n: body(n) for n in range(1, 4)])

    assert seen == [1, 2, 3]
    assert variable.get() == 0
