"""Results of a benchmark: the growing table, and files also of incomplete runs."""

from __future__ import annotations

import csv
import io
import json
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

import simrank
from simrank.bench.run import Watcher
from simrank.bench.series import as_columns
from simrank.bench.table import COMPARABLE, Table, comparison_of, footer
from simrank.cli.common import (
    check_writable,
    parse_ranks,
    progress_bar,
    terminal_width,
    why_it_ended,
)
from simrank.config.files import read_bytes, write_text
from simrank.parallel import GridWatcher
from simrank.trace import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from simrank.bench.series import Row, Series
    from simrank.config import BenchConfig

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_JSON_ONLY = ("inputs",)  # Columns for programs alone.
_SAVE_EVERY_S = 1.0  # Assumed: as much work as one may lose to a process that is killed.


class Results:
    """The rows that are finished, and the files that they go to.

    Args:
        given: The options of the command line.
        head: What the JSON file says beside the rows.
        page: Makes the HTML file of `head`, and of why rows are missing.
        others: What makes further files, by their paths.

    Attributes:
        rows: As in the JSON file.
        timeline: What records the runs, or None.
        has_begun: Whether there is something to keep: the configuration was right.
    """

    def __init__(
        self,
        given: dict[str, Any],
        head: dict[str, Any],
        page: Callable[[Mapping[str, Any], str | None], str],
        others: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        self._json, self._csv, self._trace = given["json_file"], given["csv_file"], given["trace"]
        self._html, self._page = given["html_file"], page
        self._others = others or {}
        check_writable(self._json, self._csv, self._trace, self._html, *self._others)
        self._head = {"simrank": simrank.__version__, **head}
        ranks = parse_ranks(given["trace_ranks"])
        self.timeline = None if self._trace is None else Timeline(ranks)
        self.rows: list[dict[str, Any]] = []
        self.has_begun = False

    def begin(self) -> None:
        """Print the first line: nothing is wrong with the configuration."""
        self.has_begun = True
        seed = self._head["seed"]
        typer.echo(f"# simrank {simrank.__version__}, simulated time, seed {seed}")

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Write the files at the end of the block; mark them as partial if it raises."""
        try:
            yield
        except BaseException as error:
            if self.has_begun:
                partial = f"{len(self.rows)} rows, then {why_it_ended(error)}"
                typer.echo(f"# Partial: {partial}")
                self._write(partial)
            raise
        self._write(None)

    def document(self, partial: str | None) -> str:
        """Return the text of the JSON file, with why rows are missing, if some are."""
        said = {} if partial is None else {"partial": partial, **self.to_resume()}
        found = {**self._head, **said, "rows": self.rows, **self.beside_rows()}
        return json.dumps(found, indent=1) + "\n"

    def to_resume(self) -> dict[str, Any]:
        """Return the key of a run to resume: empty here."""
        return {}

    def beside_rows(self) -> dict[str, Any]:
        """Return further keys of the JSON file: none here."""
        return {}

    def _write(self, partial: str | None) -> None:
        if self._json is not None:
            write_text(self._json, self.document(partial))
        if self._csv is not None:
            text = io.StringIO()
            table = csv.writer(text, lineterminator="\n")
            rows = [{k: v for k, v in row.items() if k not in _JSON_ONLY} for row in self.rows]
            lines = [*rows[:1], *(row.values() for row in rows)]
            table.writerows(map(_cell, line) for line in lines)
            text.write("" if partial is None else f"# partial: {partial}\n")
            write_text(self._csv, text.getvalue() or "\n")
        if self._html is not None:
            write_text(self._html, self._page(self._head, partial))
        for path, make in self._others.items():
            write_text(path, make())
        if self.timeline is not None:
            self.timeline.write(self._trace)


def _cell(value: object) -> object:
    """Return a value in a CSV file: parts by name are JSON, and no text is a formula.

    Spreadsheets run texts that begin with one of `_FORMULAS`; a quote before it makes them text.
    """
    if isinstance(value, str) and value.startswith(_FORMULAS):
        return f"'{value}"
    return json.dumps(value) if isinstance(value, dict) else value


class GridResults(Results):
    """The rows of a grid of runs; the JSON file has all that ended while it runs.

    Args:
        given: The options of the command line.
        head: What the JSON file says beside the rows.
        page: As of `Results`.

    Attributes:
        by_cell: The rows that are finished, by the number of their run.
    """

    def __init__(
        self,
        given: dict[str, Any],
        head: dict[str, Any],
        page: Callable[[Mapping[str, Any], str | None], str],
    ) -> None:
        super().__init__(given, head, page)
        self.by_cell: dict[int, dict[str, Any]] = {}
        path = given["json_file"]
        is_file = path is not None and (Path(path).is_file() or not Path(path).exists())
        self._saved_to = Path(path) if is_file else None
        self._saved_s = monotonic()

    def add(self, index: int, row: dict[str, Any]) -> None:
        """Keep the row of a run, in the order of the runs; save them now and then."""
        self.by_cell[index] = row
        self.rows[:] = (self.by_cell[each] for each in sorted(self.by_cell))
        if self._saved_to is not None and monotonic() - self._saved_s > _SAVE_EVERY_S:
            self._saved_s = monotonic()
            write_text(self._saved_to, self.document(f"{len(self.rows)} rows, then nothing yet"))

    def earlier(self, path: str | None) -> dict[str, Any]:
        """Return the keys of a file that this release left; none if there is no such file."""
        try:
            found = json.loads((b"" if path is None else read_bytes(path)) or b"{}")
        except (OSError, ValueError):
            return {}  # No such file, or no result: it will be written again.
        is_ours = isinstance(found, dict) and found.get("simrank") == simrank.__version__
        return found if is_ours else {}


class ShownGrid(GridWatcher):
    """Shows a progress bar on stderr, and reports each error once.

    Args:
        results: Where rows are kept.
        resumed: The file of which some are, or None.
    """

    def __init__(self, results: GridResults, resumed: str | None) -> None:
        self._results, self._resumed = results, resumed
        self._reported: set[str] = set()
        self.progress = progress_bar()
        self._task = self.progress.add_task("", total=None)

    def on_start(self) -> None:
        """Print the first lines."""
        self._results.begin()
        if self._resumed is not None:
            typer.echo(f"# Resumed from {self._resumed}; remove it to start again")

    def on_progress(self, what: str, done: int, total: int) -> None:
        """Move the bar."""
        self.progress.update(self._task, description=what, completed=done, total=total)

    def on_end(self, index: int, row: dict[str, Any]) -> None:
        """Keep a row."""
        self._results.add(index, row)

    def _say(self, text: str, *, err: bool = False) -> None:
        """Print between two bars."""
        self.progress.stop()
        typer.echo(text, err=err)
        self.progress.start()

    def _report(self, error: str, report: str | None) -> None:
        """Print the whole text of an error that is new."""
        if report is not None and error not in self._reported:
            self._reported.add(error)
            self._say(report, err=True)


class Shown(Watcher):
    """Prints the table of a benchmark of collectives as it grows, under a progress bar.

    Args:
        config: The benchmark.
        results: Where rows are kept.
        found: Gets every series with its rows.
    """

    def __init__(
        self, config: BenchConfig, results: Results, found: list[tuple[Series, list[Row]]]
    ) -> None:
        self._config = config
        self._comparison = COMPARABLE
        self._table = Table(typer.echo, with_measured=bool(config.measured), width=terminal_width())
        self._several_clusters = len(config.clusters) > 1
        self._results = results
        self._found = found
        self._progress = progress_bar()
        self._task = self._progress.add_task("", total=None)

    def on_start(self) -> None:
        """Print the first line."""
        self._results.begin()

    def on_progress(self, what: str, done: int, total: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, description=what, completed=done, total=total)

    def on_rows(self, series: Series, rows: list[Row]) -> None:
        """Print the line of a size."""
        if not self._found or self._found[-1][0] is not series:
            self._found.append((series, []))
            self._comparison = comparison_of(series, self._config)
        self._found[-1][1].extend(rows)
        columns = [as_columns(row, several_clusters=self._several_clusters) for row in rows]
        self._results.rows += columns
        self._progress.stop()  # The table goes to stdout, between two bars on stderr.
        self._table.add(series, rows, self._comparison)
        self._progress.start()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar while the block runs, and the last lines when it ends well."""
        with self._progress:
            yield
        self._table.close()
        typer.echo(footer([row for _, rows in self._found for row in rows]))
