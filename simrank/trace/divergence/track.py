"""The executed lines of one rank as an array of numbers, and the values of conditions.

A line is one number: which code, which line, and what happened. Only the user's files are
followed, not those of installed packages. What was recorded first is dropped once there is too
much, up to a collective of all ranks, so that the tracks of ranks still begin at the same place.
"""

from __future__ import annotations

from array import array
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from simrank.engine.callsite import is_library
from simrank.errors.base import cell_text
from simrank.trace.divergence.statements import statements_of
from simrank.trace.divergence.values import Path, paths_of, values_of

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from simrank.trace.divergence.statements import Statement
    from simrank.trace.divergence.values import Values

LINE, CALL, EXIT, COMM = range(4)
RAISED = 1  # In place of a line, where a frame was left by an exception.
MAX_EVENTS = 1 << 20  # assumed: 8 MiB per rank
MAX_VALUES = 1 << 16  # assumed: conditions whose values are kept, per rank
MAX_MARKS = 1 << 12  # assumed: collectives of all ranks from which tracks can be compared
_KIND_BITS, _LINE_BITS = 2, 22
_PASSING = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "RankAborted")
_INSTALLED = ("/site-packages/", "/dist-packages/")
Key = tuple[Any, ...]
_K = TypeVar("_K")
_V = TypeVar("_V")


def encode(kind: int, number: int, line: int = 0) -> int:
    """Return an event as a number."""
    return number << (_KIND_BITS + _LINE_BITS) | line << _KIND_BITS | kind


def kind_of(event: int) -> int:
    """Return the kind of the step."""
    return event & 3


def line_of(event: int) -> int:
    """Return the line, or how a frame was left."""
    return event >> _KIND_BITS & ((1 << _LINE_BITS) - 1)


def number_of(event: int) -> int:
    """Return the number of the code, or of a group's call."""
    return event >> (_KIND_BITS + _LINE_BITS)


def is_installed(file: str) -> bool:
    """Return whether a file belongs to a library."""
    return is_library(file) or any(part in file for part in _INSTALLED)


def _later_half(held: dict[_K, _V]) -> dict[_K, _V]:
    """Return the later half of a dict; single deletions would scan all deleted entries."""
    return dict(islice(held.items(), len(held) // 2, None))


class Code:
    """A function of the user's, the same for all ranks that execute it.

    Attributes:
        number: Its number.
        file: Where it is.
        statements: What stands at its lines.
        asking: Where to look for the names by which a line's statement decides, if it does.
    """

    __slots__ = ("asking", "file", "number", "statements")

    def __init__(self, number: int, file: str, statements: dict[int, Statement]) -> None:
        self.number = number
        self.file = file
        self.statements = statements
        self.asking = {
            line: paths_of(statement.names)
            for line, statement in self.statements.items()
            if statement.decides and statement.names
        }


class Codes:
    """The numbers of codes and of groups' calls, shared by the ranks of a Context."""

    def __init__(self) -> None:
        self.codes: list[Code] = []
        self.keys: list[Key] = []
        self._by_place: dict[tuple[str, str, int], Code] = {}
        # By id, as hashing a code reads all of it; the code is held, so that its id stays its own.
        self._known: dict[int, tuple[CodeType, Code]] = {}
        self._is_users: dict[str, bool] = {}
        self._statements: dict[str, dict[int, Statement]] = {}
        self._key_numbers: dict[Key, int] = {}

    def code(self, code: CodeType) -> Code | None:
        """Return the code of a frame; None for library code."""
        file = code.co_filename
        is_users = self._is_users.get(file)
        if is_users is None:
            has_source = not file.startswith("<") or cell_text(file) is not None
            is_users = self._is_users[file] = has_source and not is_installed(file)
        if not is_users:
            return None
        known = self._known.get(id(code))
        return self._learnt(code) if known is None else known[1]

    def _learnt(self, code: CodeType) -> Code:
        # Ranks may have copies of a module: the place says what is the same.
        file = code.co_filename
        place = (file, code.co_qualname, code.co_firstlineno)
        found = self._by_place.get(place)
        if found is None:
            if file not in self._statements:
                self._statements[file] = statements_of(file)
            found = Code(len(self.codes), file, self._statements[file])
            self._by_place[place] = found
            self.codes.append(found)
        self._known[id(code)] = (code, found)
        return found

    def known(self) -> list[CodeType]:
        """Return all codes of the user's that have run."""
        return [code for code, _ in self._known.values()]

    def key(self, key: Key) -> int:
        """Return the number of a group's call."""
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
        asking: Where to look for the names that its last line's statement decides by.
        is_raising: Whether an exception was raised in its last line.
    """

    __slots__ = ("asking", "code", "is_raising", "last")

    def __init__(self, code: Code) -> None:
        self.code = code
        self.last = -1
        self.asking: tuple[Path, ...] | None = None
        self.is_raising = False


class Track:
    """The executed lines of one rank.

    Attributes:
        rank: The rank.
        events: What is kept; its first entry has the position `first`.
        first: How many were dropped.
        values: What names stood for, by the position of the line that decided by them.
        raised: Names of exceptions, by the position of the line that raised.
        failed_in_call: Whether the rank ended with an error that a call of a group raised.
        marks: Where tracks may be compared from, by number of the collective.
    """

    def __init__(self, rank: int, codes: Codes, max_events: int = MAX_EVENTS) -> None:
        self.rank = rank
        self.events = array("q")
        self.first = 0
        self.values: dict[int, Values] = {}
        self.raised: dict[int, str] = {}
        self.failed_in_call = False
        self.marks: dict[Key, Mark] = {("start",): Mark(0, ())}
        self._codes = codes
        self._max_events = max_events
        self._stack: list[_Frame] = []

    # ---- what a tracer calls ----

    def begin(self, code: Code) -> None:
        """Note that a frame begins, or goes on (a generator)."""
        self._stack.append(_Frame(code))
        self.events.append(encode(CALL, code.number))

    def is_in(self, code: Code) -> bool:
        """Return whether the innermost frame under way is one of this code."""
        return bool(self._stack) and self._stack[-1].code is code

    def line(self, frame: FrameType, line: int) -> None:
        """Note that a line begins; the condition of the one before has been evaluated by now."""
        own = self._stack[-1]
        if own.asking is not None:
            self._note_values(own, frame, own.asking)
        own.is_raising = False
        own.last = self.first + len(self.events)
        own.asking = own.code.asking.get(line)
        self.events.append(encode(LINE, own.code.number, line))
        if len(self.events) > self._max_events:
            self._drop()

    def raises(self, frame: FrameType, kind: type[BaseException]) -> None:
        """Record an exception of the running line, or of its calls."""
        own = self._stack[-1]
        if own.asking is not None:
            self._note_values(own, frame, own.asking)
        own.is_raising = True
        if kind.__name__ in _PASSING:
            return
        self.raised[own.last] = kind.__name__
        if own.last not in self.values:
            statement = own.code.statements.get(frame.f_lineno)
            self._note_values(own, frame, paths_of(() if statement is None else statement.names))

    @property
    def is_raising(self) -> bool:
        """Whether an exception was the last news of the innermost frame."""
        return self._stack[-1].is_raising

    def end(self, frame: FrameType, *, raised: bool) -> None:
        """Note that a frame is left."""
        own = self._stack.pop()
        if own.asking is not None:
            self._note_values(own, frame, own.asking)
        self.events.append(encode(EXIT, own.code.number, RAISED if raised else 0))

    def _note_values(self, own: _Frame, frame: FrameType, paths: tuple[Path, ...]) -> None:
        own.asking = None
        if len(self.values) >= MAX_VALUES:
            self.values = _later_half(self.values)
        self.values[own.last] = values_of(frame, paths)

    def call(self, key: Key, mark: Key | None = None) -> None:
        """Note a call of a group.

        Args:
            key: What it is.
            mark: Its number, if all ranks make it.
        """
        if mark is not None:
            if len(self.marks) >= MAX_MARKS:
                self.marks = _later_half(self.marks)
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
