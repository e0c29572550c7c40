"""NCCL's graph XML (`NCCL_GRAPH_DUMP_FILE`): its search results; start with `read_graph`.

Its channels and speeds replace what a cluster only assumes of them: `keys_of` says which keys of
the block `nccl` they are, and `with_graph` puts them into a cluster.

Source:
    NVIDIA/nccl 2.30, `src/graph/search.cc` (the file), `src/graph/tuning.cc` (a pattern carries
    nchannels x speedintra) and `src/graph/connect.cc` (every channel is made twice).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from simrank import units
from simrank.config.files import read_user_file
from simrank.config.locate import locate
from simrank.config.xml_source import Element, parse_xml
from simrank.config.yaml_source import read_yaml
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from pathlib import Path

    from simrank.config.cluster import ClusterConfig

_PARENTS = {
    "graphs": ("",),
    "graph": ("graphs",),
    "channel": ("graph",),
    "gpu": ("channel",),
    "net": ("channel",),
}
_RING, _NVLS = 4, 5  # NCCL_TOPO_PATTERN_RING, _NVLS.
_PATTERNS = 6
_PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
_OVER_NVLINK = ("NVL", "NVB")
_COPIES = 2  # Of each channel.
_MAX_CHANNELS = 64
_MAX_GBPS = 1_000_000.0  # Assumed: more is a mistake.


class Graph(NamedTuple):
    """The result of NCCL's search for one pattern.

    Attributes:
        file: Where it stands.
        line: On which line.
        pattern: NCCL's number of it.
        num_channels: Channels that were found, before each is made twice.
        intra_gbps: What one channel carries inside a node, in GB/s.
        inter_gbps: What one channel carries between nodes, in GB/s.
        path: The slowest kind of link between two devices of a channel.
        nets: The numbers of the network cards that channels leave by.
    """

    file: str
    line: int
    pattern: int
    num_channels: int
    intra_gbps: float
    inter_gbps: float
    path: str
    nets: frozenset[str]


class Found(NamedTuple):
    """A key of a cluster's block `nccl` that a graph knows.

    Attributes:
        value: As it is written in YAML.
        source: Which numbers of which file it comes from.
    """

    value: str | int
    source: str


def read_graph(path: str | Path) -> list[Graph]:
    """Read the results of NCCL's search, one per pattern.

    Raises:
        ConfigError: The file is none that NCCL writes.
    """
    return parse_graph(read_user_file(path), str(path))


def parse_graph(data: bytes, file: str) -> list[Graph]:
    """Read the results of NCCL's search from the content of a file; see `read_graph`."""
    root = parse_xml(data, file, _PARENTS, skips_others=True)
    found = [_graph(each) for each in root.inside("graph")]
    if not any(graph.pattern == _RING and graph.num_channels for graph in found):
        root.fail("", f"a <graph> of rings (pattern {_RING}) with channels", "none")
    return found


def _graph(element: Element) -> Graph:
    channels = element.inside("channel")
    num_channels = element.number("nchannels", 0, _MAX_CHANNELS)
    if len(channels) != num_channels:
        element.fail("nchannels", f"{len(channels)}, the number of <channel>", str(num_channels))
    nets = frozenset(net.text("dev") for channel in channels for net in channel.inside("net"))
    speeds = [element.decimal(f"speed{side}", _MAX_GBPS) for side in ("intra", "inter")]
    for side, speed in zip(("intra", "inter"), speeds, strict=True):
        if channels and not speed:
            element.fail(f"speed{side}", "a speed above 0 of channels that there are", "0")
    return Graph(
        element.file,
        element.line,
        element.number("pattern", 1, _PATTERNS),
        num_channels,
        speeds[0],
        speeds[1],
        element.word("typeintra", _PATHS),
        nets,
    )


def keys_of(graphs: list[Graph]) -> dict[str, Found]:
    """Return the keys of a cluster's block `nccl` that the graphs know, with their sources."""
    ring = next(graph for graph in graphs if graph.pattern == _RING and graph.num_channels)
    found = {"ring_bandwidth": _together(ring), "channels": _doubled(ring)}
    if ring.path != "LOC":  # Between the devices of a node, where there are several.
        wire = "nvlink" if ring.path in _OVER_NVLINK else "pci"
        found["wire"] = Found(wire, f"typeintra {ring.path}, {_place(ring)}")
    for graph in graphs:
        if graph.pattern == _NVLS and graph.num_channels:
            found["nvls_bandwidth"] = _together(graph)
    if ring.nets:
        each = ring.num_channels * ring.inter_gbps / len(ring.nets)
        source = (
            f"{ring.num_channels} channels x {ring.inter_gbps:g} GB/s over {len(ring.nets)} net"
        )
        found["nics"] = Found(len(ring.nets), f"the net of its channels, {_place(ring)}")
        found["nic_bandwidth"] = Found(f"{each:g} GB/s", f"{source}, {_place(ring)}")
    return found


def with_graph(config: ClusterConfig, found: dict[str, Found]) -> ClusterConfig:
    """Return a cluster whose block `nccl` has the values of a graph.

    Raises:
        ConfigError: It has no such block, whose other keys are needed.
    """
    if config.nccl is None:
        expected = "a cluster that says what NCCL finds on it: a block `nccl`"
        raise ConfigError(ConfigProblem(config.name, None, "nccl", expected, "none"))
    fields = type(config.nccl).model_fields.items()
    names = {field.alias or name: name for name, field in fields}
    values = {names[key]: _parsed(each.value) for key, each in found.items()}
    sources = {key: each.source for key, each in found.items() if key != "wire"}
    values["source"] = {**config.nccl.source, **sources}
    nccl = config.nccl.model_copy(update=values)
    fitted = config.calibration if nccl == config.nccl else None  # To other numbers.
    return config.model_copy(update={"nccl": nccl, "calibration": fitted})


def nccl_block(like: str, host: str | None, found: dict[str, Found]) -> dict[str, Any]:
    """Return a block `nccl` with a graph's values, the rest from a built-in cluster.

    Args:
        like: That cluster.
        host: Who made the hosts' processors, where that is known: intel or amd.
        found: What `keys_of` a graph returned.
    """
    data = read_yaml(locate("clusters", like)).data
    base: dict[str, Any] = data["nccl"]  # type: ignore[index]
    kept = ("architecture", "host", "p2p_channel_bandwidth")
    block = {key: base[key] for key in kept if key in base}
    block |= {} if host is None else {"host": host}
    sources = {"p2p_channel_bandwidth": base["source"]["p2p_channel_bandwidth"]}
    sources |= {key: each.source for key, each in found.items() if key != "wire"}
    return block | {key: each.value for key, each in found.items()} | {"source": sources}


def _parsed(value: str | int) -> object:
    is_rate = isinstance(value, str) and value.endswith("GB/s")
    return units.parse_bandwidth(str(value)) if is_rate else value


def _together(graph: Graph) -> Found:
    """Return the bandwidth of all channels of a pattern."""
    text = f"{graph.num_channels} channels x {graph.intra_gbps:g} GB/s, {_place(graph)}"
    return Found(f"{graph.num_channels * graph.intra_gbps:g} GB/s", text)


def _doubled(graph: Graph) -> Found:
    number = min(_COPIES * graph.num_channels, _MAX_CHANNELS)
    return Found(number, f"{graph.num_channels} channels, each made twice, {_place(graph)}")


def _place(graph: Graph) -> str:
    return f"{graph.file}:{graph.line}"
