"""Clusters by a number of devices: `64xh100` is eight nodes of HGX H100 on InfiniBand."""

import re
from typing import NamedTuple

from simrank.config.cluster import ClusterConfig
from simrank.config.load import load_cluster_config, with_nodes
from simrank.config.locate import builtin_clusters
from simrank.config.quantity import nearest
from simrank.config.yaml_source import Source
from simrank.errors import ConfigError, ConfigProblem

# Names of clusters of a device: of one node, and of nodes on a network; the first that exists.
_NODES = "hgx_{}", "{}_nvl72", "{}_pcie", "{}"
_NETWORKS = "{}_ib", "{}_roce", "{}_slingshot"
_AFFIXES = re.compile(
    r"^hgx_|_(nvl72|pcie|ib|roce|slingshot|efa|sharp|tcpxo?)$|_8_roce$|_single_ib$"
)
_NUM_NEAR = 3


class CountedDevices(NamedTuple):
    """Devices of a cluster.

    Attributes:
        cluster: A built-in cluster, with as many nodes as are needed.
        num_devices: The devices that are used: of one node any number, else whole nodes.
    """

    cluster: ClusterConfig
    num_devices: int


def device_words() -> list[str]:
    """Return the devices that `devices_of` knows, each with a cluster whose NCCL is known."""
    return sorted({_AFFIXES.sub("", name) for name in builtin_clusters()})


def devices_of(text: str) -> CountedDevices:
    """Return the devices that a text such as `64xh100` or `64xh100_efa` asks for.

    A device's name stands for its node where that has enough of them, and for its InfiniBand
    network (RoCE or Slingshot where it has none) beyond; the name of a cluster for that cluster.

    Raises:
        ConfigError: The text is none such, the device is unknown, or nodes are not whole.
    """
    match = re.fullmatch(r"(\d{1,7})\s*[x*]\s*([\w-]+)", text.strip(), re.ASCII)
    if match is None or int(match[1]) == 0:
        raise _problem("a number and a device, such as 64xh100", text)
    count, word = int(match[1]), match[2].lower()
    names = builtin_clusters()
    words = device_words()
    forms = (*_NODES, *_NETWORKS) if word in words else ("{}",)
    choices = [name for form in forms if (name := form.format(word)) in names]
    if not choices:
        near = nearest(word, [*words, *names], _NUM_NEAR)
        to_fix = f"write {' or '.join(f'`{count}x{name}`' for name in near)}" if near else None
        expected = f"one of {', '.join(words)}, or the name of a cluster (simrank clusters)"
        raise _problem(expected, word, to_fix)
    clusters = [load_cluster_config(name) for name in choices]
    for config in clusters:
        if count <= config.device.count:
            return CountedDevices(_with(config, 1), count)
    for config in clusters:
        if config.fabric is not None:
            return _nodes_of(config, count)
    most = max(config.device.count for config in clusters)
    raise _problem(f"at most {most} of {word}, which has no network between nodes", text)


def _nodes_of(config: ClusterConfig, count: int) -> CountedDevices:
    nodes, more = divmod(count, config.device.count)
    if more:
        per_node = config.device.count
        low, high = nodes * per_node, (nodes + 1) * per_node
        expected = f"whole nodes of {config.name}, of {per_node} devices each"
        raise _problem(expected, str(count), f"take {low} or {high}")
    return CountedDevices(_with(config, nodes), count)


def _with(config: ClusterConfig, nodes: int) -> ClusterConfig:
    source = Source("command line", {"gpus": nodes})
    return config if config.nodes == nodes else with_nodes(config, nodes, source, ("gpus",))


def _problem(expected: str, got: str, to_fix: str | None = None) -> ConfigError:
    return ConfigError(ConfigProblem("command line", None, "--gpus", expected, got, to_fix))
