"""One run of a search: what timing could decide is picked, along a list of numbers.

Simulated time decides nothing here ("maximal progress", as POE of Vakkalanka, Gopalakrishnan and
Kirby 2008): a rank that comes to what others can see is parked, and so is one that asks for what
depends on the time. Once nothing else can go on, all that may happen next is known. Where there is
more than one possibility, the run takes the one that the list names, else the first.

Two states are equal if all ranks have observed the same, and shared objects show the same: what a
rank does is a function of what it has observed. So the run stops at a state that another run has
met: what follows is known.

What a rank alone has seen (the answer of a poll) is hidden from the others as long as all that it
does where others see it is the same after every answer. That is checked at each of its calls, by
name and by the bytes that it gives. So the polls of several ranks are looked through rank by rank,
not in all combinations, until a line is found whose answers show: then the search starts again.
"""

from __future__ import annotations

import dis
import itertools
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.device.clocks import is_behind
from simrank.engine import NamedWait
from simrank.engine.callsite import is_library, is_simranks
from simrank.engine.choices import LONG_PS, Act
from simrank.engine.task import SwitchObserver
from simrank.errors import SimrankError
from simrank.timings.places import digest_of, drawn_numbers, line_here, place_here, place_of
from simrank.timings.readings import READINGS, Moment, reading

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from types import CodeType

    from simrank.engine import Handle, Task
    from simrank.engine.task import TaskGroup

# Assumed: rounds of a loop whose values never repeat that differ for the search: of polls for what
# is the rank's own, and of looks at shared objects, which go with all orders of others' calls.
MAX_ROUNDS, MAX_LOOKS = 12, 4
MAX_SLEEPS = 100_000  # Assumed: more are a loop that waits for what the search does not see.
_CLOCK_STEP_PS = 10**9

GO = "goes on"
YES, NO = "yes", "not yet"
IN_TIME, LATE = "in time", "too late"


class MetAgainError(BaseException):
    """The run has come to a state that another run has met; it is no failure."""


class OtherWayError(SimrankError):
    """A replay took another way: something outside of the simulation decides."""


class EndlessLoopError(SimrankError):
    """A rank sleeps again and again, and waits for nothing that the search can see."""


@dataclass
class Known:
    """Facts that the runs of a search share.

    Attributes:
        shared: Lines at which a rank comes to objects whose order of calls can be seen.
        visible: Lines of own choices that other ranks may see the outcome of.
        states: Those that have been met.
        contexts: Own choices that have been met, by what the rank has observed, and others show.
        acts: What a rank does where others see it, by what it has observed, own choices apart.
    """

    shared: set[str] = field(default_factory=set)
    visible: set[str] = field(default_factory=set)
    states: set[bytes] = field(default_factory=set)
    contexts: set[bytes] = field(default_factory=set)
    acts: dict[tuple[object, ...], bytes] = field(default_factory=dict)

    def afresh(self) -> Known:
        """Return the lines alone, for another search."""
        return Known(set(self.shared), set(self.visible))


class ChoicePoint(NamedTuple):
    """A line at which timing decides.

    Attributes:
        line: The program's line.
        what: What is decided, for reports.
    """

    line: str
    what: str


@dataclass(eq=False)
class _Visit:
    """The last time that a rank was at a place since it did anything.

    Attributes:
        history: What the rank had observed.
        num_changes: Changes of the run by then.
        tried: What has happened there since.
    """

    history: tuple[bytes, bytes]
    num_changes: int = -1
    tried: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class _Side:
    """The state of a task for the search.

    Attributes:
        name: Equal in all runs: number of the spawn, rank, number of the thread.
        history: A hash of all that it has observed.
        done: Of all that it has done where others see it, and printed.
        drawn: Of the state of its random numbers.
        shown: Like the history, without own choices that no other rank sees.
        hidden: The lines of these.
        visits: Places since it did anything.
        rounds: How often it was at a line, for the same thing, since it did anything.
        num_acts: Acts so far.
        slept_ps: How long it has slept at least, if nothing else took any time.
        num_sleeps: Sleeps and polls that no choice stands for.
        clock_ps: The last reading of its clock.
    """

    name: tuple[int, int, int]
    task: Task
    history: bytes = b""
    done: bytes = b""
    drawn: bytes = b""
    shown: bytes = b""
    hidden: set[str] = field(default_factory=set)
    visits: dict[Hashable, _Visit] = field(default_factory=dict)
    rounds: dict[Hashable, int] = field(default_factory=dict)
    num_acts: int = 0
    num_sleeps: int = 0
    slept_ps: int = 0
    clock_ps: int = 0

    def observe(self, *what: object, hidden_at: str | None = None) -> None:
        """Add an observation; `hidden_at` is the line of one that no other rank sees."""
        self.history = digest_of(self.history, *what)
        if hidden_at is None:
            self.shown = digest_of(self.shown, *what)
        else:
            self.hidden.add(hidden_at)

    def known_by(self) -> tuple[object, ...]:
        """Return the key of its state: its place, or else all its observations."""
        place = place_of(self.task.carrier.frame, READINGS)
        if self.task.finished or self.task.engine.has_threads or not place.is_sure & place.is_whole:
            return self.history, self.done
        return "at", place.digest, self.done, self.drawn

    def start_over(self) -> None:
        """Forget places: it has done something."""
        self.num_acts += 1
        self.visits.clear()
        self.rounds.clear()


class _Object:
    """A shared object, with the acts of each task.

    Attributes:
        kind: In the plural.
        sides: The tasks that did each act.
        num_writes: Writes and updates.
        lines: Where.
        changes: Of it, in their order, by task and number.
        state: Returns its value for a look; None: its changes stand for it.
        owner: The object itself, so that no other one gets its key.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.sides: dict[Act, set[tuple[int, int, int]]] = {act: set() for act in Act}
        self.num_writes = 0
        self.lines: set[str] = set()
        self.changes: list[tuple[tuple[int, int, int], int]] = []
        self.state: Callable[[], Hashable] | None = None
        self.owner: object = None

    def note(self, act: Act, side: _Side, line: str) -> None:
        """Note that a task does something with it."""
        self.sides[act].add(side.name)
        self.num_writes += act in (Act.WRITE, Act.UPDATE)
        self.lines.add(line)

    def shown(self) -> Hashable:
        """Return the value that a look shows, or all changes of it in order."""
        return tuple(self.changes) if self.state is None else self.state()

    def is_ordered(self, related: Sequence[_Object]) -> bool:
        """Return whether no order of calls on it, and on what it is part of, can be seen."""
        all_ = (self, *related)
        by_act = {act: set().union(*(each.sides[act] for each in all_)) for act in Act}
        writing = by_act[Act.WRITE] | by_act[Act.UPDATE]
        looking = by_act[Act.READ] | by_act[Act.UPDATE]
        taking = by_act[Act.ACQUIRE]
        if len(writing) > 1 or len(taking) > 1:
            return False
        if writing and looking - writing:
            return False
        if sum(each.num_writes for each in all_) > 1 and by_act[Act.AWAIT] - writing:
            return False
        # A look at a lock, or a try to take it, beside those that hold it.
        holding = taking | by_act[Act.RELEASE]
        return not holding or not looking or len(holding | looking) == 1


@dataclass(eq=False)
class _Waiting:
    """A task that waits for its turn, or a receive from any source.

    Attributes:
        side: The task's.
        point: Where.
        options: Returns what may happen next with it.
        is_own: Whether it is a poll, or the like: what it sees depends on no other parked call once
            the awaited thing has happened.
        shared: The object that it comes to, or None.
        visit: The time before, if it is in a loop.
        take: Called with what happens.
    """

    side: _Side
    point: ChoicePoint
    options: Callable[[], list[Any]]
    take: Callable[[Any], None] = lambda _: None
    is_own: bool = False
    shared: _Object | None = None
    visit: _Visit | None = None

    def order(self) -> tuple[object, ...]:
        """Return the key by which parked calls are sorted: the same in all runs."""
        return (*self.side.name, self.point)

    def possible(self, num_changes: int) -> list[Any]:
        """Return the options, without those that a loop has gone through with nothing changed."""
        options, visit = self.options(), self.visit
        if visit is None or visit.num_changes != num_changes:
            return options
        return [each for each in options if each not in visit.tried]


class TimingRun(SwitchObserver):
    """The choices of one run; see `simrank.engine.interface.Choices`.

    Args:
        picks: Which possibility is taken where there are several, in order; then the first.
        known: What the runs of the search have found.
        clock_scale: Factor of the readings of clocks, which should make no difference.
        is_replay: Whether the run goes to its end wherever others have been.
        drawn: Likewise, with picks that are drawn with this seed.

    Attributes:
        taken: The picks of this run.
        open: Of the picks that are new in this run, the number, and that of possibilities.
        points: Where timing decides, with what may happen there.
        unmodelled: Where a program polls for what the search does not decide: nothing is proved.
        bounded: Lines of loops that were followed for a few rounds only.
        is_new: Whether further lines were found to share objects: the search starts again.
        num_limits: Waits whose long limit was taken not to expire.
        num_readings: Readings of clocks.
        has_threads: Whether a rank has started a thread.
    """

    def __init__(
        self,
        picks: Sequence[int] = (),
        known: Known | None = None,
        *,
        clock_scale: int = 1,
        is_replay: bool = False,
        drawn: int | None = None,
    ) -> None:
        self.taken: list[int] = []
        self.open: list[tuple[int, int]] = []
        self.points: dict[ChoicePoint, set[str]] = {}
        self.unmodelled: dict[ChoicePoint, int] = {}
        self.bounded: set[str] = set()
        self.is_new = False
        self.num_limits = self.num_readings = 0
        self.has_threads = False
        self._picks, self._known = tuple(picks), Known() if known is None else known
        self._clock_scale, self._is_replay, self._drawn = clock_scale, is_replay, drawn
        self._sides: dict[Task, _Side] = {}
        self._groups: dict[TaskGroup | None, int] = {}
        self._threads: dict[tuple[int, int], int] = {}
        self._parked: list[_Waiting] = []
        self._objects: dict[tuple[str, Hashable], _Object] = {}
        self._calls: dict[Any, tuple[_Side, str]] = {}
        self._states: set[bytes] = set()
        self._num_changes = 0

    @property
    def context(self) -> bytes:
        """A hash of all that ranks have shown each other in this run."""
        return digest_of(sorted((side.name, side.shown) for side in self._sides.values()))

    def forget(self) -> None:
        """Drop the run's tasks and objects; its findings stay."""
        self.has_threads = any(task.engine.has_threads for task in self._sides)
        for held in (
            self._sides, self._groups, self._objects, self._parked, self._calls,
        ):  # fmt: skip
            held.clear()

    @classmethod
    def parse(cls, text: str, *, clock_scale: int = 1) -> TimingRun:
        """Return the run that replays a text, as `replay` writes it.

        Raises:
            ValueError: It is no such text.
        """
        picked, _, lines = text.partition("@")
        picks = [int(part) for part in picked.split(".") if part]
        known = Known({line for line in lines.split(",") if line})
        return cls(picks, known, clock_scale=clock_scale, is_replay=True)

    @property
    def replay(self) -> str:
        """The text of a replay: picks, and the lines at which ranks wait for their turns."""
        lines = ",".join(sorted(self._known.shared))
        return ".".join(map(str, self.taken)) + (f"@{lines}" if lines else "")

    @property
    def _goes_on(self) -> bool:
        """Whether the run goes to its end wherever others have been."""
        return self._is_replay or self._drawn is not None

    # ---- what ranks come to ----

    def reach(  # noqa: PLR0913 - as of `Choices`
        self,
        task: Task,
        kind: str,
        key: Hashable,
        act: Act,
        *,
        is_ready: Callable[[], bool] | None = None,
        state: Callable[[], Hashable] | None = None,
        given: Hashable = None,
        owner: object = None,
    ) -> None:
        """Return when it is a call's turn."""
        side, line = self._side(task), line_here()
        shared = self._touched(kind, key, act, side, line)
        shared.state, shared.owner = state or shared.state, owner or shared.owner
        is_blocked = is_ready is not None and not is_ready()
        # A loop that looks again and again waits for what others do.
        if line in self._known.shared or is_blocked or act is Act.READ:

            def options() -> list[str]:
                return [GO] if is_ready is None or is_ready() else []

            visit = self._visit(side, (kind, key), MAX_LOOKS) if act in _LOOKS else None
            point = ChoicePoint(line, f"the order of calls on {kind}")
            self._park(task, _Waiting(side, point, options, visit=visit, shared=shared))
        seen = shared.shown() if act in _SEES and not _is_dropped() else 0
        side.observe(act.value, kind, seen)
        if act not in _LOOKS:
            if given is None:
                self._show(side)
            self._act(side, f"{act.value} {kind}", digest_of(given))
            side.start_over()
            shared.changes.append((side.name, side.num_acts))
            self._num_changes += 1

    def ask(
        self,
        task: Task,
        what: str,
        is_true: Callable[[], bool] | None,
        is_known: Callable[[], bool],
    ) -> bool:
        """Answer a poll."""
        if is_true is None:
            self._ask_in_vain(task, what)
            return False
        if is_true() and is_known():
            return True
        answer: str = self._own_choice(task, what, lambda: [YES, NO] if is_true() else [NO])
        return answer == YES

    def _ask_in_vain(self, task: Task, what: str) -> None:
        """Answer a poll that has one answer; a loop of such polls ends nowhere, and waits."""
        side = self._side(task)
        visit = self._visit(side, what)
        if visit.tried and visit.num_changes == self._num_changes:
            point = ChoicePoint(line_here(), _without_numbers(what))
            self._park(task, _Waiting(side, point, list))
        visit.tried, visit.num_changes = [NO], self._num_changes

    def limit(self, task: Task, handle: Handle, timeout_ps: int) -> bool:
        """Wait for a handle, or until a time limit; return whether it completed in time."""
        if timeout_ps >= LONG_PS:
            self.num_limits += 1
            if not handle.complete:
                task.engine.park_on(handle, task)
            return True
        stream = getattr(handle, "stream", None)  # Of an operation.
        if stream is not None and is_behind(stream.device.races, handle):
            return True
        what = f"the time limit of a wait for {handle.describe()}"
        answer: str = self._own_choice(
            task, what, lambda: [IN_TIME, LATE] if handle.complete else [LATE]
        )
        if answer == LATE:  # Callers look at the time to see what is left.
            self._side(task).slept_ps += timeout_ps
            task.host_ps = task.clock_ps + timeout_ps
        return answer == IN_TIME

    def compare(self, task: Task) -> bool:
        """Return the outcome of a comparison of readings of clocks: either is possible."""
        return bool(self._own_choice(task, "a comparison of times", lambda: [True, False]))

    def clock_ps(self, task: Task) -> int:
        """Return the next reading of a rank's clocks, in picoseconds."""
        side = self._side(task)
        side.clock_ps += _CLOCK_STEP_PS
        return side.clock_ps * self._clock_scale

    def clock(self, task: Task, name: str, value: float) -> float:
        """Return a reading of a clock; a plain number for a library, which only notes the time."""
        side = self._side(task)
        frame = sys._getframe(1)  # noqa: SLF001 - the documented way to a caller
        while frame.f_back is not None and is_simranks(frame.f_code.co_filename):
            frame = frame.f_back
        if is_library(frame.f_code.co_filename):
            return value
        self.num_readings += 1
        per_second = 10**9 if isinstance(value, int) else 1
        slept = side.slept_ps / 10**12 * per_second
        found: float = reading(value, Moment((name, side.name), side.clock_ps, slept))
        return found

    def sleep(self, task: Task, delay_ps: int) -> None:
        """Sleep: other threads of the rank may go on."""
        self._side(task).slept_ps += delay_ps
        if task.engine.has_threads:
            self._let_go_on(task, ChoicePoint(line_here(), "the turns of threads"))
        else:
            self._count_sleep(self._side(task))

    def undeclared(self, task: Task, what: str) -> None:
        """Note a poll that no choice stands for: nothing is proved."""
        point = ChoicePoint(line_here(), _without_numbers(what))
        self.unmodelled[point] = self.unmodelled.get(point, 0) + 1
        self._let_go_on(task, point)

    def pass_over(self, what: str) -> None:
        """Note what the search does not follow, at the program's line: nothing is proved."""
        point = ChoicePoint(line_here(), what)
        self.unmodelled[point] = self.unmodelled.get(point, 0) + 1

    def receive(
        self,
        call: Any,  # noqa: ANN401 - as above
        sources: Callable[[], Sequence[int]],
        take: Callable[[int], None],
    ) -> None:
        """Pick the source of a receive from any, once nothing else can go on."""
        side = self._side(call.task)
        site = call.issued_at
        line = "an unknown line" if site is None else _shown(site.line())

        def taken(source: int) -> None:
            side.observe("any source", source)
            self._num_changes += 1
            take(source)

        point = ChoicePoint(line, "the source of a receive from any")
        self._parked.append(_Waiting(side, point, lambda: list(sources()), taken))

    # ---- parked ----

    def _own_choice(self, task: Task, what: str, options: Callable[[], list[Any]]) -> Any:  # noqa: ANN401 - one of them
        side = self._side(task)
        point, visit = ChoicePoint(line_here(), _without_numbers(what)), self._visit(side, what)
        answer = self._park(task, _Waiting(side, point, options, is_own=True, visit=visit))
        is_seen = task.engine.has_threads or point.line in self._known.visible
        side.observe(what, answer, hidden_at=None if is_seen else point.line)
        return answer

    def _let_go_on(self, task: Task, point: ChoicePoint) -> None:
        side = self._side(task)
        self._count_sleep(side)
        visit = self._visit(side, point.what)
        if not visit.tried:
            self._num_changes += 1  # It is new there: other threads may see what it did.
        self._park(task, _Waiting(side, point, lambda: [GO], visit=visit))
        side.observe(point.what)

    def _count_sleep(self, side: _Side) -> None:
        side.num_sleeps += 1
        if side.num_sleeps > MAX_SLEEPS:
            raise EndlessLoopError(f"{line_here()}: sleeps or polls again and again")

    def _park(self, task: Task, waiting: _Waiting) -> Any:  # noqa: ANN401 - one of the options
        """Wait until the run picks what happens with a task; return it."""
        picked: list[Any] = []
        handle = NamedWait(f"{waiting.point.what} at {waiting.point.line}")

        def take(option: Any) -> None:  # noqa: ANN401 - as above
            picked.append(option)
            handle.finish(task.engine)

        waiting.take = take
        self._parked.append(waiting)
        try:
            task.engine.park_on(handle, task)
        finally:
            if waiting in self._parked:  # It was aborted.
                self._parked.remove(waiting)
        return picked[0]

    def _visit(self, side: _Side, what: Hashable, most: int = MAX_ROUNDS) -> _Visit:
        """Return the time before that a rank was where it is, since it did anything.

        A rank that comes back with the same values goes through the same states again, as long as
        nothing changes. Where its values never repeat, so does one that has been at a line many
        times; that is then said.
        """
        place = place_here(READINGS)
        at_line = (place.line, what)
        rounds = side.rounds[at_line] = side.rounds.get(at_line, 0) + 1
        key = place.digest, what
        visit = side.visits.get(key) if place.is_sure else None
        if visit is not None:
            side.history, side.shown = visit.history
            return visit
        observed = side.history, side.shown
        if rounds > most:
            visit = side.visits.setdefault(at_line, _Visit(observed))
            if visit.tried:
                self.bounded.add(place.line)
            return visit
        visit = _Visit(observed)
        if place.is_sure:
            side.visits[key] = visit
        return visit

    # ---- the picks ----

    def at_rest(self) -> bool:
        """Resume a parked task; return whether there was one.

        Raises:
            MetAgainError: Another run has met this state, or the search starts again.
        """
        if self.is_new and not self._goes_on:
            raise MetAgainError
        found = self._possibilities()
        if not found:
            return False
        index = 0
        if len(found) > 1:
            index = self._pick(found)
        parked, option = found[index]
        self._parked.remove(parked)
        visit = parked.visit
        if visit is not None:
            if visit.num_changes != self._num_changes:
                visit.num_changes, visit.tried = self._num_changes, []
            visit.tried.append(option)
        parked.take(option)
        return True

    def _possibilities(self) -> list[tuple[_Waiting, Any]]:
        """Return the options of all parked tasks, or of one whose acts no other task sees."""
        parked = sorted(self._parked, key=_Waiting.order)
        found = [(each, option) for each in parked for option in each.possible(self._num_changes)]
        for each in parked:
            own = each.possible(self._num_changes)
            is_alone = each.is_own and own and own not in ([NO], [LATE])
            if is_alone or (own and self._is_unseen(each)):
                return [(each, option) for option in own]
        return found

    def _is_unseen(self, parked: _Waiting) -> bool:
        shared = parked.shared
        return shared is not None and not shared.lines & self._known.shared

    def _pick(self, found: list[tuple[_Waiting, Any]]) -> int:
        number = len(self.taken)
        for parked, option in found:
            outcome = f"rank {parked.side.name[1]} first" if option is GO else str(option)
            self.points.setdefault(parked.point, set()).add(outcome)
        if number < len(self._picks):
            index = self._picks[number]
            if index >= len(found):
                raise OtherWayError(self._picks)
        else:
            index = 0
            if self._drawn is not None:
                index = digest_of(self._drawn, number)[0] % len(found)
            elif not self._goes_on and self._is_new(found):
                self.open.append((number, len(found)))
        self.taken.append(index)
        return index

    def _is_new(self, found: list[tuple[_Waiting, Any]]) -> bool:
        """Return whether the possibilities are to be gone through: no other run has been here.

        Raises:
            MetAgainError: One has, and what follows is the same for all ranks.
        """
        sides = sorted(self._sides.values(), key=lambda side: side.name)
        objects = sorted(repr(each.shown()) for each in self._objects.values() if each.changes)
        waiting = [
            (each.side.name, each.point, repr(option), each.shared and repr(each.shared.shown()))
            for each, option in found
        ]
        state = digest_of([(side.name, side.known_by()) for side in sides], objects, waiting)
        if state in self._states:  # A loop of this run: it goes on, and takes nothing else there.
            return False
        if state in self._known.states:
            raise MetAgainError
        self._known.states.add(state)
        self._states.add(state)
        first = found[0][0]
        if not first.is_own or any(each is not first for each, _ in found):
            return True
        seen = [(s.name, s.known_by() if s is first.side else s.shown) for s in sides]
        context = digest_of(seen, objects, waiting)
        is_new = context not in self._known.contexts
        self._known.contexts.add(context)
        return is_new

    # ---- what a rank does where others see it ----

    def _show(self, side: _Side) -> None:
        """Take a rank's own choices as visible: it is about to change what others see."""
        if side.hidden:
            self._known.visible |= side.hidden
            self.is_new = True

    def _act(self, side: _Side, what: str, digest: bytes = b"") -> None:
        """Compare what a rank does with what it did after other choices of its own."""
        if side.hidden:
            known = self._known.acts.setdefault((side.name, side.shown, what), digest)
            following = self._known.acts.setdefault((side.name, side.shown), what.encode())
            if known != digest or following != what.encode():
                self._show(side)
        side.shown = digest_of(side.shown, what, digest)
        side.done = digest_of(side.done, what, digest)

    def called(self, operation: Any) -> None:  # noqa: ANN401 - operations live in other layers
        """Note a call of a rank on others: a collective, or one end of a message."""
        if operation.task is None:
            return
        side = self._side(operation.task)
        side.start_over()
        given = _given(operation)
        self._act(side, f"calls {operation.name}")
        side.done, side.drawn = digest_of(side.done, given), drawn_numbers()
        if side.hidden:
            self._calls[operation] = side, f"gives {operation.name} {digest_of(side.shown).hex()}"

    def on_operation(self, operation: Any) -> None:  # noqa: ANN401 - as above
        """Compare the bytes that a rank gave to a call."""
        found = self._calls.pop(operation, None)
        if found is not None:
            side, what = found
            given = _given(operation)
            if self._known.acts.setdefault((side.name, what), given) != given:
                self._show(side)

    def printed(self, task: Task, text: str) -> None:
        """Note what a rank prints."""
        side = self._side(task)
        side.done = digest_of(side.done, text)

    def failed(self, task: Task | None) -> None:
        """Note a rank that raises."""
        if task is not None and task in self._sides:
            self._act(self._sides[task], f"raises {type(task.error).__name__}")

    def ended(self) -> None:
        """Note ranks that have returned, as the program has ended."""
        for task, side in self._sides.items():
            if task.finished and task.error is None:
                self._act(side, "ends")

    # ---- names that are the same in all runs ----

    def _side(self, task: Task) -> _Side:
        side = self._sides.get(task)
        if side is None:
            if task.group not in self._groups:  # What started it may depend on own choices.
                for each in self._sides.values():
                    self._show(each)
            group = self._groups.setdefault(task.group, len(self._groups))
            rank = -1 if task.rank is None else task.rank
            number = self._threads[group, rank] = self._threads.get((group, rank), -1) + 1
            side = self._sides[task] = _Side((group, rank, number), task)
        side.drawn = drawn_numbers()
        return side

    def _touched(self, kind: str, key: Hashable, act: Act, side: _Side, line: str) -> _Object:
        shared = self._objects.get((kind, key))
        if shared is None:
            shared = self._objects[kind, key] = _Object(kind)
        shared.note(act, side, line)
        others = self._related(kind, key)
        if not shared.is_ordered(others):
            lines = {line for each in (shared, *others) for line in each.lines}
            if not lines <= self._known.shared and not self._is_replay:
                self._known.shared |= lines
                self.is_new = True
        return shared

    def _related(self, kind: str, key: Hashable) -> list[_Object]:
        """Return the whole of an object, or its parts: `(owner, None)` is a whole."""
        if not isinstance(key, tuple):
            return []
        owner, part = key
        if part is not None:
            whole = self._objects.get((kind, (owner, None)))
            return [] if whole is None else [whole]
        return [
            each for (a_kind, other), each in self._objects.items()
            if a_kind == kind and other != key and isinstance(other, tuple) and other[0] == owner
        ]  # fmt: skip


def _given(operation: Any) -> bytes:  # noqa: ANN401 - operations live in other layers
    """Return a hash of the bytes that a call gives to others."""
    request = getattr(operation, "request", None)
    touched = operation.touched if request is None else request
    buffers = () if touched is None else touched.reads
    arrays = (np.ascontiguousarray(buffer.array) for buffer in buffers if buffer is not None)
    return digest_of([array.tobytes() for array in arrays])


_LOOKS = (Act.READ, Act.AWAIT)
_SEES = (Act.READ, Act.AWAIT, Act.UPDATE)
_NUMBERS = re.compile(r"#?\d+")


def _without_numbers(what: str) -> str:
    """Return a report's words, without what differs from call to call."""
    return " ".join(_NUMBERS.sub("", what).split())


def _shown(line: Any) -> str:  # noqa: ANN401 - a SourceLine
    name, number = line
    return f"{name.rpartition('/')[2]}:{number}"


def _is_dropped() -> bool:
    """Return whether the program drops the result of the call that it makes, without a look."""
    frame = sys._getframe(2)  # noqa: SLF001 - the documented way to a caller
    while frame.f_back is not None and is_simranks(frame.f_code.co_filename):
        frame = frame.f_back
    if is_library(frame.f_code.co_filename):
        return False
    return frame.f_lasti in _drops(frame.f_code)


@cache
def _drops(code: CodeType) -> frozenset[int]:
    """Return the offsets of calls whose result is dropped by the next instruction."""
    found = list(dis.get_instructions(code))
    return frozenset(
        one.offset for one, following in itertools.pairwise(found)
        if one.opname.startswith("CALL") and following.opname == "POP_TOP"
    )  # fmt: skip
