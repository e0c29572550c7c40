"""Imports of a program, read from its files to choose the carrier before it runs."""

from __future__ import annotations

import os
import sys
from functools import lru_cache, partial
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from simrank.engine.callsite import attributes_of, is_real, module_text
from simrank.isolation import libraries
from simrank.ranks.program_modules import KNOWING, PerModule, is_programs_own, is_programs_own_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec

_IMPORTS = ("IMPORT_NAME",)
_MAX_FILES = 2000  # Assumed: no program's own part is larger; beyond, it is not looked at.


def will_import(code: CodeType, libraries: Sequence[str]) -> list[str]:
    """Return the libraries that a program imports, directly or through modules and packages.

    Read without running anything: the import statements of the program and of all its own modules,
    and what installed packages that it imports say that they require. A module that is not there
    may import any of them if the program itself adds folders to `sys.path`.
    """
    wanted, found = set(libraries), set[str]()
    if not wanted:
        return []
    adds_folders = {"sys", "path"} <= set(code.co_names)
    installed = _places_of_packages()
    for name in _imported_packages(code):
        if name in wanted:
            found.add(name)
        elif adds_folders and name not in sys.stdlib_module_names and find(name) is None:
            found |= wanted
        elif name not in _WITHOUT_LIBRARIES:
            found |= wanted & _required(name, installed)
    return sorted(found)


def uses_library(fn: Callable[..., object], args: Sequence[object]) -> bool:
    """Return whether a function or its arguments reach a registered library that is imported.

    Reached are the modules that define the function and its arguments, the modules whose objects
    those modules hold, and what import statements in the program's own files name, also inside
    functions. What other code of the process has imported does not count.
    """
    imported = {name for name in libraries.names() if name in sys.modules}
    if not imported:
        return False
    seen = set[str]()
    open_names = list(_homes_of((fn, *args)))
    while open_names:
        name = open_names.pop()
        package = name.partition(".")[0]
        if package in imported or name.startswith("simrank.torch"):
            return True
        if name in seen or package in _WITHOUT_LIBRARIES:
            continue
        seen.add(name)
        module = sys.modules.get(name)
        if is_real(module, ModuleType):
            open_names += _reached(module)
        elif module is None and _required(package, _places_of_packages()) & imported:
            return True  # A function imports it later.
    return False


_WITHOUT_LIBRARIES = (KNOWING - {"torch"}) | sys.stdlib_module_names - {"__main__"} | {"numpy"}
_MAX_VALUES = 10_000  # Assumed: arguments with more values than this are not searched to the end.


def _homes_of(values: Iterable[object]) -> Iterator[str]:
    """Yield the modules that define functions, types of values, and what containers hold."""
    seen = set[int]()
    open_values = list(values)
    while open_values and len(seen) < _MAX_VALUES:
        value = open_values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield from _home(value)
        open_values += _parts(value)


def _home(value: Any) -> Iterator[str]:  # noqa: ANN401 - any value
    """Yield a module's own name, or the modules that define a function, a class or its bases."""
    kind = type(value)
    if is_real(value, ModuleType):
        names: tuple[object, ...] = (module_text(value, "__name__"),)
    elif kind is FunctionType:
        names = (value.__module__, value.__globals__.get("__name__"))
    else:
        bases = type.mro(value) if issubclass(kind, type) and value is not type else ()
        names = tuple(vars(each).get("__module__") for each in (*kind.__mro__, *bases))
    for name in names:
        if type(name) is str:
            yield name


def _parts(value: Any) -> Iterable[object]:  # noqa: ANN401 - any argument
    """Return the values that a container, a function, a bound method or a partial holds."""
    read = _PARTS.get(type(value))
    return () if read is None else read(value)


def _is_in_module(function: FunctionType) -> bool:
    """Return whether its names are those of an imported module, not of a file that was run."""
    name = function.__globals__.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return attributes_of(module) is function.__globals__


def _contents(cell: CellType) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # It is empty as yet.
        return ()


_PARTS: dict[type, Callable[[Any], Iterable[object]]] = {
    **dict.fromkeys((list, tuple, set, frozenset), tuple),
    dict: lambda held: (*held.keys(), *held.values()),
    partial: lambda held: (held.func, *held.args, *held.keywords.values()),
    MethodType: lambda held: (held.__func__, held.__self__),
    FunctionType: lambda held: (
        held.__closure__ or (), held.__defaults__ or (), held.__kwdefaults__ or {}, vars(held),
        () if _is_in_module(held) else held.__globals__,
    ),
    CellType: _contents,
}  # fmt: skip


def _reached_by(module: ModuleType) -> frozenset[str]:
    """Return the modules whose objects a module holds, and those that its own file imports."""
    found = {name for value in list(attributes_of(module).values()) for name in _home(value)}
    if is_programs_own(module):
        for code in _codes_of(module_text(module, "__file__")):
            for name in imports_of(code):
                found |= {name, name.partition(".")[0]}
    return frozenset(found)


_reached: PerModule[frozenset[str]] = PerModule(_reached_by)


def _imported_packages(code: CodeType) -> Iterator[str]:
    """Yield the first names of modules that are imported, those of the program's own followed."""
    seen: set[str] = set()
    followed: set[str] = set()
    codes = [code]
    while codes and len(followed) < _MAX_FILES:
        for full_name in imports_of(codes.pop()):
            name = full_name.partition(".")[0]
            if name not in seen:
                seen.add(name)
                yield name
            for each in (name, full_name):
                if each not in followed and name not in sys.stdlib_module_names:
                    followed.add(each)
                    codes += _own_codes(each)


def _own_codes(name: str) -> list[CodeType]:
    """Return the code of a module if it is the program's own."""
    spec = find(name)
    if spec is None or not spec.has_location or not is_programs_own_file(spec.origin):
        return []
    return _codes_of(spec.origin)


def _codes_of(path: str | None) -> list[CodeType]:
    """Return the code in a file; nothing if it cannot be read or is not Python."""
    try:
        return [_compiled(Path(path or "").read_bytes(), path or "")]
    except (OSError, SyntaxError, ValueError):
        return []  # Importing it reports the error.


@lru_cache(maxsize=256)
def _compiled(text: bytes, path: str) -> CodeType:
    return compile(text, path, "exec")


def find(name: str) -> ModuleSpec | None:
    """Find a module without importing the packages that it is in; None if it is not there."""
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for number in range(len(parts)):
        places = None if spec is None else list(spec.submodule_search_locations or ())
        try:
            spec = PathFinder.find_spec(".".join(parts[: number + 1]), places)
        except KeyError:  # A folder without `__init__.py`: it asks for the package that it is in.
            spec = PathFinder.find_spec(parts[number], places)
        if spec is None:
            return None
    return spec


@lru_cache(maxsize=4096)
def imports_of(code: CodeType) -> tuple[str, ...]:
    """Return the names in the import statements of code and of what it defines."""
    import dis  # noqa: PLC0415 - only programs in files need it

    found = [
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in _IMPORTS and step.argval
    ]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += imports_of(constant)
    return tuple(found)


def _places_of_packages() -> tuple[str, ...]:
    """Return the places of `sys.path` where packages are installed; a search takes 0.2 s."""
    return tuple(place for place in sys.path if _has_packages(place))


def _has_packages(place: str) -> bool:
    try:
        names = os.listdir(place or ".")
    except OSError as error:
        return isinstance(error, NotADirectoryError)  # An archive.
    return any(name.lower().endswith(("dist-info", "egg-info")) for name in names)


@lru_cache(maxsize=1024)
def _required(package: str, path: tuple[str, ...]) -> frozenset[str]:
    """Return the first names of what an installed package says that it requires, at any depth."""
    names, seen = set[str](), set[str]()
    open_names = list(_distributions_of(package, path))
    while open_names:
        distribution = open_names.pop()
        if distribution in seen:
            continue
        seen.add(distribution)
        try:
            needed = requires(distribution) or []
        except PackageNotFoundError:
            continue
        for requirement in needed:
            if "extra ==" not in requirement:
                name = _name_of(requirement)
                names.add(name)
                open_names.append(name)
    return frozenset(names)


def _distributions_of(package: str, path: tuple[str, ...]) -> Sequence[str]:
    """Return the installed projects that a package may belong to; most have its name."""
    try:
        requires(package)
    except PackageNotFoundError:
        return _distributions(path).get(package, ())
    return (package,)


@lru_cache(maxsize=4)
def _distributions(path: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """Return the installed projects of each package; all of their files are listed for it."""
    del path  # Where they are looked for: it is what the result depends on.
    return packages_distributions()


def _name_of(requirement: str) -> str:
    """Return the name in a requirement such as `torch>=2.1; python_version > "3.8"`."""
    name = ""
    for character in requirement:
        if not (character.isalnum() or character in "-_."):
            break
        name += character
    return name
