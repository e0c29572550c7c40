"""A benchmark of collectives on real processes, in nccl-tests' way; start with `measure`."""

from __future__ import annotations

import csv
import io
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simrank.bench.program import Case, TestData, issue, laid_out
from simrank.bench.run import CHECK_UP_TO_BYTES, CHECK_UP_TO_TOTAL_BYTES, averaged, run
from simrank.bench.series import Row, as_columns, series_of, timed_row
from simrank.collectives.reference import count_wrong
from simrank.config.measured import COLUMNS
from simrank.errors import ConfigError, RanksRaisedError, SimrankError
from simrank.validate.compare.comparison import is_same_device
from simrank.validate.compare.differences import of_array, torch_tensor
from simrank.validate.options import Options
from simrank.validate.pool import WorkerPool
from simrank.validate.this_worker import collective
from simrank.validate.this_worker import rank as worker_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from simrank.bench.series import Series
    from simrank.config import BenchConfig
    from simrank.config.bench import Iterations

# What each carries of the types of a benchmark. Source: ProcessGroupGloo and ncclDataType_t.
_DTYPES = {
    "gloo": ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"),
    "nccl": (
        "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64",
        "float8_e4m3fn", "float8_e5m2",
    ),
}  # fmt: skip
_REAL = "measured"  # The cost level of a measured row.


@dataclass(frozen=True, slots=True)
class Where:
    """The hardware and software of real processes.

    Attributes:
        backend: "gloo" or "nccl".
        device: The GPU's name; for gloo "".
        versions: Of torch, and of nccl.
    """

    backend: str
    device: str
    versions: str

    @property
    def title(self) -> str:
        """The title, for headings and the `system` of a table."""
        return f"this machine ({self.device or 'host'}, {self.backend})"


@dataclass(frozen=True, slots=True)
class _Assignment:
    """One case, which workers run in one request."""

    case: Case
    iterations: Iterations
    checks: bool
    seed: int
    backend: str


def measured_series(config: BenchConfig, num_ranks: int, backend: str) -> list[Series]:
    """Return the series of a benchmark that a real library can run: without forced algorithms.

    Raises:
        ConfigError: The backend does not carry a type.
    """
    for dtype in config.dtypes:
        if dtype not in _DTYPES[backend]:
            expected = f"types that {backend} carries: {', '.join(_DTYPES[backend])}"
            raise ConfigError(config.source.problem(("dtypes",), expected, dtype))
    asked = config.model_copy(update={"num_ranks": (num_ranks,)})
    found: dict[tuple[object, ...], Series] = {}
    for series in series_of(asked):
        if series.kernel is None:
            key = (series.collective, series.dtype, series.redop, series.root)
            found.setdefault(key, series)
    return list(found.values())


def measure(
    config: BenchConfig,
    pool: WorkerPool,
    series: Sequence[Series],
    on_rows: Callable[[Series, list[Row]], None],
) -> None:
    """Time the cases of series on a pool's workers, size by size.

    Args:
        config: The benchmark.
        pool: Its workers.
        series: What of it.
        on_rows: Called with the rows of a size, out of place and in place.

    Raises:
        SimrankError: The library refuses a call.
    """
    assert pool.backend is not None, "collectives have one"
    where = about(pool)
    for each in series:
        shown = _as_shown(each, where)
        by_count: dict[int, list[Row]] = {}
        cases = each.cases(config)
        for index, case in enumerate(cases):
            task = _Assignment(
                case, config.iterations, _is_checked(case, config), config.seed, pool.backend
            )
            row = _row(shown, task, _asked(pool, task, each.title), config.average)
            by_count.setdefault(case.count, []).append(row)
            if index + 1 == len(cases) or cases[index + 1].count != case.count:
                on_rows(shown, by_count[case.count])


def about(pool: WorkerPool) -> Where:
    """Return the hardware and software of a pool's workers."""
    return Where(pool.backend or "", *pool.run(_about)[0])


def _about() -> tuple[str, str]:
    import torch  # noqa: PLC0415 - optional, and only in workers

    versions = f"torch {torch.__version__}"
    if not torch.cuda.is_available():
        return "", versions
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return torch.cuda.get_device_name(), f"{versions}, nccl {nccl}"


def _as_shown(series: Series, where: Where) -> Series:
    """Return a series with the real machine and library in its title."""
    cluster = replace(series.cluster, name=where.title)
    return replace(series, cluster=cluster, algorithm=where.backend)


def _is_checked(case: Case, config: BenchConfig) -> bool:
    total_bytes = case.size_bytes * case.num_ranks
    too_large = case.size_bytes > CHECK_UP_TO_BYTES or total_bytes > CHECK_UP_TO_TOTAL_BYTES
    return config.check and not too_large


def _asked(pool: WorkerPool, task: _Assignment, title: str) -> list[tuple[float, int | None]]:
    try:
        found: list[tuple[float, int | None]] = pool.run(_measured, task)
    except RanksRaisedError as error:
        first = str(next(iter(error.errors.values()))).partition("\n")[0]
        raise SimrankError(f"{title}, {task.case.size_bytes} bytes: {first}") from error
    return found


def _row(
    series: Series, task: _Assignment, found: list[tuple[float, int | None]], average: str
) -> Row:
    wrong = [each for _, each in found if each is not None]
    return timed_row(
        task.case,
        series.cluster.name,
        1,
        averaged({rank: time_us for rank, (time_us, _) in enumerate(found)}, average),
        algorithm=task.backend,
        protocol=None,
        num_wrong=sum(wrong) if wrong else None,
        cost_level=_REAL,
        calibration=None,
        interval_us=None,
        channels=0,
    )


# ---- in a worker ----


def _measured(task: _Assignment) -> tuple[float, int | None]:
    """Return microseconds per iteration of a case, and how many elements are wrong."""
    num_wrong = _num_wrong(task) if task.checks else None
    return _time_us(task), num_wrong


def _time_us(task: _Assignment) -> float:
    import torch.distributed as dist  # noqa: PLC0415 - optional, and only in workers

    source, target = _buffers(task, None)
    # One call for the pool, which would publish each: some 30 us that are not the library's.
    with collective(task.case.collective):
        for _ in range(task.iterations.warmup):
            issue(task.case, source, target, dist)
        _synchronize(task)
        dist.barrier()
        _synchronize(task)
        start = time.perf_counter()
        for _ in range(task.iterations.timed):
            issue(task.case, source, target, dist)
            if task.iterations.blocking:
                _synchronize(task)
        _synchronize(task)
        return (time.perf_counter() - start) * 1e6 / task.iterations.timed


def _num_wrong(task: _Assignment) -> int:
    """Run a case once on data, checked by every rank."""
    import torch.distributed as dist  # noqa: PLC0415 - optional, and only in workers

    case, rank = task.case, worker_rank()
    data = TestData(case.num_inputs, case.num_ranks, case.dtype, case.redop, task.seed)
    source, target = _buffers(task, data.of(rank, case.num_inputs))
    issue(case, source, target, dist)
    _synchronize(task)
    inputs = [data.of(each, case.num_inputs) for each in range(case.num_ranks)]
    outputs: list[Any] = [None] * case.num_ranks
    outputs[rank] = of_array(target)
    redop = "sum" if case.redop == "none" else case.redop
    return count_wrong(case.problem, inputs, outputs, reduce_op=redop, only=rank)


def _buffers(task: _Assignment, values: np.ndarray[Any, Any] | None) -> tuple[Any, Any]:
    import torch  # noqa: PLC0415 - optional, and only in workers

    device = "cuda" if task.backend == "nccl" else "cpu"
    dtype = getattr(torch, task.case.dtype)

    def made(count: int) -> Any:  # noqa: ANN401 - torch's
        # Not empty: arithmetic on what memory happens to hold may be slow.
        return torch.zeros(count, dtype=dtype, device=device)

    given = None if values is None else torch_tensor(values).to(device)
    return laid_out(task.case, worker_rank(), made, given)


def _synchronize(task: _Assignment) -> None:
    if task.backend == "nccl":
        import torch  # noqa: PLC0415 - optional, and only in workers

        torch.cuda.synchronize()


# ---- beside the simulation ----


def with_simulated(rows: Sequence[Row], times_us: dict[object, float]) -> list[Row]:
    """Return measured rows with the simulated times, where known."""
    found = []
    for row in rows:
        own_us = times_us.get(_key(row))
        if own_us is not None:
            error_pct = 100 * (own_us / row.time_us - 1)
            row = replace(row, measured_us=own_us, error_pct=error_pct)  # noqa: PLW2901 - the same row
        found.append(row)
    return found


def as_measured(row: Row) -> dict[str, Any]:
    """Return a measured row with the columns of a benchmark's JSON file."""
    columns = as_columns(row, several_clusters=False)
    columns["simulated_us"] = columns.pop("measured_us")
    for name in ("algorithm", "protocol", "calibration", "interval_us", "channels"):
        del columns[name]  # The library does not tell.
    for name in ("left_out", "left_out_us", "left_out_interval_us"):
        del columns[name]  # No published time is compared.
    return columns


def simulated_times(config: BenchConfig, num_ranks: int, where: Where) -> dict[object, float]:
    """Return the times of the cluster of a benchmark, where it describes this machine.

    Args:
        config: The benchmark, of one cluster.
        num_ranks: As many as are measured.
        where: The machine.
    """
    (cluster,) = {series.cluster for series in series_of(config)}
    if not where.device or not is_same_device(cluster.device.name, where.device):
        return {}
    asked = {"num_ranks": (num_ranks,), "algorithms": {"auto": {}}, "check": False, "measured": ()}
    rows = run(config.model_copy(update=asked))
    return {tuple(row[name] for name in _KEY): row["time_us"] for row in rows}


_KEY = ("collective", "dtype", "redop", "root", "size_bytes", "in_place")


def _key(row: Row) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in _KEY)


def pool_of(num_ranks: int, backend: str, timeout_s: float) -> WorkerPool:
    """Return the workers of a benchmark."""
    return WorkerPool(num_ranks, backend, timeout_s, options=Options(retry=False))


# ---- the file ----


def csv_text(rows: Sequence[Row], where: Where, source: str) -> str:
    """Return rows as a measured table, which `simrank calibrate` and `bench --measured` read.

    A table has one time per size: that out of place, where it was measured.

    Args:
        rows: What was measured.
        where: On what.
        source: What was run.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    said = f"{source}, {where.backend}, {where.versions}"
    for row in _one_per_size(rows):
        numbers = (f"{each:.6g}" for each in (row.time_us, row.algbw_GBps, row.busbw_GBps))
        facts = (where.title, row.collective, row.num_ranks, row.size_bytes, row.dtype)
        table.writerow((*facts, *numbers, said))
    return text.getvalue()


def _one_per_size(rows: Sequence[Row]) -> Iterator[Row]:
    by_size: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (row.collective, row.dtype, row.size_bytes)
        if key not in by_size:  # Other roots and reductions have no column.
            by_size[key] = row
    yield from by_size.values()


def check_config(config: BenchConfig) -> None:
    """Raise for settings that a real machine does not have.

    Raises:
        ConfigError: Several clusters, or faults.
    """
    if len(config.clusters) > 1:
        got = f"{len(config.clusters)} clusters"
        raise ConfigError(config.source.problem(("cluster",), "one cluster: this machine", got))
    if config.faults:
        raise ConfigError(
            config.source.problem(("faults",), "no faults: machines are real", "some")
        )
