"""The lines of one rank, as they are executed: numbers in an array, and what conditions saw.

A line is one number: which code, which line, and what happened. Only the user's files are
followed, as reports name them. What was recorded first is dropped once there is too much, up to a
collective of all ranks, so that the tracks of ranks still begin at the same place.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.engine.callsite import is_library
from simrank.trace.divergence.statements import statements_of
from simrank.trace.divergence.values import values_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from simrank.trace.divergence.statements import Statement

LINE, CALL, EXIT, COMM = range(4)
RAISED = 1  # In place of a line, where a frame was left by an exception.
MAX_EVENTS = 1 << 20  # assumed: 8 MiB per rank
MAX_VALUES = 1 << 16  # assumed: conditions whose values are kept, per rank
_MAX_MARKS = 1 << 16
_KIND_BITS, _LINE_BITS = 2, 22
_PASSING = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "RankAborted")
Key = tuple[Any, ...]


def encode(kind: int, number: int, line: int = 0) -> int:
    """Return an event as a number."""
    return number << (_KIND_BITS + _LINE_BITS) | line << _KIND_BITS | kind


def kind_of(event: int) -> int:
    """Return what happened."""
    return event & 3


def line_of(event: int) -> int:
    """Return the line, or how a frame was left."""
    return event >> _KIND_BITS & ((1 << _LINE_BITS) - 1)


def number_of(event: int) -> int:
    """Return the number of the code, or of what a call of a group is."""
    return event >> (_KIND_BITS + _LINE_BITS)


class Code:
    """A function of the user's, the same for all ranks that execute it.

    Attributes:
        number: Its number.
        file: Where it is.
        name: Its name.
        statements: What stands at its lines.
        asking: Lines whose statement decides by names, with these.
    """

    __slots__ = ("asking", "file", "name", "number", "statements")

    def __init__(self, number: int, code: CodeType) -> None:
        self.number = number
        self.file = code.co_filename
        self.name = code.co_name
        self.statements: dict[int, Statement] = statements_of(self.file)
        self.asking = {n: s.names for n, s in self.statements.items() if s.names}


class Codes:
    """The numbers of codes, and of what calls of groups are; all ranks of a Context share them."""

    def __init__(self) -> None:
        self.codes: list[Code] = []
        self.keys: list[Key] = []
        self._numbers: dict[tuple[str, str, int], Code] = {}
        self._known: dict[CodeType, Code | None] = {}
        self._key_numbers: dict[Key, int] = {}

    def code(self, code: CodeType) -> Code | None:
        """Return the code of a frame; None where it is not the user's."""
        try:
            return self._known[code]
        except KeyError:
            return self._learnt(code)

    def _learnt(self, code: CodeType) -> Code | None:
        file, found = code.co_filename, None
        if not file.startswith("<") and not is_library(file):
            # Ranks may have copies of a module: the place says what is the same.
            key = (file, code.co_qualname, code.co_firstlineno)
            found = self._numbers.get(key)
            if found is None:
                found = self._numbers[key] = Code(len(self.codes), code)
                self.codes.append(found)
        self._known[code] = found
        return found

    def key(self, key: Key) -> int:
        """Return the number of what a call of a group is."""
        number = self._key_numbers.get(key)
        if number is None:
            number = self._key_numbers[key] = len(self.keys)
            self.keys.append(key)
        return number


class Mark(NamedTuple):
    """A collective of all ranks: tracks may be compared from there.

    Attributes:
        position: In the track.
        stack: The codes that were under way.
    """

    position: int
    stack: tuple[int, ...]


class _Frame:
    """A frame under way.

    Attributes:
        code: Its code.
        last: Position of its last line.
        asking: The names that its last line's statement decides by.
        is_raising: Whether an exception was raised in its last line.
    """

    __slots__ = ("asking", "code", "is_raising", "last")

    def __init__(self, code: Code) -> None:
        self.code = code
        self.last = -1
        self.asking: tuple[str, ...] | None = None
        self.is_raising = False


class Track:
    """What one rank has executed.

    Attributes:
        rank: The rank.
        events: What is kept; its first entry has the position `first`.
        first: How many were dropped.
        values: What names stood for, by the position of the line that decided by them.
        raised: Names of exceptions, by the position of the line that raised.
        marks: Where tracks may be compared from, by number of the collective.
    """

    def __init__(self, rank: int, codes: Codes, max_events: int = MAX_EVENTS) -> None:
        self.rank = rank
        self.events = array("q")
        self.first = 0
        self.values: dict[int, tuple[tuple[str, str], ...]] = {}
        self.raised: dict[int, str] = {}
        self.marks: dict[Key, Mark] = {("start",): Mark(0, ())}
        self._codes = codes
        self._max_events = max_events
        self._stack: list[_Frame] = []
        self._followed = self._follow

    def enter(self, frame: FrameType) -> Callable[..., Any] | None:
        """Note that a frame begins, or goes on (a generator); return what follows its lines."""
        code = self._codes.code(frame.f_code)
        if code is None:
            return None
        self._stack.append(_Frame(code))
        self.events.append(encode(CALL, code.number))
        return self._followed

    def _follow(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:  # noqa: ANN401 - Python's signature
        own = self._stack[-1]
        if own.asking is not None:  # The condition has been evaluated by now.
            self._note_values(own, frame)
        if event == "line":
            own.is_raising = False
            own.last = self.first + len(self.events)
            line = frame.f_lineno
            own.asking = own.code.asking.get(line)
            self.events.append(encode(LINE, own.code.number, line))
        elif event == "return":
            is_raised = own.is_raising and arg is None
            self.events.append(encode(EXIT, own.code.number, RAISED if is_raised else 0))
            self._stack.pop()
        elif event == "exception":
            own.is_raising = True
            if arg[0].__name__ not in _PASSING:
                self.raised[own.last] = arg[0].__name__
        return self._followed

    def _note_values(self, own: _Frame, frame: FrameType) -> None:
        names, own.asking = own.asking, None
        assert names is not None, "asked"
        if len(self.values) >= MAX_VALUES:
            del self.values[next(iter(self.values))]
        self.values[own.last] = values_of(frame, names)

    def call(self, key: Key, mark: Key | None = None) -> None:
        """Note a call of a group.

        Args:
            key: What it is.
            mark: Its number, if all ranks make it.
        """
        if mark is not None:
            if len(self.marks) >= _MAX_MARKS:
                del self.marks[next(iter(self.marks))]
            stack = tuple(frame.code.number for frame in self._stack)
            self.marks[mark] = Mark(self.first + len(self.events), stack)
        self.events.append(encode(COMM, self._codes.key(key)))
        if len(self.events) > self._max_events:
            self._drop()

    def _drop(self) -> None:
        """Drop the first half, up to the next mark; all of it where there is no mark."""
        middle = self.first + len(self.events) // 2
        later = {key: mark for key, mark in self.marks.items() if mark.position >= middle}
        first = min((m.position for m in later.values()), default=self.first + len(self.events))
        del self.events[: first - self.first]
        self.first, self.marks = first, later
        self.values = {k: v for k, v in self.values.items() if k >= first}
        self.raised = {k: v for k, v in self.raised.items() if k >= first}
