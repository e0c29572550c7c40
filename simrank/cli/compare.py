"""`simrank compare`: a program on simulated ranks beside the same on real processes; kits."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import simrank
from simrank.bench.table import Table, footer
from simrank.cli.common import (
    FAILED,
    app,
    check_writable,
    ended_by_sigterm,
    progress_bar,
    terminal_width,
)
from simrank.cli.measured_tables import evidence_in, show_differences
from simrank.cli.options import check_words
from simrank.config import load_bench_config
from simrank.config.files import write_text
from simrank.config.yaml_source import read_text
from simrank.errors import ConfigError, ConfigProblem
from simrank.validate.compare import benchmark, report
from simrank.validate.compare.comparison import compared
from simrank.validate.compare.differences import Tolerance
from simrank.validate.compare.program import RETURNED, Job, MissingError
from simrank.validate.compare.sides import check_real, real, simulated
from simrank.validate.kit.assemble import Own, script
from simrank.validate.kit.predictions import CLUSTERS, predicted, steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.bench.series import Row, Series
    from simrank.config import BenchConfig
    from simrank.validate.compare.comparison import RunComparison


# ---- `simrank compare --kit`: a script with predictions, which others run on their GPUs ----

_WORLDS = (2, 4, 8)  # GPUs that run collectives together.


def write_kit(
    gpus: int,
    clusters: Sequence[str],
    out: str | None,
    program: str | None = None,
    kernels: str | None = None,
) -> None:
    """Write a kit for as many GPUs to a file, or to stdout.

    Args:
        gpus: The most GPUs that it uses together.
        clusters: Names or files; none: all whose GPUs the kit knows.
        out: The file; None: stdout.
        program: FILE.py:FUNCTION to run and compare as well.
        kernels: A file of kernel cases, likewise.

    Raises:
        ConfigError: A file cannot be read, or no function is named.
    """
    own = _own(program, kernels)
    asked = clusters or CLUSTERS
    worlds = [ranks for ranks in _WORLDS if ranks <= gpus]
    with progress_bar() as bar:
        task = bar.add_task("", total=steps(asked))
        done = iter(range(steps(asked)))

        def on_step(title: str) -> None:
            bar.update(task, description=title, completed=next(done))

        text = script(predicted(asked, worlds, on_step, own), own)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)
        typer.echo(
            f"{out}: {len(text) / 1024:.0f} KiB; run it on a machine with GPUs: python {out}"
        )


def _own(program: str | None, kernels: str | None) -> Own:
    """Return the texts of the author's files.

    Raises:
        ConfigError: A file cannot be read, or no function is named.
    """
    path, colon, function = (program or "").rpartition(":")
    if program and not (colon and function.isidentifier()):
        expected = "FILE.py:FUNCTION, a function of rank and number of ranks"
        raise ConfigError(ConfigProblem("command line", None, "program", expected, program))
    return Own(
        read_text(Path(path)) if program else "",
        function if program else "",
        read_text(Path(kernels)) if kernels else "",
    )


# ---- `simrank compare`: a program on simulated ranks beside the same on real processes ----

MISSING = 4
_LIMIT_S, _KERNELS_LIMIT_S = 90.0, 600.0  # Assumed: of a program or a case, and of a whole file.
_STATUS = (
    "exit status: 0 the sides agree; 1 they differ, or data is wrong; 2 bad usage or config; "
    "3 bug in simrank; 4 GPUs, torch or triton are missing"
)
_NUM_RANKS = 2  # Default.
_MOST_GPUS = 8
_NO_TORCH = (
    "torch is not installed: a kit runs on simulated GPUs first\n  to fix: pip install torch"
)
_REPORTS = (".html", ".htm", ".md")
_TARGETS = ("program", "bench_file", "kernels_file", "kit")
_WORDS = {
    "program": "a program", "bench_file": "--bench", "kernels_file": "--kernels", "kit": "--kit",
}  # fmt: skip
_MEANT_FOR = {
    "args": ("program",),
    "nproc_per_node": ("program", "bench_file"),
    "backend": ("program", "bench_file"),
    "cluster": ("program", "kernels_file", "kit"),
    "tolerance": ("program",),
    "skip_real": ("program",),
    "gpus": ("kit",),
    "json_file": ("program", "bench_file", "kernels_file"),
    "timeout": ("program", "bench_file", "kernels_file"),
    "out": ("bench_file", "kit"),
    "report_file": ("program",),
}


# ---- Options ----

Program = Annotated[
    str | None,
    typer.Argument(
        help="FILE.py:FUNCTION of rank and world size, FILE.py as torchrun's, or a kit's kit.json."
    ),
]
Args = Annotated[
    list[str] | None, typer.Argument(help="Arguments of a file; behind -- if they are options.")
]
Nproc = Annotated[
    int | None,
    typer.Option(
        "--nproc-per-node",
        "--nproc_per_node",
        min=1,
        help="Ranks [2; with --bench the benchmark's].",
    ),
]
Kit = Annotated[
    bool | None,
    typer.Option("--kit", help="Write a script that measures GPUs elsewhere instead."),
]
Gpus = Annotated[
    int | None, typer.Option(min=1, max=8, help="With --kit: the most GPUs it uses [8].")
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        help="With --bench: CSV for simrank calibrate; with --kit: the script",
    ),
]
BenchFile = Annotated[
    str | None, typer.Option("--bench", help="Measure this YAML benchmark instead.")
]
KernelsFile = Annotated[
    str | None, typer.Option("--kernels", help="Compare this file's kernel cases instead.")
]
Timeout = Annotated[
    float | None,
    typer.Option(min=1, help="Wall-clock seconds of a real run [90; of kernels 600]."),
]
ReportFile = Annotated[
    str | None,
    typer.Option("--report", help="Write an HTML or Markdown report: FILE.html, FILE.md."),
]


@app.command(epilog=_STATUS)
@ended_by_sigterm()
def compare(
    context: typer.Context,
    program: Program = None,
    args: Args = None,
    nproc_per_node: Nproc = None,
    backend: Annotated[
        str, typer.Option(help="Backend of the real processes: gloo or nccl.")
    ] = "gloo",
    cluster: Annotated[
        str | None, typer.Option(help="Cluster name or file [as many HGX H100 as needed].")
    ] = None,
    tolerance: Annotated[
        str | None, typer.Option(help="1e-3, 1e-3,1e-6, 4ulp or exact [per dtype].")
    ] = None,
    skip_real: Annotated[
        bool, typer.Option("--skip-real", help="Run only the simulated side.")
    ] = False,
    timeout: Timeout = None,
    bench_file: BenchFile = None,
    kernels_file: KernelsFile = None,
    kit: Kit = None,
    gpus: Gpus = None,
    out: Out = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write all results as JSON.")
    ] = None,
    report_file: ReportFile = None,
) -> None:
    """Run PROGRAM on simulated ranks and on real processes, and compare each rank.

    Values, errors, collectives and messages are compared rank by rank. Times are compared if the
    cluster describes the GPU of this machine. --bench runs a benchmark as nccl-tests does.
    --kernels runs the kernel cases of a file on a GPU and in the emulation. --kit writes a script,
    with predictions made now, that others run on their GPUs (--cluster NAME,NAME: for these; with
    FILE.py:FUNCTION and --kernels FILE, for these, too);
    `simrank compare kit.json` then says which values and orders of calls differ.
    """
    check_writable(json_file, report_file, out)
    _check(backend, report_file)
    what = ["kit"] if kit else [n for n in _TARGETS if context.params[n] is not None]
    if len(what) != 1:
        expected = "one of FILE.py:FUNCTION, kit.json, --bench FILE, --kernels FILE and --kit"
        raise _problem("program", expected, f"{len(what)} of them")
    _refuse_others(context, what[0])
    with _missing_is_reported():
        _RUN[what[0]](context.params)


def _program(given: dict[str, Any]) -> None:
    """Compare a program.

    Raises:
        Exit: The sides differ.
    """
    evidence = evidence_in(given["program"])
    if evidence is not None:
        if show_differences(evidence):
            raise typer.Exit(FAILED)
        return
    if given["program"].endswith(".json"):
        raise _problem("program", "a Python file, or a kit's result", given["program"])
    bounds = Tolerance.parse(given["tolerance"])
    args, num_ranks = tuple(given["args"] or ()), given["nproc_per_node"] or _NUM_RANKS
    job = Job.of(given["program"], args, num_ranks, given["backend"])
    limit_s = None if given["skip_real"] else given["timeout"] or _LIMIT_S
    found = _both(job, given["cluster"], bounds, limit_s)
    typer.echo("\n".join(report.text(found)))
    json_file, report_file = given["json_file"], given["report_file"]
    if json_file is not None:
        write_text(json_file, json.dumps(report.to_json(found), indent=1) + "\n")
    if report_file is not None:
        is_page = report_file.endswith(_REPORTS[:2])
        write_text(report_file, (report.page if is_page else report.markdown)(found))
    alone = found.simulated.records if found.real is None else ()
    if found.findings or any(record.ending != RETURNED for record in alone):
        raise typer.Exit(FAILED)


def _ranks_of(config: BenchConfig) -> int:
    """Return the number of ranks of a benchmark.

    Raises:
        ConfigError: It asks for several.
    """
    asked = config.num_ranks or (_NUM_RANKS,)
    if len(asked) > 1:
        raise _problem("--nproc-per-node", f"one of {', '.join(map(str, asked))}", "nothing")
    return asked[0]


def _bench(given: dict[str, Any]) -> None:
    """Measure a benchmark, and set the simulation beside it.

    Raises:
        Exit: Data is wrong.
    """
    config = load_bench_config(given["bench_file"])
    num_ranks = given["nproc_per_node"] or _ranks_of(config)
    backend = given["backend"]
    benchmark.check_config(config)
    series = benchmark.measured_series(config, num_ranks, backend)
    check_real(backend, num_ranks)
    num_cases = sum(len(each.cases(config)) for each in series)
    rows: list[Row] = []
    limit_s = given["timeout"] or _LIMIT_S
    with benchmark.pool_of(num_ranks, backend, limit_s) as pool, progress_bar() as bar:
        task = bar.add_task("starting processes", total=num_cases)
        where = benchmark.about(pool)
        bar.update(task, description="simulating")
        times_us = benchmark.simulated_times(config, num_ranks, where)
        typer.echo(f"# simrank {simrank.__version__}, measured on {where.title}, {where.versions}")
        width = terminal_width()
        table = Table(typer.echo, with_measured=bool(times_us), beside="simulated", width=width)

        def add(of: Series, found: list[Row]) -> None:
            found = benchmark.with_simulated(found, times_us)
            rows.extend(found)
            bar.stop()  # The table goes to stdout, between two bars on stderr.
            table.add(of, found)
            bar.update(task, description=of.title, completed=len(rows))
            bar.start()

        try:
            benchmark.measure(config, pool, series, add)
        finally:
            source = f"simrank compare --bench {given['bench_file']}"
            _write_rows(given, rows, benchmark.csv_text(rows, where, source))
    table.close()
    typer.echo(footer(rows))
    if not times_us:
        typer.echo(f"# No simulated times: no cluster describes {where.title}")
    if any(row.num_wrong for row in rows):
        raise typer.Exit(FAILED)


def _write_rows(given: dict[str, Any], rows: list[Row], table: str) -> None:
    """Write the measured rows, also of an incomplete run."""
    if given["out"] is not None and rows:
        write_text(given["out"], table)
    if given["json_file"] is not None:
        columns = [benchmark.as_measured(row) for row in rows]
        document = {"simrank": simrank.__version__, "rows": columns}
        write_text(given["json_file"], json.dumps(document, indent=1) + "\n")


def _kernels(given: dict[str, Any]) -> None:
    """Compare the kernel cases of a file.

    Raises:
        Exit: A side is wrong.
    """
    from simrank.validate.compare.kernels import compare_kernels, lines  # noqa: PLC0415 - kernels

    with progress_bar() as bar:
        bar.add_task("kernels", total=None)
        path, cluster = given["kernels_file"], given["cluster"] or "hgx_h100"
        found = compare_kernels(
            path, cluster=cluster, timeout_s=given["timeout"] or _KERNELS_LIMIT_S
        )
    typer.echo("\n".join(lines(found)))
    if given["json_file"] is not None:
        write_text(given["json_file"], json.dumps(asdict(found), indent=1) + "\n")
    if not all(row.ok for row in found.rows):
        raise typer.Exit(FAILED)


def _kit(given: dict[str, Any]) -> None:
    """Write a kit."""
    if find_spec("torch") is None:
        raise MissingError(_NO_TORCH)
    clusters = [each for each in (given["cluster"] or "").split(",") if each]
    files = given["program"], given["kernels_file"]
    write_kit(given["gpus"] or _MOST_GPUS, clusters, given["out"], *files)


_RUN = {"program": _program, "bench_file": _bench, "kernels_file": _kernels, "kit": _kit}


def _both(job: Job, cluster: str | None, bounds: Tolerance, timeout: float | None) -> RunComparison:
    """Run the sides under a progress bar; without a time limit the simulated one alone."""
    with progress_bar() as progress:
        task = progress.add_task("", total=1 if timeout is None else 2)
        if timeout is not None:
            if job.is_simulated:
                expected = "a program of torch.distributed, or --skip-real"
                raise _problem("program", expected, f"{job.path}, which imports simrank")
            progress.update(task, description="looking for GPUs and torch")
            check_real(job.backend, job.num_ranks)  # Before a long simulation.
        progress.update(task, description=f"{job.title}, simulated")
        mine = simulated(job, cluster)
        theirs = None
        if timeout is not None:
            progress.update(task, description=f"{job.title}, {job.backend}", completed=1)
            theirs = real(job, timeout)
    return compared(job, mine, theirs, bounds)


def _refuse_others(context: typer.Context, what: str) -> None:
    """Raise ConfigError for options that mean nothing here."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        is_given = source is not None and source.name == "COMMANDLINE"
        if is_given and what not in _MEANT_FOR.get(name, _TARGETS):
            expected = f"with {' or '.join(_WORDS[each] for each in _MEANT_FOR[name])} alone"
            raise _problem(parameter.opts[0], expected, _WORDS[what])


def _check(backend: str, report_file: str | None) -> None:
    check_words(backend=backend)
    if report_file is not None and not report_file.endswith(_REPORTS):
        raise _problem("--report", f"a file that ends with {', '.join(_REPORTS)}", report_file)


def _problem(option: str, expected: str, got: str) -> ConfigError:
    return ConfigError(ConfigProblem("command line", None, option, expected, got))


@contextmanager
def _missing_is_reported() -> Iterator[None]:
    """Print missing requirements in one line, and exit with their own status."""
    try:
        yield
    except MissingError as error:
        typer.echo(f"simrank: {error}", err=True)
        raise typer.Exit(MISSING) from None
