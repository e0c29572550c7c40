"""What holds a task's stack: a greenlet, or an OS thread that is driven in lockstep.

Either way exactly one stack runs at a time, entered by the hub and left for the hub (rule E2).
Greenlets are the default: a switch costs about a microsecond. A thread costs about ten, and carries
programs whose libraries keep state per native thread.
"""

from __future__ import annotations

import sys
import threading  # noqa: TID251 - its threads are driven in lockstep: never two at a time
from _thread import LockType, allocate_lock  # Contexts replace the ones of threading.
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol

from greenlet import getcurrent, greenlet

from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from simrank.engine.task import Task


# Assumed: so long may Ctrl-C take if it comes just as the hub falls asleep, which Python misses.
_LOOK_S = 0.2


# What a signal raised while a rank's thread had the turn: the hub raises it when it has it back.
raised_after_turn: list[BaseException] = []


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
    """

    @property
    def switch(self) -> Callable[[], Any]:
        """See above."""

    @property
    def leave(self) -> Callable[[], Any]:
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
    """A greenlet, whose parent is the hub whoever made it; its contextvars are the maker's."""

    __slots__ = ("leave", "stack", "switch")
    has_turn = False
    thread_id = None

    def __init__(self, task: Task, run: Callable[[], None]) -> None:
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


class BareGreenlet(GreenletCarrier):
    """A greenlet that somebody else made; its parent is the hub from now on."""

    __slots__ = ()

    def __init__(self, bare: greenlet, hub: greenlet) -> None:
        bare.parent = hub
        self.stack = bare
        self.switch = bare.switch
        self.leave = hub.switch


class ThreadCarrier:
    """An OS thread, made at the first switch and gone before the last one returns.

    Who has the turn is a flag; each side sleeps on a bell of its own until the flag says that it
    is its turn. A bell that rings once too often is harmless, so either side may be interrupted at
    any instruction, by Ctrl-C or the watchdog, without two threads ever running together.
    """

    __slots__ = (
        "_context", "_go", "_return", "_run", "_task", "_thread", "frame", "has_turn", "is_dead",
        "stack", "thread_id",
    )  # fmt: skip

    def __init__(self, task: Task, run: Callable[[], None]) -> None:
        self.stack: greenlet | None = None
        self.frame: FrameType | None = None
        self.thread_id: int | None = None
        self.is_dead = False
        self._task = task
        self.has_turn = False
        self._go, self._return = _silent_bell(), _silent_bell()
        self._context, self._run = copy_context(), run
        self._thread: threading.Thread | None = None

    # ---- the hub's side ----

    def switch(self) -> None:
        """Let the thread run until it leaves or ends."""
        if self._thread is None:
            if self.is_dead:
                return
            self._start()
        self.has_turn = True
        try:
            _ring(self._go)
            while self.has_turn:
                self._return.acquire(True, _LOOK_S)
        except BaseException as error:  # noqa: BLE001 - passed on
            self._pass_on(error)
        finally:
            if self.is_dead:
                self._bury()
        if raised_after_turn:
            raise raised_after_turn.pop()

    def _start(self) -> None:
        # A daemon: one that refuses to end is never entered again, and the process has to end.
        thread = threading.Thread(target=self._live, name=self._task.name, daemon=True)
        try:
            thread.start()
        except BaseException:  # Ctrl-C: the thread may live already, and shall end.
            self.is_dead = self.has_turn = True
            self._run = lambda: None
            _ring(self._go)
            raise
        self.thread_id = thread.ident
        self._thread = thread

    def _pass_on(self, error: BaseException) -> None:
        """Let the task have what a signal raised here, as it has on a greenlet; then wait on."""
        late: BaseException | None = error
        try:  # Around every line: another signal may come at any of them.
            if self.has_turn:
                assert self.thread_id is not None, "it has started"
                _ring(self._go)  # Perhaps it has not been rung yet.
                made = type(type(error).__name__, (BaseException,), {"__new__": lambda *_: error})
                raise_in(self.thread_id, made)
                late = None
                while self.has_turn:
                    self._return.acquire(True, _LOOK_S)
        except BaseException as another:  # noqa: BLE001 - passed on
            self._pass_on(another)
        else:
            if late is not None:
                raise late

    def _bury(self) -> None:
        """Wait until the thread's own objects have died too, before anybody else runs."""
        assert self._thread is not None, "it has lived"
        self._thread.join()
        self.thread_id = self._thread = None
        del self._task

    # ---- the thread's side ----

    def leave(self) -> None:
        """Let the hub run, and return when it gives the turn back."""
        if getcurrent() is not self.stack:
            self._task.thrown = _bare_greenlet_error(self._task)
            return
        turn = self._task.turn
        if turn is not None:
            turn.leave()
        self.frame = sys._getframe(1)  # noqa: SLF001 - the documented way to a frame
        try:
            self.has_turn = False
            _ring(self._return)
            while not self.has_turn:
                self._go.acquire()
        except BaseException as error:  # noqa: BLE001 - raised where the task waits
            self._wait_on(error)
        self.frame = None
        if turn is not None:
            turn.enter()

    def _wait_on(self, error: BaseException) -> None:
        """Keep what the watchdog raised while this thread was on its way out, until it is back."""
        try:
            _ring(self._return)  # Perhaps it has not been rung yet.
            while not self.has_turn:
                self._go.acquire()
        except BaseException as another:  # noqa: BLE001 - likewise
            self._wait_on(another)
        if self._task.thrown is None:
            self._task.thrown = error

    def _live_own(self) -> None:
        turn = self._task.turn
        if turn is None:
            self._run()
            return
        turn.enter()
        try:
            self._run()
        finally:
            turn.leave()

    def _live(self) -> None:
        self.stack = self._task.greenlet = getcurrent()
        _hubs[self.stack] = self._task.engine.hub
        try:
            while not self.has_turn:
                self._go.acquire()
        except BaseException as error:  # noqa: BLE001 - raised at its first wait
            self._wait_on(error)
        try:
            self._context.run(self._live_own)
        finally:
            # greenlet searches every object for a dying thread's stack if somebody still knows it.
            del _hubs[self.stack], self._context, self._run
            self.stack = self._task.greenlet = None
            self.is_dead = True
            self.has_turn = False
            _ring(self._return)


def raise_in(thread_id: int, kind: type[BaseException]) -> None:
    """Raise an exception in a thread, at its next instruction; the interpreter makes it there."""
    import ctypes  # noqa: PLC0415 - nobody pays for it who is not interrupted

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(kind))


def _silent_bell() -> LockType:
    bell = allocate_lock()
    bell.acquire()
    return bell


def _ring(bell: LockType) -> None:
    if bell.locked():
        bell.release()


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
    """Return the hub of a greenlet: its thread's main greenlet, or who drives that thread."""
    main = main_greenlet(stack)
    return _hubs.get(main, main)


CARRIERS: dict[str, Callable[[Task, Callable[[], None]], Carrier]] = {
    "greenlet": GreenletCarrier,
    "thread": ThreadCarrier,
}

CARRIER_CHOICES = ("auto", *CARRIERS)


def check_carrier(name: str) -> None:
    """Raise ValueError if there is no such carrier, and "auto" is not meant."""
    if name not in CARRIER_CHOICES:
        raise ValueError(f"carrier={name!r}; choices: {', '.join(CARRIER_CHOICES)}")
