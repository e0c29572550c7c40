"""`spawn` with torch's signature, on workers that stay: `import simrank.validate as mp`.

A suite that was written for `torch.multiprocessing.spawn` keeps its functions, which make and leave
their own process groups. What differs: the processes are warm, so modules keep what a case before
did to them, while environment, folder, seeds and process groups are those of a new process.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from simrank.errors import (
    ProcessException,
    ProcessExitedException,
    RanksRaisedError,
    SpawnException,
    WorkerDiedError,
)
from simrank.errors.workers import as_torchs
from simrank.validate.options import Options
from simrank.validate.pool import WorkerPool
from simrank.validate.this_worker import rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_START_METHODS = ("spawn", "fork", "forkserver")


@cache
def _pool(nprocs: int) -> WorkerPool:
    """Return the pool of this process for that many ranks; it ends with the process."""
    preload = ("torch.distributed",) if importlib.util.find_spec("torch") else ()
    return WorkerPool(nprocs, None, options=Options(retry=False, preload=preload))


def spawn(  # noqa: PLR0913 - torch's signature
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
    *,
    timeout: float | None = None,
) -> SpawnContext | None:
    """Run `fn(rank, *args)` on `nprocs` real processes.

    Args:
        fn: A function of a module; what it returns is dropped.
        args: Its arguments after the rank; queues and locks of multiprocessing may be among them.
        nprocs: Number of ranks.
        join: Whether to wait.
        daemon: Kept for torch's signature: workers never outlive this process.
        start_method: Kept for torch's signature: every method gives the same workers.
        timeout: Seconds; None: a pool's default, 90.

    Returns:
        None, or with `join=False` a context whose `join()` returns True at the end.

    Raises:
        SpawnException: A rank raised; also torch's ProcessRaisedException, if torch is imported.
            `.errors` has every root cause, `__cause__` the pool's report.
        ProcessExitedException: A rank ended its process; also torch's, likewise.
        RanksPartedError, WorkerTimeoutError: Ranks hang.
        ValueError: There is no such start method.
    """
    del daemon
    if start_method not in _START_METHODS:
        raise ValueError(f"cannot find context for {start_method!r}")
    context = SpawnContext(fn, tuple(args), nprocs, timeout)
    if not join:
        context.begin()
        return context
    context.run()
    return None


class SpawnContext:
    """The result of `spawn(join=False)`.

    Args:
        fn: As `spawn` has it.
        args: Likewise.
        nprocs: Likewise.
        timeout: Likewise.
    """

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], nprocs: int, timeout: float | None
    ) -> None:
        self._request = (fn, args, dict(os.environ), os.getcwd())
        self._pool = _pool(nprocs)
        self._timeout = timeout
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._collect, daemon=True)

    def begin(self) -> None:
        """Start, without waiting."""
        self._thread.start()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait; return whether all ranks have ended. Raises as `spawn` does.

        Args:
            timeout: Seconds; None: until the end.
            grace_period: Kept for torch's signature: ranks that hang are killed by the pool.
        """
        del grace_period
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def pids(self) -> list[int]:
        """Return the workers' process ids."""
        return self._pool.pids

    def _collect(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - raised by `join`
            self._error = error

    def run(self) -> None:
        """Run it, and raise as torch does."""
        try:
            self._pool.run(_program, *self._request, timeout=self._timeout)
        except RanksRaisedError as error:
            raise as_torchs(self._raised(error)) from error
        except WorkerDiedError as error:
            first = min(error.ended)
            ended = error.ended[first]
            name = ended.removeprefix("killed by ") if ended.startswith("killed") else None
            code = _signal_code(name) if name else int(ended.split()[-1])
            how = f"signal {name}" if name else f"exit code {code}"
            raise as_torchs(
                ProcessExitedException(
                    f"process {first} terminated with {how}",
                    error_index=first,
                    error_pid=error.pids.get(first, 0),
                    exit_code=code,
                    signal_name=name,
                )
            ) from error

    def _raised(self, error: RanksRaisedError) -> ProcessException:
        first = min(error.errors)
        root, pid = error.errors[first], error.pids.get(first, 0)
        if isinstance(root, SystemExit):
            code = root.code if isinstance(root.code, int) else 1
            text = f"process {first} terminated with exit code {code}"
            return ProcessExitedException(text, error_index=first, error_pid=pid, exit_code=code)
        text = f"\n\n-- Process {first} terminated with the following error:\n"
        return SpawnException(text + error.tracebacks[first], first, pid, errors=error.errors)


def _program(
    fn: Callable[..., Any], args: tuple[Any, ...], environment: dict[str, str], folder: str
) -> None:
    """Run as a rank, as a new child of the calling process would."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    try:
        fn(rank(), *args)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise


def _signal_code(name: str) -> int:
    import signal  # noqa: PLC0415 - only where a process was killed

    return -int(signal.Signals[name]) if name in signal.Signals.__members__ else -1
