"""`simrank replay`: replay traces of other tools on a simulated cluster."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import simrank
from simrank import units
from simrank.cli.common import EXIT_STATUS, app, check_writable, traced_ranks
from simrank.config.files import write_text
from simrank.hardware import load_cluster
from simrank.pages.text_table import text_table
from simrank.replay.run import read_trace, replay
from simrank.trace import Timeline

if TYPE_CHECKING:
    from simrank.formats.operations import Trace
    from simrank.hardware import Cluster
    from simrank.replay.run import ReplayTimes

_MAX_SHOWN = 16


@app.command(name="replay", epilog=EXIT_STATUS)
def replay_command(
    files: Annotated[
        list[str], typer.Argument(help="A GOAL schedule, or Chakra's traces: name.0.et, ...")
    ],
    cluster: Annotated[str, typer.Option(help="Cluster name or file.")] = "hgx_h100",
    nodes: Annotated[
        int | None, typer.Option(help="Nodes of the cluster [as many as the ranks need].")
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="JSON of Chakra's process groups: name to ranks.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the times as JSON.")
    ] = None,
    trace_file: Annotated[
        str | None, typer.Option("--trace", help="Write a timeline for Perfetto.")
    ] = None,
    trace_ranks: Annotated[str | None, typer.Option(help="Only these ranks: 0,8.")] = None,
) -> None:
    """Replay a trace: messages on the cluster's links, computations with traced durations.

    Rank r is on device r. A trace that hangs is reported with the nodes that each rank waits for.
    """
    check_writable(json_file, trace_file)
    trace = read_trace(files, groups)
    built = _cluster(cluster, nodes, trace)
    traced = traced_ranks(trace_file, trace_ranks, len(trace.ranks))
    timeline = Timeline(traced) if trace_file is not None else None
    try:
        times = replay(trace, built, observers=[timeline] if timeline else [], seed=seed)
    finally:
        if timeline is not None and trace_file is not None:
            timeline.write(trace_file)
    total_ps = max(each.time_ps for each in times)
    typer.echo(_text(trace, built, times, total_ps))
    if json_file is not None:
        head = {"simrank": simrank.__version__, "seed": seed, "cluster": built.name}
        document = {**head, "total_ps": total_ps, "ranks": [asdict(each) for each in times]}
        write_text(json_file, json.dumps(document, indent=1) + "\n")


def _cluster(word: str, nodes: int | None, trace: Trace) -> Cluster:
    """Return the cluster, with as many nodes as the ranks need unless given."""
    built = load_cluster(word, nodes)
    needed = -(-len(trace.ranks) // built.devices_per_node)
    if nodes is None and needed > built.num_nodes > 1:
        return load_cluster(word, needed)
    return built


def _text(trace: Trace, cluster: Cluster, times: list[ReplayTimes], total_ps: int) -> str:
    rows = [("rank", "nodes", "time (us)", "calc (us)", "sent (B)", "")]
    rows += [
        (
            f"{each.rank}",
            f"{each.num_nodes}",
            f"{each.time_ps / units.PS_PER_US:.2f}",
            f"{each.calc_ps / units.PS_PER_US:.2f}",
            f"{each.sent_bytes}",
            "",
        )
        for each in times[:_MAX_SHOWN]
    ]
    lines = [
        f"{trace.file}: {trace.num_nodes} nodes on {len(times)} ranks of {cluster.name}: "
        f"{units.format_time(total_ps)}",
        *text_table(rows),
    ]
    if len(times) > _MAX_SHOWN:
        lines.append(f"... {len(times) - _MAX_SHOWN} more ranks; --json has all")
    return "\n".join(lines)
