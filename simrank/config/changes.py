"""Single keys of a built-in cluster, changed beside its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from simrank.config.cluster import NOT_MEASURED, DeviceConfig, NcclConfig
from simrank.config.quantity import choice_text, closest
from simrank.config.yaml_source import KeyPath, Source, read_yaml
from simrank.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from simrank.config.model import Model

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
    return Source(f"{path} with {given}", cluster, path)


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
