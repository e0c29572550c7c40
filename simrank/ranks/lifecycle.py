"""Extensions and the lifecycle of Contexts and ranks: process ids, and immediate ends.

The core runs greenlets on simulated devices. State that a process would have for itself, threads,
private modules and Triton are extensions: each registers a subclass of `Extension` here, and the
core calls its methods at the points that they name. The core imports no extension; a tidy test and
the import contract hold it to that.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from simrank.engine import Handle, collector, interrupts, limits
from simrank.ranks.current import engines, running_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.engine import EngineInterface, Task, TaskGroup
    from simrank.ranks.current import Program


# ---- extensions, which take part in the lifecycle of Contexts and ranks ----

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.engine import EngineInterface, Task
    from simrank.errors import RankState
    from simrank.ranks.current import Program

    Body = Callable[[], None]
    Reference = tuple[Callable[..., Any], tuple[Any, ...]]  # A function, and its arguments.


@dataclass
class SpawnPlan:
    """One call of spawn, before its ranks exist; extensions complete it.

    Attributes:
        parent: The program that spawns.
        fn: The function of every rank.
        args: Its arguments after the rank.
        nprocs: Number of ranks.
        method: Start method of multiprocessing; None: ranks share the arguments and modules.
        is_daemon: Whether the ranks may not spawn.
        carrier: What holds each stack: "greenlet", "thread", or "auto" until an extension decides.
        refer: Returns a call that finds an object by name on a rank; None: the object is copied.
        resolve: Returns the rank's own version of the function.
        local: State of extensions, by their own keys.
    """

    parent: Program
    fn: Callable[..., Any]
    args: Sequence[Any]
    nprocs: int
    method: str | None
    is_daemon: bool
    carrier: str
    refer: Callable[[object, str | None], Reference | None] | None = None
    resolve: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    local: dict[str, Any] = field(default_factory=dict)


class Extension:
    """Takes part in the life of Contexts and ranks; each method does nothing by default."""

    # ---- Contexts ----

    def install(self) -> None:
        """Change the process for simulated ranks: the first Context is entered."""

    def remove(self) -> None:
        """Undo `install`, all of it or its first part: the last Context has exited."""

    def take_algorithms(self, algorithms: dict[str, Any]) -> dict[str, Any]:
        """Remove the forced algorithms that this extension runs, and return them prepared."""
        del algorithms
        return {}

    def make_context(self, context: Any) -> None:  # noqa: ANN401 - the Context lives above
        """Prepare state for a new Context."""

    def forget_engine(self, engine: EngineInterface) -> None:
        """Drop the state of an engine whose Context has exited."""

    def check_end(self, context: Any, error: BaseException | None) -> None:  # noqa: ANN401 - likewise
        """Raise or annotate at the end of a Context's block."""

    def leaks(self, context: Any) -> Sequence[RankState]:  # noqa: ANN401 - likewise
        """Return leaks of a Context, which `strict` turns into an error."""
        del context
        return ()

    def findings(self, context: Any) -> Sequence[str]:  # noqa: ANN401 - likewise
        """Return findings for the report at the end of a run, a line each."""
        del context
        return ()

    # ---- Spawns ----

    def plan_spawn(self, plan: SpawnPlan) -> None:
        """Choose the carrier of a spawn, and prepare state that its ranks share."""

    def plan_modules(self, plan: SpawnPlan) -> None:
        """Choose the modules that each rank executes for itself; the carrier is known."""

    def make_rank(self, plan: SpawnPlan, program: Program) -> None:
        """Give a new rank its own state."""

    def wrap_rank(self, plan: SpawnPlan, program: Program, run: Body) -> Body:
        """Return the program of a rank, wrapped in steps before and after it."""
        del plan, program
        return run

    # ---- Ends ----

    def resume_hub(self, engine: EngineInterface) -> None:
        """Show the main program its own state: it continues after a join."""

    def stop_rank(self, task: Task) -> None:
        """Stop the threads of a rank that a signal or `os._exit` is about to end."""

    def bury_rank(self, program: Program) -> None:
        """End the threads of a rank that died while its siblings run on."""

    def drop_rank(self, program: Program) -> None:
        """Drop the threads of an aborted rank."""

    def surface_error(self, error: BaseException) -> None:
        """Adapt an error of a rank to the program that receives it from spawn."""


_loaders: list[Callable[[], Extension]] = []
_extensions: list[Extension] = []


def register_extension(load: Callable[[], Extension]) -> None:
    """Add an extension; it is loaded when the first Context is made. Order is order of calls."""
    _loaders.append(load)


def extensions() -> list[Extension]:
    """Return all registered extensions, loaded."""
    while _loaders:
        _extensions.append(_loaders[0]())
        del _loaders[0]
    return _extensions


def plan_spawn(plan: SpawnPlan) -> None:
    """Ask the extensions for the carrier of a spawn; the default is greenlets."""
    for extension in extensions():
        extension.plan_spawn(plan)
    if plan.carrier == "auto":
        plan.carrier = "greenlet"


# ---- the lifecycle of Contexts and ranks: extensions, process ids, and immediate ends ----

_entered_by: list[tuple[EngineInterface, Task | None]] = []  # In a rank, or in the main program.


def enter(engine: EngineInterface) -> None:
    """Note that a Context has been entered; the first installs the extensions."""
    entry = engine, running_task()
    if engines:
        _entered_by.append(entry)
        engines.append(engine)
        return
    try:
        _entered_by.append(entry)
        engines.append(engine)
        interrupts.install()  # From here on a signal waits until simrank's own code is done.
        collector.begin()
        for extension in extensions():
            extension.install()
    except BaseException:
        _entered_by.clear()
        engines.clear()
        _remove()
        raise


def leave(engine: EngineInterface) -> None:
    """Note that a Context has exited; the last removes the extensions."""
    _entered_by.reverse()
    _entered_by.remove(next(entry for entry in _entered_by if entry[0] is engine))
    _entered_by.reverse()
    # A rank that was killed has left none of its blocks.
    _entered_by[:] = [entry for entry in _entered_by if entry[1] is None or not entry[1].finished]
    engines[:] = [engine for engine, _ in _entered_by]
    if engine not in engines:
        for extension in extensions():
            extension.forget_engine(engine)
    if not engines:
        _remove()


@contextlib.contextmanager
def entered(engine: EngineInterface) -> Iterator[None]:
    """Count as entered within the block."""
    if running_task() is not None:  # Its Context is entered already, for longer than a rank lives.
        yield
        return
    enter(engine)
    try:
        yield
    finally:
        leave(engine)


def _remove() -> None:
    """Remove the extensions, the last first, even if one of them fails."""
    with contextlib.ExitStack() as stack:
        stack.callback(interrupts.restore)
        stack.callback(collector.end)
        for extension in extensions():
            stack.callback(extension.remove)


# ---- immediate end of a rank: by a signal, or by `os._exit`; none of its code runs on ----

stopped: WeakSet[Task] = WeakSet()  # Ranks that another rank or the main program has ended.


def end_at_once(task: Task, status: int) -> None:
    """End a rank here: none of its code runs on, not even its `finally`.

    Args:
        task: The rank, or a thread of it.
        status: Its exit status; minus a signal's number if that ends it.
    """
    engine, task = task.engine, task.main
    if task.finished:
        return
    running = engine.current_task()
    if running is not None and running.main is task:  # From the hub; the wait never returns.
        engine.call_at(engine.now_ps, partial(end_at_once, task, status))
        while True:
            engine.wait(Handle())
    for extension in extensions():
        extension.stop_rank(task)
    for group in task.children or ():
        group.abort()
    task.exit_with(status)
    if task.started:
        engine.park(task)
    else:
        task.finished = True
        task.carrier.drop()
        engine.retire(task)
    limits.give_up(task)
    task.note_exit()


# ---- simulated process ids of ranks: the same in every run, and higher than any real one ----

_FIRST_PID = 5_000_000  # Assumed: Linux gives at most 2**22, other systems less.
_next: WeakKeyDictionary[EngineInterface, int] = WeakKeyDictionary()
_first: WeakKeyDictionary[TaskGroup, int] = WeakKeyDictionary()
_tasks: WeakKeyDictionary[EngineInterface, WeakValueDictionary[int, Task]] = WeakKeyDictionary()


def first_pid(group: TaskGroup) -> int:
    """Return the process id of the first rank of a spawn; the next ranks have the next ids."""
    if group not in _first:
        first = _first[group] = _next.get(group.engine, _FIRST_PID)
        _next[group.engine] = first + len(group.tasks)
        by_pid = _tasks.setdefault(group.engine, WeakValueDictionary())
        by_pid.update({first + index: task for index, task in enumerate(group.tasks)})
    return _first[group]


def start_process(program: Program) -> int:
    """Give an id to a process that a rank starts, and return it."""
    engine, task = program.engine, program.task
    assert task is not None, "it has started"
    number = program.local["os.getpid"] = _next.get(engine, _FIRST_PID)
    _next[engine] = number + 1
    _tasks.setdefault(engine, WeakValueDictionary())[number] = task
    return number


def pid_of(program: Program) -> int:
    """Return the id of a rank, or of the process for the main program."""
    if program.process_of is not None:
        return int(program.local["os.getpid"])
    task = program.task
    if program.rank is None or task is None or task.group is None:
        return _getpid()
    return first_pid(task.group) + task.group.tasks.index(task)


def rank_with(pid: int, engine: EngineInterface) -> Task | None:
    """Return the rank that has an id, or None."""
    by_pid = _tasks.get(engine)
    return None if by_pid is None else by_pid.get(pid)


_getpid = os.getpid  # While a Context is entered, `os.getpid` asks here.
