"""Changed values of a cluster: the option `--set KEY=VALUE` of `predict` and `explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from simrank.cli.nccl_tests import bad_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.config.load import ClusterRef


def with_changes(cluster: str, changed: Sequence[str] | None) -> ClusterRef:
    """Return a cluster with other values in its block `nccl`.

    Args:
        cluster: A built-in name, or a file.
        changed: Pairs such as `nics=4` or `nic_bandwidth=25 GB/s`; values are YAML.

    Raises:
        ConfigError: A text is no pair.
    """
    if not changed:
        return cluster
    values: dict[str, Any] = {}
    for text in changed:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise bad_option("--set", "KEY=VALUE, for example nics=4", text)
        try:
            values[key.removeprefix("nccl.")] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise bad_option("--set", f"a value in YAML after {key}=", value) from None
    return {"name": cluster, "nccl": values}
