"""The search over every timing of a program: runs with all picks, and their verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from simrank.errors import SpawnException
from simrank.timings.run import EndlessLoopError, MetAgainError, OtherWayError, TimingRun
from simrank.timings.state import ChoicePoint, Known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Lines = Mapping[tuple[int, str], Sequence[str]]  # By rank and stream.

# Assumed: minutes for a small program. Where a proof is refused, the rest only finds other ends.
MAX_RUNS, _MAX_REFUSED = 1000, 200
RETURNED = "returned"
# Assumed: runs with drawn picks, until so many have shown no further line.
_MAX_DRAWN, _NUM_SAME = 24, 4
# Assumed: factors of clocks that change every comparison that is not seen.
_OTHER_CLOCKS = (1009, 500_009, 77_777)


class TimingEnd(NamedTuple):
    """The end and the lines of one run.

    Attributes:
        end: How it ended: `returned`, or what was raised.
        lines: What ranks printed.
        findings: Races, and what is suspected.
    """

    end: str
    lines: Lines
    findings: tuple[str, ...] = ()

    @property
    def outcome(self) -> tuple[str, tuple[tuple[tuple[int, str], tuple[str, ...]], ...]]:
        """The facts by which runs differ."""
        return self.end, tuple(sorted((key, tuple(lines)) for key, lines in self.lines.items()))


class TimingOutcome(NamedTuple):
    """One way in which the program ends.

    Attributes:
        seen: What its first run shows.
        replay: What replays it.
    """

    seen: TimingEnd
    replay: str


@dataclass
class TimingVerdict:
    """The result of a search.

    Attributes:
        outcomes: The ways in which the program ends, in the order of their first runs.
        points: Where timing decides, with what may happen there.
        problems: Why nothing is proved; empty: every timing ends the same.
        num_runs: Runs to the end.
        num_met: Runs that were stopped where another had been.
        num_limits: Waits of the first run whose long limit was taken not to expire.
        num_readings: Readings of clocks in the first run.
        has_more_outputs: Whether other lines of the same choices go together in ways that were not
            run: what follows each is known.
    """

    outcomes: list[TimingOutcome] = field(default_factory=list)
    points: dict[ChoicePoint, set[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    num_runs: int = 0
    num_met: int = 0
    num_limits: int = 0
    num_readings: int = 0
    has_more_outputs: bool = False
    _lines: dict[tuple[bytes, str], dict[tuple[int, str], set[tuple[str, ...]]]] = field(
        default_factory=dict
    )

    def add(self, timing: TimingRun, seen: TimingEnd) -> None:
        """Add what a run has shown."""
        if all(seen.outcome != each.seen.outcome for each in self.outcomes):
            self.outcomes.append(TimingOutcome(seen, timing.replay))
        shown = self._lines.setdefault((timing.context, seen.end), {})
        for key, lines in seen.lines.items():
            shown.setdefault(key, set()).add(tuple(lines))

    def covers(self, seen: TimingEnd) -> bool:
        """Return whether a run ends as one of the search could.

        Where own choices of ranks are hidden from the others, any of their lines go together.
        """
        return any(
            end == seen.end
            and all(tuple(lines) in shown.get(key, ()) for key, lines in seen.lines.items())
            for (_, end), shown in self._lines.items()
        )

    @property
    def is_proved(self) -> bool:
        """Whether every timing ends the same, with the same lines."""
        return not self.problems


def end_of(error: BaseException | None) -> str:
    """Return the end of a run as text, equal for equal ends."""
    if error is None:
        return RETURNED
    if isinstance(error, SpawnException) and error.errors:
        return "; ".join(
            f"rank {rank}: {_first(each)}" for rank, each in sorted(error.errors.items())
        )
    return _first(error)


def _first(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def search(
    run: Callable[[TimingRun], TimingEnd],
    max_runs: int = MAX_RUNS,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> TimingVerdict:
    """Run a program in every way that its timing can take.

    Args:
        run: Runs the whole program once, in a Context that it makes with this timing:
            `with simrank.Context(..., timing=timing) as ctx: ...`. It lets MetAgainError pass.
        max_runs: How many runs there are at most.
        on_progress: Called with the runs so far, and those that are known to be left.

    Returns:
        The verdict.
    """
    return _Search(run, max_runs, on_progress).verdict()


def draw(
    run: Callable[[TimingRun], TimingEnd],
    num_runs: int,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> TimingOutcome | None:
    """Run a program with picks that are drawn, until a run fails; limits do not expire.

    Args:
        run: As of `search`.
        num_runs: How many runs there are at most.
        on_progress: Called with the runs so far.

    Returns:
        The failure, or None.
    """
    known = Known()
    for number, (timing, seen) in enumerate(_drawn(run, known, num_runs, keeps_time=True), 1):
        if on_progress is not None:
            on_progress(number)
        if seen.end != RETURNED and EndlessLoopError.__name__ not in seen.end:
            if _repeats(run, timing.replay, seen):
                return TimingOutcome(seen, timing.replay)
        elif not timing.taken and not timing.is_new:  # Timing decides nothing.
            return None
    return None


def _repeats(run: Callable[[TimingRun], TimingEnd], replay: str, seen: TimingEnd) -> bool:
    """Return whether a replay ends the same: not where the run itself found further lines."""
    timing = TimingRun.parse(replay)
    try:
        return _seen(run, timing).outcome == seen.outcome
    except OtherWayError:
        return False
    finally:
        timing.forget()


def _drawn(
    run: Callable[[TimingRun], TimingEnd], known: Known, num_runs: int, *, keeps_time: bool
) -> Iterator[tuple[TimingRun, TimingEnd]]:
    """Yield runs with drawn picks, and how they end."""
    for number in range(num_runs):
        timing = TimingRun((), known, drawn=number, keeps_time=keeps_time)
        try:
            seen = _seen(run, timing)
            timing.ended()
        finally:
            timing.forget()
        yield timing, seen


def _seen(run: Callable[[TimingRun], TimingEnd], timing: TimingRun) -> TimingEnd:
    """Return the end and the lines of a run, without the readings of clocks in them."""
    end, lines, findings = run(timing)
    hidden = timing.without_times
    shown = {key: [hidden(line) for line in own] for key, own in lines.items()}
    return TimingEnd(hidden(end), shown, findings)


class _Search:
    """Runs with all picks: the deepest open one next, so that few are kept."""

    def __init__(
        self,
        run: Callable[[TimingRun], TimingEnd],
        max_runs: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self._run, self._max_runs, self._on_progress = run, max_runs, on_progress
        self._known = Known()
        self._num_in_vain = 0
        self._is_refused = False

    def verdict(self) -> TimingVerdict:
        """Search, again where a run finds that more lines share objects."""
        only = self._look_around()
        if only is not None:
            verdict = TimingVerdict(num_runs=1)
            verdict.add(*only)
            self._judge(verdict, [only[0]])
            return verdict
        while True:
            verdict, runs = TimingVerdict(), []
            for timing in self._runs(verdict):
                runs.append(timing)
                if timing.is_new:
                    break
            else:
                self._judge(verdict, runs)
                return verdict
            self._num_in_vain += len(runs)

    def _look_around(self) -> tuple[TimingRun, TimingEnd] | None:
        """Run with drawn picks, to find most of the lines that a search must know.

        Returns:
            The only run, if timing decides nothing.
        """
        num_known, num_same = -1, 0
        for timing, seen in _drawn(self._run, self._known, _MAX_DRAWN, keeps_time=False):
            if not timing.taken and not timing.is_new:
                return timing, seen
            num_found = self._known.num_found
            num_same = num_same + 1 if num_found == num_known else 0
            num_known = num_found
            if num_same == _NUM_SAME:
                break
        return None

    def _runs(self, verdict: TimingVerdict) -> Iterator[TimingRun]:
        known = self._known = self._known.afresh()
        todo, later = [()], list[tuple[int, ...]]()
        while todo or later:
            num_runs = verdict.num_runs + verdict.num_met + self._num_in_vain
            if num_runs >= min(
                self._max_runs, _MAX_REFUSED if self._is_refused else self._max_runs
            ):
                verdict.has_more_outputs = not todo
                if todo:
                    verdict.problems.append(f"the search was stopped after {num_runs} runs")
                return
            picks = (todo or later).pop()
            timing = TimingRun(picks, known)
            try:
                seen = _seen(self._run, timing)
                timing.ended()
                verdict.num_runs += 1
                verdict.add(timing, seen)
            except MetAgainError:
                verdict.num_met += 1
            except OtherWayError:
                verdict.problems.append("a replay took another way: something outside decides")
                return
            finally:
                timing.forget()
            self._is_refused |= timing.has_threads or bool(timing.unmodelled)
            for to, points in ((todo, timing.open), (later, timing.later)):
                for number, others in points:
                    before = tuple(timing.taken[:number])
                    to += [(*before, index) for index in reversed(others)]
            if self._on_progress is not None:
                self._on_progress(verdict.num_runs + verdict.num_met, len(todo) + len(later))
            yield timing

    def _judge(self, verdict: TimingVerdict, runs: Sequence[TimingRun]) -> None:
        """State where timing decides, and why nothing is proved."""
        verdict.num_limits, verdict.num_readings = runs[0].num_limits, runs[0].num_readings
        for timing in runs:
            for point, outcomes in timing.points.items():
                verdict.points.setdefault(point, set()).update(outcomes)
        problems = verdict.problems
        ends = {each.seen.end for each in verdict.outcomes}
        if len(ends) > 1:
            problems.append(f"{len(ends)} different ends")
        elif ends != {RETURNED}:
            problems.append("it fails in every timing")
        num_outputs = len(verdict.outcomes) - len(ends) + 1
        if num_outputs > 1:
            problems.append(f"{num_outputs} different outputs")
        unmodelled = {point for timing in runs for point in timing.unmodelled}
        problems += [f"{what} at {line} is not followed" for line, what in sorted(unmodelled)]
        if any(timing.has_threads for timing in runs):
            problems.append("threads of a rank share variables, which are not followed")
        bounded = {line for timing in runs for line in timing.bounded}
        problems += [
            f"the loop at {line} was followed for a few rounds" for line in sorted(bounded)
        ]
        problems += sorted({text for each in verdict.outcomes for text in each.seen.findings})
        if verdict.outcomes and not self._repeats(verdict.outcomes[0]):
            problems.append("two runs differ: a clock or something outside decides, unseen")

    def _repeats(self, outcome: TimingOutcome) -> bool:
        """Return whether the first run is the same again, with faster clocks if it reads any."""
        for scale in _OTHER_CLOCKS:
            timing = TimingRun.parse(outcome.replay, clock_scale=scale)
            try:
                if _seen(self._run, timing).outcome != outcome.seen.outcome:
                    return False
            except OtherWayError:
                return False
            finally:
                timing.forget()
            if not timing.num_clocks:
                break
        return True
