"""`simrank run`: a script once per rank, where torchrun would stand."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simrank import explore, units
from simrank.cli.common import (
    EXIT_STATUS,
    FAILED,
    app,
    check_writable,
    parse_ranks,
    progress_bar,
)
from simrank.context import Context
from simrank.engine.carrier import CARRIERS
from simrank.engine.delays import Delays
from simrank.errors import ConfigError, ConfigProblem, UnsupportedError
from simrank.hardware.load import load_cluster
from simrank.multiprocessing.script import fresh_imports, run_script
from simrank.trace import Summary, Timeline, summary_json, summary_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.hardware.cluster import Cluster

_NO_REPLAY = {"program", "args", "seeds", "delays"}  # Parameters that a replay sets itself.


@dataclass(frozen=True)
class _Job:
    """A script and the Contexts that it runs in."""

    program: str
    args: list[str]
    num_ranks: int
    settings: dict[str, Any]

    def run(self, context: Context) -> None:
        import_module("asyncio")  # Entering a Context prepares it only where it is imported.
        with context, fresh_imports():
            run_script(context.program, self.program, self.args, self.num_ranks)

    def run_quietly(self, delays: Delays | None) -> None:
        """Run it in a Context of its own, with what it prints kept to itself."""
        context = Context(**self.settings, delays=delays)
        hidden = io.StringIO()
        with redirect_stdout(hidden), redirect_stderr(hidden):
            self.run(context)


@app.command(
    name="run",
    epilog=EXIT_STATUS,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def run_command(
    command: typer.Context,
    program: Annotated[str, typer.Argument(help="A Python file.")],
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    cluster: Annotated[str, typer.Option(help="Cluster name or file.")] = "hgx_h100",
    nproc_per_node: Annotated[
        int | None,
        typer.Option("--nproc-per-node", "--nproc_per_node", help="Ranks per node [devices]."),
    ] = None,
    nnodes: Annotated[int | None, typer.Option("--nnodes", help="Nodes [the cluster's].")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    trace: Annotated[str | None, typer.Option(help="Write a timeline for Perfetto.")] = None,
    trace_ranks: Annotated[str | None, typer.Option(help="Only these ranks: 0,8.")] = None,
    summary: Annotated[str, typer.Option(help="text, json or none.")] = "text",
    rdzv_backend: Annotated[
        str | None, typer.Option("--rdzv-backend", "--rdzv_backend", hidden=True)
    ] = None,
    rdzv_endpoint: Annotated[
        str | None, typer.Option("--rdzv-endpoint", "--rdzv_endpoint", hidden=True)
    ] = None,
    rdzv_id: Annotated[str | None, typer.Option("--rdzv-id", "--rdzv_id", hidden=True)] = None,
    master_addr: Annotated[
        str | None, typer.Option("--master-addr", "--master_addr", hidden=True)
    ] = None,
    master_port: Annotated[
        str | None, typer.Option("--master-port", "--master_port", hidden=True)
    ] = None,
    races: Annotated[str, typer.Option(help="Races: off, report or error.")] = "off",
    strict: Annotated[bool, typer.Option(help="Leaked Works are errors.")] = False,
    shape_only: Annotated[bool, typer.Option(help="Large tensors have no values.")] = False,
    on_failure: Annotated[
        str, typer.Option(help="abort, or continue: healthy ranks run on.")
    ] = "abort",
    carrier: Annotated[
        str, typer.Option(help="greenlet, or thread: each rank is an OS thread.")
    ] = "greenlet",
    faults: Annotated[str | None, typer.Option(help="YAML of faults to inject.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Look for bugs of order under so many seeds.")
    ] = None,
    delays: Annotated[
        str | None, typer.Option(help="Replay these delays: 17 or 17:h3.12,w0.4.")
    ] = None,
    max_delay: Annotated[str, typer.Option(help="Longest delay of a seed.")] = "1 ms",
    watchdog: Annotated[
        float | None,
        typer.Option(min=0.001, help="Say where a rank is that computes for so many seconds."),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.001, help="Give up after so many seconds of wall-clock time."),
    ] = None,
) -> None:
    """Run PROGRAM once per simulated rank, all in this process, where torchrun would."""
    if any((rdzv_backend, rdzv_endpoint, rdzv_id, master_addr, master_port)):
        typer.echo("simrank: --rdzv* and --master* are ignored: ranks share a process", err=True)
    _check_choices(races=races, on_failure=on_failure, carrier=carrier, summary=summary)
    check_writable(trace)
    built = load_cluster(cluster, nnodes)
    settings: dict[str, Any] = {"cluster": built, "seed": seed, "data": not shape_only}
    settings |= {"races": races, "strict": strict, "faults": faults or (), "on_failure": on_failure}
    settings |= {"watchdog_s": watchdog, "time_limit_s": time_limit, "carrier": carrier}
    job = _Job(program, args or [], _num_ranks(built, nproc_per_node), settings)
    max_ps = _max_delay_ps(max_delay)
    if seeds is not None:
        _explore(command, job, seeds, max_ps)
        return
    context = Context(**settings, delays=_delays(delays, max_ps))
    _run_shown(job, context, trace, parse_ranks(trace_ranks), summary)


def _run_shown(
    job: _Job, context: Context, trace: str | None, trace_ranks: list[int] | None, summary: str
) -> None:
    """Run the script once, and write its timeline and summary."""
    timeline, added = Timeline(trace_ranks), Summary()
    context.observe(added)
    if trace is not None:
        context.observe(timeline)
    try:
        job.run(context)
    finally:
        if trace is not None:
            timeline.write(trace)
    peaks = {device.index: device.memory.peak_bytes for device in context.devices}
    show = _SUMMARIES[summary]
    if show is not None:
        typer.echo(show(added, context.now_ps, peaks, context.cluster.provenance), err=True)
    if summary == "text":
        for line in (*context.findings, *context.notes):
            typer.echo(line, err=True)


_SUMMARIES: dict[str, Callable[..., str] | None] = {
    "text": summary_text,
    "json": lambda *facts: json.dumps(summary_json(*facts)),
    "none": None,
}


def _explore(command: typer.Context, job: _Job, num_seeds: int, max_ps: int) -> None:
    """Run the script under many seeds; show the first failure, shrunk, and what replays it."""
    job.run_quietly(None)  # What fails without any delay is no matter of order.
    with progress_bar() as progress:
        task = progress.add_task("", total=num_seeds)

        def show(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        failure = explore.search(job.run_quietly, num_seeds, max_delay_ps=max_ps, on_progress=show)
    if failure is None:
        bound = units.format_time(max_ps)
        typer.echo(f"simrank: no failure in {num_seeds} seed(s), delays up to {bound}", err=True)
        return
    typer.echo(str(failure.error), err=True)
    for note in getattr(failure.error, "__notes__", ()):
        typer.echo(note, err=True)
    typer.echo(f"simrank: {failure}", err=True)
    typer.echo(f"to replay: {_replay(command, job, str(failure.delays))}", err=True)
    raise typer.Exit(FAILED)


def _replay(command: typer.Context, job: _Job, delays: str) -> str:
    """Return the command line that runs the same once, under some delays."""
    words = ["simrank", "run", "--delays", delays]
    for parameter in command.command.params:
        name = parameter.name or ""
        source = command.get_parameter_source(name)
        if name in _NO_REPLAY or source is None or source.name != "COMMANDLINE":
            continue
        value = command.params[name]
        words += [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    return shlex.join([*words, job.program, *job.args])


def _delays(text: str | None, max_ps: int) -> Delays | None:
    if text is None:
        return None
    try:
        return Delays.parse(text, max_ps=max_ps)
    except ValueError:
        expected = "a seed from 1, with points such as 17:h3.12,w0.4"
        raise ConfigError(ConfigProblem("command line", None, "--delays", expected, text)) from None


def _max_delay_ps(text: str) -> int:
    try:
        max_ps = units.parse_time(text)
    except ValueError:
        max_ps = 0
    if max_ps < 1:
        expected = "a time above zero such as '1 ms'"
        raise ConfigError(ConfigProblem("command line", None, "--max-delay", expected, text))
    return max_ps


_CHOICES: dict[str, tuple[str, ...]] = {
    "races": ("off", "report", "error"),
    "on_failure": ("abort", "continue"),
    "carrier": tuple(CARRIERS),
    "summary": tuple(_SUMMARIES),
}


def _check_choices(**given: str) -> None:
    for name, value in given.items():
        if value not in _CHOICES[name]:
            option, expected = f"--{name.replace('_', '-')}", f"one of {', '.join(_CHOICES[name])}"
            raise ConfigError(ConfigProblem("command line", None, option, expected, value))


def _num_ranks(cluster: Cluster, nproc_per_node: int | None) -> int:
    """Return how many ranks run: all devices, or the first ones of a single node."""
    if nproc_per_node is None:
        return cluster.num_devices
    if not 1 <= nproc_per_node <= cluster.devices_per_node:
        expected = f"1 to {cluster.devices_per_node}, the devices of a node of {cluster.name}"
        got = str(nproc_per_node)
        raise ConfigError(ConfigProblem("command line", None, "--nproc-per-node", expected, got))
    if cluster.num_nodes > 1 and nproc_per_node != cluster.devices_per_node:
        raise UnsupportedError(
            f"{nproc_per_node} of {cluster.devices_per_node} devices per node on "
            f"{cluster.num_nodes} nodes: ranks use the first devices of the cluster in order"
        )
    return nproc_per_node * cluster.num_nodes
