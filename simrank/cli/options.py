"""The longer options of commands, as annotated types."""

from typing import Annotated

import typer

from simrank.cli.torchrun import FLAGS, WITH_VALUE
from simrank.multiprocessing.tracebacks import shows_all_frames

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
    str | None,
    typer.Option(
        "--unknown",
        help="With --shape-only: what a torch program reads without values: zero, ones, a number.",
    ),
]
_STATED = {"zero": 0.0, "zeros": 0.0, "ones": 1.0, "one": 1.0}


def stated_value(text: str | None, *, shape_only: bool) -> float | None:
    """Return the number that `--unknown` states.

    Raises:
        typer.BadParameter: The text is not a number, or the run has all values.
    """
    if text is not None and not shape_only:
        raise typer.BadParameter(
            "a run with data has no unknown values; to fix: add --shape-only",
            param_hint="--unknown",
        )
    if text is None or text in _STATED:
        return None if text is None else _STATED[text]
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
    typer.Option("--devices", help="CUDA devices: simulated or real [torch's build]."),
]
FlightRecorderFolder = Annotated[
    str | None,
    typer.Option("--flight-recorder", help="Folder for torch's flight records, a file per rank."),
]
FollowsDivergence = Annotated[
    bool,
    typer.Option("--divergence", help="Report the line of a divergence, and swapped calls."),
]
ComparesReplicas = Annotated[
    bool,
    typer.Option("--replicas", help="Report DDP models that differ after an optimizer step."),
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
