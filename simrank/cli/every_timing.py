"""`simrank run --every-timing`: the search over every timing, and what it prints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

import simrank
from simrank.cli.common import progress_bar
from simrank.timings.search import RETURNED, search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.timings.run import TimingRun
    from simrank.timings.search import TimingEnd, TimingOutcome, TimingVerdict

_MAX_SHOWN = 8
_ASSUMED = (
    "messages are buffered as on the simulated cluster; nothing fails; no buffer is used while a "
    "call of gloo has it; files, sockets, threads of C code and globals of libraries are not seen; "
    "sums are added in the order of the algorithm that was chosen"
)


def search_every_timing(
    run: Callable[[TimingRun], TimingEnd], num_ranks: int, replay: Callable[[str], str]
) -> bool:
    """Search, print the verdict, and return whether every timing ends the same.

    Args:
        run: Runs the program once.
        num_ranks: Of the program.
        replay: Returns the command that runs one outcome again.
    """
    with progress_bar() as progress:
        task = progress.add_task("every timing", total=None)

        def show(num_runs: int, num_left: int) -> None:
            progress.update(task, completed=num_runs, total=num_runs + num_left)

        verdict = search(run, on_progress=show)
    lines = _proved(verdict, num_ranks) if verdict.is_proved else _not_proved(verdict, replay)
    for line in lines:
        typer.echo(line, err=True)
    return verdict.is_proved


def _proved(verdict: TimingVerdict, num_ranks: int) -> Iterator[str]:
    yield f"simrank: proved: every timing ends the same, with the same lines ({_runs(verdict)})"
    yield from _points(verdict)
    versions = f"simrank {simrank.__version__}, Python {sys.version.split()[0]}"
    torch = sys.modules.get("torch")
    if torch is not None:
        versions += f", torch {torch.__version__}"
    yield f"  for these inputs, {num_ranks} rank(s), this seed; {versions}"
    given = []
    if verdict.num_limits:
        given.append(f"the limits of {verdict.num_limits} wait(s), a minute or more, do not expire")
    if verdict.num_readings:
        given.append(f"{verdict.num_readings} reading(s) of clocks decide only what is printed")
    yield "  assumed: " + "; ".join([*given, _ASSUMED])


def _not_proved(verdict: TimingVerdict, replay: Callable[[str], str]) -> Iterator[str]:
    problems = verdict.problems[:_MAX_SHOWN]
    yield f"simrank: not proved: {'; '.join(problems)} ({_runs(verdict)})"
    yield from _points(verdict)
    for number, outcome in enumerate(verdict.outcomes[:_MAX_SHOWN], 1):
        yield f"  {number}. {_ending(outcome, verdict.outcomes[0])}"
        yield f"     to replay: {replay(outcome.replay)}"
    if len(verdict.outcomes) > _MAX_SHOWN:
        yield f"  ... and {len(verdict.outcomes) - _MAX_SHOWN} more outcomes"
    if verdict.has_more_outputs:
        yield "  not run: further ways in which the lines of these outcomes go together"


def _runs(verdict: TimingVerdict) -> str:
    if not verdict.points and verdict.num_runs == 1:
        return "one run: timing decides nothing"
    met = f", {verdict.num_met} stopped where another had been" if verdict.num_met else ""
    return f"{verdict.num_runs} run(s){met}"


def _points(verdict: TimingVerdict) -> Iterator[str]:
    shown = sorted(verdict.points.items())[:_MAX_SHOWN]
    for point, outcomes in shown:
        yield f"  timing decides at {point.line}: {point.what} ({', '.join(sorted(outcomes))})"
    if len(verdict.points) > _MAX_SHOWN:
        yield f"  ... and at {len(verdict.points) - _MAX_SHOWN} more lines"


def _ending(outcome: TimingOutcome, first: TimingOutcome) -> str:
    end = outcome.seen.end
    if outcome is first or end != RETURNED:
        return end
    for key in sorted(outcome.seen.lines.keys() | first.seen.lines.keys()):
        own, other = outcome.seen.lines.get(key, ()), first.seen.lines.get(key, ())
        number = _first_other(own, other)
        if number is not None:
            texts = [
                repr(lines[number]) if number < len(lines) else "nothing" for lines in (own, other)
            ]
            return f"{end}: line {number + 1} of rank {key[0]} is {texts[0]}, not {texts[1]}"
    return end


def _first_other(own: Sequence[str], other: Sequence[str]) -> int | None:
    for number in range(max(len(own), len(other))):
        if own[number : number + 1] != other[number : number + 1]:
            return number
    return None
