"""Options that several commands share, those of torchrun included, as annotated types."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from simrank.config.checks import LEVELS
from simrank.config.project import CHOICES, REAL, SIMULATED, project_settings
from simrank.config.quantity import choice_text, hint
from simrank.device.routing import Routing
from simrank.device.stated_values import StatedValues
from simrank.engine.task import carrier_choices
from simrank.errors import ConfigError, ConfigProblem, UnsupportedError
from simrank.multiprocessing.tracebacks import shows_all_frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.hardware.cluster import Cluster


# ---- torchrun's options: supported, ignored and rejected ones ----

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


# ---- the longer options of commands, as annotated types ----

AsModule = Annotated[bool, typer.Option("-m", "--module", help="PROGRAM is a module.")]
ClusterName = Annotated[str, typer.Option("--cluster", help="Cluster name or file.")]
NprocPerNode = Annotated[
    str | None,
    typer.Option(
        "--nproc-per-node", "--nproc_per_node", help="Ranks per node, auto or gpu [devices]."
    ),
]
Nnodes = Annotated[str | None, typer.Option("--nnodes", help="Nodes [the cluster's].")]
MaxRestarts = Annotated[
    int,
    typer.Option(
        "--max-restarts", "--max_restarts", min=0, help="Restarts of all ranks after a failure."
    ),
]
Standalone = Annotated[
    bool, typer.Option("--standalone", help="As torchrun's; ranks always share a process.")
]
Prefix = Annotated[
    str, typer.Option("--prefix", help="rank: `[rank0]: ` before lines of several ranks; none.")
]
Tee = Annotated[
    str,
    typer.Option("-t", "--tee", help="Write to files, too: 1 stdout, 2 stderr, 3; 0:1,1:2."),
]
Redirects = Annotated[str, typer.Option("-r", "--redirects", help="Write to files only: as --tee.")]
LogDir = Annotated[
    str | None,
    typer.Option("--log-dir", "--log_dir", help="Folder of RANK/stdout.log, stderr.log."),
]
LocalRanksFilter = Annotated[
    str | None,
    typer.Option(
        "--local-ranks-filter", "--local_ranks_filter", help="Show lines of these ranks: 0,2."
    ),
]
TorchrunValues = Annotated[list[str] | None, typer.Option(*WITH_VALUE, hidden=True)]
TorchrunFlags = Annotated[bool, typer.Option(*FLAGS, hidden=True)]
DefaultDevice = Annotated[
    int | None,
    typer.Option("--default-device", min=0, help="Ranks' device before set_device [their own]."),
]
TokensPerStep = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of a training step of all ranks, for rates in the summary."),
]
Unknown = Annotated[
    list[str] | None,
    typer.Option(
        "--unknown",
        help="With --shape-only: what is read without values: zero, ones, 0.5, train.py:12=3.",
    ),
]
RoutingText = Annotated[
    str | None,
    typer.Option(
        "--routing", help="With --shape-only: tokens per expert: balanced, zipf:1.2 or a seed."
    ),
]
_STATED = {"zero": 0.0, "zeros": 0.0, "ones": 1.0, "one": 1.0}


def stated_values(
    texts: Sequence[str] | None, routing: str | None, *, shape_only: bool
) -> StatedValues:
    """Return the values that `--unknown` and `--routing` state.

    Raises:
        typer.BadParameter: A text states none, or the run has all values.
    """
    for given, name in ((texts, "--unknown"), (routing, "--routing")):
        if given and not shape_only:
            raise typer.BadParameter(
                "a run with data has no unknown values; to fix: add --shape-only", param_hint=name
            )
    value, at = None, {}
    for text in texts or ():
        place, _, number = text.rpartition("=")
        if place:
            file, colon, line = place.rpartition(":")
            if not colon or not line.isdecimal():
                problem = f"{place!r} is no line: expected FILE:LINE, as in train.py:12=3"
                raise typer.BadParameter(problem, param_hint="--unknown")
            at[f"{Path(file).name}:{line}"] = _stated_number(number)
        else:
            value = _stated_number(number)
    try:
        return StatedValues(value, at, None if routing is None else Routing.parse(routing))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--routing") from None


def _stated_number(text: str) -> float:
    if text in _STATED:
        return _STATED[text]
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no number; known words: zero, ones", param_hint="--unknown"
        ) from None


Fold = Annotated[
    str,
    typer.Option(
        "--fold",
        help="With --shape-only: ranks that do the same run once: auto, none, all, or axes: dp,tp.",
    ),
]
OnFailure = Annotated[
    str, typer.Option("--on-failure", help="abort, or continue: healthy ranks run on.")
]
ComputeTime = Annotated[
    str, typer.Option("--compute-time", help="Cost of torch's operations: roofline or none.")
]
CudaDevices = Annotated[
    str | None,
    typer.Option("--devices", help="CUDA devices: simulated or real [simulated]."),
]
FlightRecorderFolder = Annotated[
    str | None,
    typer.Option("--flight-recorder", help="Folder for torch's flight records, a file per rank."),
]
RunsTwice = Annotated[
    bool,
    typer.Option(
        "--second-run/--no-second-run",
        help="Run again: to find where ranks diverged, or with a package private.",
    ),
]
# The level of checks, and its parts, which are kept for commands of earlier versions.
ChecksLevel = Annotated[
    str, typer.Option("--checks", help="Mistakes to look for: off, default or all.")
]
Races = Annotated[str | None, typer.Option(help="Races: off, report or error.", hidden=True)]
IsStrict = Annotated[bool | None, typer.Option(help="Leaked Works are errors.", hidden=True)]
FollowsDivergence = Annotated[
    bool | None,
    typer.Option(
        "--divergence", help="Report the line of a divergence, and swapped calls.", hidden=True
    ),
]
ComparesReplicas = Annotated[
    bool | None,
    typer.Option(
        "--replicas", help="Report DDP models that differ after an optimizer step.", hidden=True
    ),
]
Private = Annotated[
    list[str] | None,
    typer.Option("--private", help="A package that each rank imports separately; repeatable."),
]
Carrier = Annotated[
    str, typer.Option("--carrier", help="greenlet, thread, or auto: threads for torch.")
]
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", min=1, help="Number of seeds in a search for ordering bugs."),
]
DelaysText = Annotated[
    str | None, typer.Option("--delays", help="Replay these delays: 17 or 17:h3.12,w0.4.")
]
EveryTiming = Annotated[
    bool,
    typer.Option(
        "--every-timing", help="Search every timing for another end, or prove the only one."
    ),
]
TimingText = Annotated[
    str | None, typer.Option("--timing", help="Replay this outcome of --every-timing.")
]
Watchdog = Annotated[
    float | None,
    typer.Option(
        "--watchdog", min=0.001, help="Report a rank that computes longer than this, in seconds."
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", min=0.001, help="Wall-clock limit of the run, in seconds."),
]


def _show_all_frames(is_full: bool) -> bool:
    shows_all_frames[0] = is_full
    return is_full


FullTraceback = Annotated[
    bool,
    typer.Option(
        "--full-traceback",
        callback=_show_all_frames,
        help="Show frames of torch and simrank, too.",
    ),
]
Nthreads = Annotated[
    int | None,
    typer.Option("-t", "--nthreads", min=1, help="Threads, each with the GPUs of -g [1]."),
]
SeriesTimeout = Annotated[
    float, typer.Option("-T", "--timeout", min=0, help="Wall-clock seconds of a series; 0: any.")
]
NcclTestsFile = Annotated[
    str | None, typer.Option("--nccl-tests", help="Write the rows in nccl-tests' format.")
]
InspectorFile = Annotated[
    str | None, typer.Option("--inspector", help="Write NCCL Inspector's JSON lines.")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Runs of a program at once, in processes [1].")
]
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend", help="Backend of --jobs: loky, ray or dask, or dask:tcp://host:8786."
    ),
]


def cuda_devices(given: str | None, *, has_values: bool = True) -> str:
    """Return a command's kind of CUDA devices: simulated unless real GPUs are requested.

    Args:
        given: As typed; None: the project's setting.
        has_values: Whether tensors have values; without them no GPU computes.

    Raises:
        ConfigError: It is none of the choices, or real GPUs are requested without values.
    """
    check_words(devices=given)
    chosen = given or project_settings().devices or SIMULATED
    if chosen == REAL and not has_values:
        expected = "simulated, since runs without values have no real devices"
        raise ConfigError(ConfigProblem("command line", None, "--devices", expected, REAL))
    return chosen


# ---- the words that options and arguments choose from, checked with hints ----

CHOICES_OF: dict[str, tuple[str, ...]] = {
    "checks": tuple(LEVELS),
    "races": ("off", "report", "error"),
    "on_failure": CHOICES["on_failure"],
    "carrier": carrier_choices(),
    "compute_time": CHOICES["compute_time"],
    "devices": CHOICES["cuda_devices"],
    "summary": ("text", "json", "none"),
    "prefix": ("rank", "none"),
    "backend": ("gloo", "nccl"),
}


def check_words(**given: str | None) -> None:
    """Check the values of several options against `CHOICES_OF`.

    Raises:
        ConfigError: One of them is none of its choices.
    """
    for name, word in given.items():
        check_word(f"--{name.replace('_', '-')}", word, CHOICES_OF[name])


def check_word(option: str, word: str | None, choices: tuple[str, ...]) -> None:
    """Check the value of an option; None is always accepted.

    Args:
        option: As `--on-failure`.
        word: As typed.
        choices: What there is.

    Raises:
        ConfigError: It is none of them; the nearest is named.
    """
    if word is None or word in choices:
        return
    facts = choice_text(choices), word or "''", hint(word, choices)
    raise ConfigError(ConfigProblem("command line", None, option, *facts))
