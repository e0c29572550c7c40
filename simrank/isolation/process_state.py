"""Folder, random numbers, environment, argv and process ids of ranks, and their ends.

It is made at first use and dispatched: what a patch finds the running rank, and nothing is swapped
when ranks take turns. Outside ranks everything is the process's own.

The operating system knows one per process, so it is changed whenever another rank gets its turn: an
observer of switches, there only once a rank has called `os.chdir`. The mask of `os.umask`, and
`sys.path`, are shared by all.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import random  # noqa: TID251 - dispatched here, drawn from nowhere
import signal
import sys
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

from simrank.engine import interrupts
from simrank.engine.callsite import is_importing
from simrank.engine.collector import is_looking
from simrank.engine.task import SwitchObserver
from simrank.errors import UnsupportedError
from simrank.isolation import threads
from simrank.ranks.current import (
    comparisons_of,
    current_program,
    of_process,
    rank_program,
    running_task,
)
from simrank.ranks.lifecycle import end_at_once, pid_of, rank_with, stopped
from simrank.ranks.ports import FIRST_MASTER_PORT, ports_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from simrank.engine import EngineInterface, Task, TaskGroup
    from simrank.ranks.current import Program

ERROR_FILES = (
    "folder of error files"  # In `Program.local`: where ranks that it starts leave theirs.
)
RESTARTS = "restarts"  # Likewise: how often ranks have been restarted, and may be.
_PROCESSES = "/proc/"
NUMPY_KEY = "generator of numpy.random"
# Functions of numpy.random that draw from its shared generator without being its methods.
_NUMPY_WRAPPERS = {"seed": "seed", "sample": "random_sample", "ranf": "random_sample"}


def patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of this module: owner, name and replacement."""
    import numpy.random as np_random  # noqa: PLC0415 - numpy loads it late, and so do we

    numpy_global: Any = np_random.mtrand._rand  # noqa: SLF001 - what its functions draw from
    python_global: Any = random._inst  # noqa: SLF001 - likewise
    environment: Any = os.environ
    return [
        *_generator_functions(random, python_global, _python_generator),
        *_generator_functions(np_random, numpy_global, _numpy_generator),
        *(
            (np_random, name, _draw(getattr(np_random, name), NUMPY_KEY, _numpy_generator, method))
            for name, method in _NUMPY_WRAPPERS.items()
        ),
        (np_random, "default_rng", _seeded(np_random.default_rng)),
        (environment, "_data", _Environment(environment._data)),  # noqa: SLF001 - what it reads
        (os, "putenv", _outside_ranks(os.putenv)),
        (os, "unsetenv", _outside_ranks(os.unsetenv)),
        (sys, "argv", _Arguments(sys.argv)),
        (os, "getpid", _numbered(os.getpid, pid_of)),
        (os, "getppid", _numbered(os.getppid, _parents)),
        *((module, "open", _opened(module.open)) for module in (builtins, io)),
        (signal, "signal", _set_handler),
        (signal, "getsignal", _get_handler),
        (os, "_exit", _exit(os._exit)),
        (os, "abort", _abort(os.abort)),
        (os, "kill", _kill(os.kill)),
        (signal, "raise_signal", _raise_signal(signal.raise_signal)),
        *((os, name, _noted(getattr(os, name))) for name in ("chdir", "fchdir")),
        *((os, name, _last(getattr(os, name))) for name in ("remove", "unlink", "rmdir")),
    ]


# ---- random numbers ----


def _python_generator(program: Program) -> random.Random:
    return random.Random(f"{program.engine.seed}:{program.started_rank}")


def _numpy_generator(program: Program) -> Any:  # noqa: ANN401 - numpy's RandomState
    import numpy as np  # noqa: PLC0415 - loaded with its patches

    return np.random.RandomState([program.engine.seed % 2**32, (program.started_rank or 0) + 1])


def _generator_functions(
    module: Any,  # noqa: ANN401 - random or numpy.random
    shared: object,
    make: Callable[[Program], Any],
) -> list[tuple[Any, str, Any]]:
    """Return patches for the functions of a module that draw from one shared generator."""
    names = [
        name for name in dir(module) if getattr(getattr(module, name), "__self__", 0) is shared
    ]
    key = f"generator of {module.__name__}"
    return [(module, name, _draw(getattr(module, name), key, make)) for name in names]


@functools.lru_cache(maxsize=256)  # They are the same at every Context.
def _draw(
    original: Callable[..., Any],
    key: str,
    make: Callable[[Program], Any],
    method: str | None = None,
) -> Callable[..., Any]:
    """Return a function that draws from the running rank's generator, or calls the original."""
    name = method or original.__name__

    @functools.wraps(original)
    def draw(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - the original's
        program = rank_program()
        if program is None:
            return original(*args, **kwargs)
        generator = program.local.get(key)
        if generator is None:
            generator = program.local[key] = make(program)
        return getattr(generator, name)(*args, **kwargs)

    return draw


def _seeded(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `default_rng` that is seeded by rank and number of calls."""

    @functools.wraps(original)
    def default_rng(seed: object = None) -> Any:  # noqa: ANN401 - the original's
        program = rank_program()
        if program is None or seed is not None:
            return original(seed)
        calls = program.local["default_rng"] = program.local.get("default_rng", 0) + 1
        return original([program.engine.seed, (program.started_rank or 0) + 1, calls])

    return default_rng


# ---- environment ----


def _outside_ranks(original: Callable[..., None]) -> Callable[..., None]:
    """Keep a rank's changes of its environment from the process."""

    @functools.wraps(original)
    def change(*args: object) -> None:
        if rank_program() is None:
            original(*args)

    return change


_OF_EACH_RANK = frozenset(
    name.encode()
    for name in (
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE",
    )
)  # fmt: skip


def _torchrun_variables(program: Program) -> dict[bytes, bytes]:
    """Return the variables that torchrun sets for a rank."""
    rank = program.started_rank
    assert rank is not None, "only ranks have them"
    group = None if program.task is None else program.task.group
    per_node = program.context.cluster.devices_per_node
    first_of_node = rank - rank % per_node
    above = {} if program.parent is None else program.parent.local
    folder, restarts = above.get(ERROR_FILES), above.get(RESTARTS, (0, 0))
    files = {}
    if folder is not None:
        own = Path(folder) / str(rank)
        own.mkdir(parents=True, exist_ok=True)
        files["TORCHELASTIC_ERROR_FILE"] = str(own.absolute() / "error.json")
    world, environment = program.world_size, os.environ
    encode: Callable[[str], bytes] = environment.encodekey  # type: ignore[assignment]
    texts = files | {
        "WORLD_SIZE": str(program.world_size),
        "LOCAL_WORLD_SIZE": str(min(per_node, program.world_size - first_of_node)),
        "GROUP_WORLD_SIZE": str(-(-program.world_size // per_node)),
        "ROLE_WORLD_SIZE": str(program.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(
            FIRST_MASTER_PORT if group is None else ports_of(program).master_port(group)
        ),
        "TORCHELASTIC_RESTART_COUNT": str(restarts[0]),
        "TORCHELASTIC_MAX_RESTARTS": str(restarts[1]),
        "TORCHELASTIC_RUN_ID": "simrank",
    }
    numbers = {
        "RANK": (rank, world, 1), "LOCAL_RANK": (rank % per_node, per_node, 1),
        "GROUP_RANK": (rank // per_node, world, per_node), "ROLE_RANK": (rank, world, 1),
    }  # fmt: skip
    recorder = comparisons_of(program)
    encoded = {encode(name): encode(text) for name, text in texts.items()}
    for name, (number, size, stride) in numbers.items():
        plain = encode(str(number))
        encoded[encode(name)] = (
            plain if recorder is None else recorder.as_bytes(number, size, stride)
        )
    return encoded


class _Environment(MutableMapping[Any, Any]):
    """The storage of `os.environ`: the process's, or the running rank's copy of its parent's.

    Ranks of one spawn read what they inherit from one copy, until they change something or ask for
    what each has of its own: most of many thousand ranks read one name that no rank has set.
    """

    def __init__(self, shared: Any) -> None:  # noqa: ANN401 - what `os.environ` stores
        self._shared = shared
        self._inherited: WeakKeyDictionary[TaskGroup, dict[Any, Any]] = WeakKeyDictionary()

    def _of(self, program: Program | None) -> Any:  # noqa: ANN401
        if program is None or program.rank is None:
            return self._shared
        own = program.local.get("environ")
        if own is None:
            added = _torchrun_variables(program)
            assert added.keys() <= _OF_EACH_RANK, "all that differs is known"
            own = program.local["environ"] = {**self._from_parent(program), **added}
        return own

    def _from_parent(self, program: Program) -> Any:  # noqa: ANN401
        group = None if program.task is None else program.task.group
        if group is None:
            return self._of(program.parent)
        inherited = self._inherited.get(group)
        if inherited is None:
            inherited = self._inherited[group] = {**self._of(program.parent)}
        return inherited

    def __getitem__(self, key: object) -> Any:  # noqa: ANN401
        program = current_program()
        if program is None or program.rank is None:
            return self._shared[key]
        if "environ" in program.local or key in _OF_EACH_RANK:
            return self._of(program)[key]
        return self._from_parent(program)[key]

    def __setitem__(self, key: object, value: object) -> None:
        self._of(current_program())[key] = value

    def __delitem__(self, key: object) -> None:
        del self._of(current_program())[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._of(current_program()))

    def __len__(self) -> int:
        return len(self._of(current_program()))


def begin_process(program: Program) -> None:
    """Copy environment and arguments of the running rank for a process that it starts."""
    environment: Any = os.environ
    storage = environment._data  # noqa: SLF001 - what it reads
    program.local |= {"environ": dict(storage), "argv": list(sys.argv)}


# ---- argv ----


def _arguments_of(program: Program | None) -> list[str]:
    """Return a rank's own list of arguments, or a copy of the process's."""
    if program is None or program.rank is None:
        return list.copy(vars(sys)["argv"])
    own: list[str] | None = program.local.get("argv")
    if own is None:
        own = program.local["argv"] = list(_arguments_of(program.parent))
    return own


def argv_property() -> Any:  # noqa: ANN401 - a property
    """Return the attribute `sys.argv` while a Context is entered; a rank may bind another list."""

    def get(_: ModuleType) -> Any:  # noqa: ANN401 - any value
        program = rank_program()
        return vars(sys)["argv"] if program is None else _arguments_of(program)

    def put(_: ModuleType, value: Any) -> None:  # noqa: ANN401 - likewise
        program = rank_program()
        if program is None:
            vars(sys)["argv"] = value
        else:
            program.local["argv"] = value

    return property(get, put)


class _Arguments(list[str]):
    """The list `sys.argv` of the main program; in a rank its methods use the rank's list."""


def _argument_method(name: str) -> Callable[..., Any]:
    original = getattr(list, name)

    @functools.wraps(original)
    def method(self: _Arguments, *args: object) -> Any:  # noqa: ANN401 - the original's
        program = rank_program()
        if program is None:
            return original(self, *args)
        return original(_arguments_of(program), *args)

    return method


for _name in (
    "__getitem__", "__setitem__", "__delitem__", "__iter__", "__len__", "__contains__",
    "__repr__", "__eq__", "__add__", "append", "clear", "copy", "count", "extend", "index",
    "insert", "pop", "remove", "reverse", "sort",
):  # fmt: skip
    setattr(_Arguments, _name, _argument_method(_name))

# ---- Process ids of ranks ----
# Programs name files by them and seed from them. A rank's number is its own, the same in every
# run, and higher than any that the system gives, so that a signal for it reaches no other process.
# The standard library and packages that ranks share, which tell by it whether they were forked,
# and psutil, which looks for the process, find the real one.

_FINDS_REAL = frozenset({
    "multiprocessing", "subprocess", "asyncio", "concurrent", "tempfile", "random", "psutil",
    "simrank", "filelock", "fsspec", "multiprocess",
})  # fmt: skip
_getpid = os.getpid


def of_psutil(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return the patches that map a rank's process id to the real process in psutil."""
    kind: Any = module.__dict__["Process"]
    original = kind.__init__

    @functools.wraps(original)
    def init(self: object, pid: int | None = None) -> None:
        program = rank_program()
        if program is not None and pid == pid_of(program):
            pid = None
        original(self, pid)

    return [(kind, "__init__", init)]


def _parents(program: Program) -> int:
    return _getpid() if program.parent is None else pid_of(program.parent)


def _numbered(original: Callable[[], int], ask: Callable[[Program], int]) -> Callable[[], int]:
    key = of_process(f"os.{original.__name__}")
    find = rank_program  # Objects ask as the interpreter ends, when modules have no names any more.

    @functools.wraps(original)
    def number() -> int:
        program = find()
        if program is None or _asks_for_real(sys._getframe(1).f_globals.get("__name__")):  # noqa: SLF001 - the documented way
            return original()
        if key not in program.local:
            program.local[key] = ask(program)
        found: int = program.local[key]
        return found

    return number


def _opened(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `open` that finds what the kernel says of a rank in the files of the real process."""

    @functools.wraps(original)
    def open_(file: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        path = str(file) if type(file) is str or isinstance(file, Path) else ""
        if path.startswith(_PROCESSES):
            pid, slash, rest = path[len(_PROCESSES) :].partition("/")
            task = running_task() if slash and pid.isdecimal() else None
            if task is not None and rank_with(int(pid), task.engine) is not None:
                file = f"{_PROCESSES}self/{rest}"
        return original(file, *args, **kwargs)

    return open_


def _asks_for_real(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _FINDS_REAL


# ---- the current folder of ranks, each with its own ----

_chdir = os.chdir


class _Folders(SwitchObserver):
    """The folder of each task that has changed its own; an observer of its engine."""

    def __init__(self) -> None:
        self._main = os.getcwd()
        self._own: dict[Task, str] = {}
        self._now = self._main

    def moved(self, task: Task) -> None:
        """Note where the running task has gone."""
        self._own[task] = self._now = os.getcwd()

    def show(self, task: Task | None) -> None:
        """Go where a task is, or the main program."""
        folder = self._main if task is None else self._own.get(task, self._main)
        if folder != self._now:
            _chdir(folder)
            self._now = folder

    def show_main(self) -> None:
        """Go where the main program is: it goes on."""
        self.show(None)

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Go where the task is that runs next."""
        del time_ps
        self.show(task)


_by_engine: dict[EngineInterface, _Folders] = {}


def forget_folders(engine: EngineInterface) -> None:
    """Restore the working directory of the main program; no rank runs any more."""
    folders = _by_engine.pop(engine, None)
    if folders is not None:
        folders.show_main()
        engine.on_hub.remove(folders.show_main)
        if folders in engine.observers:
            engine.observers.remove(folders)


def _noted(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def change(path: Any) -> None:  # noqa: ANN401 - a path or a descriptor
        task = running_task()
        folders = None if task is None else _by_engine.get(task.engine)
        if task is not None and folders is None:
            folders = _by_engine[task.engine] = _Folders()
            task.engine.observers.append(folders)
            task.engine.on_hub.append(folders.show_main)
        original(path)
        if task is not None and folders is not None:
            folders.moved(task)

    return change


# ---- Files that a rank removes: last of all that ranks do at that time ----
# What a rank does on its host takes next to no simulated time. Rank 0, which goes on first,
# would remove a checkpoint behind a barrier before the others have opened it, where processes
# have all read it by then.

_REMOVE_PS = 10_000_000  # assumed: to remove a file takes a host some 10 us


def _last(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def remove(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the original's
        task = running_task()
        try:
            if not (task is None or task.num_quiet or is_looking() or is_importing()):
                task.engine.sleep(_REMOVE_PS)
        finally:  # A rank that is aborted meanwhile tidies up all the same.
            original(*args, **kwargs)

    return remove


# ---- ends of ranks as of processes: by a signal, or at once by `os._exit` ----

_TIMERS = tuple(getattr(signal, name, None) for name in ("SIGALRM", "SIGVTALRM", "SIGPROF"))
_HARMLESS = ("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU")


def _exit(original: Callable[[int], NoReturn]) -> Callable[[int], None]:
    @functools.wraps(original)
    def exit_(status: int) -> None:
        task = running_task()
        if task is None:
            original(status)
        else:
            end_at_once(task, status & 0xFF)

    return exit_


def _abort(original: Callable[[], NoReturn]) -> Callable[[], None]:
    @functools.wraps(original)
    def abort() -> None:
        task = running_task()
        if task is None:
            original()
        else:
            end_at_once(task, -signal.SIGABRT)

    return abort


def _kill(original: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @functools.wraps(original)
    def kill(pid: int, number: int) -> None:
        task, program = running_task(), current_program()
        if task is None or program is None:
            original(pid, number)
            return
        if pid == os.getpid():
            pid = pid_of(program)
        target = rank_with(pid, task.engine)
        if target is None:
            original(pid, number)
        elif target is not task.main:
            _send(target, number)
        elif not _deliver(task, number):
            original(os.getpid(), number)

    return kill


def _send(target: Task, number: int) -> None:
    """Do to another rank what a signal does to a process that does not handle it.

    Raises:
        ProcessLookupError: The rank has ended.
        UnsupportedError: It handles the signal: it could not do that before its next turn.
    """
    if target.finished:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    own = _handlers.get(target, {}).get(number, signal.SIG_DFL)
    if own is signal.SIG_IGN:
        return
    if own is not signal.SIG_DFL:
        raise UnsupportedError(
            f"signal {number} for {target.name}, which handles it, from another rank\n"
            "  to fix: tell it by a message, or by an Event of simrank.multiprocessing"
        )
    if number and number not in _harmless():
        stopped.add(target)
        end_at_once(target, -number)


def _raise_signal(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def raise_signal(number: int) -> None:
        task = running_task()
        if task is None or not _deliver(task, number):
            original(number)

    return raise_signal


# ---- handlers: each rank has its own, as each process would ----

_handlers: WeakKeyDictionary[Task, dict[int, Any]] = WeakKeyDictionary()


def _own_handlers() -> dict[int, Any] | None:
    """Return the running rank's handlers; None outside of ranks."""
    program, task = current_program(), running_task()
    if program is None or task is None:
        return None
    return _handlers.setdefault(program.task or task, {})


def handlers_of(program: Program) -> list[object]:
    """Return the signals that a rank handles, each with what handles it."""
    task = program.task
    return [] if task is None else [*_handlers.get(task, {}).items()]


def _set_handler(number: int, handler: Any) -> Any:  # noqa: ANN401 - as signal.signal
    """Replace `signal.signal`."""
    own = _own_handlers()
    if own is not None and number in _TIMERS:
        own[number] = handler  # Of what the rank raises; a timer is the process's, which has one.
    if own is None or number in _TIMERS:
        task = running_task()
        set_ = partial(interrupts.set_handler, number, handler, is_ranks=task is not None)
        # Python lets its main thread alone set it, and that is the hub's.
        on_thread = task is not None and task.carrier.thread_id is not None
        return threads.on_hub(task, set_) if task is not None and on_thread else set_()
    if not callable(handler) and handler not in {signal.SIG_DFL, signal.SIG_IGN}:
        raise TypeError(
            "signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object"
        )
    before = _get_handler(number)
    own[number] = handler
    return before


def _get_handler(number: int) -> Any:  # noqa: ANN401 - as signal.getsignal
    """Replace `signal.getsignal`."""
    own = _own_handlers()
    return own[number] if own and number in own else interrupts.get_handler(number)


def _deliver(task: Task, number: int) -> bool:
    """Do what a signal does to the rank that sends it itself; return whether that is all."""
    own = (_own_handlers() or {}).get(number) if number else None
    if callable(own) and own not in {signal.SIG_DFL, signal.SIG_IGN}:
        own(number, sys._getframe(2))  # noqa: SLF001 - the documented way to a frame
    elif own is None and not _ends(number):
        return False
    elif own is not signal.SIG_IGN and number not in _harmless():
        end_at_once(task, -number)
    return True


def _harmless() -> set[int | None]:
    return {getattr(signal, name, None) for name in _HARMLESS}


def _ends(number: int) -> bool:
    """Return whether a signal would end the process: it has no handler."""
    if number == 0 or number in _harmless():
        return False
    return interrupts.get_handler(number) is signal.SIG_DFL
