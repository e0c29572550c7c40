"""Turns of ranks on queues, semaphores and events: each call is one act for a search.

Their classes are made of locks. A search that saw those would go through orders that no rank can
see, and a loop around a `get` that finds nothing would change something each time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from simrank.engine import limits
from simrank.engine.choices import LONG_PS, Act
from simrank.isolation.locks import LOCKS
from simrank.ranks.current import running_task
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from simrank.engine import Task


def searching_task() -> Task | None:
    """Return the running task, if a search of every timing sees its calls."""
    task = running_task()
    return None if task is None or task.engine.choices is None or task.num_quiet else task


def is_long(block: object, timeout: float | None) -> bool:
    """Return whether a call waits until it can go on: its limit does not expire."""
    return bool(block) and (timeout is None or timeout < 0 or timeout * PS_PER_S >= LONG_PS)


def take_turn(  # noqa: PLR0913 - as of `limits.reach`
    task: Task,
    shared: Any,  # noqa: ANN401 - of several classes
    state: Callable[[], Hashable],
    act: Act,
    call: Callable[[], Any],
    *,
    given: Hashable,
    is_ready: Callable[[], bool] | None = None,
    is_vain: Callable[[], bool] | None = None,
    timeout: float | None = None,
) -> Any:  # noqa: ANN401 - the result of the call
    """Make a call on a shared object when it is its turn; its locks are no objects of their own.

    Args:
        task: The caller.
        shared: The object; its `made_as` is a name that is the same in all runs.
        state: As in `Choices.reach`.
        act: What the call does.
        call: Makes it; it does not wait.
        given: All that the caller gives; None: unknown.
        is_ready: As in `Choices.reach`.
        is_vain: Likewise.
        timeout: For how long a call waits at most, in seconds.
    """
    choices = task.engine.choices
    if choices is not None and is_ready is not None and timeout is not None:
        choices.note_long_limit()
    limits.reach(
        task, LOCKS, id(shared), shared, act=act, is_ready=is_ready, is_vain=is_vain,
        state=state, given=given and (shared.made_as, given),
    )  # fmt: skip
    waits_in_vain = timeout and is_vain is not None and is_vain()
    task.num_quiet += 1
    try:
        return call()
    finally:
        task.num_quiet -= 1
        if waits_in_vain and timeout:
            limits.host_sleep(task.engine, task, math.ceil(timeout * PS_PER_S), "a wait in vain")
