"""A checked cluster as plain data: wires, vertices, provenance.

It imports nothing: a cached cluster needs neither YAML nor pydantic.
"""

from dataclasses import dataclass
from typing import NamedTuple

CALIBRATED, SOURCED, ASSUMED = KINDS = ("calibrated", "sourced", "assumed")


class Provenance(NamedTuple):
    """The provenance of one number.

    Attributes:
        key: The number, for example `device.memory` or `link each gpu - nvswitch.latency`.
        kind: "calibrated", "sourced" or "assumed", as the text begins; all others are sources.
        text: What the configuration says.
    """

    key: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class PerDirection:
    """One number for each direction of a link.

    Attributes:
        forward: From the first vertex of `between` to the second.
        backward: From the second to the first.
    """

    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class Wire:
    """One link between two vertices of the template: one direction there, one back.

    Attributes:
        first: Index of the first vertex in `Topology.vertices`.
        second: Index of the second vertex.
        bandwidth: Bytes per second in each direction.
        latency: Picoseconds in each direction.
    """

    first: int
    second: int
    bandwidth: PerDirection
    latency: PerDirection


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods: groups of nodes with fabric switches of their own, and the uplinks.

    Attributes:
        num_nodes: Nodes of a pod.
        num_spines: Spines that each switch has an uplink to.
        bandwidth_bytes_per_s: Of an uplink, per direction.
        latency_ps: Of an uplink, per direction.
    """

    num_nodes: int
    num_spines: int
    bandwidth_bytes_per_s: int
    latency_ps: int


@dataclass(frozen=True, slots=True)
class Topology:
    """One node, and the fabric of all nodes or of a pod.

    Attributes:
        vertices: Names: the devices of a node, its switches and NICs, then the fabric's switches.
        num_devices: Devices of a node.
        num_node_vertices: Vertices of a node; those after them belong to the fabric.
        node_wires: Wires that every node has, those that lead to the fabric included.
        fabric_wires: Wires between two vertices of the fabric; they exist once.
        pods: What the nodes are grouped in; None: in nothing.
    """

    vertices: tuple[str, ...]
    num_devices: int
    num_node_vertices: int
    node_wires: tuple[Wire, ...]
    fabric_wires: tuple[Wire, ...]
    pods: Pods | None = None

    @property
    def is_mesh(self) -> bool:
        """Whether every two devices of a node are joined by a wire of their own."""
        pairs = {
            (min(wire.first, wire.second), max(wire.first, wire.second))
            for wire in self.node_wires
            if max(wire.first, wire.second) < self.num_devices
        }
        return 2 * len(pairs) == self.num_devices * (self.num_devices - 1)
