"""Tasks on OS threads, driven in lockstep: exactly one runs, or the hub (rule E2).

The last task of the list `Turns.order` has the turn; every other one sleeps on a bell of its own
until that says that it is its turn. A bell that rings once too often is harmless, and the list is
changed by single operations of the interpreter, so anybody may be interrupted at any instruction,
by Ctrl-C or the watchdog, without two threads ever running together.

Tasks that one completion wakes pass the turn from one to the next without the hub between: half
the switches. The hub gets it back whenever there is something for it to do: a task ended, has
not started yet, or an observer wants to see the switch.
"""

from __future__ import annotations

import os
import sys
import threading  # noqa: TID251 - its threads are driven in lockstep: never two at a time
from _thread import LockType, allocate_lock  # Contexts replace the ones of threading.
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from simrank.engine.native_sleep import Sleepers
from simrank.engine.task import CARRIERS
from simrank.errors import RankAborted, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from greenlet import greenlet

    from simrank.engine.interface import EngineInterface
    from simrank.engine.task import Task, Turn

# Assumed: so long may Ctrl-C take if it comes just as the hub falls asleep, which Python misses.
_LOOK_S = 0.1


_lost: list[greenlet] = []  # Of threads that a fork has lost.

# What a signal raised while a rank's thread had the turn: the hub raises it when it has it back.
raised_after_turn: list[BaseException] = []


class Turns:
    """The turn of one engine's threads: its holder, and the order of the next ones.

    Attributes:
        order: The last one has the turn, None being the hub; below it are the next ones.
        bell: What the hub sleeps on.
        ended: The carrier whose program ended in the last turn, or None.
        of_hub: What is to happen as the hub goes on, or None; threads that pass the turn on among
            themselves share it.
        sleepers: Watches the turn while the hub sleeps.
        has_threads: Whether there has been any.
    """

    __slots__ = ("_engine", "bell", "ended", "has_threads", "of_hub", "order", "sleepers")

    def __init__(self, engine: EngineInterface) -> None:
        self._engine = engine
        self.order: list[Task | None] = [None, None]
        self.bell = _silent_bell()
        self.ended: ThreadCarrier | None = None
        self.of_hub: Turn | None = None
        self.sleepers = Sleepers()
        self.has_threads = False

    # ---- the hub's side ----

    def line_up(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Line up tasks that pass the turn on; yield, in order, those that the hub must enter."""
        order = self.order
        if len(order) > 2:  # The hub is in the midst of another line.
            yield from tasks
            return
        order[:] = [None, *reversed(tasks), None]
        while len(order) > 2:
            task = order.pop(-2)
            if task is not None:
                yield task

    def give(self, task: Task, go: LockType) -> None:
        """Give the turn to a task's thread, and sleep until the hub has it again."""
        order = self.order
        if len(order) == 1:
            order.append(None)
        order[-1] = task
        bell = self.bell
        try:
            _ring(go)
            while order[-1] is not None:
                if not bell.acquire(True, _LOOK_S):
                    self._look()
        except BaseException as error:  # noqa: BLE001 - passed on
            self._interrupt(error)
        finally:
            if self.ended is not None:
                self.ended.bury()
            if self.of_hub is not None:
                self.of_hub.enter()

    def _interrupt(self, error: BaseException) -> None:
        """Hand an exception of a signal to the thread that has the turn, then wait on."""
        late: BaseException | None = error
        try:  # Around every line: another signal may come at any of them.
            order = self.order
            order[-1:-1] = [None]  # The turn comes back from its current owner.
            task = order[-1]
            if task is not None:
                assert task.carrier.thread_id is not None, "it has started"
                _ring(self.bell_of_turn())  # Perhaps it has not been rung yet.
                made = type(type(error).__name__, (BaseException,), {"__new__": lambda *_: error})
                raise_in(task.carrier.thread_id, made)
                late = None
                self.sleepers.overdue = error
                while order[-1] is not None:
                    if not self.bell.acquire(True, _LOOK_S):
                        self._look()
                self.sleepers.overdue = None
        except BaseException as another:  # noqa: BLE001 - passed on
            self._interrupt(another)
        else:
            if late is not None:
                raise late

    def _look(self) -> None:
        """Give up the thread that has the turn if it sleeps in a native lock for good.

        Raises:
            NativeWaitError: It sleeps in a lock.
            BaseException: What else was to end it, and does not reach it.
        """
        task = self.order[-1]
        if task is None or not self.sleepers.look(task):
            return
        engine, carrier = self._engine, task.carrier
        assert isinstance(carrier, ThreadCarrier), "it has the turn"
        error = self.sleepers.error(engine, task)
        carrier.give_up()
        self.order[-1] = None
        task.parked = True
        if task.group is not None:
            task.group.stubborn.append(task)
        engine.park(task)
        if not raised_after_turn:
            raise error

    # ---- the threads' side ----

    def pass_on(self, task: Task, following: Task) -> LockType:
        """Give the turn of a task that waits to the next in line, or to the hub if it must look.

        Returns:
            The bell to ring.
        """
        engine = self._engine
        if (
            engine.observers
            or raised_after_turn
            or task.waiting is None
            or following.finished
            or following.carrier.thread_id is None
            or (following.turn is None and self.of_hub is not None)
        ):
            self.order[-1] = None
        else:
            engine.note_running(following)
            self.order.pop()
        return self.bell_of_turn()

    def bell_of_turn(self) -> LockType:
        """Return the bell of the thread that has the turn."""
        task = self.order[-1]
        carrier: Any = None if task is None else task.carrier
        return self.bell if carrier is None else carrier.go


class ThreadCarrier:
    """An OS thread, made at the first switch and gone before the last one returns.

    Attributes:
        go: The bell that it sleeps on.
        thread: While it lives.
    """

    __slots__ = (
        "_context", "_is_lost", "_run", "_task", "_turns", "frame", "go", "is_dead", "stack",
        "thread", "thread_id",
    )  # fmt: skip

    def __init__(self, task: Task, run: Callable[..., None]) -> None:
        self.stack: greenlet | None = None
        self.frame: FrameType | None = None
        self.thread_id: int | None = None
        self.is_dead = self._is_lost = False
        self._task = task
        self._turns = task.engine.turns
        self._turns.has_threads = True
        self.go = _silent_bell()
        self._context, self._run = copy_context(), run
        self.thread: threading.Thread | None = None

    @property
    def has_turn(self) -> bool:
        """Whether it runs, while the hub's thread waits for it."""
        return not self.is_dead and self._turns.order[-1] is self._task

    # ---- the hub's side ----

    def switch(self) -> None:
        """Run the thread until the turn is back at the hub."""
        if self.thread is None:
            if self.is_dead:
                return
            self.start()
        self._turns.give(self._task, self.go)
        if raised_after_turn:
            raise raised_after_turn.pop()

    def start(self) -> None:
        """Make the thread, which waits for its turn."""
        # A daemon: one that refuses to end is never entered again, and the process has to end.
        thread = threading.Thread(target=self._live, name=self._task.name, daemon=True)
        try:
            thread.start()
        except BaseException:  # Ctrl-C: the thread may live already, and shall end.
            self.is_dead = True
            _ring(self.go)
            raise
        thread._daemonic = False  # type: ignore[attr-defined]  # noqa: SLF001 - what it starts is none
        self.thread_id = thread.ident
        self.thread = thread

    def drop(self) -> None:
        """Make a thread end that has never had its turn."""
        self.is_dead = True
        _ring(self.go)
        if self.thread is not None:
            self.bury()

    def revive(self) -> None:
        """Get another thread: a fork has lost the old one, which slept."""
        assert self.stack is not None, "it has lived"
        _hubs.pop(self.stack, None)
        _lost.append(self.stack)  # It cannot die here: its thread is another process's.
        self.stack = self.frame = self.thread = self.thread_id = None
        self.go = _silent_bell()
        self._context = self._context.copy()  # The old one counts as entered.

    def give_up(self) -> None:
        """Detach a thread that sleeps natively from the engine: it may wake at any time."""
        self._is_lost = self.is_dead = True
        _hubs.pop(self.stack, None)  # type: ignore[arg-type]  # What it calls then is no task's.
        assert self.thread_id is not None, "it lives"
        raise_in(self.thread_id, type("RankAborted", (RankAborted,), {"__init__": _abort}))

    def bury(self) -> None:
        """Wait until the thread's own objects have died, before the next thread runs."""
        assert self.thread is not None, "it has lived"
        self.thread.join()
        self._turns.ended = self.thread_id = self.thread = None
        del self._task

    # ---- the thread's side ----

    def leave(self) -> None:
        """Pass the turn to the hub or to the next thread; return when it comes back."""
        task = self._task
        if getcurrent() is not self.stack:
            task.thrown = _bare_greenlet_error(task)
            return
        turn = task.turn
        if turn is not None:
            turn.leave()
        self.frame = sys._getframe(1)  # noqa: SLF001 - the documented way to a frame
        go, turns = self.go, self._turns
        order = turns.order
        try:
            following = order[-2]
            if following is None:
                order[-1] = None
                bell = turns.bell
            else:
                bell = turns.pass_on(task, following)
            _ring(bell)
            while order[-1] is not task:
                go.acquire()
        except BaseException as error:  # noqa: BLE001 - raised where the task waits
            self._wait_on(error)
        self.frame = None
        if turn is not None:
            turn.enter()

    def _wait_on(self, error: BaseException) -> None:
        """Keep an exception of the watchdog that arrives while this thread passes the turn."""
        task, turns = self._task, self._turns
        try:
            while turns.order[-1] is not task and not self.is_dead:
                _ring(turns.bell_of_turn())  # Perhaps it has not been rung yet.
                self.go.acquire()
            task.engine.note_running(task)
        except BaseException as another:  # noqa: BLE001 - likewise
            self._wait_on(another)
        if task.thrown is None:
            task.thrown = error

    def _run_in_turn(self) -> None:
        turn = self._task.turn
        if turn is None:
            self._run()
            return
        try:
            self._run(turn.enter)
        finally:
            turn.leave()

    def _live(self) -> None:
        _wake_patiently()
        self.stack = self._task.greenlet = getcurrent()
        _hubs[self.stack] = self._task.engine.hub
        try:
            while self._turns.order[-1] is not self._task and not self.is_dead:
                self.go.acquire()
        except BaseException as error:  # noqa: BLE001 - raised at its first wait
            self._wait_on(error)
        is_abandoned = self.is_dead
        try:
            if not is_abandoned:
                self._context.run(self._run_in_turn)
        finally:
            # greenlet searches every object for a dying thread's stack if it is still referenced.
            _hubs.pop(self.stack, None)
            del self._context, self._run
            self.stack = self._task.greenlet = None
            self.is_dead = True
            if not is_abandoned and not self._is_lost:
                turns = self._turns
                turns.ended = self
                turns.order[-1] = None
                _ring(turns.bell_of_turn())


def _wake_patiently() -> None:
    """Set a scheduling policy by which a woken thread does not preempt its waker.

    Linux often runs a thread that wakes at once. Here it finds that the other has the interpreter
    until it sleeps itself, and sleeps again: two more switches per turn (measured: a tenth of an
    all_reduce). What the thread starts has the policy too; one that the program has chosen stays.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    with suppress(PermissionError):  # A sandbox forbids it: it is for speed alone.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _abort(error: RankAborted) -> None:
    RankAborted.__init__(error, None)


def raise_in(thread_id: int, kind: type[BaseException]) -> None:
    """Raise an exception in a thread, at its next instruction; the interpreter makes it there."""
    import ctypes  # noqa: PLC0415 - needed at interrupts only

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(kind))


def _silent_bell() -> LockType:
    bell = allocate_lock()
    bell.acquire()
    return bell


def _ring(bell: LockType) -> None:
    try:
        bell.release()
    except RuntimeError:
        """It has been rung already."""


def _bare_greenlet_error(task: Task) -> UnsupportedError:
    return UnsupportedError(
        f"a wait inside a bare greenlet of {task.name}, whose carrier is a thread\n"
        "  to fix: wait outside that greenlet, or let the ranks' carrier be a greenlet"
    )


_hubs: dict[greenlet, greenlet] = {}  # Main greenlets of carriers' threads -> the hub.


def main_greenlet(stack: greenlet) -> greenlet:
    """Return the main greenlet of the thread that a greenlet belongs to."""
    while stack.parent is not None:
        stack = stack.parent
    return stack


def hub_of(stack: greenlet) -> greenlet:
    """Return the hub of a greenlet: its thread's main greenlet, or the hub of that thread."""
    main = main_greenlet(stack)
    return _hubs.get(main, main)


CARRIERS["thread"] = ThreadCarrier
