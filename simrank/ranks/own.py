"""Which modules are the program's own: not simrank's, not installed, not the standard library's."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_STANDARD_LIBRARY = str(Path(contextlib.__file__).parent) + "/"
_PACKAGE = str(Path(__file__).parent.parent) + "/"
_OF_INSTALLED = ("/site-packages/", "/dist-packages/")  # The second in Debian's Python.
_own_files: dict[str, bool] = {}


def own_modules() -> list[ModuleType]:
    """Return the program's own modules that have been imported."""
    modules = sys.modules
    found = [modules.get(name) for name in _not_installed(tuple(modules))]
    return [module for module in found if module is not None and is_programs_own(module)]


@functools.lru_cache(maxsize=8)
def _not_installed(names: tuple[str, ...]) -> list[str]:
    """Return which of all names of modules are of none that is known to be installed.

    To look at every module takes 3 ms in a program with torch, and Contexts come and go. Scripts
    are run as `__main__` one after the other.
    """
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return [
        name
        for name, file in files.items()
        if name == "__main__" or not isinstance(file, str) or is_programs_own_file(file)
    ]


def is_installed(module: ModuleType) -> bool:
    """Whether a module is of a package that was installed: of an index's, say."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and any(folder in file for folder in _OF_INSTALLED)


def is_programs_own(module: ModuleType) -> bool:
    """Whether a module is neither simrank's nor installed nor the standard library's."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return getattr(module, "__name__", "") == "__main__"
    return is_programs_own_file(file)


def is_programs_own_file(file: str | None) -> bool:
    """Whether a module's file is neither simrank's nor installed nor the standard library's."""
    if file is None:
        return False
    known = _own_files.get(file)
    if known is not None:
        return known
    is_foreign = file.startswith((_STANDARD_LIBRARY, _PACKAGE))
    own = not is_foreign and not any(folder in file for folder in _OF_INSTALLED)
    _own_files[file] = own
    return own
