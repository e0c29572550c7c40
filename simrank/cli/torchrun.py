"""torchrun's options: supported, ignored and rejected ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from simrank.errors import ConfigError, ConfigProblem, UnsupportedError

if TYPE_CHECKING:
    from simrank.hardware.cluster import Cluster

# Of torch 2.13's torch/distributed/run.py. Rendezvous and real processes: a launch line may keep
# them.
_IGNORED_WITH_VALUE = (
    "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "master-addr", "master-port",
    "local-addr", "node-rank", "monitor-interval", "start-method", "role",
    "event-log-handler", "numa-binding", "signals-to-handle", "shutdown-timeout",
)  # fmt: skip
_IGNORED_FLAGS = ("run-path",)
_LOGS = "use --log-dir, --tee and --redirects"
_REFUSED_WITH_VALUE = {
    "logs-specs": _LOGS,
    "duplicate-stdout-filters": _LOGS,
    "duplicate-stderr-filters": _LOGS,
}
_REFUSED_FLAGS = {
    "no-python": "only Python programs are simulated",
    "virtual-local-rank": "LOCAL_RANK is the number of a rank's device",
}


def _spellings(*names: str) -> list[str]:
    """Return options as torchrun spells them: with hyphens, and with underscores."""
    return list(dict.fromkeys(f"--{s}" for name in names for s in (name, name.replace("-", "_"))))


WITH_VALUE = _spellings(*_IGNORED_WITH_VALUE, *_REFUSED_WITH_VALUE)
FLAGS = _spellings(*_IGNORED_FLAGS, *_REFUSED_FLAGS)
_ALL = {*WITH_VALUE, *FLAGS}


class LaunchCommand(TyperCommand):
    """A command that stands where torchrun does: it says which of its options it leaves aside."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own
        """Parse as typer does, and check the options before the program."""
        given = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "option_name", None) == "-n":  # mpirun's, and what one tries first.
                ctx.fail("No such option: -n. Number of ranks: --nproc-per-node N")
            raise
        num_after = 1 + len(ctx.params.get("args") or ())
        options = [word.partition("=")[0] for word in given[: len(given) - num_after]]
        for option in options:
            name = option.removeprefix("--").replace("_", "-")
            reason = {**_REFUSED_WITH_VALUE, **_REFUSED_FLAGS}.get(name)
            if reason is not None:
                ctx.fail(f"{option} is not supported: {reason}")
        ignored = dict.fromkeys(option for option in options if option in _ALL)
        if ignored:
            listed = ", ".join(ignored)
            typer.echo(f"simrank: ignored, as ranks share a process: {listed}", err=True)
        return rest


_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher")


def check_program(program: str, *, as_module: bool) -> None:
    """Refuse to run a launcher on ranks: it would start processes from each of them.

    Raises:
        UnsupportedError: The program is one.
    """
    if as_module and program in _LAUNCHERS:
        raise UnsupportedError(
            f"`simrank run -m {program}`: it starts processes, and would do so on every rank\n"
            "  to fix: leave it out: simrank run takes its options, and the program after them"
        )


def num_nodes(text: str | None) -> int | None:
    """Return the number of nodes: torchrun's `4`, or the most of its `1:4`.

    Raises:
        ConfigError: It is neither.
    """
    if text is None:
        return None
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) for part in parts):
        expected = "a number of nodes from 1, or a range such as 1:4"
        raise ConfigError(ConfigProblem("command line", None, "--nnodes", expected, text))
    if len(set(parts)) > 1:
        typer.echo(f"simrank: --nnodes {text}: {parts[-1]} nodes run from the start", err=True)
    return int(parts[-1])


def num_ranks(cluster: Cluster, nproc_per_node: str | None) -> int:
    """Return the number of ranks: all devices, or the first ones of a single node.

    Raises:
        ConfigError: A node has no such number of devices.
        UnsupportedError: Some devices of each of several nodes.
    """
    devices = cluster.devices_per_node
    if nproc_per_node in (None, "auto", "gpu"):
        return cluster.num_devices
    assert nproc_per_node is not None
    num = int(nproc_per_node) if nproc_per_node.isdecimal() else 0
    if not 1 <= num <= devices:
        expected = f"1 to {devices}, the devices of a node of {cluster.name}, or auto or gpu"
        problem = ConfigProblem("command line", None, "--nproc-per-node", expected, nproc_per_node)
        raise ConfigError(problem)
    if cluster.num_nodes > 1 and num != devices:
        raise UnsupportedError(
            f"{num} of {devices} devices per node on "
            f"{cluster.num_nodes} nodes: ranks use the first devices of the cluster in order"
        )
    return num * cluster.num_nodes
