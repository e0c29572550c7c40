"""Reports of deadlocks and livelocks: waits and their causes, read when one is found."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from simrank.engine.callsite import site_of_frame
from simrank.errors import (
    MAX_REPORT_LINES,
    DeadlockError,
    LivelockError,
    RankState,
    at_text,
    states_text,
    who_text,
)
from simrank.errors.base import add_note, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from types import FrameType

    from simrank.engine.callsite import CallSite
    from simrank.engine.interface import EngineInterface
    from simrank.engine.task import Task
    from simrank.errors import OddStep, UnlikeCalls

    Explanation = tuple[UnlikeCalls | None, OddStep | None, str | None]
    Unreceived = Iterable[tuple[int, str, "CallSite | None"]]

NEVER_MADE = "it never called new_group for it"  # The end of what a rank has not called.
_LOST_CALL = "make every rank of a group issue the same collectives in order"
_OTHER_ORDER = "issue the collectives of all groups in the same order on every rank"
_ORDER_OR_LOST = f"{_OTHER_ORDER}, and leave none out"
_BREAK_CYCLE = "let one of them make the other call first, or make both in one batch_isend_irecv"
_MAX_IN_CYCLE = 8
_MAX_STATES = MAX_REPORT_LINES - 2  # Beyond, ranks that differ only in their peer share a line.
_PEER = re.compile(r"\brank (\d+)")
_LOST_PEER = "give every send a recv on its peer, and every recv a send"


class PendingOperation(Protocol):
    """Something in flight that cannot complete by itself: it waits for ranks, or for resources."""

    @property
    def is_collective(self) -> bool | None:
        """Whether the ranks of a group make this call; None if it is no call."""

    def pending_ranks(self) -> Iterable[tuple[int | None, str, CallSite | None]]:
        """Yield, per rank that has issued it: the rank, the operation, and its source line."""

    def absent_ranks(self) -> Iterable[tuple[int, str]]:
        """Yield, per missing rank: the rank, and the call that it has not made."""


@runtime_checkable
class PendingMessage(PendingOperation, Protocol):
    """A send or receive that has begun; `is_collective` is False."""

    def awaited_ranks(self) -> Iterable[int]:
        """Yield the ranks whose part is missing; nothing while it has not begun."""


_unreceived: WeakKeyDictionary[EngineInterface, Callable[[], Unreceived]] = WeakKeyDictionary()


def report_unreceived(engine: EngineInterface, messages: Callable[[], Unreceived]) -> None:
    """Add sent messages that no rank received to reports of a hang.

    Args:
        engine: The engine of the ranks.
        messages: Called for a report; returns rank, operation and call site of each message.
    """
    _unreceived[engine] = messages


def deadlock_error(engine: EngineInterface, hub_waits_for: str | None) -> DeadlockError:
    """Build the error of a simulation in which nothing can ever happen again."""
    states = rank_states(engine)
    engine.reported = {*engine.tasks, *engine.pending}
    unlike, odd_step, note = _clues(engine)
    error = DeadlockError(
        engine.now_ps,
        states,
        hub_waits_for=hub_waits_for,
        to_fix=_hint(engine),
        seed=engine.seed,
        proved=_is_proved(engine),
        diverged_at=engine.report_failure(None),
        unlike=unlike,
        odd_step=odd_step,
    )
    if note is not None:
        add_note(error, note)
    return error


def _clues(engine: EngineInterface) -> Explanation:
    return (None, None, None) if engine.explain_hang is None else engine.explain_hang()


def peers_text(engine: EngineInterface, failed: Iterable[int]) -> str | None:
    """Return `ranks 0-1 wait for it in ...` for the call in which most wait for failed ranks."""
    dead = set(failed)
    largest: tuple[list[int], str, CallSite | None] = [], "", None
    for operation in engine.pending:
        if operation.is_collective and not dead.isdisjoint(r for r, _ in operation.absent_ranks()):
            waiting = [*operation.pending_ranks()]
            ranks = [rank for rank, _, _ in waiting if rank is not None and rank not in dead]
            if len(ranks) > len(largest[0]):
                largest = ranks, *waiting[0][1:]
    ranks, what, site = largest
    if not ranks:
        return None
    verb = "waits" if len(ranks) == 1 else "wait"
    place = (None, None) if site is None else site.line()
    return f"{who_text(ranks)} {verb} for it in {what}{at_text(*place)}"


def _is_proved(engine: EngineInterface) -> bool:
    """Return whether a hang rests on no functional wait: hosts that go on may make other calls."""
    waiting = [task for task in engine.tasks if task.waiting is not None]
    functional = [task for task in waiting if task.is_functional]
    return not functional or len(functional) == len(waiting)


def run_out(engine: EngineInterface) -> None:
    """Run until nothing is left to happen.

    Raises:
        DeadlockError, LivelockError: Something is unfinished that no earlier one of them named: a
            program that has dealt with a hang is not told of it again, nor are later programs.
    """
    reported = engine.reported
    try:
        engine.run()
    except (DeadlockError, LivelockError):
        if not reported.issuperset((*engine.tasks, *engine.pending)):
            raise


def livelock_error(engine: EngineInterface) -> LivelockError:
    """Build the error of a simulation in which ranks only poll, and nothing changes."""
    engine.reported = {*engine.tasks, *engine.pending}
    unlike, odd_step, note = _clues(engine)
    diverged_at = engine.report_failure(None)
    states = rank_states(engine)
    error = LivelockError(
        engine.now_ps,
        states,
        seed=engine.seed,
        diverged_at=diverged_at,
        unlike=unlike,
        odd_step=odd_step,
    )
    if note is not None:
        add_note(error, note)
    return error


def states_at(engine: EngineInterface, frame: FrameType | None) -> list[RankState]:
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
        if state.state.endswith("running") and state.file is None
        else state
        for state in states
    ]


def waiting_report(engine: EngineInterface) -> str:
    """Return the lines of a report for everything that waits now."""
    return "\n".join(["simrank: when the time limit passed:", *states_text(rank_states(engine))])


def _hint(engine: EngineInterface) -> str | None:
    if engine.notes:  # Not the program's fault.
        return None
    for task in engine.tasks:  # What is waited for may know what it waits for in turn.
        known: str | None = getattr(task.waiting, "to_fix", None)
        if known is not None:
            return known
    kinds = {operation.is_collective for operation in engine.pending}
    if kinds == {True}:
        return _calls_hint(engine)
    if kinds == {False}:
        return _peers_hint(engine)
    return None


def _calls_hint(engine: EngineInterface) -> str | None:
    """Return the cure for collectives: one is missing, or groups are used in another order.

    A rank that waits for something else (a flag in memory, a queue) is not the one to change.
    """
    alive = {task.rank for task in engine.tasks}
    calling: set[int | None] = set()
    absent: set[int | None] = set()
    for operation in engine.pending:
        calling.update(rank for rank, _, _ in operation.pending_ranks())
        absent.update(rank for rank, _ in operation.absent_ranks())
    if not absent.isdisjoint(alive - calling):
        return None
    if not absent and any(getattr(task.waiting, "is_memory", False) for task in engine.tasks):
        return None
    if not absent:
        return _LOST_CALL if len(engine.pending) == 1 else _OTHER_ORDER
    return _ORDER_OR_LOST if _await_each_other(engine.pending) else _LOST_CALL


def _await_each_other(operations: Iterable[PendingOperation]) -> bool:
    """Return whether the ranks that one call lacks wait in another one that lacks its ranks."""
    sides = [
        ({rank for rank, _, _ in each.pending_ranks()}, {rank for rank, _ in each.absent_ranks()})
        for each in operations
    ]
    return any(
        not callers.isdisjoint(lacking) and not others.isdisjoint(absent)
        for number, (callers, absent) in enumerate(sides)
        for others, lacking in sides[:number]
    )


def _peers_hint(engine: EngineInterface) -> str:
    """Return the cure for messages: one end is missing, or all ends wait for each other."""
    waits_for: dict[int, int] = {}
    for operation in engine.pending:
        peers = [*operation.awaited_ranks()] if isinstance(operation, PendingMessage) else []
        for rank, _, _ in operation.pending_ranks():
            if rank is not None and peers:
                waits_for.setdefault(rank, peers[0])
    cycle = _cycle(waits_for)
    if cycle is None:
        return _LOST_PEER
    if len(cycle) > _MAX_IN_CYCLE:
        cycle[_MAX_IN_CYCLE - 2 : -2] = []
        cycle_text = [*map(str, cycle[:-2]), "...", *map(str, cycle[-2:])]
    else:
        cycle_text = [*map(str, cycle)]
    return f"the ranks wait in a cycle, {' -> '.join(cycle_text)}: {_BREAK_CYCLE}"


def _cycle(waits_for: dict[int, int]) -> list[int] | None:
    """Return the cycle that the lowest rank in one is in, from that rank back to it, or None."""
    seen: set[int] = set()
    for start in sorted(waits_for):
        path: dict[int, None] = {}
        rank: int | None = start
        while rank is not None and rank not in path and rank not in seen:
            path[rank] = None
            rank = waits_for.get(rank)
        if rank is not None and rank in path:
            cycle = list(path)
            cycle = cycle[cycle.index(rank) :]
            first = cycle.index(min(cycle))
            return [*cycle[first:], *cycle[: first + 1]]
        seen.update(path)
    return None


def rank_states(engine: EngineInterface) -> list[RankState]:
    """Return the sets of ranks in the same state, waiting ranks first."""
    ranks_by_state: dict[_State, list[int]] = {}
    lines: dict[CallSite, tuple[str, int]] = {}
    for rank, text, site, waits in _facts(engine):
        file = line = None
        if site is not None:
            if site not in lines:
                lines[site] = site.line()
            file, line = lines[site]
        ranks = ranks_by_state.setdefault(_State(text, file, line, waits), [])
        if rank is not None:
            ranks.append(rank)
    if len(ranks_by_state) > _MAX_STATES:
        ranks_by_state = _fold_peers(ranks_by_state)
    states = [
        RankState(tuple(sorted(set(ranks))), *state) for state, ranks in ranks_by_state.items()
    ]
    return sorted(states, key=lambda state: (not state.waits, state.ranks))


def states_of(engine: EngineInterface, ranks: Collection[int]) -> list[RankState]:
    """Return the sets of some ranks that are in the same state now."""
    states = [(state, set(ranks).intersection(state.ranks)) for state in rank_states(engine)]
    return [replace(state, ranks=tuple(sorted(own))) for state, own in states if own]


class _State(NamedTuple):
    """Grouping key of ranks in a report."""

    text: str
    file: str | None
    line: int | None
    waits: bool


def _fold_peers(ranks_by_state: dict[_State, list[int]]) -> dict[_State, list[int]]:
    """Join ranks that do the same with different peers: `recv from ranks 3, 0, 1`."""
    alike: dict[_State, list[tuple[int, _State]]] = {}
    folded: dict[_State, list[int]] = {}
    for state, ranks in ranks_by_state.items():
        peers = _PEER.search(state.text)
        if peers is None or len(ranks) != 1:
            folded[state] = ranks
        else:
            template = _PEER.sub("rank {}", state.text)
            alike.setdefault(state._replace(text=template), []).append((ranks[0], state))
    for template_state, members in alike.items():
        members.sort(key=lambda member: member[0])
        columns = zip(*(_PEER.findall(state.text) for _, state in members), strict=True)
        text = template_state.text.replace("rank {}", "{}").format(*map(_peers_text, columns))
        folded[template_state._replace(text=text)] = [rank for rank, _ in members]
    return folded


def _peers_text(peers: Sequence[str]) -> str:
    if len(set(peers)) == 1:
        return f"rank {peers[0]}"
    shown = ", ".join(peers[:_MAX_IN_CYCLE]) + ", ..." * (len(peers) > _MAX_IN_CYCLE)
    return f"ranks {shown} (in this order)"


def _facts(engine: EngineInterface) -> Iterator[tuple[int | None, str, CallSite | None, bool]]:
    """Yield ranks that wait on the host, then ranks with work in flight, then ended ranks.

    A rank is reported in the first of these alone.
    """
    reported: set[int] = set()
    for task in engine.tasks:
        reported.add(_rank(task))
        yield (_rank(task), *_waiting_fact(task), True)
    left_behind: set[int] = set()
    for rank, text, site in _in_flight(engine):
        if rank is None:
            yield None, text, site, True
        elif rank not in reported:
            left_behind.add(rank)
            yield rank, f"returned, but {text} is incomplete", site, True
    reported |= left_behind
    messages = _unreceived.get(engine)
    for rank, what, site in () if messages is None else messages():
        if rank not in reported:
            reported.add(rank)
            yield rank, f"returned, but its {what} was never received", site, False
    for rank, text in _ended(engine):
        if rank not in reported:
            reported.add(rank)
            yield rank, text, None, False


def _in_flight(engine: EngineInterface) -> Iterator[tuple[int | None, str, CallSite | None]]:
    for operation in engine.pending:
        yield from operation.pending_ranks()
    for note in engine.notes:
        yield None, note, None


def _ended(engine: EngineInterface) -> Iterator[tuple[int, str]]:
    """Yield the ranks that ended early, and the calls that they have not made."""
    for operation in engine.pending:
        for rank, call in operation.absent_ranks():
            if call.endswith(NEVER_MADE):
                yield rank, f"returned without {call}"
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
        return task.reported("not started" if not task.started else "running"), task.site()
    site = task.waiting.site() or task.site()
    what = task.reported(task.waiting.describe())
    if site is None and task.started_at is not None:  # A library's own code runs on the thread.
        return f"{what}, started", task.started_at
    return what, site


def doing_text(task: Task) -> str:
    """Return `, in all_reduce #7 on group 'tp0' at train.py:41` for a task that has not ended."""
    what, site = _waiting_fact(task)
    file, line = (None, None) if site is None else site.line()
    return f", in {what}{at_text(file, line)}"


def _ended_fact(task: Task) -> str:
    if task.error is None:
        return "returned"
    # Its first line: a mismatch's others say what each rank does, also those that have raised.
    first = text_of(task.error).partition("\n")[0]
    return f"raised {type(task.error).__name__}: {first}"
