"""`device: {like: hgx_h100, count: 4}`: an own topology of devices that a built-in cluster has.

The keys that `device` does not give are those of the built-in cluster, with their sources; so is
`collectives` where the cluster has none of its own.
"""

from collections.abc import Mapping
from dataclasses import replace

from simrank.config.cluster import NOT_MEASURED
from simrank.config.locate import builtin_names, locate
from simrank.config.quantity import choice_text, closest
from simrank.config.yaml_source import KeyPath, Source, read_yaml
from simrank.errors import ConfigError


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
    """Return a device block in which own keys win; sources stay with the numbers they are of."""
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
