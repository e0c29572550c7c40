"""Tasks and their groups: what the engine runs, resumes and aborts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from simrank.engine.callsite import CallSite, site_of_frame
from simrank.engine.carrier import CARRIERS, BareGreenlet
from simrank.engine.handle import Handle
from simrank.engine.observer import tell_of_failure
from simrank.errors import RankAborted
from simrank.errors.travel import add_note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from greenlet import greenlet

    from simrank.engine.handle import Reason
    from simrank.engine.loop import Engine
    from simrank.engine.queue import Wakeup

MAX_ABORTS = 16  # assumed: a program that swallows this many aborts will swallow the next too


class Turn(Protocol):
    """What is to happen as the turn of a task begins and ends: process-wide state is swapped.

    A thread's only: it is called on that thread.
    """

    def enter(self) -> None:
        """The task goes on."""

    def leave(self) -> None:
        """Others may run until the next `enter`."""


class Task:
    """A program with a stack of its own that the engine resumes: a rank, or a program instance.

    Its carrier holds the stack, which is reached only through `switch` (enter it, from the hub) and
    `leave` (back to the hub, from inside).

    Attributes:
        name: For reports, for example `rank 3`.
        rank: The rank it runs for, or None.
        host_ps: Where charges have moved its host clock; the clock is the later of this and now.
        waiting: What it waits for, as data; None while it runs.
        finished: Whether its program has returned or raised.
        error: What its program raised, or None.
        thrown: What its wait point raises when it is resumed next, or None.
        timer: What wakes it, where it sleeps or polls.
        group: The group it belongs to, or None.
        carrier: What holds its stack.
        greenlet: What `getcurrent()` is on that stack; None on a thread that does not live.
        turn: What follows its turns, or None.
        num_calls_seen: Calls of threads that it is behind; see `Engine.num_thread_calls`.
        started_at: Where the program started it, if it is a thread of a rank; else None.
        is_functional: Whether it waits only here, because what it reads is not computed yet: its
            host would have gone on (rule T6).
    """

    __slots__ = (
        "__weakref__", "_body", "carrier", "children", "engine", "error", "finished", "greenlet",
        "group", "host_ps", "is_functional", "leave", "name", "num_calls_seen", "num_polls",
        "parked", "rank", "started", "started_at", "switch", "thrown", "timer", "turn", "waiting",
    )  # fmt: skip

    def __init__(self, engine: Engine, name: str, rank: int | None = None) -> None:
        self.engine = engine
        self.name = name
        self.rank = rank
        self.host_ps = engine.now_ps
        self.waiting: Reason | None = None
        self.started = False
        self.finished = False
        self.parked = False
        self.error: BaseException | None = None
        self.thrown: BaseException | None = None
        self.timer: Wakeup | None = None
        self.group: TaskGroup | None = None
        self.children: list[TaskGroup] | None = None
        self.num_polls = 0
        self.turn: Turn | None = None
        self.is_functional = False
        self.num_calls_seen = 0
        self.started_at: CallSite | None = None

    def carry(self, body: Callable[[], Any], carrier: str = "greenlet") -> None:
        """Give this task a stack that runs `body`, entered from the hub whoever asks.

        Args:
            body: Its program.
            carrier: What holds the stack: "greenlet" or "thread".
        """
        self._body = body
        self.carrier = held = CARRIERS[carrier](self, self._run)
        self.greenlet = held.stack
        self.switch = held.switch
        self.leave = held.leave

    def _run(self, begin: Callable[[], object] | None = None) -> None:
        self.started = True
        try:
            if begin is not None:  # It may wait, and be aborted there.
                begin()
            self._body()
        except RankAborted as error:
            self.error = error.with_traceback(None)  # Nobody reads it, and it holds every frame.
        except BaseException as error:  # noqa: BLE001 - kept for the group, which raises it
            self.error = error
        finally:
            del self._body
            if not self.finished:  # Else it was given up, and has gone on natively.
                self.finished = True
                self.engine.retire(self)

    def site(self) -> CallSite | None:
        """Return where the user's program is suspended, or None."""
        return site_of_frame(self.carrier.frame)

    @property
    def main(self) -> Task:
        """The main task of the process that this task is of; a rank's thread overrides it."""
        return self

    def exit_with(self, status: int) -> None:
        """Set the outcome of a process that ends at once, with an exit status."""
        self.error = SystemExit(status) if status else None

    def note_exit(self) -> None:
        """Notify the joiners of a task that ended at once; a rank's thread overrides it."""

    def told(self, what: str) -> str:
        """Return what a report says of it, given what it does."""
        return what

    def raise_thrown(self) -> None:
        """Raise in this task what was thrown into its wait."""
        error, self.thrown = self.thrown, None
        assert error is not None, "somebody threw it"
        self.waiting = None
        self.num_polls = 0
        raise error

    @property
    def clock_ps(self) -> int:
        """The task's host clock in picoseconds."""
        return max(self.host_ps, self.engine.now_ps)


class AdoptedTask(Task):
    """A bare greenlet that somebody else made and that waits; from now on its parent is the hub.

    It ends without telling anybody, so the engine looks after each resume.
    """

    __slots__ = ()

    def __init__(self, engine: Engine, bare: greenlet, owner: Task | None) -> None:
        rank = None if owner is None else owner.rank
        super().__init__(engine, "a bare greenlet", rank)
        self.carrier = held = BareGreenlet(bare, engine.hub)
        self.greenlet = bare
        self.leave = held.leave
        self.started = True

    def switch(self) -> None:
        """Enter it, and see whether it ended."""
        try:
            self.carrier.switch()
        except BaseException as error:  # noqa: BLE001 - kept for whoever answers for it
            self.error = error
        self.retire_if_dead()

    def retire_if_dead(self) -> None:
        """Note its end, for which it has no code of its own."""
        if self.carrier.is_dead and not self.finished:
            self.finished = True
            self.engine.retire(self)


def _is_own(error: BaseException) -> bool:
    """Return whether an error is the task's own affair, and not the user's wish to stop."""
    return not isinstance(error, KeyboardInterrupt)


class TaskEnd(Handle):
    """The end of one task, for whoever joins it."""

    __slots__ = ("_task",)

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._task = task

    def describe(self) -> str:
        """Return what completes, in the user's words."""
        return f"the end of {self._task.name}"


class TaskGroup(Handle):
    """Tasks that live and fail together: one of them raises, all of them end.

    Attributes:
        tasks: In rank order.
        failed: The tasks whose own exception ended the group (root causes), in order of failure.
        failed_ps: When each of them failed on its host clock, in picoseconds.
        grace_ps: How long the others may run on after the first failure.
        stubborn: Tasks that swallowed every abort and were parked.
        on_death: With it, a task that fails ends alone; called with it, from the hub.
        on_abort: Drops what the tasks left behind (streams, calls); called once they have ended.
    """

    __slots__ = (
        "_abortion", "_ends", "_guests", "_num_live", "aborting", "engine", "failed", "failed_ps",
        "grace_ps", "name", "on_abort", "on_death", "stubborn", "tasks",
    )  # fmt: skip

    def __init__(self, engine: Engine, name: str, tasks: Iterable[Task]) -> None:
        super().__init__()
        self.engine = engine
        self.name = name
        self.tasks = list(tasks)
        self.failed: list[Task] = []
        self.failed_ps: dict[Task, int] = {}
        self.grace_ps = 0
        self.stubborn: list[Task] = []
        self.aborting = False
        self.on_abort: Callable[[], None] | None = None
        self.on_death: Callable[[Task], None] | None = None
        self._num_live = len(self.tasks)
        self._guests: dict[Task, None] = {}
        self._ends: dict[Task, Handle] = {}
        self._abortion: Wakeup | None = None
        for task in self.tasks:
            task.group = self

    def describe(self) -> str:
        """Return what completes, in the user's words."""
        return f"the end of {self.name}"

    def start(self) -> None:
        """Queue every task at this time, in rank order, as one wakeup."""
        if not self.tasks:
            self.finish(self.engine)
            return
        parent = self.engine.current_task()
        if parent is not None:
            parent.children = [g for g in parent.children or () if not g.complete] + [self]
            for task in self.tasks:
                task.host_ps = parent.clock_ps
        for task in self.tasks:
            self.engine.enrol(task)
        self.engine.wake(self.tasks)

    def add_guest(self, task: Task) -> None:
        """Let a greenlet that one of the tasks drives fail with them; they end when it has."""
        task.group = self
        self._guests[task] = None

    @property
    def guests(self) -> list[Task]:
        """Those that run, in the order they came."""
        return list(self._guests)

    def task_ended(self, task: Task) -> None:
        """Count a task that returned, raised or was parked; a first failure aborts the rest."""
        is_guest = task in self._guests
        if is_guest:
            del self._guests[task]
        else:
            self._num_live -= 1
        engine = self.engine
        if task in self._ends:
            self._ends.pop(task).finish(engine)
        if task.error is not None and not self.aborting:
            if self.on_death is not None and not is_guest and _is_own(task.error):
                engine.call_at(engine.now_ps, partial(self.on_death, task))
            # Ranks due at this same time still run: several root causes are all reported.
            elif self._abortion is None:
                self._abortion = engine.call_at(engine.now_ps + self.grace_ps, self.abort)
            parting = tell_of_failure(engine, task)
            if parting is not None:
                add_note(task.error, f"simrank: {parting}")
            self.failed.append(task)
            self.failed_ps[task] = task.clock_ps
        is_over = self._num_live == 0 and not self._guests
        if is_over and not self.complete and not self.aborting:
            if self._abortion is None:
                self.finish(engine)
            elif self.grace_ps:  # Nobody is left who needs it.
                engine.cancel(self._abortion)
                engine.call_at(engine.now_ps, self.abort)

    def end_of(self, task: Task) -> Handle:
        """Return the handle of the end of one of the tasks, which still runs."""
        return self._ends.setdefault(task, TaskEnd(task))

    def abort(self) -> None:
        """End every task that still runs with `RankAborted`, in rank order, and wait for that."""
        if self.complete or self.aborting:
            return
        if self.engine.current_task() is not None:  # Only the hub resumes tasks.
            self.engine.call_at(self.engine.now_ps, self.abort)
            self.engine.wait(self)
            return
        self.aborting = True
        for task in self.tasks:
            if not task.finished:
                self._abort_task(task)
        while self._guests:  # A task on its way out may have made new ones.
            self._abort_task(next(iter(self._guests)))
        self.engine.forget_finished()
        if self.on_abort is not None:
            self.on_abort()
        self.finish(self.engine)

    def end_guest(self, task: Task) -> None:
        """End a guest alone, from the hub, as `abort` ends all."""
        if not task.finished:
            self._abort_task(task)
        self.engine.unqueue(task)

    def _abort_task(self, task: Task) -> None:
        for group in task.children or ():
            group.abort()
        if not task.started:
            task.finished = True
            task.carrier.drop()
            self.engine.retire(task)
            return
        for _ in range(MAX_ABORTS):
            task.thrown = RankAborted(task.rank)
            self.engine.resume(task)
            if task.finished:
                return
        task.parked = True
        self.stubborn.append(task)
        self.engine.park(task)
