"""Lines of the program from which the members of a group make equal calls.

Equal calls from different lines are legal, as under `if rank == 0:`, and are often the first sign
of ranks that have lost step. Each group keeps the first call of each pair of lines; only a report
of a failed run reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from simrank.distributed.mismatched_calls import MadeCall, mismatch_error
from simrank.engine.report import states_of
from simrank.errors import (
    CollectiveMismatchError,
    OddStep,
    RankState,
    UnlikeCalls,
)
from simrank.errors.base import add_note

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from simrank.distributed.call import Call, CollectiveOperation
    from simrank.distributed.group import Caller, ProcessGroup
    from simrank.distributed.library import CollectiveLibrary
    from simrank.distributed.request import Signature
    from simrank.engine import CallSite, Engine, SourceLine, Task

    Explanation = tuple[UnlikeCalls | None, OddStep | None, str | None]
    _Made = tuple[int, CallSite | None]  # The rank, and the line of its call.

    from simrank.device import Operation
    from simrank.ranks import Program

TO_FOLLOW = (
    "simrank: `--checks all` (Context(checks='all'), pytest's --simrank-checks=all) names the line "
    "at which the ranks diverged"
)
_LOST_STEP = (
    "all ranks have made each of these calls before, and one has left a call out or made one more "
    "since, as with another number of micro-batches: make every rank make as many"
)
_MAX_PAIRS = 64  # Assumed: sets of lines that are kept for each group.
_MAX_LINES = 4096  # Assumed: lines at which all members have met, for each group.


class _Met(NamedTuple):
    """A call, and the lines from which the members of a group made it."""

    seq: int
    name: str
    ranks_by_line: dict[SourceLine, list[int]]

    @property
    def is_unlike(self) -> bool:
        """Whether it was made from different lines."""
        return len(self.ranks_by_line) > 1

    def shares_a_line(
        self, common: Container[SourceLine], ranks_at: Mapping[SourceLine, set[int]]
    ) -> bool:
        """Whether ranks have made other calls from the line of one that they met from another.

        Args:
            common: Lines at which all members have met.
            ranks_at: The ranks that have called from each line.
        """
        everyone = {rank for ranks in self.ranks_by_line.values() for rank in ranks}
        return any(
            line in common or not ranks_at[line].isdisjoint(everyone.difference(ranks))
            for line, ranks in self.ranks_by_line.items()
        )


class CallLines:
    """Lines from which the members of one group have made their calls."""

    __slots__ = ("_common", "_made", "_sites", "_unlike")

    def __init__(self) -> None:
        self._common: set[SourceLine] = set()
        self._sites: set[tuple[int, int]] = set()  # Of lines in `_common`, by code and instruction.
        self._unlike: dict[frozenset[SourceLine], _Met] = {}
        self._made: set[Signature] = set()

    def note(self, call: Call) -> None:
        """Note the lines of a call that all members have made."""
        if len(self._made) < _MAX_LINES:
            self._made.add(call.signature)
        operations = [each for each in call.operations if each is not None]
        first = operations[0].issued_at
        if first is None:
            return
        code, instruction = first
        for operation in operations:
            site = operation.issued_at
            if site is None:
                return  # A library's own thread made it.
            if site[1] != instruction or site[0] is not code:
                self._compare(call)
                return
        if (id(code), instruction) not in self._sites and len(self._sites) < _MAX_LINES:
            self._sites.add((id(code), instruction))
            self._common.add(first.line())

    def has_made(self, signatures: Iterable[Signature]) -> bool:
        """Return whether all members have made calls of all these signatures."""
        return self._made.issuperset(signatures)

    def _compare(self, call: Call) -> None:
        """Note a call whose sites differ: ranks may have copies of a module, with equal lines."""
        found = _ranks_by_line(call)
        if len(found) == 1:
            self._common.update(found if len(self._common) < _MAX_LINES else ())
        elif found and len(self._unlike) < _MAX_PAIRS:
            self._unlike.setdefault(frozenset(found), _Met(call.seq, call.name, found))

    def first(self, pending: Iterable[Call], made: Iterable[_Made]) -> _First | None:
        """Return the first call whose lines tell of lost step, else the first of unlike lines.

        Args:
            pending: Calls of the group that not all members have made, or that have not ended.
            made: Calls that are matched with none.

        Returns:
            The call, and whether ranks have called from each other's lines elsewhere; None where
            all calls were made from equal lines.
        """
        unlike = list(self._unlike.values())
        ranks_at: dict[SourceLine, set[int]] = {}
        for rank, site in made:
            if site is not None:
                ranks_at.setdefault(site.line(), set()).add(rank)
        unlike += [_Met(call.seq, call.name, _ranks_by_line(call)) for call in pending]
        for met in unlike:
            for line, ranks in met.ranks_by_line.items():
                ranks_at.setdefault(line, set()).update(ranks)
        unlike = [met for met in sorted(unlike, key=lambda met: met.seq) if met.is_unlike]
        for met in unlike:
            if met.shares_a_line(self._common, ranks_at):
                return _First(True, _reported(met))
        return _First(False, _reported(unlike[0])) if unlike else None


def lines_of(group: ProcessGroup) -> CallLines:
    """Return the lines of a group's calls, made at first use."""
    if group.lines is None:
        group.lines = CallLines()
    lines: CallLines = group.lines
    return lines


class _First(NamedTuple):
    """A call of unlike lines, and whether other calls show that ranks have lost step."""

    is_sure: bool
    calls: UnlikeCalls


def _ranks_by_line(call: Call) -> dict[SourceLine, list[int]]:
    """Return the lines from which members have made a call; none if a library's thread did."""
    found: dict[SourceLine, list[int]] = {}
    known: dict[tuple[int, int], SourceLine] = {}
    for operation in call.operations:
        if operation is None:
            continue
        site = operation.issued_at
        if site is None:
            return {}
        key = (id(site[0]), site[1])
        if key not in known:
            known[key] = site.line()
        found.setdefault(known[key], []).append(operation.rank or 0)
    return found


def _reported(met: _Met) -> UnlikeCalls:
    states = [RankState(tuple(r), "", *line) for line, r in met.ranks_by_line.items()]
    return UnlikeCalls(met.name, tuple(states))


def unlike_calls(
    library: CollectiveLibrary, made: Mapping[ProcessGroup, Sequence[_Made]]
) -> UnlikeCalls | None:
    """Return the first equal calls from different lines that a report is to name; or None.

    Args:
        library: The collective library of the ranks.
        made: For each group that the report is about, its calls that are not matched.
    """
    groups = [group for world in library.worlds.values() for group in world.groups()]
    groups.sort(key=lambda group: group not in made)
    for group in groups:
        found = lines_of(group).first(group.calls.values(), made.get(group, ()))
        if found is not None and (found.is_sure or group in made):
            return found.calls
    return None


def explain_hang(engine: Engine, library: CollectiveLibrary) -> Explanation:
    """Return likely causes of a hang, and a hint.

    They are the first equal calls from different lines, and the step that is unlike all others.

    Args:
        engine: The engine of the ranks.
        library: Their collective library.
    """
    made: dict[ProcessGroup, list[_Made]] = {}
    for operation in engine.pending:
        group: ProcessGroup | None = getattr(operation, "group", None)
        if operation.is_collective and group is not None and hasattr(group, "lines"):
            sites = [(rank, site) for rank, _, site in operation.pending_ranks()]
            made.setdefault(group, []).extend((r, s) for r, s in sites if r is not None)
    unlike = unlike_calls(library, made)
    is_told = library.follower is not None or (unlike is None and not made)
    odd_steps = [world.history.oddest() for world in library.worlds.values()]
    odd_step = next((step for step in odd_steps if step is not None), None)
    return unlike, odd_step, None if is_told else TO_FOLLOW


def mismatch(
    group: ProcessGroup,
    number: int,
    calls: Iterable[MadeCall],
    absent: Sequence[int],
    signatures: Sequence[Signature] = (),
) -> CollectiveMismatchError:
    """Return the error of calls that should be equal.

    Args:
        group: Whose calls they are.
        number: Of the call in the group.
        calls: In the order of the report; equal ones from one line are merged.
        absent: Global ranks that have not called.
        signatures: What differs, if all members may have made such calls before: in step then.
    """
    made = list(calls)
    library = group.world.comm_library
    unlike = unlike_calls(library, {group: [(call.rank, call.site) for call in made]})
    clues = {
        "unlike": unlike,
        "odd_step": group.world.history.oddest(),
        "doing": states_of(group.engine, absent),
        "to_fix": _LOST_STEP if signatures and lines_of(group).has_made(signatures) else None,
    }
    task = group.engine.current_task()
    now_ps = group.engine.now_ps if task is None else task.clock_ps
    error = mismatch_error(now_ps, group.name, number, made, absent, **clues)
    if library.follower is None:
        add_note(error, TO_FOLLOW)
    return error


# ---- The order of collectives of several groups that may run at the same time ----
# Two communicators that share ranks need the same order on all of them: on hardware a kernel
# that spins for its peers may keep out the kernel that those peers wait for.
#
# Source: NCCL user guide, "Using multiple NCCL communicators concurrently".


def note_order(caller: Caller, operation: CollectiveOperation) -> None:
    """Note what else a rank has in flight when it issues a collective, and compare the others'."""
    group, in_flight = caller.group, caller.in_flight
    if len(in_flight) > (operation.stream in in_flight):
        rank = caller.rank
        for stream, other in list(in_flight.items()):
            before = other.last_issued[other.group_rank(rank)]
            if before is None or before.stream is not stream:  # It has ended.
                del in_flight[stream]
            elif other is not group and stream is not operation.stream:
                _compare(before, operation)
    in_flight[operation.stream] = group


def _compare(before: CollectiveOperation, operation: CollectiveOperation) -> None:
    """Note that a rank issues a call while another is in flight; one may have done the reverse."""
    operation.call.ahead.setdefault(before.call, operation)
    reverse = before.call.ahead.get(operation.call)
    if reverse is not None:
        leaks = operation.call.group.world.comm_library.leaks
        leaks.opposite(operation, reverse, f"{before.name} and {operation.name}")


# ---- Collectives that several threads of a rank call on one group, where nothing orders them ----
# Members match their calls by number, so the order of two threads decides which call meets
# which, and on another day the ranks differ. The engine counts such calls once a rank has a
# thread, and each task knows how many of them it is behind: locks, joins, queues, polls and
# sleeps move it on.

_CALLS = "calls of threads"  # In `Program.local`, by group.


class _Last(NamedTuple):
    """The last call of a task on a group.

    Attributes:
        number: Its number among the calls of all tasks that have threads beside them.
        name: The operation's.
        site: Where the program called, or started the thread that did.
    """

    number: int
    name: str
    site: CallSite | None

    @property
    def text(self) -> str:
        """Return `barrier at train.py:12`."""
        name = self.name.partition(" #")[0]
        return name if self.site is None else f"{name} at {self.site.line()}"


def note_call(group: ProcessGroup, program: Program, task: Task, operation: Operation) -> None:
    """Note a call, and the first of a rank that no earlier one of another thread orders.

    Args:
        group: Whose call it is.
        program: The rank's.
        task: The rank itself, or one of its threads.
        operation: Its part of the call.
    """
    engine = task.engine
    engine.num_thread_calls += 1
    calls = program.local.setdefault(_CALLS, WeakKeyDictionary()).setdefault(group, {})
    if task not in calls:
        for other in [each for each in calls if each.finished]:
            del calls[other]
    others = [last for each, last in calls.items() if each is not task]
    calls[task] = call = _Last(engine.num_thread_calls, operation.name, _place_of(task, operation))
    unordered = next((last for last in others if last.number > task.num_calls_seen), None)
    if unordered is not None:
        leaks = group.world.comm_library.leaks
        leaks.unordered_threads(group.name, program.rank or 0, (unordered.text, call.text))


def _place_of(task: Task, operation: Operation) -> CallSite | None:
    """Return the line of a call; where a library's thread calls, that which started the thread."""
    return task.started_at if operation.issued_at is None else operation.issued_at
