"""`simrank compare`: a program on simulated ranks beside the same on real processes."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from simrank.cli.common import FAILED, app, check_writable, progress_bar, write_text
from simrank.errors import ConfigError, ConfigProblem
from simrank.validate.compare import report
from simrank.validate.compare.comparison import compared
from simrank.validate.compare.job import Job, MissingError
from simrank.validate.compare.sides import check_real, real, simulated
from simrank.validate.compare.tolerance import Tolerance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.validate.compare.comparison import Comparison

MISSING = 4
_STATUS = (
    "exit status: 0 the sides agree; 1 they differ, or data is wrong; 2 bad usage or config; "
    "3 bug in simrank; 4 this machine lacks what the real side needs (GPUs, torch, triton)"
)
_BACKENDS = ("gloo", "nccl")
_REPORTS = (".html", ".htm", ".md")


@app.command(epilog=_STATUS, context_settings={"allow_interspersed_args": False})
def compare(
    program: Annotated[
        str | None,
        typer.Argument(help="FILE.py:FUNCTION of rank and world size, or FILE.py as torchrun's."),
    ] = None,
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of a file.")] = None,
    nproc_per_node: Annotated[
        int, typer.Option("--nproc-per-node", "--nproc_per_node", min=1, help="Ranks.")
    ] = 2,
    backend: Annotated[str, typer.Option(help="Of the real processes: gloo or nccl.")] = "gloo",
    cluster: Annotated[
        str | None, typer.Option(help="Cluster name or file [as many HGX H100 as needed].")
    ] = None,
    tolerance: Annotated[
        str | None, typer.Option(help="1e-3, 1e-3,1e-6, 4ulp or exact [each type's].")
    ] = None,
    skip_real: Annotated[
        bool, typer.Option("--skip-real", help="Run the simulated side alone.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Wall-clock seconds of the real side.")
    ] = 90.0,
    json_file: Annotated[str | None, typer.Option("--json", help="Write every fact.")] = None,
    report_file: Annotated[
        str | None, typer.Option("--report", help="Write a page, or Markdown: FILE.html, FILE.md.")
    ] = None,
) -> None:
    """Run PROGRAM simulated and on real processes, and compare what each rank did.

    Values, errors, and the collectives and messages that were issued are compared rank by rank;
    times where the cluster describes the GPU that is there.
    """
    check_writable(json_file, report_file)
    _check(backend, report_file)
    bounds = Tolerance.parse(tolerance)
    job = Job.of(_required(program), tuple(args or ()), nproc_per_node, backend)
    with _missing_is_told():
        found = _both(job, cluster, bounds, None if skip_real else timeout)
    typer.echo("\n".join(report.text(found)))
    if json_file is not None:
        write_text(json_file, json.dumps(report.to_json(found), indent=1) + "\n")
    if report_file is not None:
        is_page = report_file.endswith(_REPORTS[:2])
        write_text(report_file, (report.page if is_page else report.markdown)(found))
    if found.findings:
        raise typer.Exit(FAILED)


def _both(job: Job, cluster: str | None, bounds: Tolerance, timeout: float | None) -> Comparison:
    """Run the sides under a progress bar; without a time limit the simulated one alone."""
    with progress_bar() as progress:
        task = progress.add_task("", total=1 if timeout is None else 2)
        if timeout is not None:
            progress.update(task, description="looking for GPUs and torch")
            check_real(job)  # Before a long simulation.
        progress.update(task, description=f"{job.title}, simulated")
        mine = simulated(job, cluster)
        theirs = None
        if timeout is not None:
            progress.update(task, description=f"{job.title}, {job.backend}", completed=1)
            theirs = real(job, timeout)
    return compared(job, mine, theirs, bounds)


def _required(program: str | None) -> str:
    if program is None:
        raise _problem("program", "FILE.py:FUNCTION or FILE.py", "nothing")
    return program


def _check(backend: str, report_file: str | None) -> None:
    if backend not in _BACKENDS:
        raise _problem("--backend", "gloo or nccl", backend)
    if report_file is not None and not report_file.endswith(_REPORTS):
        raise _problem("--report", f"a file that ends with {', '.join(_REPORTS)}", report_file)


def _problem(option: str, expected: str, got: str) -> ConfigError:
    return ConfigError(ConfigProblem("command line", None, option, expected, got))


@contextmanager
def _missing_is_told() -> Iterator[None]:
    """Say in a line what this machine lacks, with a status of its own."""
    try:
        yield
    except MissingError as error:
        typer.echo(f"simrank: {error}", err=True)
        raise typer.Exit(MISSING) from None
