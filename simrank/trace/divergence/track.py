"""The executed lines of one rank as an array of numbers, and the values of conditions.

A line is one number: which code, which line, and what happened. Only the user's files are followed,
not those of installed packages. What was recorded first is dropped once there is too much, up to a
collective of all ranks, so that the tracks of ranks still begin at the same place.
"""

from __future__ import annotations

import ast
import linecache
import tokenize
from array import array
from dataclasses import dataclass
from inspect import getattr_static
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from simrank.device import Tensor
from simrank.device.tensors.printing import READERS, tensor_text
from simrank.engine.callsite import attributes_of, is_installed, is_real
from simrank.errors.base import cell_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType, FrameType


# ---- statements by line: the names that a condition reads, and its body ----

_MAX_NAMES = 6  # assumed: more say nothing at a glance
_MAX_TEXT = 80


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, or the head of one that has a body.

    Attributes:
        kind: "if", "loop" or "other".
        line: Its first line.
        last: Its last line, without the body.
        names: Dotted names that decide which way it goes; of a simple one all that it reads.
        decides: Whether it can go several ways, apart from raising.
        body: First and last line of the body; (0, 0) where it has none below the head.
    """

    kind: str
    line: int
    last: int
    names: tuple[str, ...]
    decides: bool
    body: tuple[int, int]

    def has_in_body(self, line: int) -> bool:
        """Return whether a line is one of the body's."""
        return self.body[0] <= line <= self.body[1]


def statements_of(file: str) -> dict[int, Statement]:
    """Return the innermost statement of each line of a file; nothing where it cannot be read."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[int, Statement] = {}
    for node in ast.walk(tree):  # Outer ones first.
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            statement = _statement(node)
            last = node.end_lineno if isinstance(node, ast.Match) else statement.last
            for line in range(node.lineno, (last or 0) + 1):
                if line not in found or found[line].line != line:  # `if x: f()` is a branch.
                    found[line] = statement
    return found


def text_of(file: str, statement: Statement) -> str:
    """Return a statement's source on one line, without its body and comments."""
    lines, comments = linecache.getlines(file), _comments_of(file)
    code = [
        lines[n - 1][: comments.get(n)].strip() for n in range(statement.line, statement.last + 1)
    ]
    text = " ".join(part for part in code if part and not part.startswith("@"))
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 4]} ..."


def _comments_of(file: str) -> dict[int, int]:
    """Return the column at which a line's comment begins, by line."""
    tokens = tokenize.generate_tokens(iter(linecache.getlines(file)).__next__)
    return dict(token.start for token in tokens if token.type == tokenize.COMMENT)


def _statement(node: ast.stmt | ast.ExceptHandler) -> Statement:
    body: list[ast.stmt] = getattr(node, "body", None) or []
    is_below = bool(body) and body[0].lineno > node.lineno
    span = (body[0].lineno, body[-1].end_lineno or 0) if is_below else (0, 0)
    last = node.end_lineno or node.lineno
    if isinstance(node, ast.Match):
        last = node.cases[0].pattern.lineno - 1
    elif is_below:
        last = span[0] - 1
    kind = "other"
    if is_below and isinstance(node, ast.If):
        kind = "if"
    elif is_below and isinstance(node, ast.For | ast.AsyncFor | ast.While):
        kind = "loop"
    deciding = _deciding(node)
    parts = deciding if deciding or body else [node]
    names = tuple(dict.fromkeys(name for part in parts for name in _names(part)))
    return Statement(kind, node.lineno, last, names[:_MAX_NAMES], bool(deciding), span)


def _deciding(node: ast.stmt | ast.ExceptHandler) -> list[ast.expr]:
    """Return the expressions that decide which way a statement goes."""
    if isinstance(node, ast.If | ast.While | ast.Assert):
        return [node.test]
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.target, node.iter]
    if isinstance(node, ast.Match):
        return [node.subject]
    if hasattr(node, "body"):
        return []
    parts: list[ast.expr] = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.IfExp):
            parts.append(inner.test)
        elif isinstance(inner, ast.BoolOp):
            parts += inner.values[:-1]
        elif isinstance(inner, ast.comprehension):
            parts += [inner.iter, *inner.ifs]
    return parts


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that an expression reads, but for the functions that it calls."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield from _names(node.func.value)
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            yield from _names(argument)
    elif isinstance(node, ast.Attribute):
        dotted = _dotted(node)
        if dotted is None:
            yield from _names(node.value)
        else:
            yield dotted
    elif isinstance(node, ast.Name):
        yield node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _names(child)


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None


# ---- values of names at a line, read without running code of the program and without waits ----

_MAX_VALUE_TEXT = 40
_SHORT = frozenset((int, float, complex, bool, type(None), range))
_LONG = frozenset((str, bytes))
_SIZED = frozenset((list, tuple, dict, set, frozenset))
_NOWHERE = object()

Values = tuple[tuple[str, object], ...]


class Path(NamedTuple):
    """A dotted name, in parts."""

    name: str
    first: str
    attributes: tuple[str, ...]


class ValueText(str):
    """The text of a value that is not kept."""

    __slots__ = ()


def paths_of(names: Sequence[str]) -> tuple[Path, ...]:
    """Return dotted names in parts."""
    parts = [(name, *name.split(".")) for name in names]
    return tuple(Path(name, first, tuple(attributes)) for name, first, *attributes in parts)


def values_of(frame: FrameType, paths: tuple[Path, ...]) -> Values:
    """Return the data names of a frame with their values; large values as text."""
    own, shared = frame.f_locals, frame.f_globals
    reported: list[tuple[str, object]] = []
    for name, first, attributes in paths:
        value = own[first] if first in own else shared.get(first, _NOWHERE)
        if attributes and value is not _NOWHERE:
            value = _attribute(value, attributes)
        if type(value) in _SHORT:
            reported.append((name, value))
        elif value is not _NOWHERE and not callable(value) and not is_real(value, ModuleType):
            reported.append((name, ValueText(short(value))))
    return tuple(reported)


def _attribute(value: object, attributes: tuple[str, ...]) -> object:
    for attribute in attributes:
        if is_real(value, ModuleType):
            value = attributes_of(value).get(attribute, _NOWHERE)
        else:
            value = getattr_static(value, attribute, _NOWHERE)
            if hasattr(type(value), "__get__"):  # A property would run the program's code.
                value = _NOWHERE
        if value is _NOWHERE:
            break
    return value


def short(value: object) -> str:
    """Return a short text of a value; nothing is computed, read from a device or waited for."""
    if issubclass(type(value), np.generic):
        value = cast("np.generic", value).item()
    kind = type(value)
    if kind is ValueText:
        return str(value)
    if kind in _SHORT or kind in _LONG:
        text = repr(value)
        return text if len(text) <= _MAX_VALUE_TEXT else f"{text[: _MAX_VALUE_TEXT - 4]} ..."
    if kind in _SIZED:
        return f"{kind.__name__} of {len(value)}"  # type: ignore[arg-type]
    reported = (reader(value) for reader in (_own_text, *READERS))
    return next((text for text in reported if text is not None), f"<{kind.__name__}>")


def _own_text(value: object) -> str | None:
    if is_real(value, Tensor):
        return tensor_text(value)
    return f"array of shape {value.shape}" if is_real(value, np.ndarray) else None


# ---- the executed lines of one rank as an array of numbers, and the values of conditions ----

LINE, CALL, EXIT, COMM = range(4)
RAISED = 1  # In place of a line, where a frame was left by an exception.
MAX_EVENTS = 1 << 20  # assumed: 8 MiB per rank
MAX_VALUES = 1 << 16  # assumed: conditions whose values are kept, per rank
MAX_MARKS = 1 << 12  # assumed: collectives of all ranks from which tracks can be compared
_KIND_BITS, _LINE_BITS = 2, 22
_PASSING = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "RankAborted")
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


class CodeNumbers:
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

    def __init__(self, rank: int, codes: CodeNumbers, max_events: int = MAX_EVENTS) -> None:
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
