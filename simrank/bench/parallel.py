"""Independent runs, one after the other or in parallel, and grids of them, each a row.

Processes of this machine need nothing beyond Python. Clusters are joblib's (extra `cluster`).
"""

from __future__ import annotations

import os
import signal
import threading  # noqa: TID251 - in worker processes, where no simulation runs
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from multiprocessing import active_children, get_context, parent_process
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from simrank.errors import ConfigError, ConfigProblem, SimrankError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")

# What a backend of joblib imports besides joblib.
_NEEDS = {"loky": "joblib", "ray": "ray", "dask": "distributed"}
_RUNS_PER_ROUND = 4  # Assumed: of each worker of Ray, which tells of results a round at a time.


@dataclass(frozen=True)
class Workers:
    """The workers of the runs.

    Attributes:
        jobs: How many at once; None: one, or with a backend as many as it has.
        backend: None for processes of this machine, or joblib's `loky`, `ray` or `dask`; the last
            two with the address of a cluster that is there: `dask:tcp://host:8786`, `ray:auto`.
    """

    jobs: int | None = None
    backend: str | None = None

    @property
    def are_here(self) -> bool:
        """Whether this process does all of them."""
        return self.backend is None and self.jobs in (None, 1)

    def check(self) -> None:
        """Look whether the backend is there.

        Raises:
            ConfigError: It is unknown, or not installed.
        """
        if self.backend is None:
            return
        name, colon, address = self.backend.partition(":")
        if name not in _NEEDS or (colon and (name == "loky" or not address)):
            expected = "loky, ray or dask, the latter two with an address: dask:tcp://host:8786"
            raise _wrong_backend(expected, self.backend)
        missing = [each for each in ("joblib", _NEEDS[name]) if find_spec(each) is None]
        if missing:
            cure = f"pip install {' '.join(dict.fromkeys(['joblib', _NEEDS[name]]))}"
            raise _wrong_backend(f"{missing[0]} installed: {cure}", self.backend)


def _wrong_backend(expected: str, got: str) -> ConfigError:
    return ConfigError(ConfigProblem("command line", None, "--backend", expected, got))


def in_parallel(
    run: Callable[[int], T], indices: Sequence[int], workers: Workers
) -> Iterator[tuple[int, T]]:
    """Yield each index with the result of `run`, in order of completion.

    What is under way when the iterator is closed is ended too.

    Args:
        run: Can be pickled, as what it returns, unless the workers are here.
        indices: For which it is called.
        workers: Who calls it.

    Raises:
        ConfigError: As `Workers.check`, or the backend's address does not answer.
        SimrankError: A process was killed.
    """
    workers.check()
    if workers.are_here:
        yield from ((index, run(index)) for index in indices)
    elif workers.backend is None:
        yield from _in_processes(run, indices, workers.jobs or 1)
    else:
        yield from _with_joblib(run, indices, workers)


def _in_processes(
    run: Callable[[int], T], indices: Sequence[int], jobs: int
) -> Iterator[tuple[int, T]]:
    others = set(active_children())
    # Spawned: a fork would copy locks that other threads (the progress bar's) may hold.
    pool = ProcessPoolExecutor(min(jobs, len(indices) or 1), get_context("spawn"), _begin)
    try:
        futures = {pool.submit(run, index): index for index in indices}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    except BrokenProcessPool:
        text = "a process of --jobs was killed; to fix: if memory ran out, take fewer jobs"
        raise SimrankError(text) from None
    except BaseException:
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Leave Ctrl-C to the process that has started this one, and end with it.

    Ctrl-C in a terminal reaches all processes; a process that is killed ends no other.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _with_joblib(
    run: Callable[[int], T], indices: Sequence[int], workers: Workers
) -> Iterator[tuple[int, T]]:
    import joblib  # noqa: PLC0415 - extra `cluster`

    name, _, address = (workers.backend or "").partition(":")
    is_streaming = name != "ray"  # joblib's rule: its backend for Ray has no generators.
    calls = iter([joblib.delayed(_numbered)(run, index) for index in indices])
    with ExitStack() as stack:
        if name != "loky":
            stack.enter_context((_dask if name == "dask" else _ray)(address, workers.jobs))
        stack.enter_context(joblib.parallel_config(name, n_jobs=workers.jobs or -1))
        how = {"return_as": "generator_unordered"} if is_streaming else {}
        parallel = stack.enter_context(joblib.Parallel(batch_size=1, **how))
        if is_streaming:
            yield from parallel(calls)
        num_workers = joblib.effective_n_jobs(workers.jobs or -1)
        while calls_of_round := list(islice(calls, _RUNS_PER_ROUND * num_workers)):
            yield from parallel(calls_of_round)


def _numbered(run: Callable[[int], T], index: int) -> tuple[int, T]:
    return index, run(index)


@contextmanager
def _dask(address: str, jobs: int | None) -> Iterator[Any]:
    """Connect to a scheduler, or start one here."""
    from distributed import Client  # noqa: PLC0415 - extra `cluster`

    if not address:
        local = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        with Client(**local) as client:
            yield client
        return
    try:
        client = Client(address)
    except (OSError, ValueError, TypeError) as error:
        raise _wrong_backend("the address of a scheduler", f"{address} ({error})") from None
    with client:
        yield client


@contextmanager
def _ray(address: str, jobs: int | None) -> Iterator[None]:
    """Connect to Ray's head, or start one here."""
    import ray  # noqa: PLC0415 - extra `cluster`
    from ray.util.joblib import register_ray  # noqa: PLC0415 - extra `cluster`

    quiet = {"logging_level": "error", "include_dashboard": False}
    try:
        how = {"address": address} if address else {"address": "local", "num_cpus": jobs}
        ray.init(**how, **({} if address else quiet))
    except (ConnectionError, ValueError) as error:
        raise _wrong_backend("the address of Ray's head", f"{address} ({error})") from None
    try:
        register_ray()
        yield
    finally:
        ray.shutdown()


# ---- runs of a grid, each a row: in order or in parallel, resumed, and told to a listener ----

Row = dict[str, Any]
_HERE = Workers()


class GridWatcher:
    """Listener of a running grid; does nothing by default."""

    def on_start(self) -> None:
        """Nothing is wrong with the configuration; the first run begins."""

    def on_progress(self, what: str, done: int, total: int) -> None:
        """Report the running run, the number of finished runs and the total."""

    def on_end(self, index: int, row: Row) -> None:
        """Report the number and the row of an ended run, in any order."""

    def on_row(self, row: Row, report: str | None) -> None:
        """Report the rows in their order, with the whole text of an error."""


@dataclass(frozen=True)
class Part:
    """The part of a grid to run here, and its workers.

    Attributes:
        workers: Who does the runs.
        finished: Rows of runs that need not be done again, by their number.
    """

    workers: Workers = _HERE
    finished: Mapping[int, Row] = field(default_factory=dict)


class Outcome(NamedTuple):
    """The row of a run, and the whole text of its error."""

    row: Row
    report: str | None


def run_grid(
    run: Callable[[int], Outcome],
    columns: Sequence[Mapping[str, Any]],
    watcher: GridWatcher,
    part: Part,
) -> list[Row]:
    """Do the runs that are not finished; return a row per run, in their order.

    Args:
        run: Does one run, by its number; can be pickled, as what it returns, unless the workers
            are here.
        columns: The first columns of each run's row.
        watcher: Is told of progress and of rows.
        part: Who does the runs, and which are done already.

    Raises:
        ConfigError: The workers are not there.
        SimrankError: A worker was killed.
    """
    outcomes = {
        index: Outcome({**row, **columns[index]}, None) for index, row in part.finished.items()
    }
    rows: list[Row] = []
    missing = [index for index in range(len(columns)) if index not in outcomes]
    for index, row in outcomes.items():
        watcher.on_end(index, row.row)
    _tell(rows, outcomes, watcher)
    watcher.on_progress(_title(columns, missing), len(columns) - len(missing), len(columns))
    for index, outcome in in_parallel(run, tuple(missing), part.workers):
        missing.remove(index)
        outcomes[index] = outcome
        watcher.on_end(index, outcome.row)
        _tell(rows, outcomes, watcher)
        watcher.on_progress(_title(columns, missing), len(columns) - len(missing), len(columns))
    return rows


def _title(columns: Sequence[Mapping[str, Any]], missing: Sequence[int]) -> str:
    """Return the title of the first unfinished run."""
    return title_of(columns[missing[0]]) if missing else ""


def title_of(columns: Mapping[str, Any]) -> str:
    """Return the words that name a run: `h100_ib tp=8, pp=2`."""
    (_, cluster), *rest = columns.items()
    return f"{cluster} {', '.join(f'{name}={value}' for name, value in rest)}"


def _tell(rows: list[Row], outcomes: Mapping[int, Outcome], watcher: GridWatcher) -> None:
    """Add the rows before which none is missing."""
    while len(rows) in outcomes:
        row, report = outcomes[len(rows)]
        rows.append(row)
        watcher.on_row(row, report)
