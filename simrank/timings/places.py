"""Places of a program: the line of a rank and its values, to recognise loops.

What cannot be looked into (an iterator, an open file) makes a place unsure: it equals no other.
"""

from __future__ import annotations

import dis
import gc
import inspect
import random  # noqa: TID251 - its state is read, not drawn from
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
_STATELESS = frozenset({  # Of torch: what a rank's calls make of them, others see.
    "DeviceMesh", "FileStore", "HashStore", "PrefixStore", "ProcessGroup", "SimulatedStore", "Size",
    "TCPStore", "device", "dtype",
})  # fmt: skip
_SHARED = "simrank.multiprocessing"  # A look at one of its objects is a call on it.
_ITERATORS = ("range_iterator", "list_iterator", "tuple_iterator", "enumerate", "zip")


class Place(NamedTuple):
    """A position in a program with the values there.

    Attributes:
        digest: Equal for equal places.
        line: The innermost line of the program, for reports.
        is_sure: Whether all values could be looked into.
        is_whole: Whether nothing of the rank's state is in objects of libraries.
    """

    digest: bytes
    line: str
    is_sure: bool
    is_whole: bool


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
    return place_of(sys._getframe(1), clocks)  # noqa: SLF001 - the documented way to a frame


def place_of(frame: FrameType | None, clocks: type | tuple[type, ...]) -> Place:
    """Return the place of a rank: its lines, and the values that it may still read.

    Args:
        frame: The innermost frame.
        clocks: As of `place_here`.
    """
    line, look = "", _Look(clocks)
    found: list[object] = []
    while frame is not None:
        code = frame.f_code
        if is_library(code.co_filename):
            found.append((code.co_name, frame.f_lasti))
        else:
            line = line or _line(frame)
            look.is_sure &= not code.co_flags & inspect.CO_GENERATOR
            live = live_names(code, frame.f_lasti)
            values = frame.f_locals.items()
            kept = {
                n: v for n, v in values if not n.startswith("__") and (live is None or n in live)
            }
            found.append((code.co_qualname, frame.f_lasti, look.at(kept)))
            if frame.f_locals is not frame.f_globals:
                found.append(look.at(_state(frame.f_globals)))
            found.append(look.at(_iterators(frame, look)))
        frame = frame.f_back
    return Place(digest_of(found), line or "an unknown line", look.is_sure, look.is_whole)


def drawn_numbers() -> bytes:
    """Return a hash of the state of the rank's random numbers."""
    torch = sys.modules.get("torch")
    state = b"" if torch is None else torch.get_rng_state().numpy().tobytes()
    return digest_of(random.getstate(), state)


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


# ---- names that a frame may still read ----

_READS_ALL = frozenset({"eval", "exec", "globals", "locals", "vars", "dir"})


@cache
def live_names(code: CodeType, offset: int) -> frozenset[str] | None:
    """Return the names whose values a frame may read after an instruction; None: any.

    Args:
        code: The frame's.
        offset: The instruction that it is in.
    """
    inner = _names_within(code)
    if inner & _READS_ALL:
        return None
    after = _live_after(code)
    return frozenset(after.get(offset, frozenset(code.co_names + code.co_varnames)) | inner)


@cache
def _names_within(code: CodeType) -> frozenset[str]:
    """Return the names that functions within a code may read, and its own calls of `eval`."""
    found = set(code.co_names) & _READS_ALL | set(code.co_cellvars) | set(code.co_freevars)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found |= {*each.co_names, *each.co_freevars, *_names_within(each)}
    return frozenset(found)


@cache
def _live_after(code: CodeType) -> dict[int, frozenset[str]]:
    """Return the names that are read before they are set again, after each instruction."""
    steps = list(dis.get_instructions(code))
    place = {step.offset: number for number, step in enumerate(steps)}
    handlers, counted = _handlers(code), _counted(steps)
    before: list[frozenset[str]] = [frozenset()] * len(steps)
    after = list(before)
    is_changed = True
    while is_changed:
        is_changed = False
        for number in range(len(steps) - 1, -1, -1):
            step = steps[number]
            following = set() if step.opname in _ENDS else {number + 1}
            if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
                following.add(place[step.argval])
            following |= {place[to] for first, last, to in handlers if first <= step.offset < last}
            out = frozenset().union(*(before[each] for each in following if each < len(steps)))
            name = step.argval if isinstance(step.argval, str) else None
            own = out
            if name is not None and step.opname.startswith("STORE_") and "ATTR" not in step.opname:
                own = out - {name}
            elif name is not None and step.opname.startswith(_READS):
                stored = counted.get(number)
                is_read = stored is None or name in after[stored]
                own = out | {name} if is_read else out
            if own != before[number] or out != after[number]:
                before[number], after[number] = own, out
                is_changed = True
    return {step.offset: after[number] for number, step in enumerate(steps)}


def _counted(steps: list[dis.Instruction]) -> dict[int, int]:
    """Return the store of each `n += 1`, by the number of its read."""
    found = {}
    for number in range(len(steps) - 3):
        read, by, computed, stored = steps[number : number + 4]
        if (
            by.opname == "LOAD_CONST"
            and computed.opname.startswith(("BINARY_OP", "INPLACE_"))
            and read.argval == stored.argval
            and stored.opname.startswith("STORE_")
        ):
            found[number] = number + 3
    return found


_READS = (
    "LOAD_NAME", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF",
    "DELETE_NAME", "DELETE_FAST", "DELETE_GLOBAL", "DELETE_DEREF",
)  # fmt: skip
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD",
         "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")  # fmt: skip


def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    """Return the instructions of a code that a handler stands for, and where it begins."""
    entries: Any = getattr(dis.Bytecode(code), "exception_entries", ())
    return [(each.start, each.end, each.target) for each in entries]


class _Look:
    """Looks into values.

    Attributes:
        is_sure: Whether all that it was shown could be looked into.
        is_whole: Whether none of it keeps state where it cannot be seen.
    """

    def __init__(self, clocks: type | tuple[type, ...]) -> None:
        self.is_sure = self.is_whole = True
        self._clocks = clocks

    def at(self, value: Any, depth: int = 0, within: frozenset[int] = frozenset()) -> object:  # noqa: ANN401 - any value
        """Return a digest of a value, equal for equal values."""
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

        kind = type(value)
        seen = None if kind.__module__.startswith(_SHARED) else value
        if isinstance(seen, dict):
            return "dict", each(seen), each(seen.values())
        if isinstance(seen, list | tuple | deque):
            return kind.__name__, each(seen)
        if isinstance(seen, set | frozenset):
            return kind.__name__, sorted(map(repr, each(seen)))
        if kind.__module__.partition(".")[0] in ("simrank", "torch"):
            # What of it changes, changes with calls, which the history has.
            self.is_whole &= kind.__name__ in _STATELESS
            return kind.__qualname__, getattr(seen, "_version", None)
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
