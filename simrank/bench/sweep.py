"""Benchmarks of programs: a function, timed on simulated ranks for all of its parameters."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.collectives.algorithms import collectives_with
from simrank.config.sweep import ALGORITHMS, ERROR, program_file
from simrank.context import Context
from simrank.distributed.planner import NcclOverrides
from simrank.errors import ConfigError, SimrankError, SpawnException
from simrank.hardware.build import build_cluster
from simrank.multiprocessing.script import import_program, program_imports
from simrank.multiprocessing.spawn import spawn_in
from simrank.parallel import ALONE, GridWatcher, Part, Row, RowOutcome, run_grid
from simrank.trace import PeakMemory, Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from simrank.config.sweep import Cell, Forced, SweepConfig
    from simrank.trace import Timeline

_MEASURES = ("step_us", "compute_us", "exposed_us", "idle_us", "peak_bytes")


def run_sweep(
    config: SweepConfig,
    *,
    timeline: Timeline | None = None,
    watcher: GridWatcher | None = None,
    part: Part | None = None,
) -> list[Row]:
    """Run a program for every cluster, combination of parameters and algorithm.

    Its modules are imported again for each run, from the folder of the file, the current one, or
    what is installed, in this order, and forgotten afterwards: no run sees what another left.

    Args:
        config: The benchmark.
        timeline: Observes every run; only where the workers are here.
        watcher: Gets the start, progress and rows.
        part: The workers of the runs, and which are done already; None: all of them, here.

    Returns:
        A row per run, in the order of `config.cells()`: cluster, the parameters,
        `num_ranks`, and per timed iteration, of the rank that took longest: `step_us`,
        `compute_us`, `exposed_us` (communication that no computation hides) and `idle_us`;
        `peak_bytes` of its device; `error`, in one line, in place of these where it failed.

    Raises:
        ConfigError: The program is not there, or no collective has an algorithm, or the workers
            are not there.
        SimrankError: Its module raised when it was imported; a worker was killed.
    """
    watcher, part = watcher or GridWatcher(), part or Part()
    part.workers.check()
    _check_algorithms(config)
    folders = [Path.cwd()] if config.folder is None else [config.folder, Path.cwd()]
    with program_imports(*folders):
        _function(config)
    watcher.on_start()
    run = partial(_run_cell, config, folders, timeline)
    return run_grid(run, [cell.columns for cell in config.cells()], watcher, part)


def is_row(row: object) -> bool:
    """Return whether a file's entry is a row of a run: with all measures, or an error."""
    if not isinstance(row, dict) or ERROR not in row or type(row.get("num_ranks")) is not int:
        return False
    expected = (int, float) if row[ERROR] is None else (type(None),)
    return all(name in row and type(row[name]) in expected for name in _MEASURES)


def _run_cell(
    config: SweepConfig, folders: list[Path], timeline: Timeline | None, index: int
) -> RowOutcome:
    cell = config.cells()[index]
    first = {**cell.columns, "num_ranks": _asked_ranks(config, cell)}
    try:
        with ALONE, program_imports(*folders):
            measured = _run_one(config, _function(config), cell, timeline)
    except (SimrankError, ValueError) as error:  # ValueError: an algorithm that cannot run.
        none = dict.fromkeys(_MEASURES)
        return RowOutcome({**first, **none, ERROR: _one_line(error)}, str(error))
    return RowOutcome({**first, **measured, ERROR: None}, None)


def _asked_ranks(config: SweepConfig, cell: Cell) -> int:
    asked = config.num_ranks or cell.cluster.num_devices
    return int(cell.chosen[asked]) if isinstance(asked, str) else asked


def _one_line(error: Exception) -> str:
    """Return the error in one line; of ranks, the root cause on the lowest rank."""
    if not isinstance(error, SpawnException):
        return _first_line(error)
    rank = min(error.errors)
    return f"rank {rank}: {_first_line(error.errors[rank])}"


def _first_line(error: BaseException) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _run_one(
    config: SweepConfig,
    make: Callable[..., Callable[[], Any]],
    cell: Cell,
    timeline: Timeline | None,
) -> Row:
    num_ranks = config.ranks_for(cell.cluster, cell.chosen)
    summary = Summary()
    context = Context(
        build_cluster(cell.cluster),
        seed=config.seed,
        data=config.data,
        algorithms=_by_collective(cell.forced),
    )
    if timeline is not None:
        context.observe(timeline)
    spans: list[tuple[int, int]] = []

    def program(rank: int) -> None:
        step = make(context, **cell.chosen)
        if not context.distributed.is_initialized():  # A program without communication.
            context.distributed.init_process_group()
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
    peaks = {each.index: PeakMemory(each.memory.peak_bytes) for each in context.devices}
    return _measures(config, spans, summary, peaks)


def _measures(
    config: SweepConfig,
    spans: list[tuple[int, int]],
    summary: Summary,
    peaks: dict[int, PeakMemory],
) -> Row:
    times = config.iterations.timed
    begin_ps, end_ps = min(start for start, _ in spans), max(end for _, end in spans)
    found = summary.ranks(end_ps, peaks, begin_ps)
    slowest = max(found, key=lambda ranks: ranks.exposed_communication_us)
    values = (
        (end_ps - begin_ps) / 1e6 / times,
        slowest.compute_us / times,
        slowest.exposed_communication_us / times,
        slowest.idle_us / times,
        max((peak.allocated_bytes for peak in peaks.values()), default=0),
    )
    return dict(zip(_MEASURES, values, strict=True))


def _by_collective(forced: Forced | None) -> Mapping[str, str]:
    """Return the algorithm of each collective that is forced to one: all that have it."""
    if forced is None or forced == "auto":
        return {}
    return dict.fromkeys(collectives_with(forced), forced) if isinstance(forced, str) else forced


def _check_algorithms(config: SweepConfig) -> None:
    """Raise ConfigError for an algorithm that no collective has."""
    for index, forced in enumerate(config.algorithms or ()):
        for collective, name in [(None, forced)] if isinstance(forced, str) else forced.items():
            having = collectives_with(name)
            if name != "auto" and not (having if collective is None else collective in having):
                of, sub = ("", ()) if collective is None else (f" of {collective}", (collective,))
                key_path = (ALGORITHMS, index, *sub)
                raise ConfigError(
                    config.source.problem(key_path, f"auto, or an algorithm{of}", name)
                )


def fingerprint(config: SweepConfig) -> str:
    """Return a text that is another where anything that decides rows is, but for imported files.

    NCCL's variables are among it: they choose for all runs.
    """
    try:
        file = program_file(config)
    except ConfigError:  # Nowhere, as running it says, or found by a finder of some package.
        file = None
    overrides = NcclOverrides.of_environment()
    tuner = None if overrides.tuner_file is None else Path(overrides.tuner_file)
    facts = (
        config.program,
        [cluster.model_dump_json() for cluster in config.clusters],
        config.num_ranks,
        config.parameters,
        config.algorithms,
        config.iterations,
        config.data,
        None if file is None else file.read_bytes(),
        overrides,
        None if tuner is None or not tuner.is_file() else tuner.read_bytes(),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _function(config: SweepConfig) -> Callable[..., Callable[[], Any]]:
    """Import the program from the file's folder, the current folder or installed packages.

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
    forced = () if config.algorithms is None else (ALGORITHMS,)
    times = ("step us", "compute us", "exposed us", "idle us")
    names = ["cluster", *config.parameters, *forced, "ranks", *times, "peak GB"]
    return " ".join(name.rjust(_WIDTH) for name in names)


def sweep_line(row: Row) -> str:
    """Return a row of the table; an error stands in place of the times."""
    cells: list[str] = []
    for name, value in row.items():
        if value is None and name in (*_MEASURES, ERROR):
            continue
        if name == ERROR:
            return " ".join([*(cell.rjust(_WIDTH) for cell in cells), f" {value}"])
        if name == "peak_bytes":
            cells.append(f"{value / 1e9:.2f}")
        else:
            cells.append(f"{value:.1f}" if isinstance(value, float) else str(value))
    return " ".join(cell.rjust(_WIDTH) for cell in cells)
