"""Tasks on greenlets and on threads: the same order, times, reports and ends."""

import contextvars
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from functools import partial

import pytest
from greenlet import getcurrent, greenlet
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.engine import Engine, Handle, Task, TaskGroup, TimeLimitError, limits
from simrank.engine.lockstep import Turns, raise_in
from simrank.engine.task import CARRIERS, MAX_ABORTS, check_carrier
from simrank.engine.watchdog import StoppedByWatchdog, Watchdog
from simrank.errors import (
    DeadlockError,
    HubError,
    LivelockError,
    RankAborted,
    UnsupportedError,
)


def start(engine, bodies, carrier="thread"):
    """Start bodies as ranks of one group."""
    tasks = []
    for rank, body in enumerate(bodies):
        task = Task(engine, f"rank {rank}", rank)
        task.carry(body, carrier)
        tasks.append(task)
    group = TaskGroup(engine, "the program", tasks)
    group.start()
    return group


def run(engine, *bodies, carrier="thread"):
    """Run bodies as ranks of one group; end them whatever happens, and return the group."""
    group = start(engine, bodies, carrier)
    try:
        engine.run(group)
    finally:
        group.abort()
    return group


@pytest.fixture(name="engine")
def fixture_engine():
    """Return a new engine; no thread outlives its test."""
    before = set(threading.enumerate())
    yield Engine()
    assert set(threading.enumerate()) <= before


class Trace:
    """An observer that keeps everything as text."""

    def __init__(self):
        self.lines = []

    def on_task_switch(self, task, time_ps):
        self.lines.append(f"{time_ps} {task.name}")

    def on_host(self, task, name, start_ps, end_ps):
        self.lines.append(f"{start_ps}-{end_ps} {task.name} {name}")

    def on_operation(self, operation):
        """Nothing here makes one."""

    on_transfer = on_operation


# ---- the same on both carriers ----


class Player:
    """Runs programs of (verb, number) on one carrier, and keeps all that happens."""

    def __init__(self, carrier, seed, *, is_observed=True):
        self.carrier = carrier
        self.engine = Engine(seed=seed)
        self.trace = Trace()
        if is_observed:
            self.engine.observers.append(self.trace)
        self.handles = [Handle() for _ in range(4)]

    def play(self, program):
        """Do each verb."""
        for verb, number in program:
            getattr(self, verb)(number)
            name = self.engine.current_task().name
            self.trace.lines.append(f"{self.engine.now_ps} {name} did {verb}")

    def sleep(self, number):
        """Sleep."""
        self.engine.sleep(number)

    def charge(self, number):
        """Work on the host's clock."""
        self.engine.charge(number, "work")

    def wait(self, number):
        """Wait for what others finish, or nobody."""
        self.engine.wait(self.handles[number])

    def limit(self, number):
        """Wait no longer than that."""
        self.trace.lines.append(str(self.engine.wait_at_most(self.handles[number], 2)))

    def finish(self, number):
        """Complete what others wait for."""
        if not self.handles[number].complete:
            self.handles[number].finish(self.engine)

    def poll(self, _number):
        """Ask in vain."""
        limits.poll(self.engine, "a poll")

    def nest(self, number):
        """Start a rank and wait for it."""
        self.engine.wait(start(self.engine, [lambda: self.engine.sleep(number)], self.carrier))

    def fail(self, _number):
        """Raise."""
        raise ValueError("of the program")

    def leave(self, _number):
        """Exit."""
        raise SystemExit(3)

    def observe(self, _number):
        """See the switches from now on, or no longer."""
        observers = self.engine.observers
        observers.remove(self.trace) if observers else observers.append(self.trace)

    def swallow(self, _number):
        """Wait, and do not end when told to."""
        try:
            self.engine.wait(self.handles[3])
        except RankAborted:
            self.engine.sleep(5)


VERBS = ("sleep", "charge", "wait", "limit", "finish", "poll", "nest", "fail", "leave", "swallow",
         "observe")  # fmt: skip
STEPS = st.tuples(st.sampled_from(VERBS), st.integers(0, 3))


def everything(programs, seed, carrier, **options):
    """Run programs as ranks; return all that happened."""
    player = Player(carrier, seed, **options)
    bodies = [partial(player.play, program) for program in programs]
    group = start(player.engine, bodies, carrier)
    report = ""
    try:
        player.engine.run(group)
    except DeadlockError as error:
        report = str(error)
    group.abort()
    ends = [(task.name, repr(task.error), task.parked) for task in group.tasks]
    return player.trace.lines, report, ends, player.engine.now_ps


@settings(max_examples=12)
@given(programs=st.lists(st.lists(STEPS, max_size=5), max_size=4), seed=st.integers(0, 2))
def test_any_program_has_the_same_trace_on_both_carriers(programs, seed):
    """Order, times, charges, reports with their lines, errors and aborts."""
    assert everything(programs, seed, "thread") == everything(programs, seed, "greenlet")


@settings(max_examples=25)
@given(programs=st.lists(st.lists(STEPS, max_size=7), max_size=6), seed=st.integers(0, 1))
def test_any_program_that_nobody_observes_does_the_same_on_both_carriers(programs, seed):
    """There the threads pass the turn on by themselves, until one of them starts to observe."""
    found = everything(programs, seed, "thread", is_observed=False)

    assert found == everything(programs, seed, "greenlet", is_observed=False)


# ---- the turn passed on ----


def meet(engine, num_tasks, bodies, carrier="thread"):
    """Let tasks wait for handles of which the last one to come completes each; then do bodies."""
    handles = [Handle() for _ in range(100)]
    arrived = [0] * len(handles)

    def body(rank):
        for index, handle in enumerate(handles):
            arrived[index] += 1
            if arrived[index] == num_tasks:
                handle.finish(engine)
            engine.wait(handle)
        bodies.get(rank, lambda: None)()

    return run(engine, *[partial(body, rank) for rank in range(num_tasks)], carrier=carrier)


def count_gives(monkeypatch):
    """Return a list that grows by one whenever the hub gives the turn to a thread."""
    given, plain = [], Turns.give

    def give(self, task, go):
        given.append(task.rank)
        plain(self, task, go)

    monkeypatch.setattr(Turns, "give", give)
    return given


def test_tasks_that_one_completion_wakes_do_not_go_back_to_the_hub(engine, monkeypatch):
    """A hundred meetings of eight: the hub enters one of them each time, and sees their ends."""
    given = count_gives(monkeypatch)
    meet(engine, 8, {})

    assert len(given) <= 8 + 100 + 8


def test_an_observer_sees_every_switch_of_tasks_that_one_completion_wakes(engine, monkeypatch):
    """The hub enters each of them."""
    given, trace = count_gives(monkeypatch), Trace()
    engine.observers.append(trace)
    meet(engine, 8, {})

    switches = [line for line in trace.lines if "wait" not in line]
    assert len(given) == len(switches) == 8 + 7 * 100


def test_ctrl_c_reaches_the_thread_that_got_the_turn_from_another(engine):
    """It is interrupted, the others in line still run at this time, and all end."""
    main, log = threading.main_thread().ident, []

    def computing():
        log.append("1 computes")
        try:
            sum(range(10**5))  # The hub sleeps by now.
            signal.pthread_kill(main, signal.SIGINT)
            for _ in range(10**8):
                pass
        except KeyboardInterrupt:
            log.append("1 is interrupted")
            raise

    def waiting():
        log.append("another")
        engine.wait(Handle())

    group = meet(engine, 4, {0: waiting, 1: computing, 2: waiting, 3: waiting})

    assert log == ["another", "another", "another", "1 computes", "1 is interrupted"] or log == [
        "another", "1 computes", "1 is interrupted", "another", "another"
    ]  # fmt: skip
    assert [type(task.error) for task in group.failed] == [KeyboardInterrupt]


def test_one_in_line_that_ends_or_fails_leaves_the_rest_in_order(engine):
    """As on greenlets."""

    def outcome(carrier):
        log, mine = [], Engine()

        def fail():
            raise ValueError

        bodies = {rank: partial(log.append, rank) for rank in range(8)} | {2: fail, 5: fail}
        group = meet(mine, 8, bodies, carrier)
        return log, [(task.rank, repr(task.error)) for task in group.tasks]

    assert outcome("thread") == outcome("greenlet")


class InjectedError(Exception):
    """Raised from outside."""


def inject(engine, stop):
    """Raise an error again and again in the thread that runs."""
    while not stop.wait(2e-4):
        task = engine.running
        identity = None if task is None else task.carrier.thread_id
        if identity is not None:
            raise_in(identity, InjectedError)


@pytest.mark.slow
def test_threads_that_are_interrupted_anywhere_never_run_together(engine):
    """What somebody raises in whichever thread runs is raised there, or where that waits next."""
    stop, inside, most, num_caught = threading.Event(), [], [], []
    handles = [Handle() for _ in range(2000)]
    for index, handle in enumerate(handles):
        engine.call_at(index * 10, partial(handle.finish, engine))

    def body():
        for handle in handles:
            try:
                inside.append(1)
                most.append(len(inside))
                inside.clear()
                engine.wait(handle)
            except InjectedError:
                num_caught.append(1)

    def careful():
        while True:
            try:
                return body()
            except InjectedError:
                num_caught.append(1)

    thread = threading.Thread(target=inject, args=(engine, stop), daemon=True)
    thread.start()
    group = start(engine, [careful] * 4)
    try:
        engine.run(group)
    finally:
        stop.set()
        thread.join()
        group.abort()

    assert set(most) <= {1, 2}  # Two where the first was interrupted in between.
    assert len(num_caught) > 10
    assert all(task.error is None or isinstance(task.error, InjectedError) for task in group.tasks)


def report_of(carrier):
    engine = Engine()

    def waiting():
        engine.wait(Handle())

    with pytest.raises(DeadlockError) as caught:
        run(engine, waiting, lambda: engine.wait(Handle()), lambda: None, carrier=carrier)
    return str(caught.value), json.dumps(caught.value.to_json())


def test_a_deadlock_is_reported_with_the_same_lines():
    """A suspended thread shows its frames as a greenlet does."""
    text, facts = report_of("thread")

    assert f"{__name__.rpartition('.')[2]}.py:" in text
    assert (text, facts) == report_of("greenlet")


@pytest.mark.parametrize("carrier", CARRIERS)
def test_ranks_that_only_poll_are_a_livelock(carrier):
    """The verdict comes from the hub, whatever holds the stacks."""
    engine = Engine()

    def polling():
        while True:
            limits.poll(engine, "is_completed of a send")

    with pytest.raises(LivelockError) as caught:
        run(engine, polling, carrier=carrier)
    assert caught.value.waits[0].ranks == (0,)


# ---- who runs ----


def test_a_thread_is_the_current_task_and_not_the_hub(engine):
    """Also in the midst of a program that was resumed."""
    seen = []

    def body():
        engine.sleep(1)
        seen.append((engine.current_task().name, engine.is_hub(), threading.current_thread().name))

    run(engine, body, body)

    assert seen == [("rank 0", False, "rank 0"), ("rank 1", False, "rank 1")]
    assert engine.current_task() is None


def test_only_one_thread_runs_at_a_time(engine):
    """Nobody enters between two steps of another, wherever the interpreter would switch."""
    inside, most = [], []

    def body():
        for _ in range(5):
            inside.append(1)
            sum(range(2000))
            most.append(len(inside))
            inside.pop()
            engine.sleep(1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        run(engine, *[body] * 4)
    finally:
        sys.setswitchinterval(interval)

    assert set(most) == {1}


def test_a_thread_may_not_drive_the_engine(engine):
    """As a greenlet may not."""
    group = run(engine, engine.step, engine.run)

    assert [type(task.error) for task in group.failed] == [HubError, HubError]


def test_a_thread_of_nobody_is_no_task(engine):
    """It neither becomes one nor drives."""
    found = []

    def outside():
        found.append((engine.current_task(), engine.is_hub()))
        with pytest.raises(HubError):
            engine.wait(Handle())
        greenlet(lambda: found.append(engine.current_task())).switch()

    thread = threading.Thread(target=outside)
    thread.start()
    thread.join()

    assert found == [(None, False), None]


def test_an_engine_made_on_a_threads_stack_is_driven_there(engine):
    """That stack is its hub, as inside a greenlet: a simulation within a rank."""
    made = []

    def body():
        made.append(Engine())
        made[0].wait(made[0].timer(5))

    group = run(engine, body)

    assert made[0].hub is not engine.hub
    assert group.failed == []
    assert (made[0].now_ps, engine.now_ps) == (5, 0)


def test_a_thread_has_a_copy_of_the_contextvars_of_who_made_it(engine):
    """What it sets stays its own."""
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("the hub's")
    seen = []

    def body():
        seen.append(variable.get())
        variable.set(engine.current_task().name)
        engine.sleep(1)
        seen.append(variable.get())

    run(engine, body, body)

    assert seen == ["the hub's", "the hub's", "rank 0", "rank 1"]
    assert variable.get() == "the hub's"


def test_tasks_on_both_carriers_wait_for_one_another(engine):
    """One engine, one order."""
    log, ready = [], Handle()

    def greenlets():
        engine.wait(ready)
        log.append(("greenlet", engine.now_ps))

    def threads():
        inner = start(engine, [greenlets], "greenlet")
        engine.sleep(10)
        ready.finish(engine)
        engine.wait(inner)
        log.append(("thread", engine.now_ps))

    run(engine, threads)

    assert log == [("greenlet", 10), ("thread", 10)]


# ---- bare greenlets ----


def test_a_bare_greenlet_of_a_thread_may_not_wait_and_the_rank_goes_on(engine):
    """The hub cannot switch into it: an error by name, where it waits."""
    errors, log = [], []

    def bare():
        log.append(engine.current_task().name)
        engine.charge(5, "work")
        for wait in (lambda: engine.wait(Handle()), lambda: engine.sleep(5)):
            try:
                wait()
            except UnsupportedError as error:
                errors.append(str(error))

    def body():
        greenlet(bare).switch()
        engine.sleep(20)
        log.append(engine.now_ps)

    group = run(engine, body)

    assert log == ["rank 0", 25]
    assert not group.failed
    assert (
        errors
        == [
            "a wait inside a bare greenlet of rank 0, whose carrier is a thread\n"
            "  to fix: wait outside that greenlet, or let the ranks' carrier be a greenlet"
        ]
        * 2
    )


# ---- ends ----


def test_a_failure_aborts_the_other_threads_at_their_wait_points(engine):
    """Their `finally` blocks run, in rank order."""
    ended = []

    def waiting():
        name = engine.current_task().name
        try:
            engine.wait(Handle())
        finally:
            ended.append(name)

    def failing():
        engine.sleep(1)
        raise ValueError("root cause")

    group = run(engine, waiting, failing, waiting)

    assert ended == ["rank 0", "rank 2"]
    assert [task.rank for task in group.failed] == [1]
    assert [type(task.error) for task in group.tasks] == [RankAborted, ValueError, RankAborted]


def test_a_thread_that_has_not_started_is_not_made(engine):
    """The first to run fails at the time at which the others would start."""
    group = start(engine, [lambda: engine.wait(Handle())])
    group.abort()

    assert group.tasks[0].finished
    assert group.tasks[0].carrier.thread_id is None


class WaitingTurn:
    """One that waits for ever as the thread begins, or raises."""

    def __init__(self, engine, error=None):
        self.engine, self.error, self.begins = engine, error, True

    def enter(self):
        """Wait, or raise, the first time."""
        if self.begins:
            self.begins = False
            if self.error is not None:
                raise self.error
            self.engine.wait(Handle())

    def leave(self):
        """Do nothing."""


@pytest.mark.parametrize("error", [None, ValueError("no turn")])
def test_a_thread_that_waits_or_fails_as_its_turn_begins_ends_with_the_group(engine, error):
    """As it does anywhere else: with its own error, or aborted where it waits."""
    ran = []

    def other():
        engine.wait(engine.timer(1000))
        raise KeyError("the other")

    tasks = [Task(engine, f"rank {rank}", rank) for rank in range(2)]
    for task, body in zip(tasks, (lambda: ran.append(0), other), strict=True):
        task.carry(body, "thread")
    tasks[0].turn = WaitingTurn(engine, error)
    group = TaskGroup(engine, "the program", tasks)
    group.start()
    try:
        engine.run(group)
    finally:
        group.abort()
    assert not ran
    assert all(task.finished for task in tasks)
    expected = KeyError if error is None else ValueError
    assert [type(task.error) for task in group.failed] == [expected]


def test_a_thread_that_swallows_every_abort_is_parked_for_good():
    """It is reported, keeps its stack, and never runs again."""
    engine, swallowed, never = Engine(), [], Handle()

    def stubborn():
        while True:
            try:
                engine.wait(never)
            except BaseException as error:  # noqa: BLE001
                swallowed.append(type(error))

    def failing():
        engine.sleep(1)
        raise ValueError

    group = run(engine, stubborn, failing)
    never.finish(engine)
    engine.run()

    assert swallowed == [RankAborted] * MAX_ABORTS
    assert [task.rank for task in group.stubborn] == [0]
    assert "rank 0" in {thread.name for thread in threading.enumerate()}


PARKED = """
from simrank.engine import Engine, Handle, Task, TaskGroup
engine = Engine()
def stubborn():
    while True:
        try:
            engine.wait(Handle())
        except BaseException:
            pass
task = Task(engine, "rank 0", 0)
task.carry(stubborn, "thread")
group = TaskGroup(engine, "the program", [task])
group.start()
engine.step()
group.abort()
print("parked", task.parked)
"""


@pytest.mark.slow
def test_a_parked_thread_does_not_keep_the_process():
    """It ends as if there were none."""
    found = subprocess.run(
        [sys.executable, "-c", PARKED], capture_output=True, text=True, timeout=30, check=True
    )
    assert (found.stdout, found.stderr) == ("parked True\n", "")


def test_a_thread_is_gone_with_all_it_held_before_anybody_else_runs(engine):
    """Locals, contextvars and what is local to the thread die in a fixed order."""
    log, local = [], threading.local()

    class Held:
        """Something that tells of its end."""

    def body():
        name = engine.current_task().name
        local.held = Held()
        weakref.finalize(local.held, log.append, f"{name} is gone")
        engine.sleep(1)

    group = run(engine, body, body)
    log.append("the group has ended")

    assert log == ["rank 0 is gone", "rank 1 is gone", "the group has ended"]
    assert all(task.greenlet is None for task in group.tasks)


@pytest.mark.slow
def test_hundreds_of_threads_wait_at_the_same_time(engine):
    """As many ranks as a large job has, each with a stack."""
    ready, seen = Handle(), []

    def body():
        engine.wait(ready)
        seen.append(engine.current_task().rank)

    engine.call_at(10, lambda: ready.finish(engine))
    run(engine, *[body] * 256)

    assert seen == list(range(256))


# ---- interruptions ----


def test_ctrl_c_reaches_the_thread_that_computes(engine):
    """The main thread gets the signal; what runs is interrupted, as a greenlet is."""
    main, ended = threading.main_thread().ident, []

    def computing():
        try:
            sum(range(10**5))  # The hub sleeps by now.
            signal.pthread_kill(main, signal.SIGINT)
            for _ in range(10**8):  # Ends at once; a bound, so that a failure does not hang.
                pass
            ended.append("not interrupted")
        except KeyboardInterrupt:
            ended.append("interrupted")
            raise

    group = run(engine, lambda: engine.wait(Handle()), computing)

    assert ended == ["interrupted"]
    assert type(group.failed[0].error) is KeyboardInterrupt


def test_what_a_signal_handler_raises_is_raised_once_and_as_it_is(engine):
    """The very exception, also when it comes twice."""
    main, caught = threading.main_thread().ident, []
    made = iter([ValueError("first"), ValueError("second")])

    def handler(_number, _frame):
        raise next(made)

    def computing():
        for _ in range(2):
            try:
                sum(range(10**5))  # The hub sleeps by now.
                signal.pthread_kill(main, signal.SIGUSR1)
                for _ in range(10**8):
                    pass
            except ValueError as error:
                caught.append(str(error))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        run(engine, computing)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert caught == ["first", "second"]


def test_ctrl_c_while_a_thread_is_made_leaves_none(engine, monkeypatch):
    """Its program never runs; the task ends as one that has not started."""
    log, made = [], []
    plain = threading.Thread.start

    def interrupted(thread):
        made.append(thread)
        plain(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    group = start(engine, [lambda: log.append("ran")])
    with pytest.raises(KeyboardInterrupt):
        engine.run(group)
    group.abort()
    made[0].join()

    assert log == []
    assert not group.tasks[0].started


def test_what_comes_before_a_thread_has_run_is_raised_at_its_first_wait(engine):
    """A signal in the first instants is not lost, and kills no thread."""
    log = []

    def body():
        try:
            engine.sleep(1)
        except ValueError as error:
            log.append(str(error))

    task = Task(engine, "rank 0", 0)
    task.carry(body, "thread")
    task.carrier.start()
    raise_in(task.carrier.thread_id, type("Early", (ValueError,), {}))
    engine.enrol(task)
    engine.wake([task])
    engine.run()

    assert log == [""]
    assert task.error is None


def test_what_is_raised_in_a_thread_on_its_way_out_is_raised_where_it_waits(engine):
    """The watchdog may be that late; the turn stays where it is, and the wait is forgotten."""
    ready, caught = Handle(), []

    def waiting():
        try:
            engine.wait(ready)
        except StoppedByWatchdog:
            caught.append(engine.now_ps)
            engine.sleep(10)
            caught.append(engine.now_ps)

    group = start(engine, [waiting, lambda: engine.sleep(50)])
    engine.step()
    raise_in(group.tasks[0].carrier.thread_id, StoppedByWatchdog)
    engine.call_at(5, lambda: ready.finish(engine))
    engine.run(group)

    assert caught == [5, 15]
    assert not group.failed


def test_a_thread_that_computes_past_the_time_limit_is_stopped_there(engine):
    """The watchdog looks at the thread that has the turn, and interrupts that one."""
    dog = Watchdog(engine, None, 10.0)
    engine.observers.append(dog)
    lines = []

    def computing():
        dog.look(0.0)
        dog.look(1.0)
        lines.append(sys._getframe().f_lineno + 1)
        dog.look(11.0)
        for _ in range(10**8):
            pass

    group = run(engine, lambda: engine.wait(Handle()), computing)

    error = group.failed[0].error
    assert isinstance(error, StoppedByWatchdog)
    assert isinstance(error.limit, TimeLimitError)
    running = next(state for state in error.limit.waits if state.state == "running")
    assert (running.file, running.line) == (__file__, lines[0])


# ---- choosing ----


def test_a_carrier_that_does_not_exist_is_refused_with_the_choices():
    """Where it is chosen, not where it is used."""
    with pytest.raises(ValueError, match="carrier='process'; choices: auto, greenlet, thread"):
        check_carrier("process")


@pytest.mark.parametrize("kind", CARRIERS)
def test_a_carrier_knows_its_stack_and_its_end(engine, kind):
    """Who asks for a task's stack does not ask what holds it."""
    seen = []

    def body():
        carrier = engine.current_task().carrier
        seen.append((carrier.stack is getcurrent(), carrier.is_dead, carrier.frame))
        engine.sleep(1)

    task = Task(engine, "a task")
    task.carry(body, kind)
    engine.enrol(task)
    engine.wake([task])
    engine.step()
    assert task.carrier.frame is not None
    engine.run()

    assert seen == [(True, False, None)]
    assert task.carrier.is_dead
    task.switch()  # A dead one is not entered.


@pytest.mark.skipif(sys.platform != "linux", reason="policies of threads are Linux's")
def test_threads_wake_when_who_woke_them_sleeps(engine):
    """Their policy says so; the hub's is what it was."""
    found = []
    run(engine, lambda: found.append(os.sched_getscheduler(0)))
    assert found == [os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_policy_of_the_programs_own_stays(engine, monkeypatch):
    """And where a sandbox forbids another, threads run as they are."""
    chosen, given = [], [3, 0]

    def choose(*policy):
        chosen.append(policy)
        raise PermissionError

    monkeypatch.setattr("simrank.engine.lockstep.sys.platform", "linux")
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: given.pop(0), raising=False)
    monkeypatch.setattr(os, "sched_setscheduler", choose, raising=False)
    ran = []
    run(engine, partial(ran.append, 0), partial(ran.append, 1))
    assert ran == [0, 1]
    assert len(chosen) == 1
