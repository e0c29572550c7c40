"""Loops that read shared state until another rank changes it: such reads are polls (E8).

One read is no poll: a program may look at a counter as often as it likes. One that has read the
same things many times, and has done nothing else meanwhile, waits for another rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.engine import limits
from simrank.ranks.current import current_engine, race_order

if TYPE_CHECKING:
    from collections.abc import Hashable

    from simrank.engine import EngineInterface, Task

# Assumed: so many reads of what has been read already are a loop that waits. Locks are taken that
# often by programs that do not wait; they are accused later too, as one that sleeps is.
_MAX_READS, _MAX_LOCKS = 100, 1000

_State = tuple["Task | None", int, int]


class _Spin:
    """Values read since the last other action.

    Attributes:
        seen: What has been read, by name.
        num_vain: How often something was read that had been read already.
        state: Who read, and what shows that something else has happened.
    """

    __slots__ = ("num_vain", "seen", "state")

    def __init__(self) -> None:
        self.seen: set[Hashable] = set()
        self.num_vain = 0
        self.state: _State | None = None

    def is_over(self, state: _State, key: Hashable, most: int) -> bool:
        """Count a read; return whether it is one too many."""
        if state != self.state:
            self.state, self.num_vain = state, 0
            self.seen.clear()
        if key not in self.seen:
            self.seen.add(key)
            return False
        self.num_vain += 1
        if self.num_vain <= most:
            return False
        self.num_vain = 0
        return True


_reads, _locks = _Spin(), _Spin()


def note_read(key: Hashable, what: str) -> None:
    """Count a read of something shared; `key` tells it from others, `what` names it in reports."""
    engine = current_engine()
    if engine is None:
        return
    task = engine.current_task()
    if _reads.is_over(_state(engine, task), key, _MAX_READS) and _may_poll(engine, task):
        limits.poll(engine, what)
    if (races := race_order()) is not None:  # It is behind what others did before they changed it.
        races.met(races.conditions)


def note_write() -> None:
    """Note that a rank has changed what others may be reading."""
    engine = current_engine()
    if engine is not None:
        engine.progress += 1
    if (races := race_order()) is not None:
        races.meet(races.conditions)


def note_lock(key: Hashable, task: Task) -> None:
    """Count an uncontended lock that a task takes."""
    engine = task.engine
    if _locks.is_over(_state(engine, task), key, _MAX_LOCKS):
        limits.poll(engine, "a lock that it takes again and again", rounds=limits.LOCK_ROUNDS)


def _state(engine: EngineInterface, task: Task | None) -> _State:
    clock_ps = engine.now_ps if task is None else task.clock_ps
    return task, engine.progress, clock_ps


def _may_poll(engine: EngineInterface, task: Task | None) -> bool:
    """Whether the caller is a rank, or the main program while nothing else drives the engine."""
    return task is not None or (engine.is_hub() and not engine.is_driving)
