"""`spawn` as torch.multiprocessing has it, with ranks instead of processes."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from simrank.device.current import drop_streams
from simrank.distributed.group import World, membership
from simrank.distributed.joined import lose
from simrank.distributed.membership import world_of
from simrank.engine import Task, TaskGroup
from simrank.engine.collector import calm_collector
from simrank.errors import RankAborted, SimrankError
from simrank.isolation import finalizers, importers, libraries, locks, main_modules, output, threads
from simrank.isolation.module_globals import GlobalsOfRank, ModuleGlobals
from simrank.isolation.private_modules import PrivateModules, own_copy, private_modules
from simrank.isolation.process_state import first_pid
from simrank.multiprocessing.arguments import check_picklable, per_rank
from simrank.multiprocessing.imports import uses_library
from simrank.multiprocessing.processes import KeepsUnjoined, ProcessContext
from simrank.multiprocessing.tracebacks import show_reports_first
from simrank.ranks import Program, current_program, default_context, set_program
from simrank.ranks.current import ContextOfProgram, running_as

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device import Network
    from simrank.distributed.planner import CollectiveLibrary
    from simrank.isolation.libraries import RankState
    from simrank.multiprocessing.arguments import Call


class FollowsRanks(Protocol):
    """Who follows the lines of ranks."""

    def followed(self, task: Task, world: World, body: Callable[[], None]) -> Callable[[], None]:
        """Return the program of a rank, followed."""


class ContextOfSpawns(ContextOfProgram, KeepsUnjoined, Protocol):
    """What this layer needs of a Context.

    Attributes:
        network: The cluster's links in this run.
        comm_library: Its collective library.
        strict: Whether what real processes could not be sent is an error.
        default_device: The current device of every rank at first; None: each has its own.
        on_failure: "abort" or "continue".
        carrier: What holds the stack of a rank: "greenlet", "thread" or "auto".
        private: Packages whose modules each rank executes for itself.
        divergence: Who follows the lines of ranks, or None.
        module_globals: Sees what ranks set in modules that they share.
    """

    network: Network
    comm_library: CollectiveLibrary
    strict: bool
    default_device: int | None
    on_failure: str
    carrier: str
    private: Sequence[str]
    divergence: FollowsRanks | None
    module_globals: ModuleGlobals


def _context_of(program: Program) -> ContextOfSpawns:
    return cast("ContextOfSpawns", program.context)


OWN_MODULES = "each rank executes the modules of the program"  # In `Program.local`.
SCRIPT_USES_LIBRARY = "the script imports a registered library"  # Likewise.
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
    """Run `fn(rank, *args)` on ranks of a Context, started by who runs in it; see `spawn_in`."""
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
    """Run `fn(rank, *args)` on simulated ranks, whatever the start method; see `spawn`.

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
        parent: Who spawns.
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
    context = _context_of(parent)
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
    if nprocs and method != "fork":
        main_modules.check_begun(parent)
    carrier = _carrier(context, parent, fn, args)
    with calm_collector(nprocs, is_calm=carrier == "greenlet"):
        private = _private_names(parent, fn, carrier)
        with running_as(parent):  # Ranks of a Context that is not entered share what this one has.
            call = per_rank(fn, args, shared=share_args, private=private)
        name = getattr(fn, "__name__", str(fn))
        main = main_modules.of(parent) if any(map(main_modules.is_main, private)) else None
        by = None if share_args else method
        group = _start(parent, name, call, nprocs, _Start(carrier, by, private, main, daemon))
        processes = ProcessContext(group, context, daemon=daemon)
        if not join:
            if daemon:
                parent.local.setdefault("daemons", []).append(group)
            context.unjoined.append(processes)
            return processes
        show_reports_first()
        while not processes.join():
            pass
    return None


class _Start(NamedTuple):
    """How the ranks of a spawn start.

    Attributes:
        carrier: "greenlet" or "thread".
        method: As multiprocessing names it; None: they go on with what their parent has.
        private: Packages and modules that each executes for itself.
        main: The script of who starts them.
        daemon: Whether they may not spawn.
    """

    carrier: str
    method: str | None
    private: frozenset[str]
    main: main_modules.Main | None
    daemon: bool


def _start(parent: Program, name: str, call: Call, nprocs: int, start: _Start) -> TaskGroup:
    """Make the ranks and queue them at this time."""
    context, engine = _context_of(parent), parent.engine
    world = World(context.network, np.arange(nprocs), context.comm_library)
    tasks, programs = [], []
    used, is_thread = libraries.in_use(), start.carrier == "thread"
    for rank in range(nprocs):
        device = rank if context.default_device is None else context.default_device
        task = Task(engine, f"rank {rank}", rank)
        program = Program(
            context, engine, rank=rank, world_size=nprocs, device_index=device, parent=parent
        )
        program.task = task
        program.local["world"] = world
        program.local["daemon"] = start.daemon
        own = _modules(program, start)
        if is_thread:
            task.turn = libraries.keep_states(program, _states(program, task, used, own))
        body = _body(program, call, is_thread=is_thread)
        if context.divergence is not None:
            body = context.divergence.followed(task, world, body)
        task.carry(body, start.carrier)
        tasks.append(task)
        programs.append(program)
    group = TaskGroup(engine, f"spawn of {name}", tasks)
    first_pid(group)
    group.on_abort = lambda: _drop(world, programs)
    by_task = dict(zip(tasks, programs, strict=True))
    group.on_complete(lambda: _look_at_groups(world, group))
    if context.on_failure == "continue":
        group.on_death = lambda task: _bury(by_task[task], task)
    group.start()
    return group


def _states(
    program: Program, task: Task, used: Sequence[libraries.Library], own: PrivateModules | None
) -> list[RankState]:
    """Return what a rank on a thread has for itself."""
    context = _context_of(program)
    states: list[RankState] = [library.state_of(program) for library in used]
    if not context.strict:  # It sees every switch.
        states.append(GlobalsOfRank(context.module_globals, task))
    return states if own is None else [*states, own]


def _carrier(
    context: ContextOfSpawns, parent: Program, fn: Callable[..., Any], args: Sequence[Any]
) -> str:
    """Return what holds the ranks' stacks: threads for programs of libraries that need them."""
    if context.carrier != "auto":
        return context.carrier
    if parent.task is not None and parent.task.carrier.thread_id is not None:
        return "thread"  # A rank on a thread started them: the program uses a library.
    uses = parent.local.get(SCRIPT_USES_LIBRARY)
    return "thread" if (uses_library(fn, args) if uses is None else uses) else "greenlet"


def _private_names(parent: Program, fn: Callable[..., Any], carrier: str) -> frozenset[str]:
    """Return what each rank executes for itself, as its parent does where that is a rank."""
    of_parent = private_modules(parent)
    if of_parent is not None and of_parent.is_swapped:
        return of_parent.names
    if carrier == "thread":
        return importers.private_names(fn, _context_of(parent).private)
    return frozenset()


def _modules(program: Program, start: _Start) -> PrivateModules | None:
    """Return the modules that a rank has for itself; None if it shares all."""
    is_of_script, is_thread = _is_of_script(program), start.carrier == "thread"
    names = start.private if is_thread else frozenset[str]()
    if not names and not is_of_script:
        return None
    own = PrivateModules(
        program, names, is_own_private=is_of_script and is_thread, is_swapped=is_thread
    )
    of_parent = None if program.parent is None else private_modules(program.parent)
    if start.method is not None and of_parent is not None:
        own.come_from(of_parent, start.method)
    elif any(map(main_modules.is_main, names)):
        own.begins_with = start.main
    return own


def _is_of_script(program: Program | None) -> bool:
    """Whether a rank runs a script, or was spawned by one that does."""
    while program is not None:
        if program.local.get(OWN_MODULES):
            return True
        program = program.parent
    return False


def _body(program: Program, call: Call, *, is_thread: bool) -> Callable[[], None]:
    def body() -> None:
        set_program(program)
        if is_thread:
            locks.install()
        undo = libraries.begin_thread(program) if is_thread else []
        try:
            try:
                main_modules.begin_process(program)
                fn, args = call()
                _call(program, own_copy(fn), args)
                finalizers.rank_returned(program)
            finally:
                finalizers.forget(program)
                output.rank_ended(program)
        except SystemExit as error:
            if isinstance(error, RankAborted):
                raise
            # As in a child process: None or 0 is success, a status has eight bits, text is 1.
            if isinstance(error.code, int):
                error.code &= 0xFF
            if error.code is not None and error.code != 0:
                raise
        finally:
            for end in undo:
                end()
        end_daemons(program)
        default = membership(program).default
        if default is not None:
            default.world.comm_library.leaks.rank_returned(program.rank or 0, default.name)

    return body


def _call(program: Program, fn: Callable[..., Any], args: Sequence[Any]) -> None:
    """Run a rank's function, and then wait for the threads that it has started."""
    try:
        fn(program.rank, *args)
    except SystemExit as error:
        if not isinstance(error, RankAborted):
            threads.rank_returns(program)
        raise
    threads.rank_returns(program)


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
    if start_method != "spawn":
        warnings.warn(
            f"This method only supports start_method=spawn (got: {start_method}).\n"
            "To use a different start_method use:\n\t\t torch.multiprocessing.start_processes(...)",
            FutureWarning,
            stacklevel=3,
        )


def _look_at_groups(world: World, group: TaskGroup) -> None:
    """Note groups that only some ranks have made; ranks that failed had no chance to."""
    if not group.failed and not group.aborting:
        world.comm_library.leaks.half_made += world.half_made()


def _bury(program: Program, task: Task) -> None:
    """Drop what a rank that died left in flight, and let those fail who wait for it."""
    assert task.error is not None, "it died of something"
    threads.end_threads(program)
    for group in task.children or ():
        group.abort()
    drop_streams(program)
    lose(program, task.error)


def _drop(world: World, programs: Sequence[Program]) -> None:
    """Drop what aborted ranks left in flight, so that later runs start clean."""
    has_guests = world.has_guests
    if not has_guests:
        world.drop()
    for program in programs:
        if has_guests or world_of(program) is not world:  # There are others, who go on.
            lose(program, RankAborted(program.rank))
        threads.forget_threads(program)
        drop_streams(program)
