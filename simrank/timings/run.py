"""One run of a search: what timing could decide is picked, along a list of numbers.

Simulated time decides nothing here ("maximal progress", as POE of Vakkalanka, Gopalakrishnan and
Kirby 2008): a rank that comes to what others can see is parked, and so is one that asks for what
depends on the time. Once nothing else can go on, all that may happen next is known. Where there is
more than one possibility, the run takes the one that the list names, else the first.

Two states are equal if all ranks stand where they can read the same values, and shared objects that
a rank may yet come to show the same; a rank with values that cannot be looked into must have
observed the same. The run stops at a state that another run has met with the same lines printed:
what follows is known. With other lines it goes on, for the outcomes that it shows.

What a rank alone has seen (the answer of a poll) is hidden from the others as long as all that it
does where others see it is the same after every answer. That is checked at each of its calls, by
name and by the bytes that it gives. So the polls of several ranks are looked through rank by rank,
not in all combinations, until a line is found whose answers show: then the search starts again.
"""

from __future__ import annotations

import dis
import itertools
import math
import re
import sys
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.clocks import is_behind
from simrank.engine import NamedWait
from simrank.engine.callsite import is_library, is_simranks
from simrank.engine.choices import LONG_PS, LOOKS, Act
from simrank.engine.task import SwitchObserver
from simrank.errors import SimrankError
from simrank.isolation.private_modules import private_modules
from simrank.ranks.current import rank_program
from simrank.timings import stacks
from simrank.timings.independence import own_name
from simrank.timings.places import digest_of, line_here, place_here
from simrank.timings.process import state_of_process
from simrank.timings.readings import READINGS, Moment, reading
from simrank.timings.state import Actor, ChoicePoint, Known, SharedObject, Visit, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from types import CodeType

    from simrank.engine import Handle, Task
    from simrank.engine.task import TaskGroup

# Assumed: rounds of a loop whose values never repeat that differ for the search: of polls for what
# is the rank's own, and of looks at shared objects, which go with all orders of others' calls.
MAX_ROUNDS, MAX_LOOKS = 12, 4
MAX_IN_A_ROW = 100  # Assumed: as many sleeps with nothing between are a loop that waits.
MAX_SLEEPS = 10_000  # Assumed: a loop that waits for longer waits for what never happens.
_CLOCK_STEP_PS, _APART_PS, _DAY_PS = 1_000_003_000, 10**6, 86_400 * 10**12
_SHORTEST = 3  # Assumed: a shorter text of a reading may be any number.
_KEEPS_TIME = "t"  # Begins the texts of runs that do.

_numbers = itertools.count()

GO = "goes on"
YES, NO = "yes", "not yet"
IN_TIME, LATE = "in time", "too late"


class MetAgainError(BaseException):
    """The run has come to a state that another run has met; it is no failure."""


class OtherWayError(SimrankError):
    """A replay took another way: something outside of the simulation decides."""


class EndlessLoopError(SimrankError):
    """A rank sleeps again and again, and waits for nothing that the search can see."""


class TimingRun(SwitchObserver):
    """The choices of one run; see `simrank.engine.interface.Choices`.

    Args:
        picks: Which possibility is taken where there are several, in order; then the first.
        known: What the runs of the search have found.
        clock_scale: Factor of the readings of clocks, which should make no difference.
        is_replay: Whether the run goes to its end wherever others have been.
        drawn: Likewise, with picks that are drawn with this seed.
        keeps_time: Whether no limit expires, and times are compared as they are.

    Attributes:
        taken: The picks of this run.
        open: Of the picks that are new in this run, the number, and the other possibilities.
        later: The like where another run has been that had printed something else.
        points: Where timing decides, with what may happen there.
        unmodelled: Where a program polls for what the search does not decide: nothing is proved.
        bounded: Lines of loops that were followed for a few rounds only.
        is_new: Whether further lines were found to share objects: the search starts again.
        num_limits: Waits whose long limit was taken not to expire.
        num_readings: Readings of clocks by the program.
        num_clocks: All readings of clocks.
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
        keeps_time: bool = False,
    ) -> None:
        self.taken: list[int] = []
        self.open: list[tuple[int, list[int]]] = []
        self.later: list[tuple[int, list[int]]] = []
        self.points: dict[ChoicePoint, set[str]] = {}
        self.unmodelled: dict[ChoicePoint, int] = {}
        self.bounded: set[str] = set()
        self.is_new = False
        self.num_limits = self.num_readings = self.num_clocks = 0
        self._texts: set[str] = set()
        self.has_threads = False
        self._picks, self._known = tuple(picks), Known() if known is None else known
        self._keeps_time = keeps_time
        self._clock_scale, self._is_replay, self._drawn = clock_scale, is_replay, drawn
        self._actors: dict[Task, Actor] = {}
        self._groups: dict[TaskGroup | None, int] = {}
        self._threads: dict[tuple[int, int], int] = {}
        self._parked: list[Waiting] = []
        self._objects: dict[tuple[str, Hashable], SharedObject] = {}
        self._compared: dict[Task, int] = {}
        self._calls: dict[Any, tuple[Actor, str, list[Any]]] = {}
        self._states: set[tuple[bytes, bytes]] = set()
        self._num_changes = 0
        self._number = next(_numbers)
        self._checker: Any = None

    @property
    def context(self) -> bytes:
        """A hash of all that ranks have shown each other in this run."""
        return digest_of(sorted((actor.name, actor.shown) for actor in self._actors.values()))

    def forget(self) -> None:
        """Drop the run's tasks and objects; its findings stay."""
        self.has_threads = any(task.engine.shares_variables for task in self._actors)
        for held in (
            self._actors, self._groups, self._objects, self._parked, self._calls, self._compared,
        ):  # fmt: skip
            held.clear()

    @classmethod
    def parse(cls, text: str, *, clock_scale: int = 1) -> TimingRun:
        """Return the run that replays a text, as `replay` writes it.

        Raises:
            ValueError: It is no such text.
        """
        keeps_time = text.startswith(_KEEPS_TIME)
        picked, _, lines = text.removeprefix(_KEEPS_TIME).partition("@")
        picks = [int(part) for part in picked.split(".") if part]
        known = Known({line for line in lines.split(",") if line})
        return cls(picks, known, clock_scale=clock_scale, is_replay=True, keeps_time=keeps_time)

    @property
    def replay(self) -> str:
        """The text of a replay: picks, and the lines at which ranks wait for their turns."""
        lines = ",".join(sorted(self._known.shared))
        picked = (_KEEPS_TIME if self._keeps_time else "") + ".".join(map(str, self.taken))
        return picked + (f"@{lines}" if lines else "")

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
        is_vain: Callable[[], bool] | None = None,
        state: Callable[[], Hashable] | None = None,
        given: Hashable = None,
        asked: Hashable = None,
        owner: object = None,
    ) -> None:
        """Return when it is a call's turn."""
        actor, line = self._actor(task), line_here()
        shared = self._touched(kind, key, owner, act, actor, line)
        if own_name(owner) is None:  # Made where no search sees it: which one it is is not known.
            state = given = None
        # What the call was given is in no frame of the program.
        is_open = given is None and act not in LOOKS
        actor.asked = kind, act.value, actor.history if is_open else given, asked
        # Of threads that share variables, the state of a lock is not that of what it guards.
        shared.state = None if task.engine.shares_variables else state or shared.state
        if owner is not None:  # Whether it is true is a look at it.
            shared.owner = owner
        is_blocked = is_ready is not None and not is_ready()
        # A loop that looks again and again waits for what others do.
        is_again = act is Act.READ or (act is Act.AWAIT and actor.awaits_again(line))
        is_again |= is_vain is not None and is_vain()
        if line in self._known.shared or is_blocked or is_again:

            def options() -> list[str]:
                return [GO] if is_ready is None or is_ready() else []

            may_look = act in LOOKS or is_vain is not None
            visit = self._visit(actor, (kind, key, given), MAX_LOOKS) if may_look else None
            point = ChoicePoint(line, f"the order of calls on {kind}")
            self._park(task, Waiting(actor, point, options, visit=visit, shared=shared, act=act))
        seen = shared.shown() if act in _SEES and not _is_dropped() else 0
        actor.observe(act.value, kind, seen)
        if act not in LOOKS and not (is_vain is not None and is_vain()):
            if given is None:
                self._show(actor)
            self._act(actor, f"{act.value} {kind}", digest_of(given))
            actor.start_over()
            what = actor.history if given is None else digest_of(given)
            shared.changes.append((actor.name, actor.num_acts, what))
            self._num_changes += 1
        actor.asked = None

    def ask(
        self,
        task: Task,
        what: str,
        is_true: Callable[[], bool] | None,
        is_known: Callable[[], bool],
        about: object = None,
    ) -> bool:
        """Answer a poll."""
        if is_true is None:
            self._ask_in_vain(task, what)
            return False
        if is_true() and is_known():
            return True
        answer: str = self._own_choice(
            task, what, lambda: [YES, NO] if is_true() else [NO], about=id(about)
        )
        return answer == YES

    def _ask_in_vain(self, task: Task, what: str) -> None:
        """Answer a poll that has one answer; a loop of such polls ends nowhere, and waits."""
        actor = self._actor(task)
        visit = self._visit(actor, what)
        if visit.tried and visit.num_changes == self._num_changes:
            point = ChoicePoint(line_here(), _without_numbers(what))
            self._park(task, Waiting(actor, point, list))
        visit.tried, visit.num_changes = [NO], self._num_changes

    def note_long_limit(self) -> None:
        """Note a wait whose long limit is taken not to expire."""
        self.num_limits += 1

    def limit(self, task: Task, handle: Handle, timeout_ps: int) -> bool:
        """Wait for a handle, or until a time limit; return whether it completed in time."""
        if timeout_ps >= LONG_PS:
            self.note_long_limit()
            if not handle.complete:
                task.engine.park_on(handle, task)
            return True
        stream = getattr(handle, "stream", None)  # Of an operation.
        if stream is not None and is_behind(stream.device.races, handle):
            return True
        what = f"the time limit of a wait for {handle.describe()}"
        answer: str
        if self._keeps_time:  # It expires once nothing else can happen.
            point = ChoicePoint(line_here(), _without_numbers(what))
            ended = Waiting(
                self._actor(task), point, lambda: [IN_TIME if handle.complete else LATE],
                is_last=not handle.complete,
            )  # fmt: skip
            answer = self._park(task, ended)
        else:
            answer = self._own_choice(
                task, what, lambda: [IN_TIME, LATE] if handle.complete else [LATE]
            )
        if answer == LATE:  # Callers look at the time to see what is left.
            self._actor(task).slept_ps += timeout_ps
            task.host_ps = task.clock_ps + timeout_ps
        return answer == IN_TIME

    def compare(self, task: Task, *, outcome: bool) -> bool:
        """Return the outcome of a comparison of readings of clocks: either is possible."""
        if self._keeps_time:
            return outcome
        # Several with no reading between are of one expression, and no loop.
        number = self._compared[task] = self._compared.get(task, 0) + 1
        what = "a comparison of times"
        return bool(self._own_choice(task, what, lambda: [True, False], about=number))

    def clock_ps(self, task: Task) -> int:
        """Return the next reading of a rank's clocks, in picoseconds."""
        actor = self._actor(task)
        self._compared.pop(task, None)
        actor.clock_ps += _CLOCK_STEP_PS
        # Of two ranks another one is later with another scale: a comparison that is not seen shows.
        scale, (_, rank, _) = self._clock_scale, actor.name
        late_ps = rank * _APART_PS if scale == 1 else scale * _DAY_PS // 999 - rank * _APART_PS
        actor.read_ps = actor.clock_ps * scale + late_ps
        self.num_clocks += 1
        return actor.read_ps

    def note_text(self, text: str) -> None:
        """Note the text of a reading of a clock: lines are compared without it."""
        if len(text) >= _SHORTEST:
            self._texts.add(text)

    def without_times(self, text: str) -> str:
        """Return a text of the run without the readings of clocks in it."""
        if not self._texts:
            return text
        texts = "|".join(map(re.escape, sorted(self._texts, key=len, reverse=True)))
        return re.sub(rf"(?<![\d.])(?:{texts})(?:,\d{{3}})?(?!\d)", "<time>", text)

    def clock(self, task: Task, name: str, value: float) -> float:
        """Return a reading of a clock; a plain number for a library, which only notes the time."""
        actor = self._actor(task)
        frame = sys._getframe(1)  # noqa: SLF001 - the documented way to a caller
        while frame.f_back is not None and is_simranks(frame.f_code.co_filename):
            frame = frame.f_back
        if is_library(frame.f_code.co_filename):
            return value
        self.num_readings += 1
        per_second = 10**9 if isinstance(value, int) else 1
        slept = actor.slept_ps / 10**12 * per_second
        start = math.floor(value - actor.read_ps / 10**12 * per_second)
        moment = Moment((name, actor.name), actor.clock_ps, slept, start=start)
        found: float = reading(value, moment)
        return found

    def sleep(self, task: Task, delay_ps: int) -> None:
        """Sleep: other threads of the rank may go on."""
        actor = self._actor(task)
        actor.slept_ps += delay_ps
        if task.engine.shares_variables:
            self._let_go_on(task, ChoicePoint(line_here(), "the turns of threads"))
        elif _sleeps_in_vain(actor):
            self.undeclared(task, "what a loop of sleeps waits for")

    def undeclared(self, task: Task, what: str) -> None:
        """Note a poll that no choice stands for: nothing is proved. All others go on first.

        Raises:
            EndlessLoopError: It has polled again and again, while nothing else could go on.
        """
        actor, point = self._actor(task), ChoicePoint(line_here(), _without_numbers(what))
        self.pass_over(point.what)
        self._count_vain(actor, f"{point.line}: {what} never comes")
        self._park(task, Waiting(actor, point, lambda: [GO], is_last=True))

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
        actor = self._actor(call.task)
        site = call.issued_at
        line = "an unknown line" if site is None else _shown(site.line())

        def taken(source: int) -> None:
            actor.observe("any source", source)
            self._num_changes += 1
            take(source)

        point = ChoicePoint(line, "the source of a receive from any")
        self._parked.append(Waiting(actor, point, lambda: list(sources()), taken))

    # ---- parked ----

    def _own_choice(
        self, task: Task, what: str, options: Callable[[], list[Any]], about: Hashable = None
    ) -> Any:  # noqa: ANN401 - one of them
        """Return the picked option; while nothing changes, each once at a place about a thing."""
        actor, point = self._actor(task), ChoicePoint(line_here(), _without_numbers(what))
        visit = self._visit(actor, (what, about))
        actor.asked = what
        answer = self._park(task, Waiting(actor, point, options, is_own=True, visit=visit))
        actor.asked = None
        is_seen = task.engine.shares_variables or point.line in self._known.visible
        actor.observe(what, answer, hidden_at=None if is_seen else point.line)
        return answer

    def _let_go_on(self, task: Task, point: ChoicePoint) -> None:
        """Park a task until its turn; the last of all where it has been here in vain."""
        actor = self._actor(task)
        visit = self._visit(actor, point.what)
        is_vain = bool(visit.tried) and visit.num_changes == self._num_changes
        if is_vain:
            self._count_vain(actor, f"{point.line}: sleeps or polls again and again")
        if not visit.tried:
            self._num_changes += 1  # It is new there: other threads may see what it did.
        self._park(task, Waiting(actor, point, lambda: [GO], is_last=is_vain))
        visit.tried, visit.num_changes = [GO], self._num_changes
        actor.observe(point.what)

    @staticmethod
    def _count_vain(actor: Actor, what: str) -> None:
        actor.num_sleeps += 1
        if actor.num_sleeps > MAX_SLEEPS:
            raise EndlessLoopError(what)

    def _park(self, task: Task, waiting: Waiting) -> Any:  # noqa: ANN401 - one of the options
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

    def _visit(self, actor: Actor, what: Hashable, most: int = MAX_ROUNDS) -> Visit:
        """Return the time before that a rank was where it is, since it did anything.

        A rank that comes back with the same values goes through the same states again, as long as
        nothing changes. Where its values never repeat, so does one that has been at a line many
        times; that is then said.
        """
        place = place_here(READINGS)
        at_line = (place.line, what)
        rounds = actor.rounds[at_line] = actor.rounds.get(at_line, 0) + 1
        key = place.digest, what
        visit = actor.visits.get(key) if place.is_sure else None
        if visit is not None:
            actor.history, actor.shown = visit.history
            return visit
        observed = actor.history, actor.shown
        if rounds > most:
            visit = actor.visits.setdefault(at_line, Visit(observed))
            if visit.tried:
                self.bounded.add(place.line)
            return visit
        visit = Visit(observed)
        if place.is_sure:
            actor.visits[key] = visit
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
        parked, option = found[self._pick(found) if len(found) > 1 else 0]
        self._parked.remove(parked)
        visit = parked.visit
        if visit is not None:
            if visit.num_changes != self._num_changes:
                visit.num_changes, visit.tried = self._num_changes, []
            visit.tried.append(option)
        parked.take(option)
        return True

    def _possibilities(self) -> list[tuple[Waiting, Any]]:
        """Return the options of all parked tasks, or of one whose acts no other task sees."""
        parked = sorted(self._parked, key=Waiting.order)
        found = [(each, option) for each in parked for option in each.possible(self._num_changes)]
        for each in parked:
            own = each.possible(self._num_changes)
            is_alone = each.is_own and own and own not in ([NO], [LATE])
            if is_alone or (own and self._is_unseen(each)):
                return [(each, option) for option in own]
        first = [(each, option) for each, option in found if not each.is_last]
        if first or not found:
            return first
        return [min(found, key=lambda each: each[0].actor.num_sleeps)]

    def _is_unseen(self, parked: Waiting) -> bool:
        shared = parked.shared
        return shared is not None and not shared.lines & self._known.shared

    def _pick(self, found: list[tuple[Waiting, Any]]) -> int:
        number = len(self.taken)
        among = self._not_waiting(found)
        for parked, option in (found[index] for index in among if len(among) > 1):
            outcome = f"rank {parked.actor.name[1]} first" if option is GO else str(option)
            self.points.setdefault(parked.point, set()).add(outcome)
        if number < len(self._picks):
            index = self._picks[number]
            if index >= len(found):
                raise OtherWayError(
                    f"choice {number + 1} has {len(found)} possibilities, no number {index}: the "
                    "program or its inputs are others than in the run that is replayed\n"
                    "  to fix: search again with --every-timing"
                )
        else:
            index, *others = among
            if self._drawn is not None:
                index = digest_of(self._drawn, number)[0] % len(found)
            elif others and not self._goes_on:
                to = self._where(found)
                if to is not None:
                    to.append((number, others))
        self.taken.append(index)
        return index

    def _not_waiting(self, found: list[tuple[Waiting, Any]]) -> list[int]:
        """Return the numbers of the possibilities that the others can wait for."""
        every, known = list(range(len(found))), self._known
        if self._goes_on or not known.may_wait or found[0][0].actor.task.engine.shares_variables:
            return every
        parked = [each for each in self._parked if not each.is_last]
        actors = {actor.name: actor for actor in self._actors.values()}
        awaited = {name: _awaited_by(actor) for name, actor in actors.items()}
        best = every
        for start in {id(each): each for each, _ in found if each.shared is not None}.values():
            together = known.touches.stubborn(start, parked, actors, awaited)
            if together is not None:
                own = [n for n, (each, _) in enumerate(found) if each in together]
                best = min(best, own, key=len)
        known.relies_on_uses |= len(best) < len(every)
        return best

    def _where(self, found: list[tuple[Waiting, Any]]) -> list[tuple[int, list[int]]] | None:
        """Return the list that the other possibilities belong to; None: they are known.

        Raises:
            MetAgainError: Another run has been here that had printed the same.
        """
        actors = sorted(self._actors.values(), key=lambda actor: actor.name)
        objects = sorted(
            repr(each.shown()) for each in self._objects.values() if self._counts(each)
        )
        waiting = [
            (each.actor.name, each.point, repr(option), each.shared and repr(each.shared.shown()))
            for each, option in found
        ]
        state = digest_of([(actor.name, actor.known_by()) for actor in actors], objects, waiting)
        num_races = 0 if self._checker is None else len(self._checker.races)
        printed = digest_of([(actor.name, actor.printed) for actor in actors], num_races)
        if (state, printed) in self._states:  # A loop: it goes on, and takes nothing else there.
            return None
        self._states.add((state, printed))
        had_printed = self._known.states.setdefault(state, set())
        if printed in had_printed:
            raise MetAgainError
        had_printed.add(printed)
        is_known = len(had_printed) > 1
        first = found[0][0]
        if first.is_own and all(each is first for each, _ in found):
            seen = [(s.name, s.known_by() if s is first.actor else s.shown) for s in actors]
            had_printed = self._known.contexts.setdefault(digest_of(seen, objects, waiting), set())
            if first.actor.printed in had_printed:
                return None
            had_printed.add(first.actor.printed)
            is_known |= len(had_printed) > 1
        return self.later if is_known else self.open

    def _counts(self, shared: SharedObject) -> bool:
        """Return whether an object has been changed, and some task may yet come to it."""
        if not shared.changes:
            return False
        if not all(actor.is_script for actor in self._actors.values()):
            return True  # The main program may come to it in the end.
        actors = {actor.name: actor for actor in self._actors.values()}
        counts = self._known.touches.may_be_used(shared.name, actors)
        self._known.relies_on_uses |= not counts
        return counts

    # ---- what a rank does where others see it ----

    def _show(self, actor: Actor) -> None:
        """Take a rank's own choices as visible: it is about to change what others see."""
        if actor.hidden:
            self._known.visible |= actor.hidden
            self.is_new = True

    def _act(self, actor: Actor, what: str, digest: bytes = b"") -> None:
        """Compare what a rank does with what it did after other choices of its own."""
        if actor.hidden:
            known = self._known.acts.setdefault((actor.name, actor.shown, what), digest)
            following = self._known.acts.setdefault((actor.name, actor.shown), what.encode())
            if known != digest or following != what.encode():
                self._show(actor)
        actor.shown = digest_of(actor.shown, what, digest)
        actor.done = digest_of(actor.done, what, digest)

    def called(self, operation: Any) -> None:  # noqa: ANN401 - operations live in other layers
        """Note a call of a rank on others: a collective, or one end of a message."""
        if operation.task is None:
            return
        actor = self._actor(operation.task)
        actor.start_over()
        actor.stage = actor.stage[0] + 1, 0
        self._checker = operation.stream.device.races
        request = getattr(operation, "request", None)
        touched = operation.touched if request is None else request
        reads, writes = ([], []) if touched is None else (list(touched.reads), list(touched.writes))
        given = _bytes_of(reads)
        self._act(actor, f"calls {operation.name}")
        actor.done = digest_of(actor.done, given)
        routes = [end.route for end in getattr(operation, "ends", ())]
        actor.in_flight[operation] = digest_of(operation.name, routes, given), writes
        if actor.hidden:
            what = f"gives {operation.name} {digest_of(actor.shown).hex()}"
            self._calls[operation] = actor, what, reads

    def on_operation(self, operation: Any) -> None:  # noqa: ANN401 - as above
        """Note the end of a call or of other work; compare the bytes that a rank gave to a call."""
        actor = None if operation.task is None else self._actors.get(operation.task)
        if actor is not None:
            actor.uses_device |= not operation.stream.is_by_host
            if operation in actor.in_flight:
                _, writes = actor.in_flight.pop(operation)
                actor.history = digest_of(actor.history, operation.name, _bytes_of(writes))
        found = self._calls.pop(operation, None)
        if found is not None:
            actor, what, reads = found
            given = _bytes_of(reads)
            if self._known.acts.setdefault((actor.name, what), given) != given:
                self._show(actor)

    def printed(self, task: Task, text: str) -> None:
        """Note what a rank prints."""
        actor = self._actor(task)
        actor.printed = digest_of(actor.printed, text)

    def failed(self, task: Task | None) -> None:
        """Note a rank that raises."""
        if task is not None and task in self._actors:
            self.is_new |= self._known.may_wait and self._known.relies_on_uses
            self._known.may_wait = False
            self._act(self._actors[task], f"raises {type(task.error).__name__}")

    def ended(self) -> None:
        """Note ranks that have returned, as the program has ended."""
        for task, actor in self._actors.items():
            if task.finished and task.error is None:
                self._act(actor, "ends")

    # ---- names that are the same in all runs ----

    def _actor(self, task: Task) -> Actor:
        actor = self._actors.get(task)
        if actor is None:
            if task.group not in self._groups:  # What started it may depend on own choices.
                for each in self._actors.values():
                    self._show(each)
            group = self._groups.setdefault(task.group, len(self._groups))
            rank = -1 if task.rank is None else task.rank
            number = self._threads[group, rank] = self._threads.get((group, rank), -1) + 1
            program = rank_program()
            own = None if program is None else private_modules(program)
            is_script = own is not None and own.main is not None
            name = group, rank, number
            actor = self._actors[task] = Actor(name, task, self._number, is_script)
        process, is_sure = state_of_process()
        actor.drawn = process if is_sure else actor.history
        actor.num_calls += 1
        return actor

    def _touched(
        self, kind: str, key: Hashable, owner: object, act: Act, actor: Actor, line: str
    ) -> SharedObject:
        shared = self._objects.get((kind, key))
        if shared is None:
            shared = self._objects[kind, key] = SharedObject(kind, key, owner)
        shared.note(act, actor, line)
        if self._known.touches.note(actor, shared.name, act) and self._known.relies_on_uses:
            self.is_new = True
        others = self._related(kind, key)
        if not shared.is_ordered(others):
            lines = {line for each in (shared, *others) for line in each.lines}
            if not lines <= self._known.shared and not self._is_replay:
                self._known.shared |= lines
                self.is_new = True
        return shared

    def _related(self, kind: str, key: Hashable) -> list[SharedObject]:
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


def _bytes_of(buffers: Sequence[Any]) -> bytes:
    """Return a hash of the bytes of buffers."""
    found = blake2b(digest_size=12)
    for buffer in buffers:
        array = np.empty(0) if buffer is None else np.ascontiguousarray(buffer.array)
        found.update(f"{array.shape} {array.dtype}".encode())
        found.update(array.tobytes())
    return found.digest()


def _awaited_by(actor: Actor) -> list[tuple[int, int, int]]:
    """Return the names of the tasks whose calls a task waits for, all of them."""
    waiting: Any = actor.task.waiting
    operation = getattr(waiting, "call", waiting)
    # Ranks of processes are no names of theirs; of a message the other end may have been posted.
    if actor.task.engine.has_threads or not getattr(operation, "is_collective", False):
        return []
    return [(actor.name[0], rank, 0) for rank, _ in operation.absent_ranks()]


def _sleeps_in_vain(actor: Actor) -> bool:
    """Return whether a task sleeps where it has slept, with equal values and nothing between."""
    if actor.num_calls != 1:
        actor.slept_at.clear()
    actor.num_calls = 0
    place = place_here(READINGS)
    digest = place.digest if place.is_sure else digest_of(len(actor.slept_at))
    is_known = digest in actor.slept_at
    actor.slept_at.add(digest)
    return is_known or len(actor.slept_at) > MAX_IN_A_ROW


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
    frame = inner = sys._getframe(2)  # noqa: SLF001 - the documented way to a caller
    while frame.f_back is not None and is_simranks(frame.f_code.co_filename):
        frame, inner = frame.f_back, frame
    code = frame.f_code
    if is_library(code.co_filename) or frame.f_lasti not in _drops(code):
        return False
    return stacks.calls_python(frame, stacks.held(code, frame.f_lasti), inner)


@cache
def _drops(code: CodeType) -> frozenset[int]:
    """Return the offsets of calls whose result is dropped by the next instruction."""
    found = list(dis.get_instructions(code))
    return frozenset(
        one.offset for one, following in itertools.pairwise(found)
        if one.opname.startswith("CALL") and following.opname == "POP_TOP"
    )  # fmt: skip
