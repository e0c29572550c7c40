"""Dispatched state of processes: random numbers, environment, argv, process ids.

It is made at first use and dispatched: what a patch finds the running rank, and nothing is swapped
when ranks take turns. Outside ranks everything is the process's own.
"""

from __future__ import annotations

import functools
import os
import random  # noqa: TID251 - dispatched here, drawn from nowhere
import sys
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.ranks.current import current_program, of_process, rank_program
from simrank.ranks.lifecycle import pid_of
from simrank.ranks.ports import FIRST_MASTER_PORT, ports_of

if TYPE_CHECKING:
    from types import ModuleType

    from simrank.engine import TaskGroup
    from simrank.ranks.current import Program

ERROR_FILES = (
    "folder of error files"  # In `Program.local`: where ranks that it starts leave theirs.
)
RESTARTS = "restarts"  # Likewise: how often ranks have been restarted, and may be.
_NUMPY_KEY = "generator of numpy.random"
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
            (np_random, name, _draw(getattr(np_random, name), _NUMPY_KEY, _numpy_generator, method))
            for name, method in _NUMPY_WRAPPERS.items()
        ),
        (np_random, "default_rng", _seeded(np_random.default_rng)),
        (environment, "_data", _Environment(environment._data)),  # noqa: SLF001 - what it reads
        (os, "putenv", _outside_ranks(os.putenv)),
        (os, "unsetenv", _outside_ranks(os.unsetenv)),
        (sys, "argv", _Arguments(sys.argv)),
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


def _master_port(program: Program) -> int:
    group = None if program.task is None else program.task.group
    if group is None:
        return FIRST_MASTER_PORT
    return ports_of(program).master_port(group)


_OF_EACH_RANK = frozenset(
    name.encode()
    for name in (
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE",
    )
)  # fmt: skip


def _torchrun_variables(program: Program) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank."""
    rank = program.started_rank
    assert rank is not None, "only ranks have them"
    per_node = program.context.cluster.devices_per_node
    first_of_node = rank - rank % per_node
    above = {} if program.parent is None else program.parent.local
    folder, restarts = above.get(ERROR_FILES), above.get(RESTARTS, (0, 0))
    files = {}
    if folder is not None:
        own = Path(folder) / str(rank)
        own.mkdir(parents=True, exist_ok=True)
        files["TORCHELASTIC_ERROR_FILE"] = str(own.absolute() / "error.json")
    return files | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_node),
        "WORLD_SIZE": str(program.world_size),
        "LOCAL_WORLD_SIZE": str(min(per_node, program.world_size - first_of_node)),
        "GROUP_RANK": str(rank // per_node),
        "GROUP_WORLD_SIZE": str(-(-program.world_size // per_node)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(program.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_master_port(program)),
        "TORCHELASTIC_RESTART_COUNT": str(restarts[0]),
        "TORCHELASTIC_MAX_RESTARTS": str(restarts[1]),
        "TORCHELASTIC_RUN_ID": "simrank",
    }


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
            encode = os.environ.encodekey
            added = {encode(k): encode(v) for k, v in _torchrun_variables(program).items()}
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


def id_patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of this module: owner, name and replacement."""
    return [
        (os, "getpid", _numbered(os.getpid, pid_of)),
        (os, "getppid", _numbered(os.getppid, _parents)),
    ]


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

    @functools.wraps(original)
    def number() -> int:
        program = rank_program()
        if program is None or _asks_for_real(sys._getframe(1).f_globals.get("__name__")):  # noqa: SLF001 - the documented way
            return original()
        if key not in program.local:
            program.local[key] = ask(program)
        found: int = program.local[key]
        return found

    return number


def _asks_for_real(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _FINDS_REAL
