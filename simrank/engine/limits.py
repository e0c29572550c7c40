"""Time limits, polls and sleeps: waits that do not keep the simulation alive (rules E5, E8)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from simrank.engine.callsite import is_importing, user_site
from simrank.engine.choices import Act
from simrank.engine.collector import is_looking
from simrank.engine.delays import SHARED, WAKE
from simrank.engine.queue import HORIZON_PS
from simrank.engine.report import deadlock_error, livelock_error, waiting_report
from simrank.engine.task import Handle
from simrank.errors import WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from simrank.engine.interface import EngineInterface
    from simrank.engine.task import Task

_POLLS_IN_IMPORT = 64  # Assumed: a module that asks more often while it loads waits for something.
_LOOKS_OF_SPIN = 64  # Assumed: a task that reads the clock as often in a row polls.
POLL_PS = 100_000  # assumed: a negative query costs a host about 100 ns
MAX_POLL_PS = 1_000_000_000  # assumed: doubling ends at 1 ms, so that long polls stay cheap to run

# How often every polling task may come back without any change before it is called a livelock.
# Assumed: a program that counts its polls stops well before 1,000; one that counts its sleeps
# before 50,000, and one that takes a lock for nothing before 10,000,000. One that reads the clock
# may well have a deadline of its own: it is accused only after an hour of simulated time, twice the
# longest default timeout of torch.distributed.
POLL_ROUNDS = 1_000
SLEEP_ROUNDS = 50_000
LOCK_ROUNDS = 10_000
CLOCK_PS = 3600 * 10**12


class PollReason:
    """The reason of a poll or a sleep.

    Attributes:
        what: In the user's words, for example `is_completed of all_reduce #7`.
        rounds: How often it may come back without any change.
    """

    __slots__ = ("rounds", "what")

    def __init__(self, what: str, rounds: int = POLL_ROUNDS) -> None:
        self.what = what
        self.rounds = rounds

    def describe(self) -> str:
        """Return the polled object, in the user's words."""
        return self.what

    def site(self) -> None:
        """Return None: the waiting line says where."""
        return


class _Sleeping:
    """The reason of a plain sleep; one object serves every task."""

    __slots__ = ()

    def describe(self) -> str:
        return "a sleep"

    def site(self) -> None:
        return None


SLEEPING = _Sleeping()


def wait_with_limit(
    engine: EngineInterface, task: Task | None, handle: Handle, timeout_ps: int
) -> None:
    """Wait for `handle`, or raise `WaitTimeoutError` once `timeout_ps` have passed.

    The error carries the deadlock report as a note if by then nothing else could
    have completed the wait.
    """
    if task is None:
        if not engine.wait_at_most(handle, timeout_ps):
            raise _timeout_error(engine, None, handle, timeout_ps)
        return
    if engine.choices is not None:
        if not engine.choices.limit(task, handle, timeout_ps):
            raise _timeout_error(engine, task.rank, handle, timeout_ps)
        return

    def expire() -> None:
        if not handle.complete and not task.finished:
            task.thrown = _timeout_error(engine, task.rank, handle, timeout_ps)
            engine.resume(task)

    limit = engine.call_at(min(task.clock_ps + timeout_ps, HORIZON_PS), expire, weak=True)
    engine.livelock.num_limits += 1
    try:
        engine.park_on(handle, task)
    finally:
        engine.livelock.num_limits -= 1
        engine.cancel(limit)


def watch(
    engine: EngineInterface, handle: Handle, timeout_ps: int, raised: Callable[[], Exception]
) -> None:
    """Throw into the current task, wherever it is by then, if `handle` is late: a watchdog.

    Args:
        engine: The engine.
        handle: What should be complete in time.
        timeout_ps: How long it may take from now on.
        raised: Makes what is thrown.
    """
    task = engine.current_task()
    if task is None or engine.choices is not None:
        return

    def expire() -> None:
        if handle.complete or task.finished:
            return
        task.thrown = error = raised()
        if engine.idle:
            error.add_note(waiting_report(engine))
        engine.resume(task)

    alarm = engine.call_at(min(task.clock_ps + timeout_ps, HORIZON_PS), expire, weak=True)
    handle.on_complete(lambda: engine.cancel(alarm))


def _timeout_error(
    engine: EngineInterface, rank: int | None, handle: Handle, timeout_ps: int
) -> WaitTimeoutError:
    error = WaitTimeoutError(engine.now_ps, rank, handle.describe(), timeout_ps)
    if engine.idle:
        error.add_note(waiting_report(engine))
    return error


def wait_at_most(engine: EngineInterface, handle: Handle, timeout_ps: int) -> None:
    """Wait until `handle` completes or `timeout_ps` have passed, whichever is first."""
    either = Handle()
    task = engine.current_task()
    clock_ps = engine.now_ps if task is None else task.clock_ps

    def decide() -> None:
        if not either.complete:
            either.finish(engine)

    handle.on_complete(decide)
    limit = engine.call_at(min(clock_ps + timeout_ps, HORIZON_PS), decide, weak=True)
    engine.livelock.num_limits += 1
    try:
        engine.wait(either)
    finally:
        engine.livelock.num_limits -= 1
        engine.cancel(limit)
        handle.forget(decide)


def poll(
    engine: EngineInterface, what: str, *, reads_clock: bool = False, rounds: int = POLL_ROUNDS
) -> None:
    """Charge a negative poll of the current task and yield (E8).

    The first costs 100 ns; each further one twice the last, to 1 ms, while the task does nothing
    else. On the hub it runs the engine's next wakeup. In the midst of an import it does not yield:
    another task that imports the same module would get half of it. What the garbage collector
    calls polls for nothing.

    Args:
        engine: The engine.
        what: In the user's words, for reports.
        reads_clock: Whether time itself may be what the program watches.
        rounds: How often it may come back without any change.

    Raises:
        DeadlockError: The hub polls again and again, and nothing can ever happen.
    """
    if is_looking():
        return
    task = engine.current_task()
    if task is None:
        engine.livelock.poll_on_hub(what)
        return
    if task.num_quiet:
        return
    if engine.choices is not None:
        engine.choices.undeclared(task, what)
        return
    if reads_clock:
        engine.livelock.reads_clock = True
    num_polls = task.num_polls
    cost_ps = min(POLL_PS << min(num_polls, 20), MAX_POLL_PS)
    if num_polls < _POLLS_IN_IMPORT and is_importing():
        task.host_ps = task.clock_ps + cost_ps
    else:
        sleep_weakly(engine, task, task.clock_ps + cost_ps, PollReason(what, rounds))
    task.num_polls = num_polls + 1
    if not reads_clock or num_polls >= _LOOKS_OF_SPIN:
        task.num_calls_seen = engine.num_thread_calls  # It may have watched for them.


def host_sleep(engine: EngineInterface, task: Task, delay_ps: int, what: str) -> None:
    """Sleep as a polling program does: it may go on forever, and be reported.

    What the garbage collector calls spends the time without yielding.
    """
    if is_looking():
        task.host_ps = task.clock_ps + delay_ps
        return
    if engine.choices is not None:
        engine.choices.sleep(task, delay_ps)
        return
    sleep_weakly(engine, task, task.clock_ps + delay_ps, PollReason(what, SLEEP_ROUNDS))
    task.num_calls_seen = engine.num_thread_calls  # As after a poll.


def sleep_weakly(engine: EngineInterface, task: Task, due_ps: int, reason: PollReason) -> None:
    """Suspend a polling or sleeping task until `due_ps`; it does not keep the run alive (E8)."""
    if engine.delays is not None:
        due_ps += engine.delays.draw(WAKE, task.rank, user_site)
    _sleep_until(engine, task, due_ps, reason)


def ask(
    engine: EngineInterface,
    what: str,
    is_true: Callable[[], bool] | None,
    is_known: Callable[[], bool] = lambda: False,
    about: object = None,
) -> bool:
    """Answer a poll for something that has happened or not; a negative answer is charged (E8).

    Args:
        engine: The engine.
        what: In the user's words.
        is_true: Whether it has happened; None: it never does.
        is_known: Whether the caller has waited for it, or for what comes after it.
        about: The object that is polled.
    """
    choices = engine.choices
    if choices is not None and (task := engine.current_task()) is not None and not task.num_quiet:
        return choices.ask(task, what, is_true, is_known, about)
    if is_true is None or not is_true():
        poll(engine, what)
    return is_true is not None and is_true()


def pass_over(engine: EngineInterface | None, what: str) -> None:
    """Name to a search of every timing what it does not follow, at the program's line."""
    if engine is not None and engine.choices is not None:
        engine.choices.pass_over(what)


def reach(  # noqa: PLR0913 - the facts that two kinds of search need
    task: Task,
    kind: str,
    key: Hashable = None,
    owner: object = None,
    *,
    act: Act = Act.UPDATE,
    is_ready: Callable[[], bool] | None = None,
    is_vain: Callable[[], bool] | None = None,
    state: Callable[[], Hashable] | None = None,
    given: Hashable = None,
    asked: Hashable = None,
) -> None:
    """Delay a rank's call on what ranks share, or choose its turn, in a search of orders.

    A call is delayed as a whole, so that what is atomic stays so. The collector's calls, and those
    of a task that may not yield, are on time.

    Args:
        task: The caller.
        kind: Of the shared object, in the plural, for reports.
        key: As in `Orders.note`; None: the turn is not noted.
        owner: Likewise.
        act: As in `Choices.reach`.
        is_ready: Likewise.
        is_vain: Likewise.
        state: Likewise.
        given: Likewise.
        asked: Likewise.
    """
    engine = task.engine
    delays = engine.delays
    if task.num_quiet or is_looking():
        return
    if engine.choices is not None:
        if key is not None and not is_importing():
            engine.choices.reach(
                task, kind, key, act, is_ready=is_ready, is_vain=is_vain, state=state,
                given=given, asked=asked, owner=owner,
            )  # fmt: skip
        return
    if delays is None:
        return
    late_ps = delays.draw(SHARED, task.rank, user_site)
    if late_ps and not is_importing():
        _sleep_until(engine, task, task.clock_ps + late_ps, _LATE)
    if key is not None:
        caller = task.rank, task.name.translate(_NO_DIGITS)  # Threads are numbered over all runs.
        delays.orders.note(kind, key, caller, owner)


_NO_DIGITS = str.maketrans("", "", "0123456789")
_LATE = PollReason("an injected delay", SLEEP_ROUNDS)


def _sleep_until(engine: EngineInterface, task: Task, due_ps: int, reason: PollReason) -> None:
    wakeup = task.timer = engine.call_at(due_ps, partial(engine.resume, task), weak=True)
    start_ps = engine.now_ps
    while wakeup.queued and task.thrown is None:
        task.waiting = reason
        task.leave()
    task.waiting = task.timer = None
    if task.thrown is not None:
        engine.cancel(wakeup)
        task.raise_thrown()
    if engine.observers:
        engine.report_wait(task, reason.describe(), start_ps)


def give_up(task: Task) -> None:
    """Cancel the wakeups of a task that never runs again."""
    task.engine.unqueue(task)
    if task.timer is not None:
        task.engine.cancel(task.timer)


class LivelockDetector:
    """Counts rounds of polls and sleeps that change nothing.

    Attributes:
        num_limits: Explicit time limits that are pending; while there is one, time may help.
        reads_clock: Whether a task has read the clock since something changed.
    """

    def __init__(self, engine: EngineInterface) -> None:
        self.num_limits = 0
        self.reads_clock = False
        self._engine = engine
        self._progress = -1
        self._since_ps = 0
        self._num_resumed = 0
        self._num_vain = 0

    def check(self) -> None:
        """Look at a poll or sleep that is due.

        Raises:
            LivelockError: Only polls and sleeps remain, and too many rounds changed nothing.
        """
        engine = self._engine
        if not engine.idle or engine.progress != self._progress:
            self._start_over()
            return
        self._num_resumed += 1
        if self._num_resumed < POLL_ROUNDS or self.num_limits:
            return
        if self.reads_clock and engine.now_ps < self._since_ps + CLOCK_PS:
            return
        polling = [t.waiting for t in engine.tasks if isinstance(t.waiting, PollReason)]
        rounds = max((reason.rounds for reason in polling), default=POLL_ROUNDS)
        if self.reads_clock:
            rounds = max(rounds, SLEEP_ROUNDS)
        if self._num_resumed > rounds * max(1, len(polling)):
            self._start_over()
            raise livelock_error(engine)

    def poll_on_hub(self, what: str) -> None:
        """Run the engine's next step for a poll of the main program.

        Raises:
            DeadlockError: It is missing, and the main program has asked many times.
        """
        engine = self._engine
        self._num_vain += 1
        if not engine.is_empty:
            self._num_vain = 0
            engine.step()
        elif self._num_vain > POLL_ROUNDS:
            self._num_vain = 0
            raise deadlock_error(engine, what)

    def _start_over(self) -> None:
        self._progress = self._engine.progress
        self._since_ps = self._engine.now_ps
        self._num_resumed = 0
        self.reads_clock = False
