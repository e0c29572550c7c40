"""Debuggers inside a rank: the simulation stops at a prompt that names rank and time.

`breakpoint()`, `pdb.set_trace()` and everything else that is built on `pdb.Pdb` prompt in the rank
that runs; no other rank does meanwhile, and simulated time does not pass. What is typed
there and would have to wait (for values that a collective still writes, say) is an error.
"""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from simrank.errors import SimrankError
from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from simrank.engine import Task


_OWN = ("simrank", "simrank.*")


def patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of this module: owner, name and replacement."""
    from pdb import Pdb  # noqa: PLC0415 - 2 ms; a program may import it as late as in a rank

    return [
        (Pdb, "interaction", _announced(Pdb.interaction)),
        (Pdb, "set_trace", _owned(Pdb.set_trace)),
        (Pdb, "stop_here", _only_in_its_rank(Pdb.stop_here)),
    ]


def _owned(original: Callable[..., None]) -> Callable[..., None]:
    """Return a function that remembers the rank in which a debugger was started."""

    @functools.wraps(original)
    def set_trace(self: Any, frame: FrameType | None = None, **kwargs: object) -> None:  # noqa: ANN401
        task = self.simrank_task = running_task()
        if task is not None and not hasattr(task.leave, "takes_trace"):
            task.leave = _untraced(task.leave)
        original(self, sys._getframe(1) if frame is None else frame, **kwargs)  # noqa: SLF001

    return set_trace


def _untraced(leave: Callable[[], None]) -> Callable[[], None]:
    """Return a rank's way to the hub that takes its trace along, for other ranks have their own."""

    def leave_and_trace_on() -> None:
        trace = sys.gettrace()
        sys.settrace(None)
        leave()
        sys.settrace(trace)

    leave_and_trace_on.takes_trace = True  # type: ignore[attr-defined]  # Once is enough.
    return leave_and_trace_on


def _only_in_its_rank(original: Callable[..., bool]) -> Callable[..., bool]:
    """Return a function that lets a debugger step in its own rank only."""

    @functools.wraps(original)
    def stop_here(self: Any, frame: FrameType) -> bool:  # noqa: ANN401 - a Pdb
        task = getattr(self, "simrank_task", None)
        if task is not None and task.finished:  # Whoever stepped to its end has seen all of it.
            self.simrank_task = None
            self.set_continue()
            return False
        return (task is None or running_task() is task) and original(self, frame)

    return stop_here


def _announced(original: Callable[..., None]) -> Callable[..., None]:
    """Return a function that prints rank and time before a debugger's prompt."""

    @functools.wraps(original)
    def interact(self: Any, *args: object, **kwargs: object) -> None:  # noqa: ANN401 - a Pdb; its own
        task = running_task()
        if task is None:
            original(self, *args, **kwargs)
            return
        self.message(f"simrank: {task.name} at t={task.clock_ps / 1e6:.3f} us")
        self.skip = {*(self.skip or ()), *_OWN}  # Stepping stays in the program.
        with _standing_still(task):
            original(self, *args, **kwargs)

    return interact


@contextmanager
def _standing_still(task: Task) -> Iterator[None]:
    """Make every wait of a task raise while a debugger prompts."""

    def refuse() -> None:
        what = "something" if task.waiting is None else task.waiting.describe()
        task.thrown = SimrankError(
            f"this would wait for {what}, and at a debugger's prompt the simulation stands still\n"
            "  to fix: wait for it in the program, before the breakpoint, or step on"
        )

    leave, task.leave = task.leave, refuse
    try:
        yield
    finally:
        task.leave = leave
