"""`simrank run`: a script once per rank, where torchrun would stand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from simrank.cli.common import EXIT_STATUS, app, check_writable, parse_ranks
from simrank.context import Context
from simrank.errors import ConfigError, ConfigProblem, UnsupportedError
from simrank.multiprocessing.script import run_script
from simrank.trace import Summary, Timeline, summary_json, summary_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.hardware.cluster import Cluster


@app.command(
    name="run",
    epilog=EXIT_STATUS,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def run_command(
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
) -> None:
    """Run PROGRAM once per simulated rank, all in this process, where torchrun would."""
    if any((rdzv_backend, rdzv_endpoint, rdzv_id, master_addr, master_port)):
        typer.echo("simrank: --rdzv* and --master* are ignored: ranks share a process", err=True)
    if races not in ("off", "report", "error"):
        expected = "off, report or error"
        raise ConfigError(ConfigProblem("command line", None, "--races", expected, races))
    if summary not in _SUMMARIES:
        expected = f"one of {', '.join(_SUMMARIES)}"
        raise ConfigError(ConfigProblem("command line", None, "--summary", expected, summary))
    check_writable(trace)
    reference = cluster if nnodes is None else {"name": cluster, "nodes": nnodes}
    context = Context(reference, seed=seed, data=not shape_only, races=races, strict=strict)
    num_ranks = _num_ranks(context.cluster, nproc_per_node)
    timeline, added = Timeline(parse_ranks(trace_ranks)), Summary()
    context.observe(added)
    if trace is not None:
        context.observe(timeline)
    try:
        with context:
            run_script(context.program, program, args or [], num_ranks)
    finally:
        if trace is not None:
            timeline.write(trace)
    peaks = {device.index: device.memory.peak_bytes for device in context.devices}
    show = _SUMMARIES[summary]
    if show is not None:
        typer.echo(show(added, context.now_ps, peaks), err=True)
    if summary == "text":
        for finding in context.findings:
            typer.echo(finding, err=True)


_SUMMARIES: dict[str, Callable[[Summary, int, dict[int, int]], str] | None] = {
    "text": summary_text,
    "json": lambda *facts: json.dumps(summary_json(*facts)),
    "none": None,
}


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
