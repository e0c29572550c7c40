"""ASTRA-sim's network YAML (a product of dimensions) as a cluster; see `network_cluster`.

NPU number `i` has the coordinates `i mod n0`, `i / n0 mod n1`, and so on. A last dimension that is
a switch becomes the nodes of the cluster, with a switch of the fabric for each position in a node;
all others are links in a node.

Source:
    astra-sim/astra-sim, `inputs/network/analytical`; astra-network-analytical for what numbers
    mean: 1 GB is 2^30 bytes, a latency is that of one link, and to a switch and on are two.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.config.foreign.nccl_topology import device_named, name_of
from simrank.config.quantity import MAX_DEVICES_PER_NODE, hint
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.config.yaml_source import Source

RING, SWITCH, FULLY_CONNECTED = KINDS = ("Ring", "Switch", "FullyConnected")
BYTES_PER_GB = 2**30
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
_MAX = 1e9  # Assumed: GB/s, ns and NPUs above which a number is a mistake.


class Dimension(NamedTuple):
    """One dimension of a network.

    Attributes:
        kind: Ring, Switch or FullyConnected.
        size: NPUs along it.
        gbps: What one link carries in one direction, in 2^30 bytes per second.
        latency_ns: Of one link.
    """

    kind: str
    size: int
    gbps: float
    latency_ns: float


def is_network(data: object) -> bool:
    """Return whether the data of a YAML file are a network of ASTRA-sim."""
    return isinstance(data, dict) and {"topology", "npus_count"} <= set(data)


def dimensions_of(source: Source) -> list[Dimension]:
    """Return the dimensions of a network.

    Raises:
        ConfigError: With the line and key of what is wrong first.
    """
    data = source.data
    assert isinstance(data, dict), "`is_network` has looked"
    for key in data:
        if key not in _KEYS:
            to_fix = hint(key, _KEYS)
            expected = f"one of {', '.join(_KEYS)}"
            raise ConfigError(source.problem((key,), expected, key, to_fix))
    kinds = _list(source, "topology", f"one of {', '.join(KINDS)}", lambda kind: kind in KINDS)
    sizes = _list(source, "npus_count", "a number of NPUs from 1", _is_count)
    rates = _list(source, "bandwidth", "a rate in GB/s above 0", lambda rate: _is_number(rate, 0))
    delays = _list(source, "latency", "a latency in ns from 0", lambda time: _is_number(time, -1))
    for key, values in (("npus_count", sizes), ("bandwidth", rates), ("latency", delays)):
        if len(values) != len(kinds):
            expected = f"{len(kinds)} entries, as topology has"
            raise ConfigError(source.problem((key,), expected, str(len(values))))
    return [Dimension(*each) for each in zip(kinds, sizes, rates, delays, strict=True)]


def _list(source: Source, key: str, expected: str, fits: Callable[[object], bool]) -> list[Any]:
    assert isinstance(source.data, dict)
    values = source.data.get(key)
    if not isinstance(values, list) or not values:
        got = source.describe((key,), values)
        raise ConfigError(source.problem((key,), "a list with an entry per dimension", got))
    for number, value in enumerate(values):
        if not fits(value):
            got = source.describe((key, number), value)
            raise ConfigError(source.problem((key, number), expected, got))
    return values


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= _MAX


def _is_number(value: object, above: float) -> bool:
    return type(value) in (int, float) and above < value <= _MAX  # type: ignore[operator]


def network_cluster(source: Source, device: str | None) -> dict[str, Any]:
    """Return the cluster YAML of a network.

    Args:
        source: The network.
        device: Whose devices the NPUs are: a built-in cluster, or a short name.

    Raises:
        ConfigError: The file is invalid, or the NPU is not given.
    """
    dimensions = dimensions_of(source)
    if device is None:
        expected = "--device: an ASTRA-sim network does not say what its NPUs are"
        to_fix = f"simrank convert {source.file} --device h100"
        raise ConfigError(ConfigProblem(source.file, None, "", expected, "nothing", to_fix))
    has_nodes = len(dimensions) > 1 and dimensions[-1].kind == SWITCH
    inside = dimensions[:-1] if has_nodes else dimensions
    count = math.prod(dimension.size for dimension in inside)
    if count > MAX_DEVICES_PER_NODE:
        expected = f"at most {MAX_DEVICES_PER_NODE} NPUs besides those of a last Switch"
        raise ConfigError(source.problem(("npus_count",), expected, str(count)))
    links, switches = [], []
    stride = 1
    for number, dimension in enumerate(inside):
        for line, npus in enumerate(_lines(dimension.size, stride, count)):
            if dimension.kind == SWITCH:
                switches.append(f"dim{number}switch{line}")
            ends = _ends(dimension, npus, f"dim{number}switch{line}")
            links += [_link(end, dimension, source.file) for end in ends]
        stride *= dimension.size
    shown = " x ".join(f"{each.kind} of {each.size}" for each in dimensions)
    found: dict[str, Any] = {
        "name": name_of(source.file),
        "description": f"{shown}, an ASTRA-sim network",
        "device": {"like": device_named(device), "count": count, "multicast": False},
        "switches": switches,
        "links": links,
    }
    if has_nodes:
        rails = [f"rail{number}" for number in range(count)]
        last = _link(("each gpu", "same rail"), dimensions[-1], source.file)
        found |= {"nodes": dimensions[-1].size, "fabric": {"switches": rails, "links": [last]}}
    return found


def _lines(size: int, stride: int, count: int) -> Iterator[list[int]]:
    """Yield the NPUs of each line along a dimension."""
    for first in range(count):
        if first // stride % size == 0:
            yield [first + stride * number for number in range(size)]


def _ends(dimension: Dimension, npus: list[int], switch: str) -> Iterator[tuple[str, str]]:
    """Yield the ends of the links that join a line."""
    names = [f"gpu{npu}" for npu in npus]
    if dimension.kind == SWITCH:
        yield from ((name, switch) for name in names)
    elif dimension.kind == FULLY_CONNECTED:
        yield from ((a, b) for number, a in enumerate(names) for b in names[number + 1 :])
    else:
        yield from pairwise(names)
        if len(names) > 2:
            yield names[-1], names[0]


def _link(ends: tuple[str, str], dimension: Dimension, file: str) -> dict[str, Any]:
    return {
        "between": list(ends),
        "bandwidth": f"{dimension.gbps:.10g} GiB/s",
        "latency": f"{dimension.latency_ns:.10g} ns",
        "source": f"{file}, an ASTRA-sim network",
    }
