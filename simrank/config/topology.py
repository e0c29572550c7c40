"""From the links of a cluster's YAML to single wires between numbered vertices.

An end of `between` is a vertex (`nvswitch`, `gpu3`), a range (`gpu0..3`), `each GROUP` (all
vertices called GROUP and a number) or `same GROUP` (the one with the other end's position).
Start with `expand`.
"""

import re

from simrank.config.cluster import (
    ADAPTIVE,
    SUSTAINED,
    ClusterConfig,
    LinkConfig,
    Sourced,
    expand_range,
    given_keys,
)
from simrank.config.files import configs_dir
from simrank.config.quantity import closest
from simrank.config.wires import Pods, Topology, Wire
from simrank.config.yaml_source import KeyPath, Source
from simrank.errors import ConfigProblem

MAX_DEVICES = 2**22  # Assumed: above this the arrays of links outgrow a laptop.
MAX_WIRES = 2**20  # Assumed: a full mesh of 1,024 devices.


def expand(config: ClusterConfig) -> Topology:
    """Return the wires of a checked cluster."""
    return _Expansion(config, Source(config.name, {})).topology()


def check_cluster(config: ClusterConfig, source: Source) -> list[ConfigProblem]:
    """Return the problems of a cluster beyond single keys.

    Args:
        config: The cluster, valid key by key.
        source: Where it was read, for lines.

    Returns:
        Duplicate names, links to unknown vertices, missing sources, a sustained clock that no key
        stated; only if there are none of these, devices that no route reaches.
    """
    expansion = _Expansion(config, source)
    topology = expansion.topology()
    problems = expansion.problems + _unsourced(config, source)
    problems += _unclocked(config, source) + _unpowered(config, source)
    return problems or _unreachable(config, topology, source)


def _unclocked(config: ClusterConfig, source: Source) -> list[ConfigProblem]:
    """Return the problem of a device whose sustained clock does not say how long products take."""
    device = config.device
    if device.clocks != SUSTAINED or (device.sustained_clock and device.gemm_table is None):
        return []
    if device.gemm_table is not None:
        expected, to_fix = "boost, as its gemm_table was measured", "remove gemm_table"
    else:
        expected = "sustained_clock beside it, such as 0.94: the share of the clock that is left"
        to_fix = f"state it; none is known for {device.name}"
    return [source.problem(("device", "clocks"), expected, SUSTAINED, to_fix)]


def _unpowered(config: ClusterConfig, source: Source) -> list[ConfigProblem]:
    """Return the problem of a power limit without the powers that it is compared with."""
    device = config.device
    limit_w, rated_w, idle_w = device.power_limit_w, device.rated_power_w, device.idle_power_w
    if limit_w is None:
        return []
    if rated_w is None or idle_w is None:
        missing = "rated_power" if rated_w is None else "idle_power"
        expected = f"{missing} beside it; none is known for {device.name}"
    elif device.gemm_table is not None:
        expected = "none, as its gemm_table was measured"
    elif not idle_w < limit_w <= rated_w:
        expected = f"a power above {idle_w} W, at most {rated_w} W"
    else:
        return []
    return [source.problem(("device", "power_limit"), expected, f"{limit_w} W")]


def nodes_problem(config: ClusterConfig, nodes: int) -> tuple[str, str, str | None] | None:
    """Return the parts of an error (expected, got, to fix) if a cluster cannot have the nodes."""
    if nodes > 1 and config.fabric is None:
        expected = f"1, because no fabric joins nodes of {config.name}"
        return expected, str(nodes), _clusters_of_nodes(config.name)
    if nodes * config.device.count > MAX_DEVICES:
        return f"at most {MAX_DEVICES} devices in all", f"{nodes} x {config.device.count}", None
    return None


def _clusters_of_nodes(name: str) -> str:
    """Return the names of built-in clusters with a fabric, of these GPUs if possible."""
    paths = sorted((configs_dir() / "clusters").glob("*.yaml"))
    joined = [path.stem for path in paths if "\nfabric:" in path.read_text("utf-8")]
    alike = [each for each in joined if set(each.split("_")) & set(name.split("_"))]
    return f"take a cluster with a fabric: {', '.join(alike or joined)}"


# Of a device: p4d, p4de and p5 nodes of AWS have up to four cards of 100G for each.
_MOST_CARDS = 4


class _Expansion:
    """Resolution of the ends of all links, with their problems."""

    def __init__(self, config: ClusterConfig, source: Source) -> None:
        self._config = config
        self._source = source
        self._index: dict[str, int] = {}
        self._wires: dict[tuple[int, int], Wire] = {}
        self.problems: list[ConfigProblem] = []

    def topology(self) -> Topology:
        """Return all vertices and wires."""
        config = self._config
        self._declare([f"gpu{index}" for index in range(config.device.count)], ("device",))
        self._declare(config.switches, ("switches",))
        self._declare(config.nics, ("nics",))
        self._check_cards()
        num_node = len(self._index)
        for number, link in enumerate(config.links):
            self._link(link, ("links", number))
        if config.fabric is not None:
            self._declare(config.fabric.switches, ("fabric", "switches"))
            for number, link in enumerate(config.fabric.links):
                self._link(link, ("fabric", "links", number), at_least_one_from=num_node)
                if config.fabric.pods is not None and self._ends_above(num_node):
                    expected = "links to nodes alone: pods join their switches by spines"
                    self._problem(("fabric", "links", number), expected, "one of two switches")
        wires = tuple(self._wires.values())
        return Topology(
            tuple(self._index),
            config.device.count,
            num_node,
            tuple(wire for wire in wires if min(wire.first, wire.second) < num_node),
            tuple(wire for wire in wires if min(wire.first, wire.second) >= num_node),
            self._pods(),
        )

    def _pods(self) -> Pods | None:
        """Return the pods; parallel uplinks count as one of their joint rate."""
        pods = None if self._config.fabric is None else self._config.fabric.pods
        if pods is None:
            return None
        joint = pods.uplinks if pods.routing == ADAPTIVE else 1
        return Pods(
            pods.nodes, pods.uplinks // joint, pods.bandwidth_bytes_per_s * joint, pods.latency_ps
        )

    def _ends_above(self, vertex: int) -> bool:
        """Return whether some wire has both ends from a vertex on."""
        return any(min(ends) >= vertex for ends in self._wires)

    def _check_cards(self) -> None:
        """Note more network cards for collectives than any known node has."""
        nccl, most = self._config.nccl, _MOST_CARDS * self._config.device.count
        if nccl is not None and nccl.nics is not None and nccl.nics > most:
            expected = f"at most {most} network cards, {_MOST_CARDS} for each device"
            self.problems.append(self._source.problem(("nccl", "nics"), expected, str(nccl.nics)))

    def _declare(self, names: list[str] | tuple[str, ...], key_path: KeyPath) -> None:
        for name in names:
            if name in self._index:
                got = f"a second {name}"
                self.problems.append(self._source.problem(key_path, "each name once", got))
            self._index.setdefault(name, len(self._index))

    def _link(self, link: LinkConfig, key_path: KeyPath, at_least_one_from: int = 0) -> None:
        between = (*key_path, "between")
        for first, second in self._pairs(link.between, between):
            names = f"{first} and {second}"
            ends = (self._index[first], self._index[second])
            if first == second:
                self._problem(between, "two different vertices", f"{first} twice")
            elif max(ends) < at_least_one_from:
                self._problem(between, "at least one switch of the fabric", names)
            elif (min(ends), max(ends)) in self._wires:
                self._problem(between, "one link per pair of vertices", f"a second for {names}")
            else:
                wire = Wire(*ends, link.bandwidth, link.latency)
                self._wires[min(ends), max(ends)] = wire

    def _pairs(self, between: tuple[str, str], key_path: KeyPath) -> list[tuple[str, str]]:
        """Return the pairs of vertices that the two ends of a link name."""
        left, right = between
        first = self._resolve(left, (*key_path, 0))
        second = self._resolve(right, (*key_path, 1))
        if not first or not second:
            return []
        if len(first) * len(second) > MAX_WIRES and "same " not in left + right:
            got = f"{len(first)} x {len(second)} links"
            self._problem(key_path, f"at most {MAX_WIRES} links", got)
            return []
        if left.startswith("same ") or right.startswith("same "):
            if len(first) != len(second):
                got = f"{len(first)} and {len(second)}"
                self._problem(key_path, "as many vertices on both sides of `same`", got)
                return []
            return list(zip(first, second, strict=True))
        if left == right:
            return [(a, b) for number, a in enumerate(first) for b in first[number + 1 :]] or [
                (left, left)
            ]
        return [(a, b) for a in first for b in second]

    def _resolve(self, end: str, key_path: KeyPath) -> list[str]:
        """Return the vertices that one end of a link names, or note why there are none."""
        if end in self._index:
            return [end]
        match = re.fullmatch(r"(?:each|same) (\S+)", end)
        if match is not None:
            pattern = re.compile(re.escape(match[1]) + r"\d+")
            members = [name for name in self._index if pattern.fullmatch(name)]
            if not members:
                groups = sorted({name.rstrip("0123456789") for name in self._index})
                self._unknown(key_path, match[1], groups, end.split(maxsplit=1)[0] + " ")
            return members
        names = expand_range(end)
        if names is None:
            expected = "a vertex, a range, `each GROUP` or `same GROUP`"
            self._problem(key_path, expected, end)
            return []
        missing = [name for name in names if name not in self._index]
        if missing:
            self._unknown(key_path, missing[0], list(self._index), "")
            return []
        return names

    def _unknown(self, key_path: KeyPath, word: str, choices: list[str], lead: str) -> None:
        near = closest(word, choices)
        shown = ", ".join(choices[:12]) + (", ..." if len(choices) > 12 else "")
        to_fix = near and f"write `{lead}{near}`"
        self._problem(key_path, f"a vertex out of {shown}", word, to_fix)

    def _problem(
        self, key_path: KeyPath, expected: str, got: str, to_fix: str | None = None
    ) -> None:
        self.problems.append(self._source.problem(key_path, expected, got, to_fix))


def _unsourced(config: ClusterConfig, source: Source) -> list[ConfigProblem]:
    """Return the numbers that no `source` covers."""
    blocks: list[tuple[KeyPath, Sourced]] = [(("device",), config.device)]
    blocks += [(("links", number), link) for number, link in enumerate(config.links)]
    if config.fabric is not None:
        links = enumerate(config.fabric.links)
        blocks += [(("fabric", "links", number), link) for number, link in links]
        if config.fabric.pods is not None:
            blocks.append((("fabric", "pods"), config.fabric.pods))
    blocks.append((("collectives",), config.collectives))
    if config.nccl is not None:
        blocks.append((("nccl",), config.nccl))
    problems = []
    for key_path, block in blocks:
        keys = given_keys(block)
        for key in sorted(set(block.source) - keys - {"others"}):
            expected = "a key of this block, or others"
            problems.append(source.problem((*key_path, "source", key), expected, key))
        if {"others"} & {*block.source, *config.source}:
            continue
        missing = sorted(keys - set(block.source))
        if missing:
            expected = "a source for " + ", ".join(missing)
            to_fix = "write `source: assumed` where there is no better one"
            problems.append(source.problem((*key_path, "source"), expected, "nothing", to_fix))
    return problems


def _unreachable(config: ClusterConfig, topology: Topology, source: Source) -> list[ConfigProblem]:
    """Return a problem if some device has no route to the first one."""
    wrong_nodes = nodes_problem(config, config.nodes)
    if wrong_nodes is not None:
        return [source.problem(("nodes",), *wrong_nodes)]
    num_nodes = 1 if config.fabric is None else 2
    reached = _reached(topology, num_nodes)
    lost = [
        topology.vertices[device] + (f" of node {node}" if num_nodes > 1 else "")
        for node in range(num_nodes)
        for device in range(topology.num_devices)
        if (node, device) not in reached
    ]
    if not lost:
        return []
    shown = ", ".join(lost[:8]) + (", ..." if len(lost) > 8 else "")
    got = f"no route from gpu0 to {shown}"
    return [source.problem(("links",), "links that connect all devices", got)]


def _reached(topology: Topology, num_nodes: int) -> set[tuple[int, int]]:
    """Return the (node, vertex) pairs with a route from the first device of node 0."""
    neighbours: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for node in range(num_nodes):
        for wire in (*topology.node_wires, *topology.fabric_wires):
            ends = [
                (node if vertex < topology.num_node_vertices else -1, vertex)
                for vertex in (wire.first, wire.second)
            ]
            neighbours.setdefault(ends[0], []).append(ends[1])
            neighbours.setdefault(ends[1], []).append(ends[0])
    start = (0, 0)
    reached, waiting = {start}, [start]
    while waiting:
        for vertex in neighbours.get(waiting.pop(), []):
            if vertex not in reached:
                reached.add(vertex)
                waiting.append(vertex)
    return reached
