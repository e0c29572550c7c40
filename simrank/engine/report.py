"""Who waits for whom: the facts of a deadlock or livelock, read when it is found, never before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from simrank.engine.callsite import site_of_frame
from simrank.errors import DeadlockError, LivelockError, RankState, states_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

    from simrank.engine.callsite import CallSite
    from simrank.engine.loop import Engine
    from simrank.engine.task import Task

_LOST_CALL = "make every rank of a group issue the same collectives in order"
_LOST_PEER = "give every send a recv on its peer, and every recv a send"


class PendingOperation(Protocol):
    """Something in flight that cannot complete by itself: it waits for ranks, or for resources."""

    @property
    def is_collective(self) -> bool | None:
        """Whether the ranks of a group make this call; None where it is nobody's call."""

    def pending_ranks(self) -> Iterable[tuple[int | None, str, CallSite | None]]:
        """Yield, per rank that has issued it: the rank, what it is, and where it was issued."""

    def absent_ranks(self) -> Iterable[tuple[int, str]]:
        """Yield, per rank that it waits for: the rank, and what that rank has not called."""


def deadlock_error(engine: Engine, hub_waits_for: str | None) -> DeadlockError:
    """Build the error of a simulation in which nothing can ever happen again."""
    states = rank_states(engine)
    return DeadlockError(
        engine.now_ps,
        states,
        hub_waits_for=hub_waits_for,
        to_fix=_hint(engine),
        seed=engine.seed,
    )


def livelock_error(engine: Engine) -> LivelockError:
    """Build the error of a simulation in which ranks only poll, and nothing changes."""
    return LivelockError(engine.now_ps, rank_states(engine), seed=engine.seed)


def states_at(engine: Engine, frame: FrameType | None) -> list[RankState]:
    """Return the states of all ranks while one of them computes; `frame` is where."""
    try:
        states = rank_states(engine)
    except RuntimeError:  # The others went on meanwhile and changed what is listed.
        return []
    site = site_of_frame(frame)
    if site is None:
        return states
    file, line = site.line()
    return [
        replace(state, file=file, line=line)
        if state.state == "running" and state.file is None
        else state
        for state in states
    ]


def waiting_report(engine: Engine) -> str:
    """Return the lines of a report for everything that waits now."""
    return "\n".join(["simrank: when the time limit passed:", *states_text(rank_states(engine))])


def _hint(engine: Engine) -> str | None:
    if engine.notes:  # Not the program's fault.
        return None
    if _is_kernels_fault(engine):
        return None
    kinds = {operation.is_collective for operation in engine.pending}
    if kinds == {True}:
        return _LOST_CALL
    return _LOST_PEER if kinds == {False} else None


def _is_kernels_fault(engine: Engine) -> bool:
    """Return whether kernels wait for memory while no operation waits for a call."""
    waits = any(getattr(task.waiting, "is_memory", False) for task in engine.tasks)
    return waits and not any(list(operation.absent_ranks()) for operation in engine.pending)


def rank_states(engine: Engine) -> list[RankState]:
    """Return every set of ranks in the same state, those that wait first."""
    ranks_by_state: dict[tuple[str, str | None, int | None, bool], list[int]] = {}
    lines: dict[CallSite, tuple[str, int]] = {}
    for rank, text, site, waits in _facts(engine):
        file = line = None
        if site is not None:
            if site not in lines:
                lines[site] = site.line()
            file, line = lines[site]
        ranks = ranks_by_state.setdefault((text, file, line, waits), [])
        if rank is not None:
            ranks.append(rank)
    states = [
        RankState(tuple(sorted(set(ranks))), text, file, line, waits)
        for (text, file, line, waits), ranks in ranks_by_state.items()
    ]
    return sorted(states, key=lambda state: (not state.waits, state.ranks))


def _facts(engine: Engine) -> Iterator[tuple[int | None, str, CallSite | None, bool]]:
    """Yield who waits on the host, then who left something in flight, then who has ended.

    A rank is told in the first of these alone.
    """
    told: set[int] = set()
    for task in engine.tasks:
        told.add(_rank(task))
        yield (_rank(task), *_waiting_fact(task), True)
    left_behind: set[int] = set()
    for rank, text, site in _in_flight(engine):
        if rank is None:
            yield None, text, site, True
        elif rank not in told:
            left_behind.add(rank)
            yield rank, f"returned, but {text} is incomplete", site, True
    told |= left_behind
    for rank, text in _ended(engine):
        if rank not in told:
            told.add(rank)
            yield rank, text, None, False


def _in_flight(engine: Engine) -> Iterator[tuple[int | None, str, CallSite | None]]:
    for operation in engine.pending:
        yield from operation.pending_ranks()
    for note in engine.notes:
        yield None, note, None


def _ended(engine: Engine) -> Iterator[tuple[int, str]]:
    """Yield the ranks that ended early, the usual culprits, and what they have not called."""
    for group in {task.group: None for task in engine.tasks if task.group is not None}:
        for task in group.tasks:
            if task.finished:
                yield _rank(task), _ended_fact(task)
    for operation in engine.pending:  # Their group may have ended altogether.
        for rank, call in operation.absent_ranks():
            yield rank, f"returned without {call}"


def _rank(task: Task) -> int:
    return -1 if task.rank is None else task.rank


def _waiting_fact(task: Task) -> tuple[str, CallSite | None]:
    if task.waiting is None:
        return ("not started" if not task.started else "running"), task.site()
    site = task.waiting.site()
    return task.waiting.describe(), task.site() if site is None else site


def _ended_fact(task: Task) -> str:
    if task.error is None:
        return "returned"
    return f"raised {type(task.error).__name__}: {task.error}"
