"""Options that commands of predictions share, and the cluster that `--set KEY=VALUE` makes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from typer.core import TyperCommand

from simrank.cli.nccl_tests import bad_option
from simrank.config.cluster import DeviceConfig, NcclConfig
from simrank.config.files import write_text
from simrank.config.load import load_cluster_config
from simrank.config.quantity import COLLECTIVES, MAX_COUNT, closest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.config.load import ClusterRef


class CollectiveCommand(TyperCommand):
    """A command whose collective is an option: a bare name is answered with it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's
        """Parse as typer does; the name of a collective stands behind its option only."""
        for before, word in pairwise(("", *args)):
            if word in COLLECTIVES and before != "--collective":
                ctx.fail(f"expected options, got {word}\n  to fix: write --collective {word}")
        return super().parse_args(ctx, args)


CollectiveName = Annotated[
    str, typer.Option("--collective", help="Collective, for example all_reduce.")
]
Cluster = Annotated[str, typer.Option(help="A built-in cluster or a YAML file.")]
Nodes = Annotated[int | None, typer.Option(help="Nodes of the cluster.")]
Changed = Annotated[
    list[str] | None,
    typer.Option("--set", help="Changed key: nics=4, clocks=sustained; repeatable."),
]
NumRanks = Annotated[int | None, typer.Option("-g", "--num-ranks", help="Ranks [all devices].")]
Ranks = Annotated[
    str | None,
    typer.Option("--ranks", help="Devices of the group: 0,8,16, or 0-63:8 for every eighth."),
]
Tuner = Annotated[
    str | None, typer.Option("--tuner", help="CSV file of NCCL's example tuner plugin.")
]
Calibration = Annotated[str, typer.Option(help="Constants: auto, pooled, none or a YAML file.")]
JsonFile = Annotated[str | None, typer.Option("--json", help="JSON file to write; - for stdout.")]


def with_changes(cluster: str, changed: Sequence[str] | None) -> ClusterRef:
    """Return a cluster with other values in its blocks `nccl` and `device`, read once.

    Args:
        cluster: A built-in name, or a file.
        changed: Pairs such as `nics=4`, `nic_bandwidth=25 GB/s` or `device.clocks=sustained`;
            values are YAML. The block may be left out.

    Raises:
        ConfigError: A text is no pair, names what cannot be changed, or the cluster is wrong.
    """
    if not changed:
        return cluster
    blocks: dict[str, dict[str, Any]] = {}
    for text in changed:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise bad_option("--set", "KEY=VALUE, for example nics=4", text)
        block, _, name = key.rpartition(".")
        if block not in ("", "nccl", "device"):
            raise bad_option("--set", "a key of the block nccl or device", text)
        of_device, of_nccl = DeviceConfig.keys(), NcclConfig.keys()
        meant = name if name in (*of_device, *of_nccl) else closest(name, (*of_nccl, *of_device))
        home = block or ("device" if meant in of_device else "nccl")
        try:
            blocks.setdefault(home, {})[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise bad_option("--set", f"a value in YAML after {key}=", value) from None
    return load_cluster_config({"name": cluster, **blocks})


def only_json(data: dict[str, Any], json_file: str | None) -> bool:
    """Write data as JSON where `--json` says; return whether that was stdout."""
    if json_file is None:
        return False
    text = json.dumps(data, indent=1) + "\n"
    if json_file == "-":
        typer.echo(text, nl=False)
        return True
    write_text(json_file, text)
    return False


def devices_of(text: str | None) -> list[int] | None:
    """Return the devices of `0,8,16` or `0-63:8`; None of None.

    Raises:
        ConfigError: It is neither.
    """
    if text is None:
        return None
    found: list[int] = []
    try:
        for part in text.split(","):
            span, _, step = part.partition(":")
            first, dash, last = span.partition("-")
            end = int(last) + 1 if dash else int(first) + 1
            if end > MAX_COUNT:
                raise ValueError(part)
            found += range(int(first), end, int(step or "1"))
    except ValueError:
        expected = "device numbers such as 0,8,16, or a range with a step such as 0-63:8"
        raise bad_option("--ranks", expected, text) from None
    return found
