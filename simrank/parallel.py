"""Independent runs, one after the other or in parallel, and grids of them, each a row.

Processes of this machine need nothing beyond Python; joblib's, Dask and Ray are optional.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading  # noqa: TID251 - in worker processes, where no simulation runs
from concurrent.futures import (
    CancelledError,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from multiprocessing import active_children, get_context, parent_process
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from simrank.errors import ConfigError, ConfigProblem, SimrankError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")

_NEEDS = {"loky": "joblib", "ray": "ray", "dask": "distributed"}  # What a backend imports.
# A worker of Dask has several threads, and a process has one simulation at a time.
ALONE = threading.Lock()
_RUNS_PER_WORKER = 2  # So that none waits for its next run.
_CONNECT_S, _PROBE_S = 10, 60  # Assumed: until an address, and a worker, answers.
_POLL_S, _REPLACED_WITHIN_S = 1, 20  # Assumed: until a cluster has a new worker for a dead one.


@dataclass(frozen=True)
class Workers:
    """The workers of the runs.

    Attributes:
        jobs: How many at once; None: one, or with a backend as many as it has.
        backend: None for processes of this machine, joblib's `loky`, `ray` or `dask`; the last
            two with the address of a cluster that is there: `dask:tcp://host:8786`, `ray:auto`.
        are_threads: Whether threads take the place of processes of this machine, for runs that
            only wait for processes of their own.
    """

    jobs: int | None = None
    backend: str | None = None
    are_threads: bool = False

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
        if find_spec(_NEEDS[name]) is None:
            raise _wrong_backend(
                f"{_NEEDS[name]} installed: pip install {_NEEDS[name]}", self.backend
            )


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
        workers: Those that call it.

    Raises:
        ConfigError: As `Workers.check`, or the backend's address does not answer.
        SimrankError: A process was killed.
    """
    workers.check()
    if workers.are_here:
        yield from ((index, run(index)) for index in indices)
    elif workers.backend is None and workers.are_threads:
        yield from _in_threads(run, indices, workers.jobs or 1)
    elif workers.backend is None:
        yield from _in_processes(run, indices, workers.jobs or 1)
    else:
        name, _, address = workers.backend.partition(":")
        if name == "loky":
            yield from _with_loky(run, indices, workers.jobs)
        else:
            connected = _with_dask if name == "dask" else _with_ray
            yield from connected(run, indices, workers, address)


def _in_processes(
    run: Callable[[int], T], indices: Sequence[int], jobs: int
) -> Iterator[tuple[int, T]]:
    others = set(active_children())
    # Not forked here: that would copy locks that other threads (the progress bar's) may hold.
    server = get_context("forkserver")
    server.set_forkserver_preload([*filter(_is_preloaded, sys.modules)])
    pool = ProcessPoolExecutor(min(jobs, len(indices) or 1), server, _begin)
    try:
        futures = {pool.submit(run, index): index for index in indices}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    except BrokenProcessPool:
        raise _killed("--jobs") from None
    except BaseException:
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _is_preloaded(name: str) -> bool:
    """Return whether workers import a module once for all of them: it has no state of a program."""
    return name.partition(".")[0] in ("simrank", "torch")


def _in_threads(
    run: Callable[[int], T], indices: Sequence[int], jobs: int
) -> Iterator[tuple[int, T]]:
    pool = ThreadPoolExecutor(jobs)
    try:
        futures = {pool.submit(run, index): index for index in indices}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


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


def _with_loky(
    run: Callable[[int], T], indices: Sequence[int], jobs: int | None
) -> Iterator[tuple[int, T]]:
    import joblib  # noqa: PLC0415 - extra `cluster`

    calls = [joblib.delayed(_numbered)(run, index) for index in indices]
    try:
        with joblib.Parallel(jobs or -1, batch_size=1, return_as="generator_unordered") as parallel:
            yield from parallel(calls)
    except BrokenProcessPool:
        raise _killed("loky") from None


def _numbered(run: Callable[[int], T], index: int) -> tuple[int, T]:
    return index, run(index)


def _killed(backend: str, why: object = "") -> SimrankError:
    """Return the error of a worker that is gone."""
    said = f" ({str(why).strip().splitlines()[0]})" if str(why).strip() else ""
    return SimrankError(
        f"a worker of {backend} was killed{said}; finished rows are right: with --json FILE they "
        "are kept, and the same command goes on after them; to fix: if memory ran out, take fewer "
        "--jobs"
    )


# ---- Dask and Ray: each worker is asked for its simrank first ----


def _prober() -> Callable[[], str]:
    """Return a function that finds the version of simrank where it is called.

    It is sent as code, since a worker may have no simrank.
    """

    def probe() -> str:
        try:
            version = import_module("simrank").__version__
        except Exception as error:  # noqa: BLE001 - the answer of a worker
            return f"no simrank ({type(error).__name__}: {error})"
        return f"simrank {version}"

    return probe


def _check_versions(backend: str, found: Mapping[str, object]) -> None:
    """Raise SimrankError unless each worker has this version of simrank."""
    own = _prober()()
    wrong = {worker: said for worker, said in found.items() if said != own}
    if not found:
        raise SimrankError(f"{backend} has no worker; to fix: start one, or leave out the address")
    if wrong:
        (worker, said), *others = wrong.items()
        and_others = f", as {len(others)} more of {len(found)} workers" if others else ""
        raise SimrankError(
            f"worker {worker} of {backend} has {said}{and_others}; to fix: install {own} where its "
            "workers start"
        )


def _with_dask(
    run: Callable[[int], T], indices: Sequence[int], workers: Workers, address: str
) -> Iterator[tuple[int, T]]:
    from distributed import KilledWorker, wait  # noqa: PLC0415 - optional

    with _dask(address, workers.jobs) as client:
        with suppress(TimeoutError):  # Some start workers when a client comes.
            client.wait_for_workers(1, _CONNECT_S)
        _check_versions("Dask", client.run(_prober(), on_error="return"))
        client.run(_set_profiler, runs=False, on_error="ignore")
        running: dict[Any, int] = {}
        waiting, idle_since = iter(indices), monotonic()
        while True:
            most = workers.jobs or _RUNS_PER_WORKER * sum(client.nthreads().values())
            for index in islice(waiting, max(most - len(running), 0)):
                running[client.submit(run, index, pure=False)] = index
            if not running:
                client.run(_set_profiler, runs=True, on_error="ignore")
                return
            try:
                done = wait([*running], timeout=_POLL_S, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                done = set()
            if done or client.nthreads():
                idle_since = monotonic()
            elif monotonic() - idle_since > _REPLACED_WITHIN_S:
                raise _killed("Dask", "no worker is left")
            for future in done:
                try:
                    yield running.pop(future), future.result()
                except (KilledWorker, CancelledError) as error:  # Or the scheduler is gone.
                    raise _killed("Dask", error) from None


def _set_profiler(dask_worker: Any, *, runs: bool) -> None:  # noqa: ANN401 - Dask's worker
    """Stop or start a worker's sampling: the frames it holds keep tensors, and move peaks."""
    profiler = dask_worker.periodic_callbacks.get("profile")
    if profiler is not None:
        profiler.start() if runs else profiler.stop()


@contextmanager
def _dask(address: str, jobs: int | None) -> Iterator[Any]:
    """Connect to a scheduler, or start one here."""
    from distributed import Client  # noqa: PLC0415 - optional

    local = {
        "n_workers": jobs, "threads_per_worker": 1, "dashboard_address": ":0",
        "silence_logs": logging.CRITICAL,  # Of connections that end with the run.
    }  # fmt: skip
    try:
        client = Client(address, timeout=_CONNECT_S) if address else Client(**local)
    except (OSError, ValueError, TypeError) as error:
        raise _wrong_backend("the address of a scheduler", f"{address} ({error})") from None
    with client:
        yield client


def _with_ray(
    run: Callable[[int], T], indices: Sequence[int], workers: Workers, address: str
) -> Iterator[tuple[int, T]]:
    import ray  # noqa: PLC0415 - optional

    with _ray(address, workers.jobs):
        _check_versions("Ray", _versions_of_ray())
        # A worker that is killed is reported, as one of --jobs: memory may have run out.
        remote = ray.remote(max_retries=0)(_called)
        shared = ray.put(run)
        most = workers.jobs or _RUNS_PER_WORKER * int(ray.cluster_resources().get("CPU", 1))
        running: dict[Any, int] = {}
        waiting = iter(indices)
        while True:
            for index in islice(waiting, most - len(running)):
                running[remote.remote(shared, index)] = index
            if not running:
                return
            (done, *_), _ = ray.wait(list(running), num_returns=1)
            try:
                yield running.pop(done), ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise _killed("Ray", error) from None


def _called(run: Callable[[int], T], index: int) -> T:
    return run(index)


def _versions_of_ray() -> dict[str, object]:
    """Return the answer to the probe of each node of Ray."""
    import ray  # noqa: PLC0415 - optional
    from ray.util.scheduling_strategies import (  # noqa: PLC0415 - optional
        NodeAffinitySchedulingStrategy,
    )

    probe = ray.remote(num_cpus=0, max_retries=0)(_prober())
    asked = {
        node["NodeManagerAddress"] + " " + node["NodeID"][:8]: probe.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote()
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU")
    }
    found: dict[str, object] = {}
    for name, answer in asked.items():
        try:
            found[name] = ray.get(answer, timeout=_PROBE_S)
        except ray.exceptions.RayError as error:
            found[name] = f"no answer ({type(error).__name__})"
    return found


@contextmanager
def _ray(address: str, jobs: int | None) -> Iterator[None]:
    """Connect to Ray's head, or start one here."""
    import ray  # noqa: PLC0415 - optional

    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon and port.isdecimal():  # Ray itself tries for minutes, and takes no signal.
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        how = {"address": address} if address else {"address": "local", "num_cpus": jobs}
        ray.init(
            **how,
            logging_level="error",
            log_to_driver=False,
            **({} if address else {"include_dashboard": False}),
        )
    except (OSError, ValueError, OverflowError) as error:
        raise _wrong_backend("the address of Ray's head", f"{address} ({error})") from None
    try:
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
        workers: Those of the runs.
        finished: Rows of runs that need not be done again, by their number.
    """

    workers: Workers = _HERE
    finished: Mapping[int, Row] = field(default_factory=dict)


class RowOutcome(NamedTuple):
    """The row of a run, and the whole text of its error."""

    row: Row
    report: str | None


def run_grid(
    run: Callable[[int], RowOutcome],
    columns: Sequence[Mapping[str, Any]],
    watcher: GridWatcher,
    part: Part,
) -> list[Row]:
    """Do the runs that are not finished; return a row per run, in their order.

    Args:
        run: Does one run, by its number; can be pickled, as what it returns, unless the workers
            are here.
        columns: The first columns of each run's row.
        watcher: Gets progress and rows.
        part: The workers of the runs, and which are done already.

    Raises:
        ConfigError: The workers are not there.
        SimrankError: A worker was killed.
    """
    outcomes = {
        index: RowOutcome({**row, **columns[index]}, None) for index, row in part.finished.items()
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
    return f"{cluster} {', '.join(f'{name}={value}' for name, value in rest)}".rstrip()


def _tell(rows: list[Row], outcomes: Mapping[int, RowOutcome], watcher: GridWatcher) -> None:
    """Add the rows before which none is missing."""
    while len(rows) in outcomes:
        row, report = outcomes[len(rows)]
        rows.append(row)
        watcher.on_row(row, report)
