"""`spawn` as torch.multiprocessing has it, with ranks instead of processes."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from simrank.device.stream import drop_streams
from simrank.device.tensors.printing import keep_texts
from simrank.distributed.group import World, membership
from simrank.distributed.membership import lose, world_of
from simrank.engine import Task, TaskGroup
from simrank.engine.callsite import note_program
from simrank.engine.collector import calm_collector
from simrank.errors import FoldingError, ProcessException, RankAborted, SimrankError
from simrank.multiprocessing.arguments import check_picklable, per_rank
from simrank.multiprocessing.processes import KeepsUnjoined, ProcessContext
from simrank.multiprocessing.tracebacks import show_reports_first
from simrank.ranks import Program, current_program, default_context, set_program
from simrank.ranks.current import ContextOfProgram, comparisons_of, running_as
from simrank.ranks.extensions import SpawnPlan, extensions, plan_spawn
from simrank.ranks.lifecycle import first_pid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device import Network
    from simrank.distributed.library import CollectiveLibrary
    from simrank.multiprocessing.arguments import Call
    from simrank.ranks.folding import Folding


class FollowsRanks(Protocol):
    """Follows the executed lines of ranks."""

    def followed(self, task: Task, world: World, body: Callable[[], None]) -> Callable[[], None]:
        """Return the program of a rank, followed."""


class ContextOfSpawns(ContextOfProgram, KeepsUnjoined, Protocol):
    """The part of a Context that this layer uses.

    Attributes:
        network: The cluster's links in this run.
        comm_library: Its collective library.
        strict: Whether what real processes could not be sent is an error.
        default_device: The current device of every rank at first; None: each has its own.
        on_failure: "abort" or "continue".
        carrier: What holds the stack of a rank: "greenlet", "thread" or "auto".
        divergence: Observer of the lines of ranks, or None.
        folding: The ranks of a spawn that run and represent others; None: all run.
    """

    network: Network
    comm_library: CollectiveLibrary
    strict: bool
    default_device: int | None
    on_failure: str
    carrier: str
    divergence: FollowsRanks | None
    folding: Folding | None


_START_METHODS = ("spawn", "fork", "forkserver")


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
    classes and modules stay themselves, and the same list twice is one list. What a rank of a
    script spawns is as a new process: it executes the script, as `__mp_main__`, and modules of the
    program for itself; functions and classes are its own of the same names. So are modules of the
    main program that hold something of a private package, for ranks on threads. Never copied, but
    shared by all ranks and the caller: tensors, the Context and everything else of simrank, locks
    and queues (of `simrank.multiprocessing`, `threading` and `queue`), and what cannot be pickled,
    for example open files and generators. So are the variables that `fn` itself closes over.

    Args:
        fn: The program of every rank; what it returns is dropped.
        args: Its arguments after the rank.
        nprocs: Number of ranks.
        join: Whether to wait for the ranks to end.
        daemon: Whether the ranks may not spawn, and are ended with the rank or Context they are of.
        start_method: Kept for torch's signature; other values than "spawn" warn, as there.
        share_args: Whether all ranks and the caller share the arguments themselves.

    Returns:
        None, or with `join=False` a context whose `join()` is called until it returns True.

    Raises:
        SpawnException: A rank raised; `.errors` has every root cause.
        ProcessExitedException: A rank called `sys.exit` with a non-zero code.
        DeadlockError: The ranks wait for what can never happen.
        SimrankError: The cluster has fewer devices than `nprocs`.
        AssertionError: A daemonic rank calls it.
        PicklingError, AttributeError, TypeError: With `Context(strict=True)`, what pickle raises
            for a function or arguments that a real spawn could not pickle.
    """
    if start_method != "spawn":
        warn_of_method(start_method)
    options = {"join": join, "daemon": daemon, "share_args": share_args}
    return _spawn_by(start_method, fn, args, nprocs, **options)


def spawn_on(
    context: Any,  # noqa: ANN401 - it lives above
    method: str,
    fn: Callable[..., Any],
    args: Sequence[Any],
    nprocs: int,
    **options: bool,
) -> ProcessContext | None:
    """Run `fn(rank, *args)` on ranks of a Context; the running program is their parent."""
    program = current_program()
    parent = program if program is not None and program.context is context else context.program
    return spawn_in(parent, fn, args, nprocs, method=method, **options)


def _spawn_by(
    method: str, fn: Callable[..., Any], args: Sequence[Any], nprocs: int, **options: bool
) -> ProcessContext | None:
    program = current_program()
    if program is not None:
        return spawn_in(program, fn, args, nprocs, method=method, **options)
    context = default_context(nprocs)
    with context if options["join"] else nullcontext():
        return spawn_on(context, method, fn, args, nprocs, **options)


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
    """Run `fn(rank, *args)` on simulated ranks, with any start method; see `spawn`.

    Raises:
        ValueError: There is no such start method.
    """
    check_method(start_method)
    options = {"join": join, "daemon": daemon, "share_args": share_args}
    return _spawn_by(start_method, fn, args, nprocs, **options)


def spawn_in(  # noqa: PLR0913 - spawn's
    parent: Program,
    fn: Callable[..., Any],
    args: Sequence[Any],
    nprocs: int,
    *,
    join: bool = True,
    daemon: bool = False,
    share_args: bool = False,
    is_users: bool = True,
    method: str = "spawn",
) -> ProcessContext | None:
    """Run `fn(rank, *args)` on ranks of the parent's Context; see `spawn`.

    Args:
        parent: The spawning program.
        fn: As in `spawn`.
        args: As in `spawn`.
        nprocs: As in `spawn`.
        join: As in `spawn`.
        daemon: As in `spawn`.
        share_args: As in `spawn`.
        is_users: Whether a real spawn would have to pickle `fn`, which `strict` asks about.
        method: "fork", where ranks go on with the modules of the rank that starts them.
    """
    if nprocs < 0:
        raise ValueError(f"nprocs={nprocs}: expected a number of ranks from 0")
    context = cast("ContextOfSpawns", parent.context)
    num_devices = context.cluster.num_devices
    if nprocs > num_devices:
        raise SimrankError(
            f"spawn of {nprocs} ranks on cluster '{context.cluster.name}', which has "
            f"{num_devices} devices\n  to fix: raise its number of nodes, or lower nprocs"
        )
    if nprocs and parent.local.get("daemon"):
        raise AssertionError("daemonic processes are not allowed to have children")
    if context.strict and is_users:
        check_picklable(fn, args, shared=share_args)
    note_program(getattr(getattr(fn, "func", fn), "__code__", None))  # Or of a partial.
    plan = SpawnPlan(
        parent, fn, args, nprocs, None if share_args else method, daemon, context.carrier
    )
    plan_spawn(plan)
    with calm_collector(nprocs, is_calm=plan.carrier == "greenlet"):
        for extension in extensions("plan_modules"):
            extension.plan_modules(plan)
        with running_as(parent):  # Ranks of a Context that is not entered share what this one has.
            call = per_rank(fn, args, shared=share_args, refer=plan.refer)
        group = _start(plan, call)
        processes = ProcessContext(group, context, daemon=daemon)
        if not join:
            if daemon:
                parent.local.setdefault("daemons", []).append(group)
            context.unjoined.append(processes)
            return processes
        try:
            while not processes.join():
                pass
        except (SimrankError, ProcessException):
            show_reports_first()
            raise
    return None


def _start(plan: SpawnPlan, call: Call) -> TaskGroup:
    """Make the ranks and queue them at this time."""
    parent, nprocs = plan.parent, plan.nprocs
    context, engine = cast("ContextOfSpawns", parent.context), parent.engine
    folding = context.folding if parent.rank is None else None
    if folding is not None and folding.world_size != nprocs:
        raise FoldingError(f"{folding.describe()}, but {nprocs} ranks are spawned")
    world = World(context.network, np.arange(nprocs), context.comm_library, folding)
    if folding is not None:
        replicas = folding.replicas
        context.network.replicas = lambda src, dst: [(a, b) for a, b in replicas((src, dst))]
    tasks, programs = [], []
    for rank in range(nprocs) if folding is None else folding.running:
        device = rank if context.default_device is None else context.default_device
        task = Task(engine, f"rank {rank}", rank)
        program = Program(
            context, engine, rank=rank, world_size=nprocs, device_index=device, parent=parent
        )
        program.task = task
        program.local["world"] = world
        program.local["daemon"] = plan.is_daemon
        for extension in extensions("make_rank"):
            extension.make_rank(plan, program)
        body = _body(plan, program, call)
        if context.divergence is not None:
            body = context.divergence.followed(task, world, body)
        task.carry(body, plan.carrier)
        tasks.append(task)
        programs.append(program)
    group = TaskGroup(engine, f"spawn of {getattr(plan.fn, '__name__', str(plan.fn))}", tasks)
    group.numbers = range(nprocs) if folding is None else folding.running
    first_pid(group)
    recorder = context.comm_library.recorder
    if recorder is not None:
        recorder.follow(group)
    group.on_abort = lambda: _drop(world, programs)
    by_task = dict(zip(tasks, programs, strict=True))
    group.on_complete(partial(world.note_half_made, group))
    if context.on_failure == "continue":
        group.on_death = lambda task: _bury(by_task[task], task)
    group.start()
    return group


def _body(plan: SpawnPlan, program: Program, call: Call) -> Callable[[], None]:
    """Return the program of a rank, wrapped by the extensions."""
    wrapped: Callable[[], None] = partial(_call, plan, program, call)
    for extension in extensions("wrap_rank"):
        wrapped = extension.wrap_rank(plan, program, wrapped)

    def body() -> None:
        set_program(program)
        try:
            wrapped()
        except SystemExit as error:
            if isinstance(error, RankAborted):
                raise
            # As in a child process: None or 0 is success, a status has eight bits, text is 1.
            if isinstance(error.code, int):
                error.code &= 0xFF
            if error.code is not None and error.code != 0:
                raise
        if "daemons" in program.local:
            end_daemons(program)
        default = membership(program).default
        if default is not None:
            default.world.comm_library.leaks.rank_returned(program.rank or 0, default.name)

    return body


def _call(plan: SpawnPlan, program: Program, call: Call) -> None:
    """Call what a rank runs, with its number."""
    fn, args = call()
    rank, recorder = program.rank, comparisons_of(program)
    if recorder is not None and rank is not None:
        rank = recorder.within_group(rank, range(plan.nprocs))
    try:
        (fn if plan.resolve is None else plan.resolve(fn))(rank, *args)
    except Exception as error:
        keep_texts(error)
        raise


def end_daemons(program: Program) -> None:
    """End the daemonic ranks that a program spawned and that still run; it has ended itself."""
    for group in program.local.pop("daemons", ()):
        group.abort()


def check_method(start_method: str) -> None:
    """Raise ValueError as multiprocessing does if there is no such start method."""
    if start_method not in _START_METHODS:
        raise ValueError(f"cannot find context for {start_method!r}")


def warn_of_method(start_method: str) -> None:
    """Warn as torch does of a start method that `spawn` does not take."""
    warnings.warn(
        f"This method only supports start_method=spawn (got: {start_method}).\n"
        "To use a different start_method use:\n\t\t torch.multiprocessing.start_processes(...)",
        FutureWarning,
        stacklevel=3,
    )


def _bury(program: Program, task: Task) -> None:
    """Drop the operations of a dead rank, and fail the calls that wait for it."""
    assert task.error is not None, "it died of something"
    for extension in extensions("bury_rank"):
        extension.bury_rank(program)
    for group in task.children or ():
        group.abort()
    drop_streams(program)
    lose(program, task.error)


def _drop(world: World, programs: Sequence[Program]) -> None:
    """Drop the operations of aborted ranks, so that later runs start clean."""
    has_guests = world.has_guests
    if not has_guests:
        world.drop()
    for program in programs:
        if has_guests or world_of(program) is not world:  # There are other ranks, which go on.
            lose(program, RankAborted(program.rank))
        for extension in extensions("drop_rank"):
            extension.drop_rank(program)
        drop_streams(program)
