"""Loading of configurations by name, path or mapping; start with `load_cluster_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from simrank.config.calibration import load_calibration
from simrank.config.cluster import NOT_MEASURED, ClusterConfig, DeviceConfig, NcclConfig
from simrank.config.locate import builtin_names, locate, located
from simrank.config.measured import check_gemm_table
from simrank.config.model import Model, in_file_order, validate
from simrank.config.project import NO_CALIBRATION, POOLED
from simrank.config.quantity import Count, Text, choice_text, closest
from simrank.config.topology import check_cluster, nodes_problem
from simrank.config.yaml_source import KeyPath, Source, read_yaml, uncollected
from simrank.errors import ConfigError

ClusterRef = str | Path | Mapping[str, object] | ClusterConfig


class _NamedCluster(Model):
    """A cluster by name or path, with its number of nodes and how collectives are timed."""

    name: Text
    nodes: Count | None = None
    cost_level: Literal["nccl", "schedule"] = "nccl"
    device: Mapping[str, object] | None = None
    nccl: Mapping[str, object] | None = None


def load_cluster_config(cluster: ClusterRef, nodes: int | None = None) -> ClusterConfig:
    """Read and check a cluster.

    Args:
        cluster: A built-in name, the path of a YAML file, `{name: h100_ib, nodes: 4}`, a whole
            cluster as a mapping, or a cluster that was read before. `cost_level: schedule` beside
            a name leaves out what NCCL finds there: collectives cost what their schedules do;
            `nccl: {nics: 4}` or `device: {clocks: sustained}` beside a name changes keys of that
            block.
        nodes: Number of nodes instead of the one that the cluster states.

    Raises:
        ConfigError: With every problem of the file, in file order.
    """
    source = Source("cluster", cluster)
    config = cluster_from_source(source, ())
    return config if nodes is None else with_nodes(config, nodes, source, ("nodes",))


def cluster_from_source(source: Source, key_path: KeyPath) -> ClusterConfig:
    """Return the cluster that a part of another configuration names or contains.

    Args:
        source: The configuration around it.
        key_path: Where in it the cluster stands.

    Raises:
        ConfigError: The name is unknown, or the cluster is wrong.
    """
    data = source.data
    for part in key_path:
        data = data[part]  # type: ignore[index]
    if isinstance(data, ClusterConfig):
        return data
    if isinstance(data, str | Path):
        return _by_name(str(data), source, key_path)
    if not isinstance(data, Mapping):
        expected = "the name of a cluster, a path, or a mapping with `name` and `nodes`"
        raise ConfigError(source.problem(key_path, expected, source.describe(key_path, data)))
    if _is_whole(data):
        return _checked(source, key_path)
    named = validate(_NamedCluster, source, key_path)
    changes = {"device": named.device, "nccl": named.nccl}
    if any(changes.values()):
        path = located("clusters", named.name, source, (*key_path, "name"))
        config = _checked(changed_source(path, named.name, changes, source, key_path), ())
    else:
        config = _by_name(named.name, source, (*key_path, "name"))
    if named.cost_level == "schedule":
        config = config.model_copy(update={"nccl": None})
    if named.nodes is None:
        return config
    return with_nodes(config, named.nodes, source, (*key_path, "nodes"))


def _is_whole(data: Mapping[str, object]) -> bool:
    """Return whether a mapping is a whole cluster, not a name with changed keys."""
    device = data.get("device")
    names_device = isinstance(device, Mapping) and not {"name", "like"}.isdisjoint(device)
    return "links" in data or names_device


def _names_builtin(data: object) -> bool:
    """Return whether a mapping is the name of a built-in cluster with changed keys."""
    if not isinstance(data, Mapping) or _is_whole(data):
        return False
    return data.get("name") in builtin_names("clusters")


def with_nodes(
    config: ClusterConfig, nodes: int, source: Source, key_path: KeyPath
) -> ClusterConfig:
    """Return a cluster with another number of nodes.

    Args:
        config: The cluster.
        nodes: How many nodes it shall have.
        source: Where the number was written.
        key_path: Where in it.

    Raises:
        ConfigError: There is no such number, or no fabric joins the nodes.
    """
    try:
        data = {"name": config.name, "nodes": nodes}
        validate(_NamedCluster, replace(source, data=data), ())
    except ConfigError as error:
        first = error.problems[0]
        raise ConfigError(source.problem(key_path, first.expected, first.got)) from None
    wrong = nodes_problem(config, nodes)
    if wrong is not None:
        raise ConfigError(source.problem(key_path, *wrong))
    return config.model_copy(update={"nodes": nodes})


def read_cluster(path: Path) -> ClusterConfig:
    """Read and check the cluster in one file: YAML, or NCCL's topology XML.

    A file may be a whole cluster, or the name of a built-in one with changed keys.
    """
    if path.suffix == ".xml":
        from simrank.config.foreign.nccl_topology import read_topology  # noqa: PLC0415 - needs XML

        return _checked(Source(str(path), read_topology(path), path), ())
    with uncollected():
        return cluster_from_yaml(read_yaml(path))


def cluster_from_yaml(source: Source) -> ClusterConfig:
    """Return the cluster that is the whole of a source, or that it names with changed keys."""
    is_named = _names_builtin(source.data)
    return cluster_from_source(source, ()) if is_named else _checked(source, ())


def _by_name(word: str, source: Source, key_path: KeyPath) -> ClusterConfig:
    return read_cluster(located("clusters", word, source, key_path))


def _checked(source: Source, key_path: KeyPath) -> ClusterConfig:
    """Return the cluster at a key path of a source, or raise with all that is wrong with it."""
    source = fill_like(source, key_path)
    config = validate(ClusterConfig, source, key_path)
    problems = check_cluster(config, replace(source, prefix=key_path))
    if problems:
        raise ConfigError(*in_file_order(problems))
    config = _with_calibration(config, source, (*key_path, "calibration"))
    return _with_gemm_table(config, source, (*key_path, "device", "gemm_table"))


def _with_calibration(config: ClusterConfig, source: Source, key_path: KeyPath) -> ClusterConfig:
    """Return a cluster with the absolute path of its calibration file."""
    word = config.calibration
    if word in (None, NO_CALIBRATION, POOLED):
        return config
    if config.nccl is None:
        expected = "a block `nccl` beside it, whose constants it holds"
        raise ConfigError(source.problem(key_path, expected, "none"))
    path = located("calibrations", word, source, key_path)
    load_calibration(str(path))
    return config.model_copy(update={"calibration": str(path.absolute())})


def _with_gemm_table(config: ClusterConfig, source: Source, key_path: KeyPath) -> ClusterConfig:
    """Return a cluster with the absolute path of its table of products."""
    word = config.device.gemm_table
    if word is None or word in builtin_names("gemm"):
        return config
    path = located("gemm", word, source, key_path)
    check_gemm_table(path)
    device = config.device.model_copy(update={"gemm_table": str(path.absolute())})
    return config.model_copy(update={"device": device})


# ---- `device ----
# The keys that `device` does not give are those of the built-in cluster, with their sources; so
# is `collectives` where the cluster has none of its own.


def fill_like(source: Source, key_path: KeyPath) -> Source:
    """Return a source in which `device.like` of one cluster is filled in.

    Args:
        source: The configuration.
        key_path: Where in it the cluster stands.

    Raises:
        ConfigError: `like` is no built-in cluster.
    """
    cluster: object = source.data
    for part in key_path:
        cluster = cluster[part]  # type: ignore[index]
    if not isinstance(cluster, Mapping) or not isinstance(cluster.get("device"), Mapping):
        return source
    device = cluster["device"]
    if "like" not in device:
        return source
    base = _builtin(source, (*key_path, "device", "like"), device["like"])
    filled = {**cluster, "device": _merged(base["device"], device)}
    filled.setdefault("collectives", base["collectives"])
    return replace(source, data=_with_part(source.data, key_path, filled))


def _builtin(source: Source, key_path: KeyPath, word: object) -> Mapping[str, Mapping[str, object]]:
    """Return the data of a built-in cluster; each of its blocks names its sources."""
    names = builtin_names("clusters")
    if not isinstance(word, str) or word not in names:
        near = closest(word, names) if isinstance(word, str) else None
        got = source.describe(key_path, word)
        to_fix = near and f"write `{near}`"
        raise ConfigError(source.problem(key_path, choice_text(names), got, to_fix))
    data = read_yaml(locate("clusters", word)).data
    assert isinstance(data, dict)
    return data


def _merged(base: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Return a device block merged with a base; its own keys win, with their sources."""
    merged: dict[str, object] = {**base, **own}
    base_source, own_source = base["source"], own.get("source", {})
    if not isinstance(base_source, Mapping):
        base_source = {"others": base_source}
    if isinstance(own_source, str):
        own_source = {"others": own_source}
    if not isinstance(own_source, Mapping):
        return merged  # The model says what is wrong with it.
    numbers = set(base) - set(own) - NOT_MEASURED
    inherited = {key: base_source.get(key, base_source.get("others")) for key in sorted(numbers)}
    merged["source"] = {**inherited, **own_source}
    return merged


def _with_part(data: object, key_path: KeyPath, part: object) -> object:
    """Return data in which the part at a key path is another."""
    if not key_path:
        return part
    changed = dict(data) if isinstance(data, Mapping) else list(data)  # type: ignore[call-overload]
    changed[key_path[0]] = _with_part(changed[key_path[0]], key_path[1:], part)
    return changed


# ---- single keys of a built-in cluster, changed beside its name ----

_CHANGEABLE: dict[str, type[Model]] = {"device": DeviceConfig, "nccl": NcclConfig}


def changed_source(
    path: Path,
    name: str,
    changes: Mapping[str, Mapping[str, object] | None],
    source: Source,
    key_path: KeyPath,
) -> Source:
    """Return the data of a cluster with other values in some blocks; their source is "assumed".

    Args:
        path: The file of the cluster.
        name: What it was named by.
        changes: New values by key, by block; None: the block is as it is.
        source: The configuration that names the cluster.
        key_path: Where in it.

    Raises:
        ConfigError: The cluster has no such block, or the block no such key.
    """
    data = None if path.suffix == ".xml" else read_yaml(path).data
    cluster = dict(data) if isinstance(data, Mapping) else {}
    given = {block: dict(values) for block, values in changes.items() if values}
    for block, values in given.items():
        own = cluster.get(block)
        if not isinstance(own, Mapping):
            expected = f"a cluster whose file has a block `{block}`"
            raise ConfigError(source.problem((*key_path, block), expected, name))
        _check_keys(block, values, source, key_path)
        sources = own.get("source", {})
        sources = {"others": sources} if isinstance(sources, str) else sources
        changed = dict.fromkeys({*values} - NOT_MEASURED, "assumed, beside the cluster's name")
        cluster[block] = {**own, **values, "source": {**sources, **changed}}
    if source.path is None:
        return Source(f"{path} with {given}", cluster, path)
    # What is wrong is a new value: the file that has it is named, with the value's line.
    own = [(), *((block, *key) for block, keys in given.items() for key in ((), *zip(keys)))]
    lines = {key: line for key in own if (line := source.line((*key_path, *key))) is not None}
    return Source(source.file, cluster, path, lines)


def _check_keys(
    block: str, values: Mapping[str, object], source: Source, key_path: KeyPath
) -> None:
    """Check the names of the changed keys of a block.

    Raises:
        ConfigError: The block has no such key.
    """
    keys = [key for key in _CHANGEABLE[block].keys() if key not in ("source", "like")]  # noqa: SIM118 - a method
    for key in values:
        if key not in keys:
            expected, to_fix = choice_text(keys), closest(str(key), keys)
            fix = "change a copy of the file: `simrank clusters NAME` prints one"
            said = f"write `{to_fix}`" if to_fix else fix
            got = f"the unknown key `{key}`"
            raise ConfigError(source.problem((*key_path, block, str(key)), expected, got, said))
