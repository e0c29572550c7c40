"""The engine: a queue of wakeups, and tasks that wait. Read `Engine.run` first.

Only the hub (the main greenlet) runs it. A task that waits says what for, goes back to the hub,
and is resumed at the simulated time when *that* is complete.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from simrank.engine import interrupts, limits
from simrank.engine import queue as entries
from simrank.engine.bare_greenlets import Adoption, driving, hub_here
from simrank.engine.callsite import user_site
from simrank.engine.collector import calm_collector
from simrank.engine.delays import HOST, WAKE
from simrank.engine.limits import SLEEPING
from simrank.engine.lockstep import Turns
from simrank.engine.queue import HORIZON_PS, Wakeup
from simrank.engine.report import deadlock_error
from simrank.engine.task import Handle, Task
from simrank.errors import HubError, TimeOverflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from greenlet import greenlet

    from simrank.engine.delays import Delays
    from simrank.engine.interface import Choices
    from simrank.engine.queue import Firing
    from simrank.engine.report import Explanation, PendingOperation
    from simrank.engine.task import FailureHook, Observer
    from simrank.errors import DivergencePoint

_NEVER = Handle()
_REFUSED_TO_END: list[Task] = []
_MAX_CANCELLED = 256  # assumed: below it void entries cost less than removing them


class Engine:
    """Runs tasks in simulated time; a run is a pure function of programs, configs and seed.

    Args:
        seed: Permutes wakeups that are due at the same time; 0 keeps queueing order.
        delays: Injected delays; its seed then permutes.
        choices: What decides in place of simulated time, in one run of a search.

    Attributes:
        now_ps: Simulated time in picoseconds.
        hub: The greenlet that drives; parent of every task.
        observers: See `Observer`; an empty list costs nothing.
        progress: Grows whenever something happens that a poll could see.
        pending: Operations in flight that wait for ranks, for the deadlock report.
        tasks: Tasks that have not ended.
        notes: What reports of a deadlock also say, in order.
        remarks: What the summary of a run also says, in order.
        told: What the last report of a deadlock was about.
        turns: The task on a thread that has the turn.
        on_failure: Told of every hang and of every task that raises; see `report_failure`.
        on_hub: Called as the main program goes on after a join: it gets its own state back.
        has_threads: Whether a rank has started a thread, or a process, which is one here.
        shares_variables: Whether a rank has started a thread.
        num_thread_calls: Collectives that were called since.
        explain_hang: Returns likely causes for the report of a hang and a note, or None.
    """

    def __init__(
        self, *, seed: int = 0, delays: Delays | None = None, choices: Choices | None = None
    ) -> None:
        self.now_ps = 0
        self.seed = seed
        self.delays = delays
        self.choices = choices
        self.sees_shared = delays is not None or choices is not None
        self.observers: list[Observer] = []
        self.progress = 0
        self.pending: dict[PendingOperation, None] = {}
        self.tasks: dict[Task, None] = {}
        self.notes: dict[str, None] = {}
        self.remarks: dict[str, None] = {}
        self.reported: set[Task | PendingOperation] = set()
        self.hub = hub_here()
        self.livelock = limits.LivelockDetector(self)
        self._queue: list[tuple[int, int, Task | Wakeup | Firing]] = []
        self._next_key = entries.tie_keys(seed if delays is None else delays.seed)
        self._num_weak = 0
        self._num_cancelled = 0
        self._num_looks = 0
        self._current: Task | None = None
        self._by_greenlet: dict[greenlet | None, Task] = {}
        self._held_wakes: list[Task] | None = None
        self._adoption = Adoption(self)
        self.turns = Turns(self)
        self.on_failure: list[FailureHook] = []
        self.on_hub: list[Callable[[], None]] = []
        self.has_threads = self.shares_variables = False
        self.num_thread_calls = 0
        self.explain_hang: Callable[[], Explanation] | None = None

    # ---- the loop ----

    def step(self) -> None:
        """Move the clock to the earliest wakeup and run it: resume its task, or make its call.

        Wakeups due at the same time run in the order they were queued (or as the seed permutes
        them). Only this and `run` move the clock.

        Raises:
            HubError: Called from a task.
            DeadlockError: Nothing strong is queued, so what is unfinished can never complete.
        """
        if getcurrent() is not self.hub:
            raise HubError
        while self._queue:
            time_ps, _, entry = heappop(self._queue)
            is_void = type(entry) is Wakeup and entry.cancelled
            self._fire(time_ps, entry)
            if not is_void:
                return
        if self.unfinished:
            raise deadlock_error(self, None)

    def run(self, until: Handle | None = None) -> None:
        """Drive until `until` completes, or until nothing is queued.

        Raises:
            HubError: Called from a task.
            DeadlockError: Something unfinished can never complete.
        """
        with calm_collector(len(self.tasks), is_calm=not self.turns.has_threads), loop_set_aside():
            self._drive(_NEVER if until is None else until)
            while self.choices is not None and not (until is not None and until.complete):
                if not self.choices.at_rest():
                    break
                self._drive(_NEVER if until is None else until)
        if (until is not None and not until.complete) or (until is None and self.unfinished):
            raise deadlock_error(self, None if until is None else until.describe())

    def _drive(self, until: Handle) -> None:
        """Run wakeups until `until` completes or the queue is empty; every line here counts."""
        if getcurrent() is not self.hub:
            raise HubError
        queue = self._queue
        observers = self.observers
        driving.append(self)
        try:
            # Python 3.11 specialises a loop in the midst of a call only if it ends in a plain jump.
            while True:
                if not queue or until.complete:
                    break
                time_ps, _, entry = heappop(queue)
                if type(entry) is Task:
                    self.now_ps = time_ps
                    self._current = entry
                    if observers:
                        self._report_switch(entry)
                    switch = entry.switch  # Two steps: Python 3.11 calls a slot slowly in one.
                    switch()
                    if entry.waiting is None and not entry.finished:
                        self._adoption.take_back(entry)
                else:
                    self._current = None
                    self._fire(time_ps, entry)
        finally:
            self._current = None
            driving.remove(self)

    def _fire(self, time_ps: int, entry: Task | Wakeup | Firing) -> None:
        if isinstance(entry, Task):
            self.now_ps = time_ps
            self.resume(entry)
        elif not isinstance(entry, Wakeup):
            self.now_ps = time_ps
            entry.fire()
        elif entry.cancelled:  # The clock does not move to it.
            self._num_cancelled -= 1
            interrupts.raise_due(self)
        else:
            entry.queued = False
            self._num_weak -= entry.weak
            if entry.lapses and all(entries.is_void(other) for _, _, other in self._queue):
                return
            self.now_ps = time_ps
            if entry.weak:
                self.livelock.check()
            entry.fire()

    @property
    def idle(self) -> bool:
        """Whether nothing strong is queued."""
        return len(self._queue) == self._num_weak + self._num_cancelled

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is queued."""
        return len(self._queue) == self._num_cancelled

    @property
    def unfinished(self) -> bool:
        """Whether a task, an operation that waits for ranks, or work in flight has not ended."""
        if self._adoption.adopted:
            self._adoption.retire_dead()
        return bool(self.tasks or self.pending)

    @property
    def is_driving(self) -> bool:
        """Whether the hub is in this engine's loop."""
        return self in driving

    # ---- waiting ----

    def is_hub(self) -> bool:
        """Return whether the caller is the hub."""
        return getcurrent() is self.hub

    def current_task(self) -> Task | None:
        """Return the task that runs now; None on the hub. A bare greenlet is adopted."""
        task = self._current
        me = getcurrent()
        if task is not None and task.greenlet is me:
            return task
        if me is self.hub:
            return None
        return self._by_greenlet.get(me) or self._adoption.task_of(me)

    @property
    def running(self) -> Task | None:
        """The task that the hub entered last; None while the hub itself runs."""
        return self._current

    def note_running(self, task: Task) -> None:
        """Note that a task has got the turn without the hub; see `Turns`."""
        self._current = task

    def task_on(self, stack: greenlet) -> Task | None:
        """Return the task that a greenlet carries, or None."""
        return self._by_greenlet.get(stack)

    def wait(self, handle: Handle, timeout_ps: int | None = None) -> None:
        """Return when `handle` is complete: at once if it is, else a task goes to the hub.

        On the hub it drives the engine. A task's host clock never runs behind: it resumes at the
        later of completion and its own clock.

        Raises:
            WaitTimeoutError: `timeout_ps` passed first.
            DeadlockError: On the hub only: nothing can complete it.
        """
        if not handle.complete or (timeout_ps is not None and self.choices is not None):
            task = self._current
            if task is None or task.greenlet is not getcurrent():
                task = self.current_task()
            if timeout_ps is None and task is not None:
                self.park_on(handle, task)
            elif timeout_ps is not None:
                limits.wait_with_limit(self, task, handle, timeout_ps)
            else:
                self.run(handle)
        if handle.error is not None:
            raise handle.error

    def wait_at_most(self, handle: Handle, timeout_ps: int) -> bool:
        """Wait until `handle` completes or `timeout_ps` have passed; return whether it has.

        For waits whose caller goes on either way (a join): nothing is raised.
        """
        if self.choices is not None and (task := self.current_task()) is not None:
            return self.choices.limit(task, handle, timeout_ps)
        if not handle.complete:
            limits.wait_at_most(self, handle, timeout_ps)
        return handle.complete

    def park_on(self, handle: Handle, task: Task) -> None:
        """Leave the current task for the hub until `handle` completes, or an error is thrown."""
        waiters = handle._waiters  # noqa: SLF001 - a call more per wait shows
        if waiters is None:
            handle._waiters = [task]  # noqa: SLF001
        else:
            waiters.append(task)
        task.waiting = handle
        start_ps = self.now_ps
        leave = task.leave
        leave()
        if task.thrown is not None or not handle.complete:
            self._go_on_waiting(handle, task)
        task.waiting = None
        task.num_polls = 0
        if self.has_threads and handle.orders_threads:
            task.num_calls_seen = self.num_thread_calls
        if self.observers:
            self.report_wait(task, handle.describe(), start_ps)

    @staticmethod
    def _go_on_waiting(handle: Handle, task: Task) -> None:
        """Continue the wait of a task that came back early, or raise the error thrown into it."""
        while not handle.complete and task.thrown is None:
            task.waiting = handle  # It waited for something else too: in a finalizer, on its way.
            task.leave()
        if task.thrown is not None:
            handle.forget(task)
            task.raise_thrown()

    def sleep(self, delay_ps: int) -> None:
        """Advance the task's host clock by a delay; on the hub, drive the engine."""
        task = self._current
        if task is None or task.greenlet is not getcurrent():
            task = self.current_task()
            if task is None:
                self.run(self.timer(delay_ps))
                return
        due_ps = self.now_ps + delay_ps
        if task.host_ps > self.now_ps:
            due_ps = task.host_ps + delay_ps
        if self.delays is not None:
            due_ps += self.delays.draw(WAKE, task.rank, user_site)
        if due_ps > HORIZON_PS:
            raise TimeOverflowError(self.now_ps, due_ps)
        heappush(self._queue, (due_ps, self._next_key(), task))
        task.waiting = SLEEPING
        leave = task.leave
        leave()
        while self.now_ps < due_ps and task.thrown is None:  # It was switched into by hand.
            task.waiting = SLEEPING
            task.leave()
        task.waiting = None
        if task.thrown is not None:
            self.unqueue(task)
            task.raise_thrown()

    def timer(self, delay_ps: int) -> Handle:
        """Return a handle that completes `delay_ps` of simulated time from now."""
        handle = Handle()
        self.call_at(self.now_ps + delay_ps, lambda: handle.finish(self))
        return handle

    # ---- observers ----

    def _report_switch(self, task: Task) -> None:
        for observer in self.observers:
            observer.on_task_switch(task, self.now_ps)

    def report_wait(self, task: Task, what: str, start_ps: int) -> None:
        """Show the observers a wait that is over now."""
        start_ps = max(start_ps, task.host_ps)  # A host waits after what it was charged for.
        for observer in self.observers:
            observer.on_host(task, f"wait: {what}", start_ps, self.now_ps)

    def report_failure(self, task: Task | None) -> DivergencePoint | None:
        """Call the failure hooks before anything is undone.

        Args:
            task: The task that raised; None for a hang.

        Returns:
            The divergence of the ranks, if a hook has followed them.
        """
        reported = [hook(task) for hook in self.on_failure]
        return next((diverged_at for diverged_at in reported if diverged_at is not None), None)

    # ---- charging ----

    def charge(self, cost_ps: int, name: str) -> int:
        """Add `cost_ps` to the current task's host clock, without a switch.

        Returns:
            The host clock after it, which stamps what is issued now. On the hub: now.
        """
        assert cost_ps >= 0, "a host clock never runs backwards (E8)"
        task = self._current
        if task is None:
            return self.now_ps
        if self.delays is not None:
            cost_ps += self.delays.draw(HOST, task.rank, user_site)
        start_ps = max(self.now_ps, task.host_ps)
        task.host_ps = start_ps + cost_ps
        task.num_polls = 0
        if self.observers:
            for observer in self.observers:
                observer.on_host(task, name, start_ps, task.host_ps)
        return task.host_ps

    # ---- queueing ----

    def call_at(
        self, time_ps: int, fire: Callable[[], None], *, weak: bool = False, lapses: bool = False
    ) -> Wakeup:
        """Queue `fire()` at a simulated time; it runs on the hub. See `Wakeup` for the kinds."""
        assert type(time_ps) is int, "time is an integer (E1)"
        assert time_ps >= self.now_ps, "simulated time must not run backwards"
        wakeup = Wakeup(fire, weak=weak, lapses=lapses)
        if time_ps > HORIZON_PS:
            raise TimeOverflowError(self.now_ps, time_ps)
        heappush(self._queue, (time_ps, self._next_key(), wakeup))
        self._num_weak += wakeup.weak
        return wakeup

    def fire_at(self, time_ps: int, entry: Firing) -> None:
        """Queue `entry.fire()` as `call_at` does, but without a way to cancel it."""
        assert type(time_ps) is int, "time is an integer (E1)"
        assert time_ps >= self.now_ps, "simulated time must not run backwards"
        heappush(self._queue, (time_ps, self._next_key(), entry))

    def cancel(self, wakeup: Wakeup) -> None:
        """Make a queued wakeup void; one that has been made already is left alone."""
        if not wakeup.queued:
            return
        wakeup.void()
        self._num_weak -= wakeup.weak
        self._num_cancelled += 1
        if self._num_cancelled > _MAX_CANCELLED and self._num_cancelled * 2 > len(self._queue):
            self._keep(lambda entry: type(entry) is not Wakeup or not entry.cancelled)
            self._num_cancelled = 0

    def look_soon(self) -> None:
        """Check for a deferred signal before the next wakeup."""
        self._num_cancelled += 1
        self._num_looks += 1
        heappush(self._queue, (self.now_ps, -self._num_looks, entries.void_wakeup()))

    def wake(self, tasks: Sequence[Task]) -> None:
        """Queue tasks at this time, or at their own host clock where that is ahead.

        Those due now are one entry of the queue, however many they are.
        """
        if self._held_wakes is not None:
            self._held_wakes.extend(tasks)
            return
        now_ps = self.now_ps
        delays = self.delays
        due = []
        for task in tasks:
            due_ps = task.host_ps
            if delays is not None:
                due_ps = max(due_ps, now_ps) + delays.draw(WAKE, task.rank, task.site)
            if due_ps > now_ps:
                heappush(self._queue, (due_ps, self._next_key(), task))
            else:
                due.append(task)
        if len(due) == 1:
            heappush(self._queue, (now_ps, self._next_key(), due[0]))
        elif due and (self.seed or delays is not None):
            for task in due:  # One key each, so that the seed permutes them.
                heappush(self._queue, (now_ps, self._next_key(), task))
        elif due:
            self.call_at(now_ps, partial(self._resume_all, due))

    @contextmanager
    def one_wakeup(self) -> Iterator[None]:
        """Queue everything that is woken within the block as one entry."""
        if self._held_wakes is not None:  # Within another such block, which ends later.
            yield
            return
        held: list[Task] = []
        self._held_wakes = held
        try:
            yield
        finally:
            self._held_wakes = None
            if held:
                self.wake(held)

    def _resume_all(self, tasks: Sequence[Task]) -> None:
        assert getcurrent() is self.hub, "only the hub drives (E2)"
        observers = self.observers
        left = iter(tasks)
        if len(tasks) > 1 and not observers and tasks[0].carrier.thread_id is not None:
            left = self.turns.line_up(tasks)
        try:
            for task in left:
                if task.finished:  # Aborted since by one of the tasks before it.
                    continue
                self._current = task
                if observers:
                    self._report_switch(task)
                switch = task.switch
                switch()
                if task.waiting is None and not task.finished:
                    self._adoption.take_back(task)
        except BaseException:  # An interrupt, which the main program may survive.
            self.wake(list(left))
            raise
        finally:
            self._current = None

    def resume(self, task: Task) -> None:
        """Enter a task now; only from the hub."""
        self._resume_all([task])

    def act_for(self, task: Task | None, action: Callable[[], Any]) -> None:
        """Call `action` from the hub as if `task` ran."""
        self._current = task
        action()
        self._current = None

    # ---- tasks ----

    def start_task(self, body: Callable[[], Any], name: str, rank: int | None = None) -> Task:
        """Start a task at this time; its parent is the hub, whichever task asks for it."""
        task = Task(self, name, rank)
        task.carry(body)
        if self._current is not None:
            task.host_ps = self._current.clock_ps
        self.enrol(task)
        self.wake([task])
        return task

    def enrol(self, task: Task) -> None:
        """Count a task among the unfinished."""
        self.tasks[task] = None
        if task.greenlet is not None:  # Only the hub can switch into a thread.
            self._by_greenlet[task.greenlet] = task

    def _forget(self, task: Task) -> None:
        self.tasks.pop(task, None)
        self._by_greenlet.pop(task.greenlet, None)

    def retire(self, task: Task) -> None:
        """Forget a task that ended, and tell its group."""
        self._forget(task)
        self.progress += 1
        if task.group is not None and not task.group.complete:
            task.group.task_ended(task)
        elif task.error is not None:
            self.fire_at(self.now_ps, entries.Failure(task.error))

    def park(self, task: Task) -> None:
        """Set aside for good a task that refuses to end; it is never resumed."""
        # Dropping the last reference would throw GreenletExit into a program that swallows it.
        _REFUSED_TO_END.append(task)
        task.finished = True
        if isinstance(task.waiting, Handle):
            task.waiting.forget(task)
        self._forget(task)
        if task.group is not None:
            task.group.task_ended(task)

    def forget_finished(self) -> None:
        """Drop queue entries of tasks that have ended (they slept when they were aborted)."""
        self._keep(lambda entry: not isinstance(entry, Task) or not entry.finished)

    def unqueue(self, task: Task) -> None:
        """Drop a task's own entries of the queue: its sleep ended early."""
        self._keep(lambda entry: entry is not task)

    def _keep(self, is_kept: Callable[[Task | Wakeup | Firing], bool]) -> None:
        kept = [item for item in self._queue if is_kept(item[2])]
        if len(kept) < len(self._queue):
            self._queue[:] = kept  # In place: the loop holds a reference.
            heapify(self._queue)


# ---- The event loop that the main program may be running, in a notebook say ----

_NOTHING = nullcontext()


def loop_set_aside() -> AbstractContextManager[None]:
    """Return a block in which no loop of this thread runs; asyncio is not imported to ask."""
    events: Any = sys.modules.get("asyncio.events")
    loop = None if events is None else events._get_running_loop()  # noqa: SLF001 - as loops do
    return _NOTHING if loop is None else _set_aside(loop)


@contextmanager
def _set_aside(loop: Any) -> Iterator[None]:  # noqa: ANN401 - an asyncio loop
    """Set the running event loop aside within the block."""
    events: Any = sys.modules["asyncio.events"]
    hooks = sys.get_asyncgen_hooks()
    events._set_running_loop(None)  # noqa: SLF001 - as loops do
    sys.set_asyncgen_hooks(None, None)
    try:
        yield
    finally:
        events._set_running_loop(loop)  # noqa: SLF001 - as loops do
        sys.set_asyncgen_hooks(*hooks)
