"""`spawn` as torch.multiprocessing has it, with ranks instead of processes."""

from __future__ import annotations

import signal
import traceback
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.current import drop_streams
from simrank.distributed.group import World
from simrank.engine import Task, TaskGroup
from simrank.engine.collector import calm_collector
from simrank.errors import (
    ProcessException,
    ProcessExitedException,
    RankAborted,
    SimrankError,
    SpawnException,
)
from simrank.multiprocessing.arguments import check_picklable, per_rank
from simrank.ranks import Program, current_program, default_context, set_program, stdlib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from simrank.multiprocessing.arguments import Call

_START_METHODS = ("spawn", "fork", "forkserver")
_FIRST_PID = 1000  # assumed: any number that looks like a process id


def spawn(  # noqa: PLR0913 - torch's signature
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
    *,
    share_args: bool = False,
) -> ProcessContext | None:
    """Run `fn(rank, *args)` on `nprocs` simulated ranks; rank r uses device r.

    Without a Context the cluster is as many HGX H100 nodes as `nprocs` needs.

    Every rank gets a copy of the arguments as they are now, as pickling would make it: functions,
    classes and modules stay themselves, and the same list twice is one list. Never copied, but
    shared by all ranks and the caller: tensors, the Context and everything else of simrank, locks
    and queues (of `simrank.multiprocessing`, `threading` and `queue`), and what cannot be pickled,
    for example open files and generators. So are the variables that `fn` itself closes over.

    Args:
        fn: The program of every rank; what it returns is dropped.
        args: Its arguments after the rank.
        nprocs: Number of ranks.
        join: Whether to wait for the ranks to end.
        daemon: Kept for torch's signature.
        start_method: Kept for torch's signature.
        share_args: Whether all ranks and the caller share the arguments themselves.

    Returns:
        None, or with `join=False` a context whose `join()` is called until it returns True.

    Raises:
        SpawnException: A rank raised; `.errors` has every root cause.
        ProcessExitedException: A rank called `sys.exit` with a non-zero code.
        DeadlockError: The ranks wait for what can never happen.
        SimrankError: The cluster has fewer devices than `nprocs`.
        PicklingError, AttributeError, TypeError: With `Context(strict=True)`, what pickle raises
            for a function or arguments that a real spawn could not pickle.
    """
    del daemon, start_method
    program = current_program()
    if program is not None:
        return spawn_in(program, fn, args, nprocs, join=join, share_args=share_args)
    context = default_context(nprocs)
    with nullcontext() if not join else context:
        return spawn_in(context.program, fn, args, nprocs, join=join, share_args=share_args)


def start_processes(  # noqa: PLR0913 - torch's signature
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
    *,
    share_args: bool = False,
) -> ProcessContext | None:
    """Run `fn(rank, *args)` on simulated ranks, whatever the start method; see `spawn`.

    Raises:
        ValueError: There is no such start method.
    """
    if start_method not in _START_METHODS:
        raise ValueError(f"cannot find context for {start_method!r}")
    return spawn(fn, args, nprocs, join, daemon, share_args=share_args)


def spawn_in(
    parent: Program,
    fn: Callable[..., Any],
    args: Sequence[Any],
    nprocs: int,
    *,
    join: bool = True,
    share_args: bool = False,
) -> ProcessContext | None:
    """Run `fn(rank, *args)` on ranks of the parent's Context; see `spawn`."""
    if nprocs < 0:
        raise ValueError(f"nprocs={nprocs}: expected a number of ranks from 0")
    context = parent.context
    num_devices = context.cluster.num_devices
    if nprocs > num_devices:
        raise SimrankError(
            f"spawn of {nprocs} ranks on cluster '{context.cluster.name}', which has "
            f"{num_devices} devices\n  to fix: raise its number of nodes, or lower nprocs"
        )
    if context.strict:
        check_picklable(fn, args, shared=share_args)
    with calm_collector():
        call = per_rank(fn, args, shared=share_args)
        processes = _start(parent, getattr(fn, "__name__", str(fn)), call, nprocs)
        if not join:
            context.unjoined.append(processes)
            return processes
        while not processes.join():
            pass
    return None


def _start(parent: Program, name: str, call: Call, nprocs: int) -> ProcessContext:
    """Make the ranks and queue them at this time."""
    context, engine = parent.context, parent.engine
    world = World(context.network, np.arange(nprocs), context.comm_library)
    tasks, programs = [], []
    for rank in range(nprocs):
        task = Task(engine, f"rank {rank}", rank)
        program = Program(
            context, engine, rank=rank, world_size=nprocs, device_index=rank, parent=parent
        )
        program.task = task
        program.local["world"] = world
        task.carry(_body(program, call))
        tasks.append(task)
        programs.append(program)
    group = TaskGroup(engine, f"spawn of {name}", tasks)
    group.on_abort = lambda: _drop(world, programs)
    group.start()
    return ProcessContext(group, context)


def _body(program: Program, call: Call) -> Callable[[], None]:
    def body() -> None:
        set_program(program)
        try:
            fn, args = call()
            fn(program.rank, *args)
        except SystemExit as error:
            # As in a child process: exit code 0 or None is success.
            if isinstance(error, RankAborted) or error.code not in (None, 0):
                raise

    return body


def _drop(world: World, programs: Sequence[Program]) -> None:
    """Drop what aborted ranks left in flight, so that later runs start clean."""
    world.drop()
    for program in programs:
        drop_streams(program)


class ProcessContext:
    """The ranks of one spawn, as torch's ProcessContext.

    Attributes:
        group: Their tasks.
    """

    def __init__(self, group: TaskGroup, context: Any) -> None:  # noqa: ANN401 - it is above
        self.group = group
        self._context = context

    def pids(self) -> list[int]:
        """Return a simulated process id per rank."""
        return [_FIRST_PID + index for index in range(len(self.group.tasks))]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for the ranks; True once all have ended.

        Args:
            timeout: Simulated seconds; None waits for the end.
            grace_period: Kept for torch's signature: siblings of a failed rank end at once.

        Raises:
            SpawnException: A rank raised.
            ProcessExitedException: A rank exited with a non-zero code.
        """
        del grace_period
        group, engine = self.group, self.group.engine
        try:
            with stdlib.entered(engine):  # Spawn works without a Context that is entered.
                if timeout is None:
                    engine.wait(group)
                elif not engine.wait_at_most(group, round(timeout * 1e12)):
                    return False
                if not group.failed and engine.current_task() is None and not engine.tasks:
                    engine.run()  # What ranks left on their streams ends too, or is a deadlock.
        except BaseException:  # A deadlock, or KeyboardInterrupt in the hub: leave nothing behind.
            group.abort()
            raise
        unjoined = self._context.unjoined
        if self in unjoined:
            unjoined.remove(self)
        if group.failed:
            raise _failure(group)
        return True


def _failure(group: TaskGroup) -> BaseException:
    """Build what spawn raises from the root causes; the lowest rank is described first."""
    failed = sorted(group.failed, key=lambda task: task.rank or 0)
    errors: dict[int, BaseException] = {}
    for task in failed:
        assert task.error is not None
        errors[task.rank or 0] = task.error
        note = f"simrank: raised by rank {task.rank} at t={group.complete_ps / 1e6:.3f} us"
        if note not in getattr(task.error, "__notes__", ()):
            task.error.add_note(note)
    rank, error = next(iter(errors.items()))
    if isinstance(error, KeyboardInterrupt):
        return error
    if isinstance(error, SystemExit):
        return _exited(rank, error)
    text = f"\n\n-- Process {rank} terminated with the following error:\n{_traceback_text(error)}"
    if len(errors) > 1:
        others = ", ".join(f"{r} ({type(e).__name__})" for r, e in list(errors.items())[1:9])
        text += f"\nalso raised on rank {others}" + (", ..." if len(errors) > 9 else "")
    failure = SpawnException(text, rank, _FIRST_PID + rank, errors=errors)
    failure.stubborn = tuple(task.rank or 0 for task in group.stubborn)
    failure.time_ps = group.complete_ps
    failure.__cause__ = error if isinstance(error, Exception) else None
    return failure


def _exited(rank: int, error: SystemExit) -> ProcessException:
    code = error.code if isinstance(error.code, int) else 1
    if code < 0:  # As a real exit code tells it: a signal ended the process.
        name = signal.Signals(-code).name
        text = f"process {rank} terminated with signal {name}"
        return ProcessExitedException(text, rank, _FIRST_PID + rank, code, name)
    text = f"process {rank} terminated with exit code {code}"
    if isinstance(error.code, str):
        text += f": {error.code}"
    return ProcessExitedException(text, rank, _FIRST_PID + rank, code)


def _traceback_text(error: BaseException) -> str:
    """Return the traceback from the user's function on, without simrank's own first frames."""
    start: TracebackType | None = error.__traceback__
    while start is not None and start.tb_frame.f_globals.get("__name__", "").startswith("simrank."):
        start = start.tb_next
    return "".join(traceback.format_exception(type(error), error, start))
