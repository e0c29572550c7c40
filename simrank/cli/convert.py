"""`simrank convert`: convert files of other tools to and from simrank's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from simrank.cli.common import EXIT_STATUS, app, check_writable
from simrank.cli.prove import problem_named, schedule_named
from simrank.collectives.algorithms import collectives_with
from simrank.config import builtin_clusters
from simrank.config.files import write_text
from simrank.config.foreign.astra_sim import is_network, network_cluster
from simrank.config.foreign.nccl_topology import (
    host_of,
    keys_of,
    nccl_block,
    read_graph,
    read_topology,
)
from simrank.config.load import cluster_from_yaml
from simrank.config.yaml_source import parse_yaml, read_yaml
from simrank.errors import ConfigError, ConfigProblem
from simrank.formats.astra_sim import network_yaml
from simrank.formats.msccl import program_of, xml_of
from simrank.hardware import load_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIZE_BYTES = 1 << 16  # Per rank: enough for every chunk; files say nothing of sizes.
_OF_FILES = {"device": "--device", "graph": "--graph"}
_OF_ALGORITHMS = {"collective": "--collective", "num_ranks": "--num-ranks"}


@app.command(epilog=EXIT_STATUS)
def convert(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(help="NCCL's topology, ASTRA-sim's network, a cluster, or an algorithm."),
    ],
    device: Annotated[
        str | None, typer.Option(help="Devices of the file: h100, or a built-in cluster.")
    ] = None,
    graph: Annotated[str | None, typer.Option(help="Graph XML of NCCL's topology search.")] = None,
    collective: Annotated[str, typer.Option(help="Collective of an algorithm.")] = "all_reduce",
    num_ranks: Annotated[
        int, typer.Option("-n", "--num-ranks", min=1, help="Ranks of an algorithm.")
    ] = 8,
    out: Annotated[
        str | None, typer.Option("--to", "--out", help="File to write; default: stdout.")
    ] = None,
) -> None:
    """Convert topologies to clusters, clusters to ASTRA-sim networks, algorithms to MSCCL XML.

    Numbers that the file does not have come from a built-in cluster, or are marked `assumed`.
    """
    check_writable(out)
    suffix = Path(source).suffix
    if suffix in (".xml", ".yaml", ".yml") or source in builtin_clusters():
        _refuse(context, _OF_ALGORITHMS, f"no such option with {source}")
        text = _of_cluster(context, source, suffix == ".xml", device, graph)
    else:
        _refuse(context, _OF_FILES, "a topology file with this option")
        if Path(source).exists() and not collectives_with(source):
            expected = "a file that ends in .xml, .yaml or .yml, a cluster or an algorithm"
            raise ConfigError(ConfigProblem(source, None, "", expected, "another name"))
        problem = problem_named(collective, num_ranks, _SIZE_BYTES * num_ranks)
        text = xml_of(program_of(schedule_named(problem, source), problem))
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)
        typer.echo(out)


def _refuse(context: typer.Context, options: Mapping[str, str], expected: str) -> None:
    """Raise ConfigError for options that would change nothing."""
    for name, option in options.items():
        given = context.get_parameter_source(name)
        if given is not None and given.name == "COMMANDLINE":
            got = str(context.params[name])
            raise ConfigError(ConfigProblem("command line", None, option, expected, got))


def _of_cluster(
    context: typer.Context, source: str, is_xml: bool, device: str | None, graph: str | None
) -> str:
    """Convert another tool's file to a cluster, or a cluster to ASTRA-sim's network."""
    if is_xml:
        return _cluster_text(read_topology(source, device), graph, source)
    _refuse(context, {"graph": "--graph"}, "an NCCL topology with this option")
    if source not in builtin_clusters():
        found = read_yaml(source)
        if is_network(found.data):
            return _cluster_text(network_cluster(found, device), None, source)
    _refuse(context, {"device": "--device"}, "an ASTRA-sim network with this option")
    return network_yaml(load_cluster(source))


def _cluster_text(cluster: dict[str, Any], graph: str | None, source: str) -> str:
    """Return a cluster as YAML that was checked."""
    if graph is not None:
        cluster["nccl"] = nccl_block(
            cluster["device"]["like"], host_of(source), keys_of(read_graph(graph))
        )
    body = yaml.safe_dump(cluster, sort_keys=False, default_flow_style=None, width=1000)
    text = f"# Made from {Path(source).name} by `simrank convert`.\n{body}"
    cluster_from_yaml(parse_yaml(text, source))
    return text
