"""Handles, tasks and task groups: objects that the engine completes, runs and aborts.

With them observers of the engine, and the carriers that hold a task's stack.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from greenlet import greenlet

from simrank.engine.callsite import CallSite, site_of_frame
from simrank.engine.report import peers_text
from simrank.errors import RankAborted, SimrankError
from simrank.errors.base import add_note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    from simrank.engine.interface import EngineInterface
    from simrank.engine.queue import Wakeup
    from simrank.errors import DivergencePoint

MAX_ABORTS = 16  # assumed: a program that swallows this many aborts will swallow the next too


class Reason(Protocol):
    """The reason of a task's wait, as data for reports."""

    def describe(self) -> str:
        """Return the operation in the user's words, for example `all_reduce #7 on group 'tp0'`."""

    def site(self) -> CallSite | None:
        """Return the call site of the request, or None if it is the waiting line."""


class Handle:
    """Something that completes once, at one simulated time.

    Attributes:
        complete: Whether it has happened.
        complete_ps: Simulated time of completion in picoseconds; -1 before.
        error: What every waiter gets instead of a return, or None.
        orders_threads: Whether a task that has waited for it is behind what other threads of its
            rank have called: not so of work on devices, which no thread completes.
    """

    orders_threads = True
    __slots__ = ("__weakref__", "_callbacks", "_waiters", "complete", "complete_ps", "error")

    def __init__(self) -> None:
        self.complete = False
        self.complete_ps = -1
        self.error: BaseException | None = None
        self._waiters: list[Task] | None = None
        self._callbacks: list[Callable[[], None]] | None = None

    def describe(self) -> str:
        """Return the awaited event, in the user's words."""
        return "a handle"

    def site(self) -> CallSite | None:
        """Return the call site of the request; None: the waiting line."""
        return None

    def on_complete(self, callback: Callable[[], None]) -> None:
        """Call `callback()` from the hub when this completes; at once if it already has."""
        if self.complete:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def pass_on(self, callback: Callable[[], None], later: Handle) -> None:
        """Call a callback when a later handle completes, and not when this one does."""
        callbacks = self._callbacks
        assert callbacks is not None, "it is a callback of this one"
        if len(callbacks) == 1 and later._callbacks is None:
            later._callbacks, self._callbacks = callbacks, None  # No list is made.
        else:
            callbacks.remove(callback)
            later.on_complete(callback)

    def forget(self, waiter: Task | Callable[[], None]) -> None:
        """Take back a wait or a callback, if this is not complete: its time limit passed, say."""
        lists: tuple[list[Any] | None, ...] = (self._waiters, self._callbacks)
        for listed in lists:
            if listed is not None and waiter in listed:
                listed.remove(waiter)

    def finish(self, engine: EngineInterface, error: BaseException | None = None) -> None:
        """Complete now: callbacks run first, then the waiters are queued at this time."""
        assert not self.complete, "a handle completes once"
        self.complete = True
        self.complete_ps = engine.now_ps
        self.error = error
        engine.progress += 1
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                callback()
        if self._waiters is not None:
            waiters, self._waiters = self._waiters, None
            engine.wake(waiters)


class NamedWait(Handle):
    """A wait that reports show by a name.

    Args:
        what: What completes, in the user's words.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def describe(self) -> str:
        """Return its name."""
        return self._what


# ---- Observers: without any, nothing of this is computed ----

# Given the task that raised, or None for a hang; returns the divergence of the ranks, if known.
FailureHook: TypeAlias = "Callable[[Task | None], DivergencePoint | None]"


class Observer(Protocol):
    """Sees a run and never changes it; all times are simulated picoseconds."""

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """A task is about to be resumed."""

    def on_host(self, task: Task, name: str, start_ps: int, end_ps: int) -> None:
        """A task's host was charged, or waited, from `start_ps` to `end_ps`."""

    def on_operation(self, operation: Any) -> None:  # noqa: ANN401 - operations live a layer above
        """An operation of a stream has ended."""

    def on_transfer(
        self, size_bytes: int, links: tuple[str, ...], start_ps: int, end_ps: int
    ) -> None:
        """Bytes have crossed links, which are given by name."""


class SwitchObserver:
    """Base class of observers that see only switches."""

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Note nothing."""

    def on_host(self, task: Task, name: str, start_ps: int, end_ps: int) -> None:
        """Note nothing."""

    def on_operation(self, operation: Any) -> None:  # noqa: ANN401 - as above
        """Note nothing."""

    def on_transfer(
        self, size_bytes: int, links: tuple[str, ...], start_ps: int, end_ps: int
    ) -> None:
        """Note nothing."""


# ---- Tasks and their groups ----


class Turn(Protocol):
    """Hooks at the begin and end of a task's turn, which swap process-wide state.

    A thread's only: it is called on that thread.
    """

    def enter(self) -> None:
        """The task goes on."""

    def leave(self) -> None:
        """Suspend the task until the next `enter`."""


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
        num_quiet: Blocks that it is in whose polls, reads of clocks among them, cost nothing.
        started_at: Where the program started it, if it is a thread of a rank; else None.
        is_functional: Whether it waits only here, because what it reads is not computed yet: its
            host would have gone on (rule T6).
    """

    __slots__ = (
        "__weakref__", "_body", "carrier", "children", "engine", "error", "finished", "greenlet",
        "group", "host_ps", "is_functional", "leave", "name", "num_calls_seen", "num_polls",
        "num_quiet", "parked", "rank", "started", "started_at", "switch", "thrown", "timer",
        "turn", "waiting",
    )  # fmt: skip

    def __init__(self, engine: EngineInterface, name: str, rank: int | None = None) -> None:
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
        self.num_quiet = 0
        self.turn: Turn | None = None
        self.is_functional = False
        self.num_calls_seen = 0
        self.started_at: CallSite | None = None

    def carry(self, body: Callable[[], Any], carrier: str = "greenlet") -> None:
        """Give this task a stack that runs `body` and is entered from the hub.

        Args:
            body: Its program.
            carrier: What holds the stack: "greenlet" or "thread".
        """
        self._body = body
        self.carrier = held = CARRIERS[carrier](self, self._run)
        self.greenlet = held.stack
        self.switch = held.switch
        self.leave = held.leave

    def revive(self, body: Callable[[], Any]) -> None:
        """Run another program from the next turn on: a fork has lost the thread of this task.

        Args:
            body: Waits for what this task waits for now.
        """
        self._body = body
        self.greenlet = self.waiting = None
        self.num_polls = 0
        carrier: Any = self.carrier
        carrier.revive()

    def _run(self, begin: Callable[[], object] | None = None) -> None:
        self.started = True
        try:
            if begin is not None:  # It may wait, and be aborted there.
                begin()
            self._body()
        except RankAborted as error:
            self.error = error.with_traceback(None)  # It is not read, and holds every frame.
        except BaseException as error:  # noqa: BLE001 - kept for the group, which raises it
            self.error = error
        finally:
            del self._body
            if not self.finished:  # Else it was given up, and has gone on natively.
                self.finished = True
                self.engine.retire(self)

    def site(self) -> CallSite | None:
        """Return the call site at which the user's program is suspended, or None."""
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

    def reported(self, what: str) -> str:
        """Return the report text of this task, given its activity."""
        return what

    def raise_thrown(self) -> None:
        """Raise the error that was thrown into this task's wait."""
        error, self.thrown = self.thrown, None
        assert error is not None, "another task threw it"
        self.waiting = None
        self.num_polls = 0
        raise error

    @property
    def clock_ps(self) -> int:
        """The task's host clock in picoseconds."""
        return max(self.host_ps, self.engine.now_ps)


class AdoptedTask(Task):
    """A task for a greenlet that the program made and that waits; its parent is now the hub.

    It ends without telling anybody, so the engine looks after each resume.
    """

    __slots__ = ()

    def __init__(self, engine: EngineInterface, bare: greenlet, owner: Task | None) -> None:
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
        except BaseException as error:  # noqa: BLE001 - kept for its waiter
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
    """The end of one task, as a handle to join."""

    __slots__ = ("_task",)

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._task = task

    def describe(self) -> str:
        """Return the awaited event, in the user's words."""
        return f"the end of {self._task.name}"


class TaskGroup(Handle):
    """Tasks that live and fail together: one of them raises, all of them end.

    Attributes:
        tasks: In rank order.
        numbers: Of the tasks, in reports: their places, unless some ranks do not run.
        failed: The tasks whose own exception ended the group (root causes), in order of failure.
        failed_ps: When each of them failed on its host clock, in picoseconds.
        grace_ps: How long the others may run on after the first failure.
        stubborn: Tasks that swallowed every abort and were parked.
        on_death: With it, a task that fails ends alone; called with it, from the hub.
        before_abort: Called before the tasks are ended.
        on_abort: Drops what the tasks left behind (streams, calls); called once they have ended.
    """

    __slots__ = (
        "_abortion", "_ends", "_guests", "_num_live", "aborting", "before_abort", "engine",
        "failed", "failed_ps", "grace_ps", "name", "numbers", "on_abort", "on_death", "stubborn",
        "tasks",
    )  # fmt: skip

    def __init__(self, engine: EngineInterface, name: str, tasks: Iterable[Task]) -> None:
        super().__init__()
        self.engine = engine
        self.name = name
        self.tasks = list(tasks)
        self.numbers: Sequence[int] = range(len(self.tasks))
        self.failed: list[Task] = []
        self.failed_ps: dict[Task, int] = {}
        self.grace_ps = 0
        self.stubborn: list[Task] = []
        self.aborting = False
        self.before_abort: Callable[[], None] | None = None
        self.on_abort: Callable[[], None] | None = None
        self.on_death: Callable[[Task], None] | None = None
        self._num_live = len(self.tasks)
        self._guests: dict[Task, None] = {}
        self._ends: dict[Task, Handle] = {}
        self._abortion: Wakeup | None = None
        for task in self.tasks:
            task.group = self

    def describe(self) -> str:
        """Return the awaited event, in the user's words."""
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
        """Add a greenlet that one of the tasks drives: it fails with them, and they wait for it."""
        task.group = self
        self._guests[task] = None

    @property
    def guests(self) -> list[Task]:
        """The running guests, in the order of their addition."""
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
            diverged_at = engine.report_failure(task)
            if diverged_at is not None:
                add_note(task.error, f"simrank: {diverged_at}")
            self.failed.append(task)
            self.failed_ps[task] = task.clock_ps
        is_over = self._num_live == 0 and not self._guests
        if is_over and not self.complete and not self.aborting:
            if self._abortion is None:
                self.finish(engine)
            elif self.grace_ps:  # No task needs it any more.
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
        self._note_waiting_ranks()
        if self.before_abort is not None:
            self.before_abort()
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

    def _note_waiting_ranks(self) -> None:
        """Add a note to the first failure that names the ranks that wait for its rank."""
        error = self.failed[0].error if self.failed else None
        if error is not None and not isinstance(error, SimrankError | SystemExit):
            text = peers_text(self.engine, [task.rank or 0 for task in self.failed])
            if text is not None:
                add_note(error, f"simrank: {text}")

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


# ---- Carriers: the stack of a task, a greenlet or an OS thread in lockstep ----
# Either way exactly one stack runs at a time, entered by the hub and left for the hub (rule
# E2). Greenlets are the default: a switch costs about a microsecond. A thread (`lockstep`)
# costs about five, and carries programs whose libraries keep state per native thread.


class Carrier(Protocol):
    """A stack of its own.

    Attributes:
        switch: Enters it, from the hub; returns once it was left or has ended. A dead one is not
            entered.
        leave: Goes back to the hub, from inside; returns when the hub enters again.
        stack: What `greenlet.getcurrent()` is on it; None on a thread that does not live.
        frame: The innermost frame while it is left; None while it runs, and before and after.
        is_dead: Whether its program has ended.
        has_turn: Whether it runs, on a thread of its own, while the hub's thread waits for it.
        thread_id: The thread that it runs on if that is its own, else None.
        drop: Makes one end that was never entered.
    """

    @property
    def switch(self) -> Callable[[], Any]:
        """See above."""

    @property
    def leave(self) -> Callable[[], Any]:
        """See above."""

    @property
    def drop(self) -> Callable[[], None]:
        """See above."""

    @property
    def stack(self) -> greenlet | None:
        """See above."""

    @property
    def frame(self) -> FrameType | None:
        """See above."""

    @property
    def is_dead(self) -> bool:
        """See above."""

    @property
    def has_turn(self) -> bool:
        """See above."""

    @property
    def thread_id(self) -> int | None:
        """See above."""


class GreenletCarrier:
    """A greenlet whose parent is the hub, with a copy of the maker's contextvars."""

    __slots__ = ("leave", "stack", "switch")
    has_turn = False
    thread_id = None

    def __init__(self, task: Task, run: Callable[..., None]) -> None:
        hub = task.engine.hub
        self.stack = made = greenlet(run, parent=hub)
        made.gr_context = copy_context()
        self.switch = made.switch
        self.leave = hub.switch

    @property
    def frame(self) -> FrameType | None:
        """The innermost frame while it is left."""
        return self.stack.gr_frame

    @property
    def is_dead(self) -> bool:
        """Whether it has ended."""
        return self.stack.dead

    def drop(self) -> None:
        """Do nothing: the greenlet is collected."""


class BareGreenlet(GreenletCarrier):
    """A greenlet that the program made; its parent is now the hub."""

    __slots__ = ()

    def __init__(self, bare: greenlet, hub: greenlet) -> None:
        bare.parent = hub
        self.stack = bare
        self.switch = bare.switch
        self.leave = hub.switch


# By name; `lockstep` adds its threads.
CARRIERS: dict[str, Callable[[Task, Callable[[], None]], Carrier]] = {"greenlet": GreenletCarrier}


def carrier_choices() -> tuple[str, ...]:
    """Return the names that `Context(carrier=...)` takes."""
    return ("auto", *CARRIERS)


def check_carrier(name: str) -> None:
    """Raise ValueError if there is no such carrier, and "auto" is not meant."""
    if name not in carrier_choices():
        raise ValueError(f"carrier={name!r}; choices: {', '.join(carrier_choices())}")
