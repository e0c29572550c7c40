"""Results of a benchmark: the growing table, and files also of incomplete runs."""

from __future__ import annotations

import csv
import io
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

import simrank
from simrank.bench.comparison import COMPARABLE, comparison_of
from simrank.bench.row import as_columns
from simrank.bench.run import Watcher
from simrank.bench.table import Table, footer
from simrank.cli.common import (
    check_writable,
    parse_ranks,
    progress_bar,
    terminal_width,
    why_it_ended,
)
from simrank.config.files import write_text
from simrank.trace import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from simrank.bench.row import Row
    from simrank.bench.series import Series
    from simrank.config import BenchConfig


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
        return json.dumps({**self._head, **said, "rows": self.rows}, indent=1) + "\n"

    def to_resume(self) -> dict[str, Any]:
        """Return the key of a run to resume: empty here."""
        return {}

    def _write(self, partial: str | None) -> None:
        if self._json is not None:
            write_text(self._json, self.document(partial))
        if self._csv is not None:
            text = io.StringIO()
            table = csv.writer(text, lineterminator="\n")
            table.writerows([*self.rows[:1], *(row.values() for row in self.rows)])
            text.write("" if partial is None else f"# partial: {partial}\n")
            write_text(self._csv, text.getvalue() or "\n")
        if self._html is not None:
            write_text(self._html, self._page(self._head, partial))
        for path, make in self._others.items():
            write_text(path, make())
        if self.timeline is not None:
            self.timeline.write(self._trace)


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
