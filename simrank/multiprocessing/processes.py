"""The result of `spawn(join=False)`: the ranks of one spawn, with torch's names."""

from __future__ import annotations

import signal
import sys
import tempfile
import warnings
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from simrank.engine import limits
from simrank.engine.report import run_out
from simrank.engine.watchdog import StoppedByWatchdog
from simrank.errors import (
    DeadlockError,
    PeerDiedError,
    ProcessException,
    ProcessExitedException,
    RankAborted,
    SpawnException,
    UninitializedValueError,
)
from simrank.errors.base import add_note
from simrank.errors.workers import as_torchs
from simrank.multiprocessing.tracebacks import spawn_text
from simrank.ranks.current import numbered
from simrank.ranks.extensions import extensions
from simrank.ranks.lifecycle import end_at_once, entered, first_pid, stopped
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from simrank.engine import Handle, Task, TaskGroup


class KeepsUnjoined(Protocol):
    """The part of a Context that this module uses.

    Attributes:
        unjoined: Spawns that were not joined yet.
    """

    unjoined: list[ProcessContext]


class ProcessContext:
    """The ranks of one spawn, as torch's ProcessContext.

    Attributes:
        group: Their tasks.
    """

    def __init__(
        self,
        group: TaskGroup,
        context: KeepsUnjoined,
        *,
        daemon: bool = False,
    ) -> None:
        self.group = group
        self._context = context
        self._daemon = daemon
        self._seen: set[int] = set()
        self.made_as = self._number = numbered()

    @cached_property
    def processes(self) -> list[RankProcess]:
        """One object per rank, with the names of multiprocessing.Process."""
        tasks = range(len(self.group.tasks))
        return [RankProcess(self.group, index, daemon=self._daemon) for index in tasks]

    @property
    def sentinels(self) -> dict[int, int]:
        """Of the ranks whose end no `join` has seen yet: sentinel -> rank."""
        waited_for = enumerate(self.processes)
        return {each.sentinel: index for index, each in waited_for if index not in self._seen}

    @property
    def error_files(self) -> list[str]:
        """Per rank the path where torch would leave a traceback.

        Nothing is written there: `SpawnException.errors` has the exceptions themselves.
        """
        folder = Path(tempfile.gettempdir())
        return [str(folder / f"simrank-errorfile-{pid}.pickle") for pid in self.pids()]

    @property
    def was_stopped(self) -> bool:
        """Whether all failed ranks were ended by a signal from outside."""
        return bool(self.group.failed) and stopped.issuperset(self.group.failed)

    def pids(self) -> list[int]:
        """Return a simulated process id per rank."""
        return [first_pid(self.group) + index for index in range(len(self.group.tasks))]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for the ranks; True once all have ended.

        Args:
            timeout: Simulated seconds; None waits for the end.
            grace_period: Simulated seconds that the others may run on after the first failure
                before they are ended; None ends them at once. Other failures within it are
                root causes too. It counts for failures that happen from now on.

        Raises:
            SpawnException: A rank raised.
            ProcessExitedException: A rank exited with a non-zero code, or was terminated.
        """
        group, engine = self.group, self.group.engine
        if grace_period is not None:
            group.grace_ps = round(grace_period * PS_PER_S)
        with entered(engine):  # Spawn works without a Context that is entered.
            try:
                has_ended = _wait(group, group, timeout)
            finally:
                if engine.is_hub():
                    for show_main in engine.on_hub:
                        show_main()
            self._seen.update(index for index, task in enumerate(group.tasks) if task.finished)
            self.made_as = self._number and f"{self._number}, joined {sorted(self._seen)}"
            if not has_ended:
                return False
            runs_on = not group.failed or group.on_death is not None
            if runs_on and engine.current_task() is None and not engine.tasks:
                _run_out(group)
        unjoined = self._context.unjoined
        if self in unjoined:
            unjoined.remove(self)
        if len(group.failed) > 1 and engine.current_task() is not None:
            limits.pass_over(engine, "which of several failures comes first")
        if group.failed:
            raise _failure(group)
        return True


class SpawnContext(ProcessContext):
    """The name that ProcessContext had before torch 1.4; making one warns, as torch's does."""

    def __init__(self, group: TaskGroup, context: KeepsUnjoined) -> None:
        warnings.warn("SpawnContext is renamed to ProcessContext since 1.4 release.", stacklevel=2)
        super().__init__(group, context)


class RankProcess:
    """A rank, under the names of multiprocessing.Process.

    Attributes:
        name: As multiprocessing would name it.
        pid: A simulated process id.
        daemon: Whether it may not spawn.
        sentinel: A number that is its own; nothing can wait for it.
    """

    __slots__ = ("_group", "_task", "daemon", "name", "pid", "sentinel")

    def __init__(self, group: TaskGroup, index: int, *, daemon: bool) -> None:
        self.name = f"SpawnProcess-{index + 1}"
        self.pid = self.sentinel = first_pid(group) + index
        self.daemon = daemon
        self._group = group
        self._task = group.tasks[index]

    @property
    def exitcode(self) -> int | None:
        """None while it runs; then 0, the status of `sys.exit`, 1 for an error, or minus a signal.

        A rank that is ended because another failed has -15, as if by SIGTERM; one that would not
        end has -9.
        """
        return _exit_code(self._task) if self._task.finished else None

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        return not self._task.finished

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most `timeout` simulated seconds."""
        if self._task.finished:
            return
        with entered(self._group.engine):
            _wait(self._group, self._group.end_of(self._task), timeout)

    def terminate(self) -> None:
        """End it at once, as SIGTERM does: none of its code runs on, and its spawn has failed."""
        self._stop(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as SIGKILL does; see `terminate`."""
        self._stop(signal.SIGKILL)

    def _stop(self, number: signal.Signals) -> None:
        limits.pass_over(self._group.engine, "what a process has done when it is ended")
        if not self._task.finished:
            stopped.add(self._task)
        end_by_signal(self._task, number)

    def close(self) -> None:
        """Do nothing: there are no resources.

        Raises:
            ValueError: It still runs.
        """
        if self.is_alive():
            raise ValueError(
                f"rank {self._task.rank} still runs: it cannot be closed\n"
                "  to fix: call join() or terminate() first"
            )

    def __repr__(self) -> str:
        """Return its name and state, as multiprocessing shows them."""
        state = "started" if self.is_alive() else f"stopped exitcode={self.exitcode}"
        return f"<RankProcess name={self.name!r} pid={self.pid} {state}>"


def _wait(group: TaskGroup, handle: Handle, timeout: float | None) -> bool:
    """Wait for a handle of a group, at most `timeout` seconds; return whether it completed."""
    try:
        if timeout is None:
            group.engine.wait(handle)
            return True
        return group.engine.wait_at_most(handle, round(max(timeout, 0) * PS_PER_S))
    except DeadlockError as error:
        group.abort()
        _prefer_failure(group, error)
        raise
    except BaseException as error:  # KeyboardInterrupt in the hub, say: leave nothing behind.
        group.abort()
        if isinstance(error, StoppedByWatchdog):  # The rank had just come back to the hub.
            raise error.limit from None
        raise


def _run_out(group: TaskGroup) -> None:
    """Run the operations that ranks left on their streams, or raise their deadlock."""
    try:
        run_out(group.engine)
    except DeadlockError as error:
        if group.on_abort is not None:  # It is called once: the next spawn starts clean.
            group.on_abort()
        _prefer_failure(group, error)
        raise


def _prefer_failure(group: TaskGroup, deadlock: DeadlockError) -> None:
    """Raise the errors of dead ranks instead of a deadlock that they caused."""
    if group.failed:
        failure = _failure(group)
        add_note(failure, f"simrank: then {deadlock}")
        raise failure from deadlock


def end_by_signal(task: Task, number: signal.Signals) -> None:
    """End a rank as a signal does that it has no handler for."""
    end_at_once(task, -number)


def _exit_code(task: Task) -> int:
    if task.parked:
        return -signal.SIGKILL
    if isinstance(task.error, RankAborted) or not (task.started or task.error):
        return -signal.SIGTERM
    if isinstance(task.error, SystemExit):
        return task.error.code if isinstance(task.error.code, int) else 1
    return 0 if task.error is None else 1


def _how_to_install(error: BaseException) -> str:
    """Return the pip command for torch or triton where a rank could not import it."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing not in ("torch", "triton"):
        return ""
    return f"\n  to fix: {sys.executable} -m pip install {missing}"


def _failure(group: TaskGroup) -> BaseException:
    """Build spawn's error from the root causes: the first one, at equal times the lowest rank."""
    rank_of = dict(zip(group.tasks, group.numbers, strict=True))  # As they were started.
    rank_of |= {task: task.rank or 0 for task in group.failed if task not in rank_of}
    failed = sorted(group.failed, key=lambda task: (group.failed_ps[task], rank_of[task]))
    errors: dict[int, BaseException] = {}
    consequences = {
        rank_of[t]: t.error for t in failed if t.error is not None and _is_consequence(t.error)
    }
    failed = [t for t in failed if not _is_consequence(t.error)] or failed
    for task in failed:
        assert task.error is not None
        errors[rank_of[task]] = task.error
        note = f"simrank: raised by rank {rank_of[task]} at t={group.failed_ps[task] / 1e6:.3f} us"
        if not _is_signal(task.error):
            add_note(task.error, note + _how_to_install(task.error))
        if isinstance(task.error, StoppedByWatchdog):
            return task.error.limit
    rank, error = next(iter(errors.items()))
    if isinstance(error, KeyboardInterrupt):
        return error
    if isinstance(error, SystemExit):
        return _exited(group, rank, error)
    text = f"\n\n{spawn_text(errors)}"
    for each in errors.values():
        for extension in extensions("surface_error"):
            extension.surface_error(each)
    failure = SpawnException(text, rank, first_pid(group) + rank, errors=errors)
    failure.consequences = {rank: e for rank, e in consequences.items() if rank not in errors}
    failure.stubborn = tuple(rank_of.get(task, task.rank or 0) for task in group.stubborn)
    failure.time_ps = group.complete_ps
    failure.__cause__ = error if isinstance(error, Exception) else None
    return as_torchs(failure)


def _is_signal(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and isinstance(error.code, int) and error.code < 0


def _is_consequence(error: BaseException | None) -> bool:
    """Return whether an error is a consequence of another rank's death."""
    is_lost = isinstance(error, UninitializedValueError) and error.lost
    return is_lost or isinstance(error, PeerDiedError)


def _exited(group: TaskGroup, rank: int, error: SystemExit) -> ProcessException:
    code = error.code if isinstance(error.code, int) else 1
    name = signal.Signals(-code).name if code < 0 else None
    text = f"process {rank} terminated with " + (f"signal {name}" if name else f"exit code {code}")
    if isinstance(error.code, str) and error.code:
        text += f": {error.code}"
    text += "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()) if name)
    return as_torchs(ProcessExitedException(text, rank, first_pid(group) + rank, code, name))
