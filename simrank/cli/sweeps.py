"""Benchmarks of programs on the command line: table, files, resumption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from simrank.bench.grid import GridWatcher, Part
from simrank.bench.program_page import program_page
from simrank.bench.sweep import fingerprint, is_row, run_sweep, sweep_header, sweep_line
from simrank.cli.common import FAILED, progress_bar
from simrank.cli.nccl_tests import bad_option
from simrank.cli.results import Grid, GridResults
from simrank.config.sweep import ERROR

if TYPE_CHECKING:
    from simrank.bench.grid import Row
    from simrank.bench.parallel import Workers
    from simrank.config.sweep import SweepConfig


def bench_program(config: SweepConfig, given: dict[str, Any], workers: Workers) -> None:
    """Benchmark a program: print its table as it grows, and write the requested files.

    Raises:
        Exit: A run failed.
    """
    if given["trace"] is not None and not workers.are_here:
        raise bad_option("--trace", "runs in this process beside it", "--jobs or --backend")
    results = GridResults(
        given,
        {"seed": config.seed, "program": config.program},
        lambda *facts: program_page(config, results.rows, *facts),
        Grid(fingerprint(config), len(config.cells()), is_row),
    )
    finished = {} if results.timeline is not None else results.finished(given["json_file"])
    watcher = _Shown(config, results, given["json_file"] if finished else None)
    with results.kept(), watcher.progress:
        part = Part(workers, finished)
        run_sweep(config, timeline=results.timeline, watcher=watcher, part=part)
    num_failed = sum(row[ERROR] is not None for row in results.rows)
    if num_failed:
        typer.echo(f"# {num_failed} of {len(results.rows)} runs failed")
        raise typer.Exit(FAILED)


class _Shown(GridWatcher):
    """Prints the table as it grows, under a progress bar.

    Args:
        config: The benchmark.
        results: Where rows are kept.
        resumed: The file of which some are.
    """

    def __init__(self, config: SweepConfig, results: GridResults, resumed: str | None) -> None:
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
