"""Clusters as ASTRA-sim's network YAML, if they are products of dimensions.

What it becomes is what its routes are: how the devices of a node reach each other, and what joins
devices of one position on all nodes. What the format has no words for is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from simrank import units
from simrank.config.foreign.astra_sim import (
    BYTES_PER_GB,
    FULLY_CONNECTED,
    RING,
    SWITCH,
    Dimension,
)
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from simrank.hardware.cluster import Cluster


class _PairLinks(NamedTuple):
    """The route of a pair of devices.

    Attributes:
        links: How many it crosses.
        bytes_per_s: Of the slowest of them.
        latency_ps: Of all of them.
    """

    links: int
    bytes_per_s: float
    latency_ps: int


def network_yaml(cluster: Cluster) -> str:
    """Return a cluster as ASTRA-sim's network YAML.

    Raises:
        ConfigError: It is no product of rings, switches and full meshes.
    """
    found = _dimensions(cluster)
    rows = {
        "topology": [each.kind for each in found],
        "npus_count": [str(each.size) for each in found],
        "bandwidth": [f"{each.gbps:.6f}" for each in found],
        "latency": [f"{each.latency_ns:.3f}" for each in found],
    }
    unit = {"bandwidth": "  # GB/s of 2^30 bytes", "latency": "  # ns"}
    lines = (f"{key}: [ {', '.join(row)} ]{unit.get(key, '')}\n" for key, row in rows.items())
    return f"# {cluster.name}, written by `simrank convert`.\n{''.join(lines)}"


def _dimensions(cluster: Cluster) -> list[Dimension]:
    local = cluster.devices_per_node
    if cluster.uplinks is not None:
        _refuse(cluster, "all nodes at the same switches: no pods")
    found = []
    if local > 1 or cluster.num_nodes == 1:
        found.append(_inside(cluster, local))
    if cluster.num_nodes > 1:
        here = np.arange(local)
        route = _common(cluster, here, here + local)
        if route is None:
            _refuse(cluster, "equal routes between the devices of one position on two nodes")
        _check_apart(cluster, local)
        found.append(_dimension(SWITCH, cluster.num_nodes, route, 2))
    return found


def _inside(cluster: Cluster, local: int) -> Dimension:
    """Return the links among the devices of a node."""
    first, second = np.divmod(np.arange(local * local), local)
    apart = first != second
    route = _common(cluster, first[apart], second[apart]) if local > 1 else _PairLinks(1, 2**30, 0)
    if route is not None and route.links == 1:
        return _dimension(FULLY_CONNECTED, local, route, 1)
    if route is not None:
        return _dimension(SWITCH, local, route, 2)
    here = np.arange(local)
    route = _common(cluster, here, (here + 1) % local)
    num_wires = len(cluster.topology.node_wires) - (local if cluster.num_nodes > 1 else 0)
    if route is None or route.links != 1 or num_wires != local:
        _refuse(cluster, "a node that is a ring, a full mesh, or behind one switch")
    return _dimension(RING, local, route, 1)


def _dimension(kind: str, size: int, route: _PairLinks, num_links: int) -> Dimension:
    """Return a dimension with a route's bandwidth and latency."""
    latency_ns = route.latency_ps / units.PS_PER_NS / num_links
    return Dimension(kind, size, route.bytes_per_s / BYTES_PER_GB, latency_ns)


def _common(cluster: Cluster, src: np.ndarray, dst: np.ndarray) -> _PairLinks | None:
    """Return the route that all of these pairs have, there and back, or None."""
    ends = np.concatenate([src, dst]), np.concatenate([dst, src])
    paths = cluster.paths(*ends)
    rates = cluster.link_bandwidth_bytes_per_s[paths.links].min(axis=1)
    num_links = (paths.links != cluster.num_links).sum(axis=1)
    seen = {_PairLinks(*each) for each in zip(num_links.tolist(), rates.tolist(),
                                          paths.latency_ps.tolist(), strict=True)}  # fmt: skip
    return seen.pop() if len(seen) == 1 else None


def _check_apart(cluster: Cluster, local: int) -> None:
    """Raise for nodes whose devices share the links out of the node."""
    here = np.arange(local)
    links = cluster.paths(here, here + local).links
    used = links[links != cluster.num_links]
    if len(np.unique(used)) != len(used):
        _refuse(cluster, "a way out of the node for each device")


def _refuse(cluster: Cluster, expected: str) -> NoReturn:
    problem = ConfigProblem(cluster.name, None, "", expected, "other routes")
    raise ConfigError(problem)
