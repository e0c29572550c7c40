"""NCCL's topology and graph XML as clusters and search results.

What the file says becomes vertices and links: NVLink between devices or to switches, the PCI tree
down to devices and network cards, the sockets. What it does not say has a source that says so: what
a device computes is a built-in cluster's (`device: {like: ...}`), latencies are NCCL's constants,
and network cards meet at one switch. `gdr="0"` changes nothing: data goes from card to device
directly.

Source:     NVIDIA/nccl 2.30, `src/graph/topo.h` (rates of links) and `src/graph/topo.cc` (what the
file     means: PCIe rates, unknown ones included, and which elements are passed over).

Its channels and speeds replace what a cluster only assumes of them: `keys_of` says which keys of
the block `nccl` they are, and `with_graph` puts them into a cluster.

Source:     NVIDIA/nccl 2.30, `src/graph/search.cc` (the file), `src/graph/tuning.cc` (a pattern
carries     nchannels x speedintra) and `src/graph/connect.cc` (every channel is made twice).
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank import units
from simrank.config.files import read_user_file
from simrank.config.locate import builtin_names, locate
from simrank.config.quantity import hint
from simrank.config.xml_source import XmlElement, parse_xml
from simrank.config.yaml_source import read_yaml
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from simrank.config.cluster import ClusterConfig
    from simrank.config.xml_source import XmlElement


# ---- NCCL's graph XML (`NCCL_GRAPH_DUMP_FILE`): its search results; start with `read_graph` ----

_GRAPH_PARENTS = {
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


class TopologyKey(NamedTuple):
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
    root = parse_xml(data, file, _GRAPH_PARENTS, skips_others=True)
    found = [_graph(each) for each in root.inside("graph")]
    if not any(graph.pattern == _RING and graph.num_channels for graph in found):
        root.fail("", f"a <graph> of rings (pattern {_RING}) with channels", "none")
    return found


def _graph(element: XmlElement) -> Graph:
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


def keys_of(graphs: list[Graph]) -> dict[str, TopologyKey]:
    """Return the keys of a cluster's block `nccl` that the graphs know, with their sources."""
    ring = next(graph for graph in graphs if graph.pattern == _RING and graph.num_channels)
    found = {"ring_bandwidth": _together(ring), "channels": _doubled(ring)}
    if ring.path != "LOC":  # Between the devices of a node, where there are several.
        wire = "nvlink" if ring.path in _OVER_NVLINK else "pci"
        found["wire"] = TopologyKey(wire, f"typeintra {ring.path}, {_place(ring)}")
    for graph in graphs:
        if graph.pattern == _NVLS and graph.num_channels:
            found["nvls_bandwidth"] = _together(graph)
    if ring.nets:
        each = ring.num_channels * ring.inter_gbps / len(ring.nets)
        source = (
            f"{ring.num_channels} channels x {ring.inter_gbps:g} GB/s over {len(ring.nets)} net"
        )
        found["nics"] = TopologyKey(len(ring.nets), f"the net of its channels, {_place(ring)}")
        found["nic_bandwidth"] = TopologyKey(f"{each:g} GB/s", f"{source}, {_place(ring)}")
    return found


def with_graph(config: ClusterConfig, found: dict[str, TopologyKey]) -> ClusterConfig:
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


def nccl_block(like: str, host: str | None, found: dict[str, TopologyKey]) -> dict[str, Any]:
    """Return a block `nccl` with a graph's values, the rest from a built-in cluster.

    Args:
        like: That cluster.
        host: Vendor of the hosts' processors, where that is known: intel or amd.
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


def _together(graph: Graph) -> TopologyKey:
    """Return the bandwidth of all channels of a pattern."""
    text = f"{graph.num_channels} channels x {graph.intra_gbps:g} GB/s, {_place(graph)}"
    return TopologyKey(f"{graph.num_channels * graph.intra_gbps:g} GB/s", text)


def _doubled(graph: Graph) -> TopologyKey:
    number = min(_COPIES * graph.num_channels, _MAX_CHANNELS)
    return TopologyKey(number, f"{graph.num_channels} channels, each made twice, {_place(graph)}")


def _place(graph: Graph) -> str:
    return f"{graph.file}:{graph.line}"


# ---- built-in clusters for devices that files name by a PCI number ----

# Short names beside those of the clusters.
SHORT = {
    "a100": "hgx_a100",
    "h100": "hgx_h100",
    "h200": "hgx_h200",
    "b200": "hgx_b200",
    "gb200": "gb200_nvl72",
    "gb300": "gb300_nvl72",
    "gh200": "gh200_slingshot",
    "l40s": "l40s_pcie",
}
# PCI vendor and device, of exactly the built-in device: its memory and form.
# Source: the PCI ID Repository (pci-ids.ucw.cz), vendor 10de.
_BY_PCI_ID = {
    ("0x10de", "0x20b2"): "hgx_a100",  # GA100 [A100 SXM4 80GB]
    ("0x10de", "0x2330"): "hgx_h100",  # GH100 [H100 SXM5 80GB]
    ("0x10de", "0x2335"): "hgx_h200",  # GH100 [H200 SXM 141GB]
    ("0x10de", "0x2342"): "gh200_slingshot",  # GH100 [GH200 120GB / 480GB]
    ("0x10de", "0x2901"): "hgx_b200",  # GB100 [B200]
    ("0x10de", "0x2941"): "gb200_nvl72",  # GB100 [HGX GB200]
    ("0x10de", "0x26b9"): "l40s_pcie",  # AD102GL [L40S]
}


def device_of_pci(vendor: str, device: str) -> str | None:
    """Return the built-in cluster of a device's PCI numbers, or None."""
    return _BY_PCI_ID.get((vendor.lower(), device.lower()))


def device_named(word: str) -> str:
    """Return the built-in cluster of a `--device` value.

    Raises:
        ConfigError: It is missing or unknown.
    """
    names = builtin_names("clusters")
    found = SHORT.get(word, word)
    if found in names:
        return found
    choices = [*SHORT, *names]
    to_fix = hint(word, choices)
    expected = f"one of {', '.join(choices)}"
    raise ConfigError(ConfigProblem("command line", None, "--device", expected, word, to_fix))


def name_of(file: str) -> str:
    """Return the cluster name of a file, without characters that names may not have."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(file).stem)
    return name if re.match(r"[A-Za-z_]", name) else f"node_{name}"


# ---- NCCL's topology XML (`NCCL_TOPO_DUMP_FILE`) as a cluster; start with `read_topology` ----

_PARENTS = {
    "system": ("",),
    "cpu": ("system",),
    "pci": ("cpu", "pci"),
    "gpu": ("pci",),
    "nvlink": ("gpu",),
    "c2c": ("gpu",),
    "xgmi": ("gpu",),
    "nic": ("cpu", "pci"),
    "net": ("nic",),
}
_SWITCH, _DEVICE = "0x068000", "0x03"  # PCI classes of NVSwitch, and of what displays.
# GB/s of one NVLink per direction, from the given compute capability on.
_NVLINK_GBPS = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (70, 20.0), (60, 18.0), (0, 20.0))
_PCIE_GBPS = {"2.5": 1.5, "5": 3.0, "8": 6.0, "16": 12.0, "32": 24.0, "64": 48.0}  # Of 8 lanes.
_PCIE_UNKNOWN, _LANES = "8", 16
_INTEL_GBPS = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0), (0, 6.0))  # By model of family 6.
_SOCKETS_GBPS = {"AuthenticAMD": 16.0, "CentaurHauls": 6.0, "  Shanghai  ": 9.0}
_HOSTS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
_POWER_GBPS, _LEAST_GBPS = 32.0, 6.0
_NCCL = "NVIDIA/nccl 2.30 src/graph"
_NVLINK_STEP = f"{_NCCL}/tuning.cc, NVLink LL step of 0.6 us"
_PCI_STEP = f"{_NCCL}/tuning.cc, PCI LL step of 1.0 us"
_MAX_RATE = 1_000_000  # Assumed: GB/s and links above which a number is a mistake.


class _Rate(NamedTuple):
    """The rate of a wire in one direction, in GB/s, with its source."""

    gbps: float
    source: str


def read_topology(path: str | Path, device: str | None = None) -> dict[str, Any]:
    """Read NCCL's topology of a node.

    Args:
        path: An XML file.
        device: A built-in cluster (or a short name, as h100) whose device this is; None: the one
            with the PCI numbers of the file.

    Returns:
        What the YAML of a cluster holds.

    Raises:
        ConfigError: The file is none, or does not say which device it has.
    """
    return parse_topology(read_user_file(path), str(path), device)


def host_of(path: str | Path) -> str | None:
    """Return the CPU vendor of a node as NCCL's tables name it, or None.

    Raises:
        ConfigError: As `read_topology`.
    """
    root = parse_xml(read_user_file(path), str(path), _PARENTS, skips_others=True)
    vendors = {cpu.attributes.get("vendor", "") for cpu in root.inside("cpu")}
    return _HOSTS.get(vendors.pop()) if len(vendors) == 1 else None


def parse_topology(data: bytes, file: str, device: str | None = None) -> dict[str, Any]:
    """Read NCCL's topology of a node from the content of a file; as `read_topology`."""
    root = parse_xml(data, file, _PARENTS, skips_others=True)
    return _Node(root).cluster(device)


class _Node:
    """A node of a file, as vertices and links of a cluster."""

    def __init__(self, root: XmlElement) -> None:
        self._root = root
        self._file = Path(root.file).name
        self._cpus = root.inside("cpu")
        hosts = {cpu.attributes.get("host_hash") for cpu in self._cpus}
        if len(hosts) > 1:
            root.fail("", "the topology of one host", f"host_hash of {len(hosts)}")
        self._gpus = self._sorted_gpus()  # With the <pci> around each.
        self._names = {
            pci.text("busid").lower(): f"gpu{number}" for number, (_, pci) in enumerate(self._gpus)
        }
        self._name_of = {id(gpu): f"gpu{number}" for number, (gpu, _) in enumerate(self._gpus)}
        self._links: list[dict[str, Any]] = []
        self._num_switches = 0
        self._nics: list[XmlElement] = []

    def cluster(self, device: str | None) -> dict[str, Any]:
        """Return the cluster YAML of the node."""
        like = device_named(device) if device else self._like()
        has_switch = self._add_nvlinks()  # First: of routes that take as long it is NVLink's.
        host_gbps = self._add_pci()
        self._add_sockets()
        found: dict[str, Any] = {
            "name": name_of(self._file),
            "description": f"{len(self._gpus)} GPUs as {self._file} has them, NCCL's topology",
            "device": {"like": like, "count": len(self._gpus)},
        }
        if host_gbps is not None:
            source = {"host_link": f"{_NCCL}/topo.cc, the PCIe link in {self._file}"}
            found["device"] |= {"host_link": f"{host_gbps:g} GB/s", "source": source}
        if not has_switch:
            found["device"]["multicast"] = False
        switches = ["nvswitch"] * has_switch
        switches += [f"pcie{number}" for number in range(self._num_switches)]
        found["switches"] = [*switches, *(f"cpu{number}" for number in range(len(self._cpus)))]
        if self._nics:
            found["nics"] = [f"nic{number}" for number in range(len(self._nics))]
            found["fabric"] = self._fabric()
        return found | {"links": self._links}

    def _sorted_gpus(self) -> list[tuple[XmlElement, XmlElement]]:
        """Return the devices and the <pci> around them, by their numbers."""
        found: dict[int, tuple[XmlElement, XmlElement]] = {}
        for pci in self._root.below("pci"):
            for gpu in pci.inside("gpu"):
                number = gpu.number("dev", 0, 255)
                if number in found:
                    got = f"{number}, as in line {found[number][0].line}"
                    gpu.fail("dev", "a number of its own", got)
                found[number] = gpu, pci
        if not found:
            to_fix = "take the file that NCCL_TOPO_DUMP_FILE names; clouds leave out the devices"
            raise self._root.error("", "at least one <gpu>", "none", to_fix)
        return [found[number] for number in sorted(found)]

    def _like(self) -> str:
        """Return the built-in cluster that has these devices."""
        likes = []
        for gpu, pci in self._gpus:
            vendor, number = (pci.attributes.get(key, "") for key in ("vendor", "device"))
            like = device_of_pci(vendor, number)
            if like is None:
                got = f"{vendor} {number}".strip() or "nothing"
                got += f" with sm {gpu.attributes.get('sm', '?')}"
                raise self._ask(pci, "a PCI device that simrank has constants of", got)
            likes.append(like)
            if like != likes[0]:
                raise self._ask(pci, f"the device of line {self._gpus[0][1].line}", "another")
        return likes[0]

    def _ask(self, pci: XmlElement, expected: str, got: str) -> ConfigError:
        to_fix = f"say what it is most like: simrank convert {self._root.file} --device h100"
        return pci.error("device", expected, got, to_fix)

    def _link(self, ends: tuple[str, str], rate: _Rate, latency_us: float, source: str) -> None:
        self._links.append(
            {
                "between": list(ends),
                "bandwidth": f"{rate.gbps:.6g} GB/s",
                "latency": f"{latency_us:g} us",
                "source": {"bandwidth": rate.source, "latency": source},
            }
        )

    def _add_nvlinks(self) -> bool:
        """Add links between devices, and to switches; return whether there are switches."""
        to_switch = [(name, 0) for name in self._name_of.values()]
        direct: dict[tuple[str, str], tuple[int, XmlElement]] = {}
        for place, (gpu, _) in enumerate(self._gpus):
            self._refuse_xgmi(gpu)
            for wire in gpu.inside("nvlink"):
                count = wire.number("count", 1, _MAX_RATE)
                peer = self._names.get(wire.text("target").lower())
                kind = wire.attributes.get("tclass", _DEVICE if peer else "")
                if peer:
                    self._note_direct(direct, (f"gpu{place}", peer), count, wire)
                elif kind == _SWITCH:
                    name, total = to_switch[place]
                    to_switch[place] = name, total + count
                elif not kind.startswith(_DEVICE):  # A device that is not in the file is left out.
                    expected = f"{_SWITCH} (NVSwitch), or a target that is a device of the file"
                    wire.fail("tclass", expected, kind or "nothing")
        rates = [(name, self._nvlinks(name, count)) for name, count in to_switch if count]
        if len(rates) == len(self._gpus) and len({rate for _, rate in rates}) == 1:
            rates = [("each gpu", rates[0][1])]
        for name, rate in rates:
            self._link((name, "nvswitch"), rate, 0.3, _NVLINK_STEP)
        for ends, (count, _) in direct.items():
            self._link(ends, self._nvlinks(ends[0], count), 0.6, _NVLINK_STEP)
        return bool(rates)

    def _refuse_xgmi(self, gpu: XmlElement) -> None:
        for wire in gpu.inside("xgmi"):
            wire.fail("", "NVIDIA's devices: RCCL's files are not read", "<xgmi>")

    def _note_direct(
        self,
        direct: dict[tuple[str, str], tuple[int, XmlElement]],
        ends: tuple[str, str],
        count: int,
        wire: XmlElement,
    ) -> None:
        """Note the links of a pair, which stand in the file at both of its ends."""
        if ends[0] == ends[1]:
            wire.fail("target", "another device", wire.text("target"))
        other = direct.get((ends[1], ends[0]))
        if other is None:
            direct[ends] = count + direct.get(ends, (0, wire))[0], wire
        elif other[0] != count:
            wire.fail("count", f"{other[0]}, as in line {other[1].line}", str(count))

    def _nvlinks(self, name: str, count: int) -> _Rate:
        sm = self._gpus[int(name[3:])][0].number("sm", 1, 999)
        each = next(gbps for least, gbps in _NVLINK_GBPS if sm >= least)
        source = f"{_NCCL}/topo.h, {each:g} GB/s of each of {count} NVLinks in {self._file}"
        return _Rate(count * each, source)

    def _add_pci(self) -> float | None:
        """Add the PCI trees; return the host link of all devices if the file has it."""
        whole = _Rate(math.inf, "")
        for number, cpu in enumerate(self._cpus):
            for child in cpu.inside("pci", "nic"):
                self._attach(child, f"cpu{number}", whole)
            for pci in cpu.below("pci"):
                for gpu in pci.inside("gpu"):
                    self._add_c2c(gpu, f"cpu{number}")
        rates = {pci.attributes.get("link_speed") and self._pcie(pci).gbps for _, pci in self._gpus}
        return rates.pop() or None if len(rates) == 1 else None

    def _attach(self, element: XmlElement, above: str, rate: _Rate) -> None:
        """Join an element's children to the vertex above, with a switch for several."""
        if element.name == "pci":
            rate = min(rate, self._pcie(element), key=lambda each: each.gbps)
        ends = element.inside("pci", "gpu", "nic") if element.name == "pci" else [element]
        ends = [end for end in ends if end.name == "gpu" or [*end.below("gpu"), *end.below("net")]]
        nets = [net for end in ends if end.name == "nic" for net in end.inside("net")]
        others = [end for end in ends if end.name != "nic"]
        if len(nets) + len(others) > 1 and element.name == "pci":
            vertex = f"pcie{self._num_switches}"
            self._num_switches += 1
            self._link((vertex, above), rate, 0.1, "assumed")
            above, rate = vertex, _Rate(math.inf, "")
        for net in nets:
            name = f"nic{len(self._nics)}"
            self._nics.append(net)
            own = rate if rate.gbps < math.inf else self._port(net)
            self._link((name, above), own, 0.1, "assumed")
        for end in others:
            if end.name == "gpu":
                own = rate if rate.gbps < math.inf else self._pcie(element)
                self._link((self._name_of[id(end)], above), own, 0.5, _PCI_STEP)
            else:
                self._attach(end, above, rate)

    def _pcie(self, pci: XmlElement) -> _Rate:
        """Return NCCL's rate of a PCIe link; unknown generations count as the third."""
        text = pci.attributes.get("link_speed", "")
        generation = text.removesuffix(" PCIe").removesuffix(" GT/s").removesuffix(".0")
        lanes = pci.number("link_width", 0, 64, default=0) or _LANES
        known = generation in _PCIE_GBPS
        gbps = _PCIE_GBPS[generation if known else _PCIE_UNKNOWN] * lanes / 8
        shown = f"{generation if known else _PCIE_UNKNOWN} GT/s x{lanes}"
        whose = f"in {self._file}" if known else f"which NCCL assumes where {self._file} is silent"
        return _Rate(gbps, f"{'' if known else 'assumed, '}{_NCCL}/topo.cc, {shown}, {whose}")

    def _add_c2c(self, gpu: XmlElement, cpu: str) -> None:
        for wire in gpu.inside("c2c"):
            count, each = (wire.number(key, 1, 10**8) for key in ("count", "bw"))
            rate = _Rate(count * each / 1000, f"{_NCCL}/topo.cc, NVLink-C2C in {self._file}")
            self._link((self._name_of[id(gpu)], cpu), rate, 0.5, "assumed, as over PCIe")

    def _add_sockets(self) -> None:
        for second, cpu in enumerate(self._cpus):
            rate = self._socket_rate(cpu)
            for first in range(second):
                self._link((f"cpu{first}", f"cpu{second}"), rate, 0.1, "assumed")

    def _socket_rate(self, cpu: XmlElement) -> _Rate:
        """Return NCCL's rate of a link between two sockets."""
        vendor, arch = (cpu.attributes.get(key, "") for key in ("vendor", "arch"))
        source = f"{_NCCL}/topo.h, {vendor or arch} in {self._file}"
        if arch == "ppc64":
            return _Rate(_POWER_GBPS, source)
        if vendor == "GenuineIntel":
            family, model = (
                cpu.number(key, 0, 10**6, default=0) for key in ("familyid", "modelid")
            )
            known = model if family == 6 else 0
            return _Rate(next(gbps for least, gbps in _INTEL_GBPS if known >= least), source)
        if vendor in _SOCKETS_GBPS:
            return _Rate(_SOCKETS_GBPS[vendor], source)
        least = f"assumed, the least of {_NCCL}/topo.h: {self._file} does not say whose"
        return _Rate(_LEAST_GBPS, source if arch == "arm64" else least)

    def _port(self, net: XmlElement) -> _Rate:
        mbps = net.number("speed", 1, 10**8)
        return _Rate(
            mbps / 8000, f"{mbps} Mb/s of {net.attributes.get('name', 'net')}, {self._file}"
        )

    def _fabric(self) -> dict[str, Any]:
        """Return one switch that all cards of all nodes meet at."""
        links = [
            {
                "between": [f"nic{number}", "net"],
                "bandwidth": f"{self._port(net).gbps:.6g} GB/s",
                "latency": "0.75 us",
                "source": {
                    "bandwidth": self._port(net).source,
                    "latency": "assumed, as in the built-in clusters; the file ends at its ports",
                },
            }
            for number, net in enumerate(self._nics)
        ]
        return {"switches": ["net"], "links": links}
