"""Places of a program: where a rank is, and with which values, to know a loop that changes nothing.

What cannot be looked into (an iterator, an open file) makes a place unsure: it equals no other.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from collections import deque
from functools import cache
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.engine.callsite import is_library

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

MAX_DEPTH = 6  # Assumed: what lies deeper is not looked into.
_PLAIN = (int, float, str, bytes, bool, type(None), complex, range, slice)
_NAMED = (ModuleType, FunctionType, BuiltinFunctionType, MethodType, type)
_ITERATORS = ("range_iterator", "list_iterator", "tuple_iterator", "enumerate", "zip")


class Place(NamedTuple):
    """Where a rank is.

    Attributes:
        digest: Equal for equal places.
        line: The innermost line of the program, for reports.
        is_sure: Whether all values could be looked into.
    """

    digest: bytes
    line: str
    is_sure: bool


def digest_of(*values: object) -> bytes:
    """Return a hash of plain values."""
    return blake2b(repr(values).encode(), digest_size=12).digest()


def line_here() -> str:
    """Return the innermost line of the program that called."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to a frame
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "an unknown line" if frame is None else _line(frame)


def place_here(clocks: type | tuple[type, ...]) -> Place:
    """Return the place of the calling rank.

    Args:
        clocks: Types of readings of clocks, which all count as equal.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to a frame
    line, look = "", _Look(clocks)
    found: list[object] = []
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            line = line or _line(frame)
            look.is_sure &= not code.co_flags & inspect.CO_GENERATOR
            found.append((code.co_qualname, frame.f_lasti, look.at(frame.f_locals)))
            if frame.f_locals is not frame.f_globals:
                found.append(look.at(_state(frame.f_globals)))
            found.append(look.at(_iterators(frame, look)))
        frame = frame.f_back
    return Place(digest_of(found), line or "an unknown line", look.is_sure)


def _line(frame: FrameType) -> str:
    name = frame.f_code.co_filename.rpartition("/")[2]
    return f"{name}:{frame.f_lineno}"


def _state(names: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of a module that a program may change."""
    return {
        name: value for name, value in names.items()
        if not name.startswith("__") and not isinstance(value, _NAMED)
    }  # fmt: skip


def _iterators(frame: FrameType, look: _Look) -> list[Any]:
    """Return the state of the iterators of the `for` loops that a frame is in."""
    depth = sum(first <= frame.f_lasti < last for first, last in _loops(frame.f_code))
    if not depth:
        return []
    found = [each for each in gc.get_referents(frame) if type(each).__name__ in _ITERATORS]
    look.is_sure &= len(found) >= depth
    return [each.__reduce__() for each in found]


@cache
def _loops(code: CodeType) -> list[tuple[int, int]]:
    return [(i.offset, i.argval) for i in dis.get_instructions(code) if i.opname == "FOR_ITER"]


class _Look:
    """Looks into values.

    Attributes:
        is_sure: Whether all that it was shown could be looked into.
    """

    def __init__(self, clocks: type | tuple[type, ...]) -> None:
        self.is_sure = True
        self._clocks = clocks

    def at(self, value: Any, depth: int = 0, within: frozenset[int] = frozenset()) -> object:  # noqa: ANN401 - any value
        """Return what stands for a value: equal for equal ones."""
        if isinstance(value, self._clocks):
            return "a reading of a clock"
        if isinstance(value, _PLAIN):
            return type(value).__name__, repr(value)
        if id(value) in within or isinstance(value, _NAMED):
            return getattr(value, "__qualname__", type(value).__name__)
        if depth > MAX_DEPTH:
            self.is_sure = False
            return "..."
        array = _as_array(value)
        if array is not None:
            return digest_of(array.shape, array.dtype.str, np.ascontiguousarray(array).tobytes())
        return self._into(value, depth + 1, within | {id(value)})

    def _into(self, value: Any, depth: int, within: frozenset[int]) -> object:  # noqa: ANN401 - any value
        def each(values: Iterable[Any]) -> list[object]:
            return [self.at(item, depth, within) for item in list(values)]

        if isinstance(value, dict):
            return "dict", each(value), each(value.values())
        if isinstance(value, list | tuple | deque):
            return type(value).__name__, each(value)
        if isinstance(value, set | frozenset):
            return type(value).__name__, sorted(map(repr, each(value)))
        kind = type(value)
        if kind.__module__.partition(".")[0] in ("simrank", "torch"):
            # What of it changes, changes with calls, which the history has.
            return kind.__qualname__, getattr(value, "_version", None)
        if hasattr(value, "__dict__") and not hasattr(value, "__next__"):
            return kind.__qualname__, self.at(vars(value), depth, within)
        self.is_sure = False
        return kind.__qualname__


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:  # noqa: ANN401 - any value
    """Return the numbers of an array, or of a tensor of the host; None for anything else."""
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else value
    if type(value).__module__ != "torch" or getattr(value, "device", None) is None:
        return None
    if value.device.type != "cpu" or value.layout != sys.modules["torch"].strided:
        return None
    try:
        found: np.ndarray[Any, Any] = value.detach().numpy()
    except (RuntimeError, TypeError):  # A type that numpy lacks.
        return None
    return found
