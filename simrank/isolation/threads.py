"""Threads that a rank starts: further tasks of the rank, in lockstep (rules E2, E7).

Where ranks are threads themselves (`Context(carrier="thread")`), `threading.Thread.start`,
`_thread.start_new_thread` and all that is built on them (timers, executors, thread pools) make an
OS thread of the rank's own. It has the rank's program (random numbers, environment, devices) and a
host clock that starts at its starter's; its waits block no other thread. `start` neither yields nor
takes simulated time.

A rank ends as a process does: what it returns from waits for its threads, those that are daemons
are ended. A thread that raises tells `threading.excepthook`, and the rank goes on. Where ranks are
greenlets a thread is refused: the hub could not tell whose turn it is.
"""

from __future__ import annotations

import contextvars
import functools
import math
import sys
import threading  # noqa: TID251 - replaced here
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from simrank.engine import Handle, Task, limits, user_site
from simrank.errors import RankAborted
from simrank.isolation import blocking_calls, libraries
from simrank.ranks.current import (
    current_program,
    for_real,
    of_process,
    running_task,
    set_program,
)
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.engine import EngineInterface
    from simrank.engine.lockstep import ThreadCarrier
    from simrank.ranks.current import Program

    Patches = list[tuple[Any, str, Any]]
    from types import ModuleType

TO_FIX = (
    'let the ranks be threads, by Context(carrier="thread") or simrank run --carrier thread; or '
    "use spawn for ranks, and locks and queues of threading and queue"
)
_THREADS, _MAIN_END = map(of_process, ("threads", "end of the main thread"))  # In `local`.
_END = "_simrank_end"  # Of a Thread that a rank has started.
TURN = "_simrank_turn"  # Of one that is to have states of its own: what follows its turns.
PROGRAM = "_simrank_program"  # Of one that is a process: its program.
_active: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]  # noqa: SLF001
_main_thread, _enumerate = threading.main_thread, threading.enumerate


class ThreadEnd(Handle):
    """The end of a thread, as a handle to join.

    Args:
        engine: Which it runs under.
        name: The thread's.

    Attributes:
        seen_by: The tasks that have seen it.
    """

    __slots__ = ("engine", "name", "seen_by")

    def __init__(self, engine: EngineInterface, name: str) -> None:
        super().__init__()
        self.engine = engine
        self.name = name
        self.seen_by: set[Task | None] = set()

    def describe(self) -> str:
        """Return the awaited event, in the user's words."""
        return f"the end of thread '{self.name}'"

    def is_seen(self, asker: Task, what: str) -> bool:
        """Answer a poll; a task that has seen the end sees it from then on."""
        is_seen = limits.ask(
            self.engine, what, lambda: self.complete, lambda: asker in self.seen_by, self
        )
        if is_seen:
            self.seen_by.add(asker)
        return is_seen


class ThreadTask(Task):
    """A thread that a rank has started.

    Attributes:
        end: For joins.
        is_daemon: Whether the rank does not wait for it.
        is_ending: Whether the rank ends it.
        program: The program on it: the rank, or a process that the rank has started.
        owner: Whose thread it is.
        status: Of a process that has ended at once: its exit status.
        on_end: Called as it has ended, or None.
        thread: What `threading.current_thread()` is on it.
    """

    __slots__ = ("end", "is_daemon", "is_ending", "on_end", "owner", "program", "status", "thread")

    def __init__(self, owner: Program, name: str, program: Program, *, is_daemon: bool) -> None:
        kind = "thread" if program is owner else "process"
        super().__init__(owner.engine, f"{kind} '{name}' of rank {owner.rank}", owner.rank)
        self.end = ThreadEnd(owner.engine, name)
        self.is_daemon, self.is_ending = is_daemon, False
        self.program, self.owner = program, owner
        self.status: int | None = None
        self.on_end: Callable[[], None] | None = None
        self.thread: threading.Thread | None = None
        self.started_at = user_site()
        self.engine.has_threads = True
        self.engine.shares_variables |= program is owner
        self.num_calls_seen = self.engine.num_thread_calls
        if program is not owner:
            program.task = self

    @property
    def is_process(self) -> bool:
        """Whether it is the main thread of a process."""
        return self.program is not self.owner

    @property
    def main(self) -> Task:
        """The main task of the rank or process that this is a thread of."""
        return self.program.task or self

    def exit_with(self, status: int) -> None:
        """Set the exit status of a process."""
        self.status = status

    def note_exit(self) -> None:
        """Note the end of a thread, and notify its joiners."""
        self.owner.local.get(_THREADS, {}).pop(self, None)
        if not self.end.complete:
            self.end.finish(self.engine)
        if self.on_end is not None:
            self.on_end()

    def reported(self, what: str) -> str:
        """Return the report text of this thread, with its name."""
        return f"in {'process' if self.is_process else 'thread'} '{self.end.name}': {what}"


# ---- starting ----


def start(
    program: Program, body: Callable[[], Any], name: str, thread: threading.Thread | None = None
) -> ThreadTask:
    """Start a thread of a rank; it runs when its starter waits next.

    Args:
        program: The rank's, whose carrier is a thread.
        body: What it runs.
        name: Its name.
        thread: What it is for `threading`; None: something that is made for it.
    """
    engine = program.engine
    starter = engine.current_task()
    assert starter is not None, "a rank starts it"
    runs = program if thread is None else vars(thread).get(PROGRAM, program)
    task = ThreadTask(program, name, runs, is_daemon=thread is None or thread.daemon)
    own: contextvars.Context = getattr(thread, "_context", None) or contextvars.Context()
    own = own.copy()
    task.turn = starter.turn if thread is None else vars(thread).get(TURN, starter.turn)
    own.run(set_program, runs)
    own.run(task.carry, partial(_live, task, body), "thread")
    task.host_ps = starter.clock_ps
    carrier = cast("ThreadCarrier", task.carrier)
    with for_real():  # The new thread sets the event that says it is there.
        carrier.start()
    task.thread = carrier.thread if thread is None else thread
    if starter.group is not None and not starter.group.complete:
        starter.group.add_guest(task)
    program.local.setdefault(_THREADS, {})[task] = None
    engine.enrol(task)
    engine.wake([task])
    return task


def _live(task: ThreadTask, body: Callable[[], Any]) -> None:
    undo: list[Callable[[], None]] = []
    try:
        undo += libraries.begin_thread(task.program)
        body()
    except RankAborted:
        if not task.is_ending:
            raise
    finally:
        for end in undo:
            end()
        task.note_exit()


def _start_thread(original: Callable[[threading.Thread], None]) -> Callable[..., None]:
    refuse = blocking_calls.refuse(original, "threading.Thread.start", TO_FIX)

    @functools.wraps(original)
    def start_(self: Any) -> None:  # noqa: ANN401 - a Thread and what is private of it
        task, program = running_task(), current_program()
        if task is None or program is None or program.rank is None:
            with for_real():  # As above.
                original(self)
            return
        if task.carrier.thread_id is None:
            refuse(self)
        with for_real():  # Neither question is a poll.
            if not self._initialized or self._started.is_set():
                original(self)  # It raises what it raises.
        made = start(program, partial(_run, self), self.name, self)
        carrier = cast("ThreadCarrier", made.carrier)
        assert carrier.thread is not None, "it has started"
        self._ident, self._native_id = carrier.thread_id, carrier.thread.native_id
        vars(self)[_END] = made.end
        with for_real():
            self._started.set()
        _active[self._ident] = self

    return start_


def _run(thread: Any) -> None:  # noqa: ANN401 - as above
    """Run a Thread as its own bootstrap does."""
    identity = thread.ident
    carrier_thread = cast("Any", running_task()).carrier.thread
    try:
        thread.run()
    except RankAborted:
        raise
    except BaseException:  # noqa: BLE001 - as there
        thread._invoke_excepthook(thread)  # noqa: SLF001 - as there
    finally:
        _active[identity] = carrier_thread  # It removes itself.
        if hasattr(thread, "_is_stopped"):
            thread._is_stopped = True  # noqa: SLF001 - until Python 3.12
        else:
            thread._handle = _EndedHandle(identity)  # noqa: SLF001 - from Python 3.13


class _EndedHandle:
    """The handle of a thread that `threading` uses from Python 3.13 on.

    Attributes:
        ident: The thread's number.
    """

    def __init__(self, ident: int) -> None:
        self.ident = ident

    def is_done(self) -> bool:
        """Return True."""
        return True

    def join(self, timeout: float | None = None) -> None:
        """Return at once."""


def _start_new(original: Callable[..., int]) -> Callable[..., int]:
    refuse = blocking_calls.refuse(original, "_thread.start_new_thread", TO_FIX)

    @functools.wraps(original)
    def start_new_thread(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> int:
        task, program = running_task(), current_program()
        if task is None or program is None or program.rank is None:
            return original(function, args, kwargs or {})
        if task.carrier.thread_id is None:
            refuse()
        name = getattr(function, "__name__", "of _thread")
        body = partial(_call, function, args, kwargs or {})
        return start(program, body, name).carrier.thread_id or 0

    return start_new_thread


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        function(*args, **kwargs)
    except SystemExit as error:
        if isinstance(error, RankAborted):
            raise
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        what = "Exception ignored in thread started by"
        facts = {"exc_type": type(error), "exc_value": error, "exc_traceback": error.__traceback__}
        sys.unraisablehook(cast("Any", SimpleNamespace(**facts, err_msg=what, object=function)))


# ---- asking ----


def _join(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def join(self: threading.Thread, timeout: float | None = None) -> None:
        asker = running_task()
        end: ThreadEnd | None = vars(self).get(_END)
        if end is None and asker is not None and self is main_thread() is not _main_thread():
            end = _end_of_main(current_program())
        if end is None or self is threading.current_thread():
            original(self, timeout)
        elif timeout is None:
            end.engine.wait(end)
            end.seen_by.add(asker)
            if asker is not None:
                asker.num_calls_seen = end.engine.num_thread_calls
        elif timeout > 0 and asker not in end.seen_by:
            if end.engine.wait_at_most(end, math.ceil(timeout * PS_PER_S)):
                end.seen_by.add(asker)
        elif asker is not None:
            end.is_seen(asker, "join of a thread")

    return join


def _is_alive(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def is_alive(self: threading.Thread) -> bool:
        end: ThreadEnd | None = vars(self).get(_END)
        if end is None:
            return original(self)
        asker = running_task()
        if asker is None or self is threading.current_thread():
            return not end.complete
        return not end.is_seen(asker, "is_alive() of a thread")

    return is_alive


def main_thread() -> threading.Thread:
    """Replace `threading.main_thread`: return the rank's own main thread."""
    program = current_program()
    task = None if program is None or running_task() is None else program.task
    if task is None or task.carrier.thread_id is None:
        return _main_thread()
    return _active.get(task.carrier.thread_id) or _main_thread()


def enumerate_threads() -> list[threading.Thread]:
    """Replace `threading.enumerate`: return the rank's own threads."""
    main = main_thread()
    if main is _main_thread():
        return _enumerate()
    return [main, *(thread for task in _threads_here() if (thread := task.thread) is not None)]


def _active_count() -> int:
    return len(enumerate_threads())


def _threads_here() -> list[ThreadTask]:
    program = current_program()
    return [] if program is None else [*program.local.get(_THREADS, ())]


def _end_of_main(program: Program | None) -> ThreadEnd:
    assert program is not None, "a rank asks"
    end: ThreadEnd = program.local.setdefault(
        _MAIN_END, ThreadEnd(program.engine, main_thread().name)
    )
    return end


def on_hub(task: Task, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - the call's
    """Make a call on the hub's thread for a task that runs, and return its result."""
    engine, done, found = task.engine, Handle(), []

    def fire() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - raised where it is asked for
            done.finish(engine, error)
        else:
            done.finish(engine)

    engine.call_at(engine.now_ps, fire)
    engine.wait(done)
    return found[0]


# ---- the end of a rank ----


def rank_returns(program: Program) -> None:
    """Wait for the threads of a returned rank, and end its daemon threads.

    As a process does at its exit: executors are shut down, so that their idle threads end.
    """
    if _MAIN_END in program.local:
        program.local[_MAIN_END].finish(program.engine)
    while threads := _threads_here():
        _shut_executors(threads)
        waited_for = [task for task in threads if not task.is_daemon]
        if waited_for:
            program.engine.wait(waited_for[0].end)
            continue
        ended = Handle()
        program.engine.call_at(program.engine.now_ps, partial(_end_all, program, ended))
        program.engine.wait(ended)


def _end_all(program: Program, ended: Handle) -> None:
    end_threads(program)
    ended.finish(program.engine)


def end_threads(program: Program) -> None:
    """End the threads of a rank at their waits; from the hub."""
    threads: dict[ThreadTask, None] = program.local.get(_THREADS, {})
    while threads:
        _end(next(iter(threads)))


def _end(task: ThreadTask) -> None:
    task.is_ending = True
    if task.is_process:
        end_threads(task.program)
    if task.group is not None:
        task.group.end_guest(task)
    if task.parked:
        _refused.setdefault(task.engine, []).append(task.name)
    task.note_exit()


def end_thread(thread: threading.Thread) -> None:
    """End another thread of the running rank at its wait, if it has not ended."""
    asker = running_task()
    assert asker is not None, "a rank asks"
    for task in _threads_here():
        if task.thread is thread:
            on_hub(asker, partial(_end, task))


_refused: WeakKeyDictionary[EngineInterface, list[str]] = WeakKeyDictionary()


def threads_left(engine: EngineInterface) -> list[str]:
    """Return findings about threads that swallowed every abort."""
    return [f"{name} refused to end: it catches RankAborted" for name in _refused.get(engine, ())]


def forget_threads(program: Program) -> None:
    """Note the ends of threads that were ended before they ran, or never will."""
    for task in [*program.local.get(_THREADS, ())]:
        task.note_exit()


def park_threads(rank: Task) -> None:
    """Park the threads of a rank for good; from the hub."""
    for task in [] if rank.group is None else rank.group.guests:
        if isinstance(task, ThreadTask) and task is not rank and _is_of(task, rank):
            task.engine.park(task)
            limits.give_up(task)
            task.note_exit()


def _is_of(task: ThreadTask, rank: Task) -> bool:
    """Whether a task is a thread of a rank or process, or of a process that it has started."""
    of: Program | None = task.program
    while of is not None and of.task is not rank:
        of = of.process_of
    return of is not None


def _shut_executors(threads: list[ThreadTask]) -> None:
    """Shut executors down, as `concurrent.futures.thread` does at exit."""
    queues = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", {})
    for task in threads:
        if task.thread in queues:
            made_by: Any = getattr(task.thread, "_args", None)
            executor = made_by[0]() if made_by else None
            if executor is not None:
                executor.shutdown(wait=False)


# ---- what is replaced ----


class counted:  # noqa: N801 - it stands for a function, also as an attribute of a class
    """Count for each rank by itself, so that names of threads are a process's, and repeat.

    Args:
        original: What counts for the process.
        key: Names the count in a rank's state.
        first: What a process counts first.
    """

    def __init__(self, original: Callable[[], int], key: str, first: int = 1) -> None:
        self._original, self._key, self._first = original, key, first

    def __call__(self) -> int:
        """Return the next number."""
        program = current_program()
        if program is None or program.rank is None:
            return self._original()
        number: int = program.local.get(self._key, self._first)
        program.local[self._key] = number + 1
        return number


def patches() -> Patches:
    """Return the patches of this module: owner, name and replacement."""
    import _thread  # noqa: PLC0415 - replaced, used nowhere

    kind = threading.Thread
    found: Patches = [
        (kind, "start", _start_thread(kind.start)),
        (kind, "join", _join(kind.join)),
        (kind, "is_alive", _is_alive(kind.is_alive)),
        (threading, "main_thread", main_thread),
        (threading, "enumerate", enumerate_threads),
        (threading, "active_count", _active_count),
    ]
    if hasattr(threading, "_counter"):
        found.append((threading, "_counter", counted(threading._counter, "threads made")))  # noqa: SLF001
    names = [name for name in ("start_new_thread", "start_new") if hasattr(_thread, name)]
    return found + [(_thread, name, _start_new(getattr(_thread, name))) for name in names]


# ---- Pools of threads in ranks ----
# `multiprocessing.pool.ThreadPool` gets queues between threads. `ThreadPoolExecutor` has a
# number that each rank counts by itself, and joins its threads in the order in which they were
# made.


def of_pool(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return the patches that give a `ThreadPool` of a rank queues of threads."""
    original = module.__dict__["get_context"]

    @functools.wraps(original)
    def get_context(method: str | None = None) -> Any:  # noqa: ANN401 - a context
        context = original(method)
        task = running_task()
        on_thread = task is not None and task.carrier.thread_id is not None
        return _ContextOfThreads(context) if on_thread else context

    return [(module, "get_context", get_context), (module, "wait", _wait(module.__dict__["wait"]))]


def _wait(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wait of a pool for a change of its threads."""

    @functools.wraps(original)
    def wait(objects: list[Any], timeout: float | None = None) -> list[Any]:
        notifiers = [each for each in objects if isinstance(each, _Notifier)]
        if not notifiers:
            return cast("list[Any]", original(objects, timeout))
        return notifiers if notifiers[0].wait(timeout) else []

    return wait


class _Notifier:
    """A queue of multiprocessing between threads; it stands for its own reading end."""

    def __init__(self) -> None:
        import queue  # noqa: PLC0415 - patched, or the original

        made: Any = queue.SimpleQueue()
        self._queue, self._reader = made, self
        self.put, self.get, self.empty = made.put, made.get, made.empty

    def wait(self, timeout: float | None) -> bool:
        """Return whether there is something to get, within the time."""
        import queue  # noqa: PLC0415 - as above

        try:
            self.put(self._queue.get(timeout=timeout))
        except queue.Empty:
            return False
        return True


class _ContextOfThreads:
    """A context of multiprocessing whose queues are between threads.

    Args:
        context: What has the rest.
    """

    def __init__(self, context: object) -> None:
        self._context = context

    def SimpleQueue(self) -> _Notifier:  # noqa: N802 - as there
        """Return a queue."""
        return _Notifier()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value
        """Return an attribute of the context."""
        return getattr(self._context, name)


def of_executor(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return the patches that make an executor's names and order a rank's own."""
    kind: Any = module.__dict__["ThreadPoolExecutor"]
    original = kind.__init__

    @functools.wraps(original)
    def make(self: Any, *args: object, **kwargs: object) -> None:  # noqa: ANN401 - an executor
        original(self, *args, **kwargs)
        if running_task() is not None:
            self._threads = _Ordered()

    counter = counted(kind._counter, "executors made", 0)  # noqa: SLF001 - its only name
    return [(kind, "__init__", make), (kind, "_counter", counter)]


class _Ordered(dict[Any, None]):
    """A set of threads in the order in which they came: a plain one goes by their addresses."""

    add = dict.setdefault
