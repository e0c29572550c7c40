"""Places of a program: the line of a rank and its values, to recognise loops.

What cannot be looked into (a generator, an open file) makes a place unsure: it equals no other.
"""

from __future__ import annotations

import dis
import inspect
import sys
from functools import cache
from hashlib import blake2b
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.engine.callsite import is_library, is_simranks
from simrank.timings import stacks
from simrank.timings.values import OF_MODULES, READS_ALL, Inspection

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


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


def place_of(
    frame: FrameType | None,
    clocks: type | tuple[type, ...],
    shown: Callable[[Any], object] = lambda _: "a reading of a clock",
) -> Place:
    """Return the place of a rank: its lines, and the values that it may still read.

    Args:
        frame: The innermost frame.
        clocks: As of `place_here`.
        shown: Returns what is known of a reading.
    """
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    programs = [n for n, each in enumerate(frames) if not is_library(each.f_code.co_filename)]
    line = _line(frames[programs[0]]) if programs else "an unknown line"
    look, found = Inspection(clocks, shown), list[object]()
    for number, each in enumerate(frames):
        code = each.f_code
        found.append((code.co_qualname, each.f_lasti))
        is_base = not programs or number > programs[-1]  # What has called the program.
        if is_base or (is_simranks(code.co_filename) and number < programs[0]):
            continue
        found.append(look.at(_values(each, look, frames[number - 1] if number else None)))
        if number in programs and each.f_locals is not each.f_globals:
            found += map(look.at, _globals(each, look))
    return Place(digest_of(found), line, look.is_sure, look.is_whole)


def _values(frame: FrameType, look: Inspection, inner: FrameType | None) -> dict[str, Any]:
    """Return the variables that a frame may still read, and those of its stack."""
    code, values = frame.f_code, frame.f_locals
    held = stacks.held(code, frame.f_lasti)
    is_generator = bool(code.co_flags & inspect.CO_GENERATOR)
    look.is_sure &= held.is_known and not is_generator
    look.is_sure &= stacks.calls_python(frame, held, inner)
    live = live_names(code, frame.f_lasti)
    names = frozenset(values) if live is None else live | held.names
    changed = names_changed(code) - names
    return {
        name: value for name, value in values.items()
        if name not in OF_MODULES and (name in names or _may_show(value, name in changed))
    }  # fmt: skip


def _may_show(value: object, is_changed: bool) -> bool:
    """Return whether a value shows though its variable is not read: `+=` on it, or its end."""
    kind = type(value)
    return (is_changed and kind not in (int, float, bool, str)) or hasattr(kind, "__del__")


def _globals(frame: FrameType, look: Inspection) -> list[Any]:
    """Return the globals that a frame may still read, and those that functions there may."""
    live, names = live_names(frame.f_code, frame.f_lasti), frame.f_globals
    found = list(names.values()) if live is None else []
    found += [each for each in list(names.values()) if isinstance(each, FunctionType | type)]
    return [*found, *look.globals_of(frame.f_code, names, live)]


def _line(frame: FrameType) -> str:
    name = frame.f_code.co_filename.rpartition("/")[2]
    return f"{name}:{frame.f_lineno}"


# ---- names that a frame may still read ----


@cache
def live_names(code: CodeType, offset: int) -> frozenset[str] | None:
    """Return the names whose values a frame may read after an instruction; None: any.

    Args:
        code: The frame's.
        offset: The instruction that it is in.
    """
    inner = _names_within(code)
    if inner & READS_ALL:
        return None
    every = frozenset(code.co_names + code.co_varnames)
    return _live_after(code).get(stacks.step_at(code, offset).offset, every) | inner


@cache
def _names_within(code: CodeType) -> frozenset[str]:
    """Return the names that functions within a code may read, and its own calls of `eval`."""
    found = set(code.co_names) & READS_ALL | set(code.co_cellvars) | set(code.co_freevars)
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
            stored = counted.get(number)
            own = out
            for opname, name in reversed(stacks.parts(step)):
                if opname.startswith("STORE_") and "ATTR" not in opname:
                    own = own - {name}
                elif opname.startswith(_READS) and (stored is None or name in after[stored]):
                    own = own | {name}
            if own != before[number] or out != after[number]:
                before[number], after[number] = own, out
                is_changed = True
    return {step.offset: after[number] for number, step in enumerate(steps)}


@cache
def names_changed(code: CodeType) -> frozenset[str]:
    """Return the variables that a code has a `n += 1` of."""
    steps = list(dis.get_instructions(code))
    return frozenset(str(steps[number].argval) for number in _counted(steps))


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
    "DELETE_NAME", "DELETE_FAST", "DELETE_GLOBAL", "DELETE_DEREF", "LOAD_FROM_DICT",
)  # fmt: skip
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD",
         "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")  # fmt: skip


def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    """Return the instructions of a code that a handler stands for, and where it begins."""
    entries: Any = getattr(dis.Bytecode(code), "exception_entries", ())
    return [(each.start, each.end, each.target) for each in entries]
