"""The two runs of a job: `simulated` in this process, `real` in a pool of workers."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import socket
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.config.project import SIMULATED
from simrank.context import Context
from simrank.errors import (
    DeadlockError,
    LivelockError,
    PoolError,
    PoolStartError,
    SpawnException,
    TooFewDevicesError,
)
from simrank.hardware.load import load_cluster
from simrank.multiprocessing.script import execute, run_calls
from simrank.validate.compare.program import (
    BUFFER,
    DIED,
    RAISED,
    WAITS,
    Followed,
    Job,
    Kept,
    MissingError,
    RankRecord,
    RunSide,
    called,
    executed,
    recorded,
)
from simrank.validate.options import Limits, Options
from simrank.validate.pool import WorkerPool
from simrank.validate.this_worker import rank as worker_rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from simrank.errors import WorkerFacts
    from simrank.multiprocessing.script import Script

_SETTLE_S = 2.0  # Assumed: ranks that do not wait for one that failed end within this.


def simulated(job: Job, cluster: str | None = None) -> RunSide:
    """Run a job on simulated ranks.

    Args:
        job: What.
        cluster: Name or file; None: as many HGX H100 nodes as it needs.

    Raises:
        ConfigError: The cluster or the program is wrong.
        SimrankError: There are too few devices, or the program is no Python.
    """
    kept, records = Kept(), [RankRecord(rank, WAITS) for rank in range(job.num_ranks)]
    settings: dict[str, Any] = {"flight_recorder": kept, "cuda_devices": SIMULATED}
    if job.backend == "gloo":
        settings["compute_time"] = "none"
    context = (
        Context.for_ranks(job.num_ranks, **settings)
        if cluster is None
        else Context(load_cluster(cluster), **settings)
    )

    def call(rank: int, script: Script) -> None:
        def body() -> Any:  # noqa: ANN401 - any value
            if job.function is None:
                return execute(script, [job.path, *job.args])
            if not job.makes_group:
                _make_group(job)
            return called(job, rank)

        records[rank] = recorded(job, rank, body)

    failure = ""
    try:
        with _variable(*BUFFER), _silent(), context:
            run_calls(context.program, job.path, call, job.num_ranks)
    except SpawnException as error:  # What a program raises is in its record.
        raise next(iter(error.errors.values())) from None
    except (DeadlockError, LivelockError) as error:
        failure = str(error)
        _note_waits(records, error)
    if not kept.calls:
        kept.write()
    for record in records:
        record.collectives, record.messages = kept.calls.get(record.rank, ([], []))
        record.num_lost = kept.num_lost.get(record.rank, 0)
    built = context.cluster
    return RunSide(built.name, records, failure, built.device.name, built.devices_per_node)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for a block unless it is set; ranks inherit it."""
    before = os.environ.get(name)
    os.environ.setdefault(name, value)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


@contextmanager
def _silent() -> Iterator[None]:
    """Capture the ranks' output, as a pool does."""
    hidden = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(hidden), redirect_stderr(hidden):
        yield


def _make_group(job: Job) -> None:
    name = "torch.distributed" if job.uses_torch else "simrank.distributed"
    dist: Any = importlib.import_module(name)
    dist.init_process_group(job.backend)


def _note_waits(records: list[RankRecord], error: DeadlockError | LivelockError) -> None:
    for state in error.waits:
        for rank in state.ranks:
            if state.waits and 0 <= rank < len(records):
                record = records[rank]
                record.error, record.file, record.line = state.state, state.file, state.line


def real(job: Job, timeout_s: float = 90.0) -> RunSide:
    """Run a job on real processes of its own.

    Raises:
        MissingError: torch is not installed, or there are too few GPUs.
        PoolStartError: Workers did not start.
    """
    with pool_for(job, timeout_s) as pool:
        return real_in(pool, job)


def pool_for(job: Job, timeout_s: float = 90.0) -> WorkerPool:
    """Return a pool for jobs with the same number of ranks and the same needs.

    Raises:
        MissingError: torch is not installed.
    """
    check_torch()
    options = Options(Limits(settle_s=_SETTLE_S), retry=False, preload=("torch.distributed",))
    backend = None if job.makes_group else job.backend
    return WorkerPool(job.num_ranks, backend, timeout_s, env=_environment(job), options=options)


def real_in(pool: WorkerPool, job: Job) -> RunSide:
    """Run a job on a pool's workers; raises as `real`."""
    about, device, failure = f"{job.backend} processes", "", ""
    facts: Mapping[int, WorkerFacts] = {}
    with tempfile.TemporaryDirectory(prefix="simrank_") as folder:
        try:
            about, device = pool.run(_rank, job, folder)[0]
        except TooFewDevicesError as error:
            raise MissingError(str(error)) from None
        except PoolStartError:
            raise
        except PoolError as error:
            if any(_read(folder, rank) is None for rank in error.tracebacks):
                raise  # Not the program: what is around it.
            failure, facts = str(error), error.facts
        records = [_read(folder, rank) or _of_facts(facts[rank]) for rank in range(job.num_ranks)]
    return RunSide(about, records, failure, device)


def check_torch() -> None:
    """Look whether there can be real processes at all.

    Raises:
        MissingError: torch is not installed.
    """
    if find_spec("torch") is None:
        raise MissingError("torch is not installed: there are no real processes to compare with")


def check_real(backend: str, num_ranks: int) -> None:
    """Check early whether this machine can run the real side.

    Args:
        backend: "gloo" or "nccl".
        num_ranks: How many ranks, each of which needs a GPU for nccl.

    Raises:
        MissingError: It has not.
    """
    check_torch()
    if backend == "nccl":
        with WorkerPool(1, None) as pool:  # This process does not need torch.
            found = pool.run(_num_gpus)[0]
        if found < num_ranks:
            raise MissingError(str(TooFewDevicesError("nccl", num_ranks, found)))


def _num_gpus() -> int:
    import torch  # noqa: PLC0415 - optional, and only in workers

    found: int = torch.cuda.device_count()
    return found


def _environment(job: Job) -> dict[str, str | None]:
    found: dict[str, str | None] = dict([BUFFER])
    if job.makes_group:  # As torchrun would have it.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            found |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        if job.backend == "gloo":
            found["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return found


def _rank(job: Job, folder: str) -> tuple[str, str]:
    """Run the program as a real rank, save its record, and raise its exception."""
    import torch  # noqa: PLC0415 - optional, and only in workers

    rank, device = worker_rank(), ""
    if job.backend == "nccl":
        torch.cuda.set_device(rank)
        device = torch.cuda.get_device_name()
    with Followed(job.backend) as followed:
        record = recorded(
            job, rank, lambda: executed(job) if job.function is None else called(job, rank)
        )
        record.collectives, record.messages = followed.calls()
        record.num_lost = followed.num_lost
    _path(folder, rank).write_bytes(pickle.dumps(record))
    if record.ending == RAISED:
        raise RuntimeError(f"{record.error}: {record.text}")  # Peers that wait for it are ended.
    about = f"{job.backend} processes, torch {torch.__version__}"
    return f"{about}, {device}" if device else about, device


def _path(folder: str, rank: int) -> Path:
    return Path(folder) / f"{rank}.pickle"


def _read(folder: str, rank: int) -> RankRecord | None:
    path = _path(folder, rank)
    if not path.exists():
        return None
    found: RankRecord = pickle.loads(path.read_bytes())
    return found


def _of_facts(fact: WorkerFacts) -> RankRecord:
    """Return the record of a real rank that left none."""
    ending = DIED if fact.ended else WAITS
    return RankRecord(fact.rank, ending, error=fact.doing, file=fact.file, line=fact.line)
