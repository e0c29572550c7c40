"""Runs of a grid, each a row: in order or in parallel, resumed, and told to a listener."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.bench.parallel import Workers, in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Row = dict[str, Any]
_HERE = Workers()


class GridWatcher:
    """Listener of a running grid; does nothing by default."""

    def on_start(self) -> None:
        """Nothing is wrong with the configuration; the first run begins."""

    def on_progress(self, what: str, done: int, total: int) -> None:
        """Report the running run, the number of finished runs and the total."""

    def on_end(self, index: int, row: Row) -> None:
        """Report the number and the row of an ended run, in any order."""

    def on_row(self, row: Row, report: str | None) -> None:
        """Report the rows in their order, with the whole text of an error."""


@dataclass(frozen=True)
class Part:
    """The part of a grid to run here, and its workers.

    Attributes:
        workers: Who does the runs.
        finished: Rows of runs that need not be done again, by their number.
    """

    workers: Workers = _HERE
    finished: Mapping[int, Row] = field(default_factory=dict)


class Outcome(NamedTuple):
    """The row of a run, and the whole text of its error."""

    row: Row
    report: str | None


def run_grid(
    run: Callable[[int], Outcome],
    columns: Sequence[Mapping[str, Any]],
    watcher: GridWatcher,
    part: Part,
) -> list[Row]:
    """Do the runs that are not finished; return a row per run, in their order.

    Args:
        run: Does one run, by its number; can be pickled, as what it returns, unless the workers
            are here.
        columns: The first columns of each run's row.
        watcher: Is told of progress and of rows.
        part: Who does the runs, and which are done already.

    Raises:
        ConfigError: The workers are not there.
        SimrankError: A worker was killed.
    """
    outcomes = {
        index: Outcome({**row, **columns[index]}, None) for index, row in part.finished.items()
    }
    rows: list[Row] = []
    missing = [index for index in range(len(columns)) if index not in outcomes]
    for index, row in outcomes.items():
        watcher.on_end(index, row.row)
    _tell(rows, outcomes, watcher)
    watcher.on_progress(_title(columns, missing), len(columns) - len(missing), len(columns))
    for index, outcome in in_parallel(run, tuple(missing), part.workers):
        missing.remove(index)
        outcomes[index] = outcome
        watcher.on_end(index, outcome.row)
        _tell(rows, outcomes, watcher)
        watcher.on_progress(_title(columns, missing), len(columns) - len(missing), len(columns))
    return rows


def _title(columns: Sequence[Mapping[str, Any]], missing: Sequence[int]) -> str:
    """Return the title of the first unfinished run."""
    return title_of(columns[missing[0]]) if missing else ""


def title_of(columns: Mapping[str, Any]) -> str:
    """Return the words that name a run: `h100_ib tp=8, pp=2`."""
    (_, cluster), *rest = columns.items()
    return f"{cluster} {', '.join(f'{name}={value}' for name, value in rest)}"


def _tell(rows: list[Row], outcomes: Mapping[int, Outcome], watcher: GridWatcher) -> None:
    """Add the rows before which none is missing."""
    while len(rows) in outcomes:
        row, report = outcomes[len(rows)]
        rows.append(row)
        watcher.on_row(row, report)
