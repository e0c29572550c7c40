"""Which modules are the program's own: not simrank's, not installed, not the standard library's."""

from __future__ import annotations

import contextlib
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from simrank.engine.introspection import module_text

if TYPE_CHECKING:
    from types import ModuleType

_STANDARD_LIBRARY = str(Path(contextlib.__file__).parent) + "/"
_PACKAGE = str(Path(__file__).parent.parent) + "/"
_OF_INSTALLED = ("/site-packages/", "/dist-packages/")  # The second in Debian's Python.
_own_files: dict[str, bool] = {}
_installed: dict[int, weakref.ref[ModuleType]] = {}  # By identity: another of a name is another.


def own_modules() -> list[ModuleType]:
    """Return the program's own modules that have been imported.

    To look at every module's file takes 3 ms in a program with torch, and Contexts come and go.
    """
    known = _installed
    found = [m for m in tuple(sys.modules.values()) if m is not None and id(m) not in known]
    own = [module for module in found if is_programs_own(module)]
    for module in set(found) - set(own):
        if module_text(module, "__file__") is not None:  # Scripts may get one later.
            _note_installed(module)
    return own


def _note_installed(module: ModuleType) -> None:
    """Note that a module is not the program's own, as long as it lives."""
    number = id(module)
    _installed[number] = weakref.ref(module, lambda _: _installed.pop(number, None))


def is_installed(module: ModuleType) -> bool:
    """Whether a module is of a package that was installed: of an index's, say."""
    file = module_text(module, "__file__")
    return file is not None and any(folder in file for folder in _OF_INSTALLED)


def is_programs_own(module: ModuleType) -> bool:
    """Whether a module is neither simrank's nor installed nor the standard library's."""
    file = module_text(module, "__file__")
    if file is None:
        return module_text(module, "__name__") == "__main__"
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
