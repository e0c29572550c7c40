"""Time limits, polls and sleeps: waits that do not keep the simulation alive (rules E5, E8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.engine.report import livelock_error, waiting_report
from simrank.errors import WaitTimeoutError

if TYPE_CHECKING:
    from simrank.engine.handle import Handle
    from simrank.engine.loop import Engine
    from simrank.engine.task import Task

POLL_PS = 100_000  # assumed: a negative query costs a host about 100 ns
MAX_POLL_PS = 1_000_000_000  # assumed: doubling ends at 1 ms, so that long polls stay cheap to run

# How often every polling task may come back without any change before it is called a livelock.
# Assumed: a program that counts its polls stops well before 1,000; one that sleeps towards a
# deadline of its own may take many more rounds, and must not be accused.
POLL_ROUNDS = 1_000
SLEEP_ROUNDS = 50_000


class PollReason:
    """What a task polls, or that it sleeps.

    Attributes:
        what: In the user's words, for example `is_completed of all_reduce #7`.
        is_sleep: Whether only time can end it.
    """

    __slots__ = ("is_sleep", "what")

    def __init__(self, what: str, *, is_sleep: bool = False) -> None:
        self.what = what
        self.is_sleep = is_sleep

    def describe(self) -> str:
        """Return what is polled."""
        return self.what

    def site(self) -> None:
        """Return None: the waiting line says where."""
        return


def wait_with_limit(engine: Engine, task: Task, handle: Handle, timeout_ps: int) -> None:
    """Wait for `handle`, or raise `WaitTimeoutError` once `timeout_ps` have passed.

    The error carries the report of who waits for whom as a note if by then nothing else could
    have completed the wait.
    """
    start_ps = task.clock_ps

    def expire() -> None:
        if handle.complete or task.finished:
            return
        error = WaitTimeoutError(engine.now_ps, task.rank, handle.describe(), timeout_ps)
        if engine.idle:
            error.add_note(waiting_report(engine))
        if handle._waiters is not None:  # noqa: SLF001 - the two halves of one mechanism
            handle._waiters.remove(task)  # noqa: SLF001
        task.thrown = error
        engine.resume(task)

    limit = engine.call_at(start_ps + timeout_ps, expire, weak=True)
    engine.livelock.num_limits += 1
    try:
        engine._park_on(handle, task)  # noqa: SLF001
    finally:
        engine.livelock.num_limits -= 1
        if engine.now_ps < start_ps + timeout_ps:
            engine.cancel(limit)


def poll(engine: Engine, what: str) -> None:
    """Charge a negative poll of the current task and yield (E8).

    The first costs 100 ns; each further one twice the last, to 1 ms, while the task does nothing
    else. On the hub it runs the engine's next wakeup.
    """
    task = engine.current_task()
    if task is None:
        if not engine.idle:
            engine.step()
        return
    num_polls = task.num_polls
    cost_ps = min(POLL_PS << min(num_polls, 20), MAX_POLL_PS)
    engine.sleep_weakly(task, task.clock_ps + cost_ps, PollReason(what))
    task.num_polls = num_polls + 1


def host_sleep(engine: Engine, task: Task, delay_ps: int, what: str) -> None:
    """Sleep as a program does that watches something: it may go on for ever, and be reported."""
    engine.sleep_weakly(task, task.clock_ps + delay_ps, PollReason(what, is_sleep=True))


class LivelockDetector:
    """Counts rounds of polls and sleeps that change nothing.

    Attributes:
        num_limits: Explicit time limits that are pending; while there is one, time may help.
    """

    def __init__(self, engine: Engine) -> None:
        self.num_limits = 0
        self._engine = engine
        self._progress = -1
        self._num_resumed = 0

    def check(self) -> None:
        """Look at a poll or sleep that is due.

        Raises:
            LivelockError: Only polls and sleeps remain, and too many rounds changed nothing.
        """
        engine = self._engine
        if not engine.idle or engine.progress != self._progress:
            self._progress = engine.progress
            self._num_resumed = 0
            return
        self._num_resumed += 1
        if self._num_resumed < POLL_ROUNDS or self.num_limits:
            return
        polling = [t.waiting for t in engine.tasks if isinstance(t.waiting, PollReason)]
        rounds = SLEEP_ROUNDS if any(reason.is_sleep for reason in polling) else POLL_ROUNDS
        if self._num_resumed > rounds * max(1, len(polling)):
            self._num_resumed = 0
            raise livelock_error(engine)
