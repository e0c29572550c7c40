"""Benchmarks of programs on the command line: table, files, resumption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from simrank.bench.page import program_page
from simrank.bench.parallel import Part
from simrank.bench.sweep import fingerprint, is_row, run_sweep, sweep_header, sweep_line
from simrank.cli.common import FAILED
from simrank.cli.nccl_tests import bad_option
from simrank.cli.results import Grid, GridResults, ShownGrid
from simrank.config.sweep import ERROR

if TYPE_CHECKING:
    from simrank.bench.parallel import Row, Workers
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


class _Shown(ShownGrid):
    """Prints the table as it grows, under a progress bar.

    Args:
        config: The benchmark.
        results: As of `ShownGrid`.
        resumed: As of `ShownGrid`.
    """

    def __init__(self, config: SweepConfig, results: GridResults, resumed: str | None) -> None:
        super().__init__(results, resumed)
        self._config = config

    def on_start(self) -> None:
        """Print the first lines, and the head of the table."""
        super().on_start()
        typer.echo(sweep_header(self._config))

    def on_row(self, row: Row, report: str | None) -> None:
        """Print a row, and before it the whole text of an error that is new."""
        self._report(row[ERROR], report)
        self._say(sweep_line(row))
