"""What a program will import, read off its files: the carrier is chosen before it runs."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

from simrank.ranks.own import is_programs_own_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec

_IMPORTS = ("IMPORT_NAME",)
_MAX_FILES = 2000  # Assumed: no program's own part is larger; beyond, it is not looked at.


def will_import(code: CodeType, libraries: Sequence[str]) -> list[str]:
    """Return which libraries a program imports: itself, by its own modules, or by a package.

    Read without running anything: the import statements of the program and of all its own modules,
    and what installed packages that it imports say that they require.
    """
    wanted, found = set(libraries), set[str]()
    for name in _imported_packages(code):
        if name in wanted:
            found.add(name)
        elif name not in sys.stdlib_module_names:
            found |= wanted & _required(name)
    return sorted(found)


def _imported_packages(code: CodeType) -> Iterator[str]:
    """Yield the first names of modules that are imported, those of the program's own followed."""
    seen: set[str] = set()
    followed: set[str] = set()
    codes = [code]
    while codes and len(followed) < _MAX_FILES:
        for full_name in _imports(codes.pop()):
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
    try:
        return [compile(Path(spec.origin or "").read_bytes(), spec.origin or "", "exec")]
    except (OSError, SyntaxError, ValueError):
        return []  # It says so itself when it is imported.


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


def _imports(code: CodeType) -> Iterator[str]:
    """Yield the names in the import statements of code and of what it defines."""
    import dis  # noqa: PLC0415 - only programs in files need it

    for instruction in dis.get_instructions(code):
        if instruction.opname in _IMPORTS and instruction.argval:
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports(constant)


def _required(package: str) -> set[str]:
    """Return the first names of what an installed package says that it requires, at any depth."""
    distributions = packages_distributions()
    names, seen = set[str](), set[str]()
    open_names = list(distributions.get(package, ()))
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
    return names


def _name_of(requirement: str) -> str:
    """Return the name in a requirement such as `torch>=2.1; python_version > "3.8"`."""
    name = ""
    for character in requirement:
        if not (character.isalnum() or character in "-_."):
            break
        name += character
    return name
