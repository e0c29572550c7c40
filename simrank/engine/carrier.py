"""What holds a task's stack: a greenlet, or an OS thread that is driven in lockstep.

Either way exactly one stack runs at a time, entered by the hub and left for the hub (rule E2).
Greenlets are the default: a switch costs about a microsecond. A thread (`lockstep`) costs about
five, and carries programs whose libraries keep state per native thread.
"""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol

from greenlet import greenlet

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from simrank.engine.task import Task


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
    """A greenlet, whose parent is the hub whoever made it; its contextvars are the maker's."""

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
        """Let it be collected."""


class BareGreenlet(GreenletCarrier):
    """A greenlet that somebody else made; its parent is the hub from now on."""

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
