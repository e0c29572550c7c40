"""Completion of one thing, and who waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.engine.callsite import CallSite
    from simrank.engine.loop import Engine
    from simrank.engine.task import Task


class Reason(Protocol):
    """What a task waits for, as data; reports are built from it, runs never look at it."""

    def describe(self) -> str:
        """Return the operation in the user's words, for example `all_reduce #7 on group 'tp0'`."""

    def site(self) -> CallSite | None:
        """Return where the user's program asked for it, or None if the waiting line says it."""


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
        """Return what completes, in the user's words."""
        return "a handle"

    def site(self) -> CallSite | None:
        """Return where the user's program asked for it; None: where it waits."""
        return None

    def on_complete(self, callback: Callable[[], None]) -> None:
        """Call `callback()` from the hub when this completes; at once if it already has."""
        if self.complete:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def forget(self, waiter: Task | Callable[[], None]) -> None:
        """Take back a wait or a callback, if this is not complete: its time limit passed, say."""
        lists: tuple[list[Any] | None, ...] = (self._waiters, self._callbacks)
        for listed in lists:
            if listed is not None and waiter in listed:
                listed.remove(waiter)

    def finish(self, engine: Engine, error: BaseException | None = None) -> None:
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
