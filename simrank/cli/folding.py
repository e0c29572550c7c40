"""`simrank run --fold`: the ranks of a program that run and represent others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from simrank.cli.common import progress_bar
from simrank.errors import (
    ConfigError,
    ConfigProblem,
    FoldingError,
    SimrankError,
    SpawnException,
    ranks_text,
    who_text,
)
from simrank.faults import faulty_ranks
from simrank.probing import AUTO, MIN_RANKS, NONE, Found, Probe, find_folding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Options that observe or change single ranks: all have to run then.
_NEEDS_ALL = {
    "faults": "--faults",
    "delays": "--delays",
    "checks": "--checks all",
    "races": "--races",
    "strict": "--strict",
    "divergence": "--divergence",
    "replicas": "--replicas",
    "flight_recorder": "--flight-recorder",
}
_UNSET = ((), None, "off", False, "default")


def folding_of(
    run: Callable[[Probe], None],
    num_ranks: int,
    wanted: str,
    settings: Mapping[str, Any],
) -> Found:
    """Find the ranks that run, and print how they were found.

    Args:
        run: Runs the program with a probe, in a Context of its own.
        num_ranks: How many ranks the program has.
        wanted: As `--fold` gives it.
        settings: The other settings of the Context.

    Raises:
        ConfigError: Another option needs all ranks, the program has no such axis, or a fault is
            wrong.
    """
    given = {name: settings.get(name) for name in _NEEDS_ALL}
    faulty = faulty_ranks(given["faults"] or (), settings["cluster"])
    if faulty is not None:
        given["faults"] = ()
    in_the_way = [option for name, option in _NEEDS_ALL.items() if given[name] not in _UNSET]
    if settings["data"]:
        in_the_way = ["a run with data; add --shape-only"]
    is_asked_for = wanted not in (AUTO, NONE)
    if in_the_way and is_asked_for:
        problem = "none, since all ranks have to run"
        got = f"{wanted} beside {in_the_way[0]}"
        raise ConfigError(ConfigProblem("command line", None, "--fold", problem, got))
    if wanted == NONE or in_the_way or num_ranks < (MIN_RANKS if wanted == AUTO else 2):
        return Found(None, ())
    with progress_bar() as progress:
        task = progress.add_task("", total=None)

        def show(ranks: Sequence[int]) -> None:
            which = ranks_text(ranks)
            progress.update(task, description=f"ranks {which} alone, to see which do the same")

        seed = settings["seed"]
        found = find_folding(run, num_ranks, wanted=wanted, on_progress=show, seed=seed)
    for line in found.lines:
        typer.echo(f"simrank: {line}", err=True)
    if found.folding is not None and faulty:
        found = found.beside(faulty)
        verb = "runs" if len(faulty) == 1 else "run"
        text = f"{who_text(faulty)} {verb} beside representatives, for the faults"
        typer.echo(f"simrank: {text}", err=True)
    if found.folding is not None:
        typer.echo(f"simrank: {found.folding.describe()}", err=True)
    return found


def unfolds(error: SimrankError, wanted: str) -> bool:
    """Return whether a run failed because its ranks were folded by default; print the reason."""
    errors = [error, *(error.errors.values() if isinstance(error, SpawnException) else ())]
    reason = next((each for each in errors if isinstance(each, FoldingError)), None)
    if reason is None or wanted != AUTO:
        return False
    first = str(reason).partition("\n")[0]
    typer.echo(f"simrank: all ranks run, from the start: {first}", err=True)
    return True
