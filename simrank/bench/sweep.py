"""Benchmarks of programs: a function, timed on simulated ranks for all of its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.context import Context
from simrank.errors import ConfigError
from simrank.hardware.build import build_cluster
from simrank.multiprocessing.script import import_program, program_imports
from simrank.multiprocessing.spawn import spawn_in
from simrank.trace import Summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.config.cluster import ClusterConfig
    from simrank.config.sweep import SweepConfig
    from simrank.trace import Timeline

Row = dict[str, Any]


def run_sweep(
    config: SweepConfig,
    *,
    timeline: Timeline | None = None,
    on_start: Callable[[], None] | None = None,
    on_row: Callable[[Row], None] | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> list[Row]:
    """Run a program for every cluster and combination of parameters.

    Its modules are imported from the folder of the file, the current one, or what is installed, in
    this order, and forgotten afterwards.

    Args:
        config: The benchmark.
        timeline: Observes every run.
        on_start: Called when nothing is wrong with the configuration.
        on_row: Called with each row when it is known.
        on_progress: Called with what runs, how many runs are done, and how many there are.

    Returns:
        A row per run: cluster, the parameters, `num_ranks`, and per timed iteration, of the rank
        that took longest: `step_us`, `compute_us`, `exposed_us` (communication that no computation
        hides) and `idle_us`; and `peak_bytes` of its device.

    Raises:
        ConfigError: The program is not there.
        SimrankError: Its module raised when it was imported.
        SpawnException: The program raised.
    """
    folders = [Path.cwd()] if config.folder is None else [config.folder, Path.cwd()]
    with program_imports(*folders):
        make = _function(config)
        if on_start is not None:
            on_start()
        return _run_all(config, make, timeline, on_row, on_progress)


def _run_all(
    config: SweepConfig,
    make: Callable[..., Callable[[], Any]],
    timeline: Timeline | None,
    on_row: Callable[[Row], None] | None,
    on_progress: Callable[[str, int, int], None] | None,
) -> list[Row]:
    runs = [(cluster, chosen) for cluster in config.clusters for chosen in config.combinations()]
    rows = []
    for number, (cluster, chosen) in enumerate(runs):
        if on_progress is not None:
            shown = ", ".join(f"{name}={value}" for name, value in chosen.items())
            on_progress(f"{cluster.name} {shown}", number, len(runs))
        row = _run_one(config, make, cluster, chosen, timeline)
        rows.append(row)
        if on_row is not None:
            on_row(row)
    return rows


def _run_one(
    config: SweepConfig,
    make: Callable[..., Callable[[], Any]],
    cluster: ClusterConfig,
    chosen: dict[str, Any],
    timeline: Timeline | None,
) -> Row:
    num_ranks = config.ranks_for(cluster, chosen)
    summary = Summary()
    context = Context(build_cluster(cluster), seed=config.seed, data=config.data)
    if timeline is not None:
        context.observe(timeline)
    spans: list[tuple[int, int]] = []

    def program(rank: int) -> None:
        step = make(context, **chosen)
        for _ in range(config.iterations.warmup):
            step()
        context.synchronize()
        context.distributed.barrier()
        if rank == 0:
            context.observe(summary)
        start_ps = context.now_ps
        for _ in range(config.iterations.timed):
            step()
        context.synchronize()
        spans.append((start_ps, context.now_ps))

    with context:
        spawn_in(context.program, program, (), num_ranks, is_users=False)
    peaks = {device.index: device.memory.peak_bytes for device in context.devices}
    return _row(config, cluster, chosen, spans, (summary, peaks))


def _row(
    config: SweepConfig,
    cluster: ClusterConfig,
    chosen: dict[str, Any],
    spans: list[tuple[int, int]],
    seen: tuple[Summary, dict[int, int]],
) -> Row:
    summary, peaks = seen
    times = config.iterations.timed
    whole_ps = max(end for _, end in spans) - min(start for start, _ in spans)
    slowest = max(summary.ranks(whole_ps, peaks), key=lambda ranks: ranks.exposed_communication_us)
    return {
        "cluster": cluster.name,
        **chosen,
        "num_ranks": len(spans),
        "step_us": whole_ps / 1e6 / times,
        "compute_us": slowest.compute_us / times,
        "exposed_us": slowest.exposed_communication_us / times,
        "idle_us": slowest.idle_us / times,
        "peak_bytes": max(peaks.values(), default=0),
    }


def _function(config: SweepConfig) -> Callable[..., Callable[[], Any]]:
    """Import the program from the folder of the file, the current one, or what is installed.

    Raises:
        ConfigError: There is no such function.
    """
    module_name, _, name = config.program.rpartition(".")
    try:
        function = getattr(import_program(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise _no_function(config, str(error)) from None
    if not callable(function):
        raise _no_function(config, f"a {type(function).__name__}, which cannot be called")
    typed: Callable[..., Callable[[], Any]] = function
    return typed


def _no_function(config: SweepConfig, why: str) -> ConfigError:
    expected = "the name of a function with its module, such as my_steps.mlp"
    return ConfigError(config.source.problem(("program",), expected, f"{config.program} ({why})"))


_WIDTH = 12


def sweep_header(config: SweepConfig) -> str:
    """Return the head of the table."""
    names = [
        "cluster",
        *config.parameters,
        "ranks",
        "step us",
        "compute us",
        "exposed us",
        "idle us",
    ]
    return " ".join(name.rjust(_WIDTH) for name in [*names, "peak GB"])


def sweep_line(row: Row) -> str:
    """Return a row of the table."""
    cells = []
    for name, value in row.items():
        if name == "peak_bytes":
            cells.append(f"{value / 1e9:.2f}")
        else:
            cells.append(f"{value:.1f}" if isinstance(value, float) else str(value))
    return " ".join(cell.rjust(_WIDTH) for cell in cells)
