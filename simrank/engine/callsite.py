"""Call sites of the user's program, and its objects, inspected without running its code."""

from __future__ import annotations

import contextlib
import importlib
import sys
from functools import lru_cache
from pathlib import Path
from types import (
    CodeType,
    FrameType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar, overload

from simrank.errors.base import place_text

if TYPE_CHECKING:
    from collections.abc import Mapping


# ---- inspection of a program's objects without running the program's code ----

_T = TypeVar("_T")
_U = TypeVar("_U")
_V = TypeVar("_V")
_NATIVE = (GetSetDescriptorType, MemberDescriptorType)
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_names_of_class: Any = type.__dict__["__dict__"].__get__
_order_of_class: Any = type.__dict__["__mro__"].__get__


@overload
def is_real(value: object, kinds: type[_T]) -> TypeGuard[_T]: ...
@overload
def is_real(value: object, kinds: tuple[type[_T]]) -> TypeGuard[_T]: ...
@overload
def is_real(value: object, kinds: tuple[type[_T], type[_U]]) -> TypeGuard[_T | _U]: ...
@overload
def is_real(
    value: object, kinds: tuple[type[_T], type[_U], type[_V]]
) -> TypeGuard[_T | _U | _V]: ...
@overload
def is_real(value: object, kinds: tuple[type, ...]) -> bool: ...
def is_real(value: object, kinds: Any) -> bool:
    """Return whether the real type of a value, not its `__class__`, is one of some classes."""
    return issubclass(type(value), kinds)


def attributes_of(value: object) -> Mapping[str, Any]:
    """Return the own attributes of an object; empty where it has none or computes them."""
    if type(value) is ModuleType:
        return value.__dict__
    for kind in _order_of_class(type(value)):
        found = _names_of_class(kind).get("__dict__")
        if found is not None:
            native = type(found) in _NATIVE
            names: Mapping[str, Any] | None = found.__get__(value) if native else None
            return _NOTHING if names is None else names
    return _NOTHING


def module_text(module: object, name: str) -> str | None:
    """Return a text attribute of a module, such as its file; None for other objects."""
    value = attributes_of(module).get(name) if is_real(module, ModuleType) else None
    return value if type(value) is str else None


# ---- call sites of the user's program: cheap to take, read only for reports ----

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"
_STANDARD_LIBRARY = str(Path(contextlib.__file__).parent) + "/"
_new_tuple = tuple.__new__  # What a NamedTuple's constructor calls: every operation has a site.
_folders: list[str] = []  # Of code that a library has generated.
_library_files: set[str] = set()  # Those known to be: more are skipped later, never fewer.
_INSTALLED = ("/site-packages/", "/dist-packages/")
_programs: set[str] = set()  # Folders and files of installed packages that hold a program.
_skipped = ["triton"]  # Packages that call back into a program on behalf of their caller.


class SourceLine(NamedTuple):
    """A file and line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        """Return `name.py:41`: the file's name is enough to find it in one's own program."""
        return place_text(self.file, self.line)


def skip_package(name: str) -> None:
    """Skip a package in reports: they name the line that called it.

    For a layer that replaces a library: frames of `torch` between a rank and simrank are
    not the program's. simrank itself, the standard library and triton are skipped always.
    """
    if name not in _skipped:
        _skipped.append(name)
        is_library.cache_clear()
        is_installed.cache_clear()


def skip_folder(path: str) -> None:
    """Skip a folder of generated code in reports."""
    if path not in _folders:
        _folders.append(path)
        is_library.cache_clear()
        is_installed.cache_clear()


@lru_cache(maxsize=4096)
def is_library(filename: str) -> bool:
    """Whether a frame of this file is simrank's own, the standard library's or is skipped."""
    if filename.startswith(_STANDARD_LIBRARY) and "/site-packages/" not in filename:
        return True
    return filename.startswith((_PACKAGE, "<frozen ", "<eval_with_key>", *_skipped_folders()))


@lru_cache(maxsize=4096)
def is_installed(filename: str) -> bool:
    """Return whether a file belongs to a library: one as above, or an installed package.

    An installed package is the user's where the program lives in it.
    """
    if is_library(filename):
        return True
    return any(part in filename for part in _INSTALLED) and not filename.startswith(
        tuple(_programs)
    )


def note_program(code: CodeType | None) -> None:
    """Treat the installed package of a program's code, if it is in one, as the user's."""
    filename = "" if code is None else code.co_filename
    folder = next((part for part in _INSTALLED if part in filename), None)
    if folder is None or is_library(filename):
        return
    start, _, rest = filename.rpartition(folder)
    top, separator, _ = rest.partition("/")
    package = f"{start}{folder}{top}{separator}"
    if package not in _programs:
        _programs.add(package)
        is_installed.cache_clear()
        _library_files.clear()


def is_simranks(filename: str) -> bool:
    """Return whether a frame of this file is simrank's own."""
    return filename.startswith(_PACKAGE)


def _skipped_folders() -> list[str]:
    """Return the folders of skipped packages; packages without an import have no frames."""
    modules = [sys.modules[name] for name in _skipped if name in sys.modules]
    return [folder + "/" for folder in _folders] + [
        folder + "/" for module in modules for folder in attributes_of(module).get("__path__", ())
    ]


class CallSite(NamedTuple):
    """A line of the user's program, as code and instruction: the line is resolved on demand."""

    code: CodeType
    instruction: int

    def line(self) -> SourceLine:
        """Resolve to file and line."""
        for start, stop, line in self.code.co_lines():
            if start <= self.instruction < stop and line is not None:
                return SourceLine(self.code.co_filename, line)
        return SourceLine(self.code.co_filename, self.code.co_firstlineno)


def site_of_frame(frame: FrameType | None) -> CallSite | None:
    """Return the innermost site of `frame`'s stack that is the user's, or None.

    Where an installed package has called on its own, as in a thread, it is the package's.
    """
    known, innermost = _library_files, frame
    while frame is not None:
        code = frame.f_code
        if code.co_filename not in known:  # A call of a function for each frame shows.
            if not is_installed(code.co_filename):
                return _new_tuple(CallSite, (code, frame.f_lasti))
            known.add(code.co_filename)
        frame = frame.f_back
    while innermost is not None:
        if not is_library(innermost.f_code.co_filename):
            return _new_tuple(CallSite, (innermost.f_code, innermost.f_lasti))
        innermost = innermost.f_back
    return None


def user_site(depth: int = 1) -> CallSite | None:
    """Return the call site at which the user's program entered simrank.

    Args:
        depth: Frames of simrank's that are known to lie between: Python need not make them.
    """
    return site_of_frame(sys._getframe(depth))  # noqa: SLF001 - the documented way to a frame


def user_frame() -> FrameType | None:
    """Return the innermost frame of the user's program that led into simrank."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    while frame is not None and is_installed(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_stack() -> tuple[CallSite, ...]:
    """Return the lines of the user's program that led into simrank, the innermost first."""
    sites = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            sites.append(CallSite(frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(sites)


def is_called_by_package() -> bool:
    """Return whether an installed package calls simrank, through the standard library or not."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to a caller
    while frame is not None:
        file = frame.f_code.co_filename
        if any(folder in file for folder in _INSTALLED):
            return True
        if not file.startswith((_PACKAGE, _STANDARD_LIBRARY)):
            return False
        frame = frame.f_back
    return False


def depth_of_user() -> int:
    """Return the `stacklevel` that makes a warning of the caller name the user's line."""
    depth, frame = 1, sys._getframe(1)  # noqa: SLF001 - as above
    while is_installed(frame.f_code.co_filename) and frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def is_importing() -> bool:
    """Return whether a module that is being imported is on the caller's stack."""
    if not _module_locks:
        return False
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the way to one's own stack
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False


def in_debugger(frame: FrameType | None) -> bool:
    """Return whether a debugger prompts, or traces one of these frames."""
    bdb = sys.modules.get("bdb")
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in _DEBUGGERS:
            return True
        tracer = getattr(frame.f_trace, "__self__", None)
        if bdb is not None and isinstance(tracer, bdb.Bdb):
            return True
        frame = frame.f_back
    return False


_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy", "pudb")
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
_module_locks: dict[str, object] = importlib._bootstrap._module_locks  # type: ignore[attr-defined]  # noqa: SLF001 - one for each module that is being imported
