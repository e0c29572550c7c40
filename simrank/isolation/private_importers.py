"""Importers of private packages, which become private, too.

A process that is spawned imports the module of its function, and with that the package, for itself.
A rank that had the package for itself and not the module would call what the main program has
imported, as all others do.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from simrank.engine.callsite import attributes_of, depth_of_user, is_real, module_text
from simrank.isolation import main_modules
from simrank.isolation.private_modules import is_within, modules_stamp, place_within
from simrank.ranks.program_modules import KNOWING, STATEFUL, PerModule, is_installed, own_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

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
    if not main_modules.has_file():  # It was typed at a prompt, and cannot be executed again.
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
        name: _homes_in(module)
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


def _homes_in(module: ModuleType) -> frozenset[str]:
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


_homes: PerModule[frozenset[str]] = PerModule(_homes_in)


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
