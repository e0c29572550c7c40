"""Benchmarks of programs on the command line: table, files, resumption."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from simrank.bench.program_page import program_page
from simrank.bench.sweep import (
    Part,
    SweepWatcher,
    fingerprint,
    is_row,
    run_sweep,
    sweep_header,
    sweep_line,
)
from simrank.cli.common import FAILED, progress_bar
from simrank.cli.nccl_tests import bad_option
from simrank.cli.results import Results
from simrank.config.files import read_bytes, write_text
from simrank.config.sweep import ERROR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simrank.bench.parallel import Workers
    from simrank.bench.sweep import Row
    from simrank.config.sweep import SweepConfig

_SAVE_EVERY_S = 1.0  # Assumed: as much work as one may lose to a process that is killed.


def bench_program(config: SweepConfig, given: dict[str, Any], workers: Workers) -> None:
    """Benchmark a program: print its table as it grows, and write the requested files.

    Raises:
        Exit: A run failed.
    """
    if given["trace"] is not None and not workers.are_here:
        raise bad_option("--trace", "runs in this process beside it", "--jobs or --backend")
    results = SweepResults(config, given)
    finished = {} if results.timeline is not None else results.finished(given["json_file"])
    watcher = _Shown(config, results, given["json_file"] if finished else None)
    with results.kept(), watcher.progress:
        part = Part(workers, finished)
        run_sweep(config, timeline=results.timeline, watcher=watcher, part=part)
    num_failed = sum(row[ERROR] is not None for row in results.rows)
    if num_failed:
        typer.echo(f"# {num_failed} of {len(results.rows)} runs failed")
        raise typer.Exit(FAILED)


class SweepResults(Results):
    """The rows of a program's benchmark; the JSON file has all that ended while it runs.

    Args:
        config: The benchmark.
        given: The options of the command line.
    """

    def __init__(self, config: SweepConfig, given: dict[str, Any]) -> None:
        head = {"seed": config.seed, "program": config.program}
        super().__init__(given, head, lambda *facts: program_page(config, self.rows, *facts))
        self._fingerprint = fingerprint(config)  # Now: files may change while it runs.
        self._num_cells = len(config.cells())
        self._by_cell: dict[int, Row] = {}
        path = given["json_file"]
        is_file = path is not None and (Path(path).is_file() or not Path(path).exists())
        self._saved_to = Path(path) if is_file else None
        self._saved_s = monotonic()

    def add(self, index: int, row: Row) -> None:
        """Keep the row of a run, in the order of the runs; save them now and then."""
        self._by_cell[index] = row
        self.rows[:] = (self._by_cell[each] for each in sorted(self._by_cell))
        if self._saved_to is not None and monotonic() - self._saved_s > _SAVE_EVERY_S:
            self._saved_s = monotonic()
            write_text(self._saved_to, self.document(f"{len(self.rows)} rows, then nothing yet"))

    def to_resume(self) -> dict[str, Any]:
        """Return the key of a run to resume: its runs and their dependencies."""
        return {"config": self._fingerprint, "cells": sorted(self._by_cell)}

    def finished(self, path: str | None) -> Mapping[int, Row]:
        """Return the rows, by run, of a file that the same benchmark left when it ended early."""
        try:
            found = json.loads((b"" if path is None else read_bytes(path)) or b"{}")
        except (OSError, ValueError):
            return {}  # No such file, or no result: it will be written again.
        expected = {**self._head, "config": self._fingerprint}
        if not isinstance(found, dict) or "partial" not in found:
            return {}
        if any(found.get(name) != value for name, value in expected.items()):
            return {}
        return self._checked(found.get("cells"), found.get("rows"))

    def _checked(self, cells: object, rows: object) -> Mapping[int, Row]:
        """Return rows by run; none if the file is not as it was written."""
        if not isinstance(cells, list) or not isinstance(rows, list) or len(cells) != len(rows):
            return {}
        numbers = range(self._num_cells)
        are_right = all(
            type(index) is int and index in numbers and is_row(row)
            for index, row in zip(cells, rows, strict=True)
        )
        return dict(zip(cells, rows, strict=True)) if are_right else {}


class _Shown(SweepWatcher):
    """Prints the table as it grows, under a progress bar.

    Args:
        config: The benchmark.
        results: Where rows are kept.
        resumed: The file of which some are.
    """

    def __init__(self, config: SweepConfig, results: SweepResults, resumed: str | None) -> None:
        self._config, self._results, self._resumed = config, results, resumed
        self._reported: set[str] = set()
        self.progress = progress_bar()
        self._task = self.progress.add_task("", total=None)

    def on_start(self) -> None:
        """Print the first lines."""
        self._results.begin()
        if self._resumed is not None:
            typer.echo(f"# Resumed from {self._resumed}; remove it to start again")
        typer.echo(sweep_header(self._config))

    def on_progress(self, what: str, done: int, total: int) -> None:
        """Move the bar."""
        self.progress.update(self._task, description=what, completed=done, total=total)

    def on_end(self, index: int, row: Row) -> None:
        """Keep a row."""
        self._results.add(index, row)

    def on_row(self, row: Row, report: str | None) -> None:
        """Print a row, and before it the whole text of an error that is new."""
        self.progress.stop()  # The table goes to stdout, between two bars on stderr.
        if report is not None and row[ERROR] not in self._reported:
            self._reported.add(row[ERROR])
            typer.echo(report, err=True)
        typer.echo(sweep_line(row))
        self.progress.start()
