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
_MANY_RANKS = 64  # Assumed: fewer run within seconds.
_MIB_PER_RANK = 1  # Measured: torch's DDP of eight layers, 64 to 128 ranks; more layers take more.
_UNSET = ((), None, "off", False, "default")


def folding_of(
    run: Callable[[Probe], None],
    num_ranks: int,
    wanted: str,
    settings: Mapping[str, Any],
) -> Found:
    """Find the ranks that run, and print how they were found, or what a run of all ranks takes.

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
    if in_the_way and wanted == AUTO:
        wanted = NONE
    is_small = num_ranks < {AUTO: MIN_RANKS, NONE: _MANY_RANKS}.get(wanted, 2)
    if is_small or settings["data"]:
        return Found(None, ())
    with progress_bar() as progress:
        task = progress.add_task("", total=None)

        def show(ranks: Sequence[int]) -> None:
            which = ranks_text(ranks)
            why = "for its time" if wanted == NONE else "to see which do the same"
            progress.update(task, description=f"ranks {which} alone, {why}")

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
    else:
        show_limits(found, num_ranks)
    return found


def show_limits(found: Found, num_ranks: int) -> None:
    """Print the least time and memory that many ranks take, where all of them run."""
    if num_ranks < _MANY_RANKS:
        return
    least = [f"{_MIB_PER_RANK * num_ranks} MiB of memory ({_MIB_PER_RANK} MiB per rank)"]
    if found.rank_s:
        how = f"{found.rank_s:.2g} s per rank, for two training steps"
        least.append(f"{_duration(found.rank_s * num_ranks)} of CPU time ({how})")
    text = f"all {num_ranks} ranks run, and take at least {' and '.join(least)}"
    typer.echo(f"simrank: {text}", err=True)


def _duration(seconds: float) -> str:
    """Return `21 min`: a time in its largest unit of which it has two."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def unfolds(error: SimrankError, wanted: str) -> bool:
    """Return whether a run failed because its ranks were folded by default; print the reason."""
    errors = [error, *(error.errors.values() if isinstance(error, SpawnException) else ())]
    reason = next((each for each in errors if isinstance(each, FoldingError)), None)
    if reason is None or wanted != AUTO:
        return False
    first = str(reason).partition("\n")[0]
    typer.echo(f"simrank: all ranks run, from the start: {first}", err=True)
    return True
