"""A rank's `__main__`, and importers of private packages, which become private, too.

A process that is spawned imports the module of its function, and with that the package, for itself.
A rank that had the package for itself and not the module would call what the main program has
imported, as all others do.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from simrank.engine.callsite import attributes_of, depth_of_user, is_real, module_text
from simrank.errors.base import add_note
from simrank.isolation import finalizers
from simrank.isolation.private_modules import (
    is_within,
    modules_stamp,
    place_within,
    private_modules,
)
from simrank.ranks.program_modules import KNOWING, STATEFUL, PerModule, is_installed, own_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import CodeType

    from simrank.isolation.private_modules import PrivateModules
    from simrank.ranks.current import Program


# ---- a rank's `__main__`: its script, which each process that it spawns runs again ----

_NAMES = ("__main__", "__mp_main__")  # multiprocessing gives a program both.


@dataclass(frozen=True)
class Main:
    """A script, ready to be executed.

    Attributes:
        code: Of the file.
        names: What is there before it runs, but for `__name__`.
    """

    code: CodeType
    names: Mapping[str, Any]


def execute(program: Program, main: Main, name: str = "__main__") -> None:
    """Execute a script as the main module of the running program."""
    own, code = private_modules(program), main.code
    names = {"__name__": name, **main.names}
    if own is not None:  # What it defines may be pickled by name.
        own.main, code = main, own.compared(code)
        if own.before_code is not None:
            own.before_code()
        module = ModuleType(name)
        module.__dict__.update(names)
        for each in _NAMES:
            own.put(each, module)
        names = module.__dict__
        finalizers.keep_script(program, names)
    exec(code, names)  # noqa: S102 - that is what running a script means


def has_file() -> bool:
    """Return whether the process's main program can be executed again: at a prompt, it cannot."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return file is not None and Path(file).is_file()


def of(program: Program) -> Main | None:
    """Return the script of a program, for ranks that execute it as processes would.

    That of the main program is read from its file.
    """
    own = private_modules(program)
    if own is not None:
        return own.main
    main: Any = sys.modules["__main__"]
    spec, names = main.__spec__, {"__file__": main.__file__, "__builtins__": __builtins__}
    if spec is None:
        return Main(compile(Path(main.__file__).read_bytes(), main.__file__, "exec"), names)
    return Main(
        spec.loader.get_code(spec.name), names | {"__spec__": spec, "__package__": spec.parent}
    )


def is_main(name: str) -> bool:
    """Return whether a module's name is that of the main program, here or in a child process."""
    return name in _NAMES


# Those of the ranks that execute their script now, as they begin.
beginning: WeakSet[PrivateModules] = WeakSet()


def begin_process(program: Program) -> None:
    """Execute the script of the spawning program, as processes of multiprocessing do."""
    own = private_modules(program)
    if own is None or own.begins_with is None:
        return
    beginning.add(own)
    try:
        execute(program, own.begins_with, "__mp_main__")
    except Exception as error:
        add_note(error, "simrank: raised as a spawned process executed the script, as __mp_main__")
        raise
    finally:
        beginning.discard(own)


def check_begun(program: Program) -> None:
    """Refuse to start processes from a script that is executed as a process begins.

    Raises:
        RuntimeError: It is; multiprocessing raises the same.
    """
    of: Program | None = program
    while of is not None:  # The rank itself, or one that has entered the Context it spawns in.
        own = private_modules(of)
        if own in beginning:
            raise RuntimeError(
                "a spawned process executes the script first, and this one would spawn again\n"
                '  to fix: start processes under `if __name__ == "__main__":`'
            )
        of = of.outer


# ---- importers of private packages, which become private, too ----

_installed: dict[frozenset[str], tuple[object, dict[str, str]]] = {}  # Stamp, and importers then.


def private_names(fn: Callable[..., Any], asked: Iterable[str]) -> frozenset[str]:
    """Return the modules that each rank of the main program executes for itself.

    These are the requested ones, `STATEFUL` packages, and every module that has taken something of
    them. A function that cannot be found in a copy of such a module, as it is local or was typed at
    a prompt, calls what the main program has imported: ranks then share it, and a warning says so.

    Args:
        fn: What spawn was given.
        asked: Packages and modules that are to be private.
    """
    names = frozenset(asked)
    importers = importers_of(names | STATEFUL)
    target = _target(fn)
    taken = importers.get(str(getattr(target, "__module__", None)))
    all_names = names.union(STATEFUL, importers)
    if not has_file():  # It was typed at a prompt, and cannot be executed again.
        all_names -= {"__main__"}
    if taken is None or place_within(all_names, target) is not None:
        return all_names
    warnings.warn(_text(target, taken), stacklevel=depth_of_user())
    return names | STATEFUL.difference(sys.modules)


def importers_of(names: frozenset[str]) -> Mapping[str, str]:
    """Return the modules that have taken something of private packages, and a package of each.

    Args:
        names: The packages. An installed module that has something of one counts with all of its
            own package.
    """
    if sys.modules.keys().isdisjoint(names):  # Nearly always.
        return {}
    stamp = modules_stamp()
    known = _installed.get(names)
    if known is None or known[0] != stamp:
        known = _installed[names] = stamp, _closure(dict(_homes_of_installed()), names)
    own = {
        name: homes_in(module)
        for module in own_modules()
        if (name := module_text(module, "__name__")) is not None
        and sys.modules.get(name) is module  # multiprocessing has another name for one.
    }
    return known[1] | _closure(own, names.union(known[1]))


def _closure(held: Mapping[str, frozenset[str]], names: frozenset[str]) -> dict[str, str]:
    """Return the modules that hold objects of private ones, directly or through importers."""
    found: dict[str, str] = {}
    all_homes = sorted(frozenset[str]().union(*held.values()))
    left = {name: of for name, of in held.items() if not is_within(names, name)}
    while left:
        private = names.union(found)
        taken = [home for home in all_homes if is_within(private, home)]
        new = {
            name: next((home for home in taken if home in of), None) for name, of in left.items()
        }
        if not any(new.values()):
            break
        found |= {n: found.get(home, home.partition(".")[0]) for n, home in new.items() if home}
        left = {name: of for name, of in left.items() if name not in found}
    return found


def _homes_of_installed() -> Iterator[tuple[str, frozenset[str]]]:
    """Yield installed packages, and where what their modules hold is from."""
    by_package: dict[str, set[str]] = {}
    for name, module in sys.modules.copy().items():
        package = name.partition(".")[0]
        if package in KNOWING or not is_real(module, ModuleType) or not is_installed(module):
            continue
        by_package.setdefault(package, set()).update(_homes(module))
    for package, of in by_package.items():
        yield package, frozenset(of)


def homes_in(module: ModuleType) -> frozenset[str]:
    """Return the names of the modules that what a module holds is of."""
    found = set()
    for value in list(attributes_of(module).values()):
        if is_real(value, ModuleType):
            home: object = module_text(value, "__name__")
        else:
            home = (value if is_real(value, (type, FunctionType)) else type(value)).__module__
        if type(home) is str:
            found.add(home)
    return frozenset(found)


_homes: PerModule[frozenset[str]] = PerModule(homes_in)


def _target(fn: Callable[..., Any]) -> object:
    """Return the function that is called in the end, or the class of what is called."""
    while isinstance(fn, partial):
        fn = fn.func
    if str(getattr(fn, "__module__", None)).startswith("simrank."):  # It calls the user's.
        fn = getattr(fn, "__wrapped__", fn)
    target = getattr(fn, "__func__", fn)
    of = getattr(fn, "__self__", None)
    if target is not fn and isinstance(of, type):  # It is found in its class.
        target = of
    return target if is_real(target, (type, FunctionType)) else type(target)


def _text(target: object, package: str) -> str:
    name = getattr(target, "__qualname__", str(target))
    module = getattr(target, "__module__", "its module")
    return (
        f"simrank: ranks share what {module} has imported of {package}, where processes would each "
        f"have their own: {name} cannot be found in a copy of {module}\n"
        f"  to fix: define {name} at the top of a module's file, or import {package} in it"
    )
