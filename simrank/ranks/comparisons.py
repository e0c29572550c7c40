"""Numbers of ranks that record how a program compares them.

In a folded run the number of a rank is a `ComparedInt`. It knows the value that the same expression
has on each rank, `rank % 8` included, so that a comparison on one rank tells the ranks for which it
has another outcome. Everywhere else it is an int.
"""

from __future__ import annotations

import ast
import functools
import linecache
import operator
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simrank.engine.callsite import CallSite, attributes_of, is_library
from simrank.ranks.current import comparisons_of, rank_program

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from types import CodeType, FrameType

    from simrank.engine.callsite import SourceLine

OfRanks = npt.NDArray[np.int64]
MAX_VALUES = 8  # Assumed: a line that compares with more of them goes through all ranks.
_LARGEST = 1 << 31  # Numbers up to it can be multiplied in 64 bits.


class Cut(NamedTuple):
    """A comparison that tells ranks apart.

    Attributes:
        site: Where it is.
        differing: For each rank whether it has another outcome there than on the rank that ran.
    """

    site: CallSite
    differing: npt.NDArray[np.bool_]


class Class(NamedTuple):
    """Ranks that no comparison of a run tells apart, but for which one has another outcome.

    Attributes:
        ranks: Their numbers.
        line: The first comparison that separates them from the rank that ran.
    """

    ranks: tuple[int, ...]
    line: SourceLine


class Comparisons:
    """Comparisons that ranks make with their numbers, outside of torch and the standard library.

    Args:
        world_size: Number of ranks, of which some run.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._cuts: dict[int, dict[tuple[Any, ...], Cut]] = {}
        self._values: dict[int, dict[CallSite, set[object]]] = {}
        self._outcomes: dict[CallSite, dict[int, set[bool]]] = {}

    def note(
        self,
        rank: int,
        frame: FrameType,
        outcome: bool,
        other: object,
        outcomes: Callable[[], npt.NDArray[np.bool_]],
    ) -> None:
        """Record a comparison of a rank that runs, unless it was recorded already.

        Args:
            rank: The rank.
            frame: Where it compares.
            outcome: What came out.
            other: What it compared its number with.
            outcomes: Returns what comes out on each rank.
        """
        site = CallSite(frame.f_code, frame.f_lasti)
        cuts = self._cuts.setdefault(rank, {})
        key = (site, outcome, other)
        if key in cuts or is_library(frame.f_code.co_filename):
            return  # Of torch's own comparisons a few ranks tell, that are drawn.
        self._outcomes.setdefault(site, {}).setdefault(rank, set()).add(outcome)
        values = self._values.setdefault(rank, {}).setdefault(site, set())
        if len(values) <= MAX_VALUES:
            values.add(other)
            differing = outcomes() != outcome
            cuts[key] = Cut(site, differing)

    def within_group(self, value: int, ranks: Sequence[int]) -> int:
        """Return a group rank that records its comparisons.

        Groups whose members lie a constant distance apart are those of an axis, of which each rank
        is in one. Of other groups the numbers of ranks outside are unknown, and not told apart.

        Args:
            value: The group rank of the running rank; another number is returned as it is.
            ranks: The global ranks of the members.
        """
        if not 0 <= value < len(ranks):
            return value
        places = _places(ranks if isinstance(ranks, range) else tuple(ranks), self.world_size)
        return ComparedInt(value, np.where(places < 0, value, places))

    def as_bytes(self, number: int, size: int, stride: int = 1) -> bytes:
        """Return `rank // stride % size` for the environment; it records its comparisons."""
        made = ComparedBytes(str(number).encode())
        made.numbers = along_axis(self.world_size, size, stride)
        return made

    def recording(self, code: CodeType) -> CodeType:
        """Return the code of a module in which `int(...)` keeps numbers that record."""
        return with_compared_ints(code)

    def classes(self, rank: int) -> list[Class]:
        """Return the ranks that the comparisons of a rank that ran tell apart from it, by class.

        Comparisons at a line that goes through many values are left out; see `many`.

        Args:
            rank: A rank that ran.
        """
        numbers = np.zeros(self.world_size, np.int64)
        first: list[Cut | None] = [None]  # By number of a class; of the rank's own it is None.
        for cut in self._cuts.get(rank, {}).values():
            if len(self._values[rank][cut.site]) > MAX_VALUES:
                continue
            pairs, numbers = np.unique(2 * numbers + cut.differing, return_inverse=True)
            first = [first[pair // 2] or (cut if pair % 2 else None) for pair in pairs.tolist()]
        return [
            Class(tuple(np.flatnonzero(numbers == number).tolist()), cut.site.line())
            for number, cut in enumerate(first)
            if cut is not None
        ]

    def many(self, ran: Collection[int]) -> list[SourceLine]:
        """Return the program's lines that compare ranks with many values, and treat some apart.

        Where each rank that ran had both outcomes, as one that looks for itself in a list of all,
        none is special.

        Args:
            ran: The ranks that ran.
        """
        found: dict[SourceLine, None] = {}
        for site, by_rank in self._outcomes.items():
            is_many = any(
                len(self._values[rank].get(site, ())) > MAX_VALUES
                for rank in by_rank
                if rank in ran
            )
            is_special = any(len(by_rank.get(rank, ())) < len((True, False)) for rank in ran)
            if is_many and is_special:
                found[site.line()] = None
        return list(found)


# ---- values ----


def _note(
    value: ComparedInt | ComparedText,
    other: object,
    outcome: bool,
    compare: Callable[[Any, Any], Any],
    frame: FrameType,
) -> None:
    program = rank_program()
    recorder: Any = None if program is None else comparisons_of(program)
    if recorder is None or program is None:
        return
    theirs = other.of_ranks if isinstance(other, ComparedInt | ComparedText) else other
    plain = str(other) if isinstance(value, ComparedText) else float(other)  # type: ignore[arg-type]
    recorder.note(program.rank, frame, outcome, plain, lambda: compare(value.of_ranks, theirs))


def _comparison(name: str, kind: type, others: type | tuple[type, ...]) -> Any:  # noqa: ANN401
    plain, compare = getattr(kind, name), getattr(operator, name)

    @functools.wraps(plain)
    def method(self: Any, other: Any) -> Any:  # noqa: ANN401 - as the original
        if not isinstance(other, others):
            return plain(self, other)
        outcome = plain(self, other)
        if outcome is NotImplemented:
            outcome = bool(compare(kind(self), other))
        _note(self, other, outcome, compare, sys._getframe(1))  # noqa: SLF001 - the comparison
        return outcome

    return method


def _arithmetic(name: str) -> Any:  # noqa: ANN401 - a method
    plain, is_reflected = getattr(int, name), name.startswith("__r")
    compute = getattr(operator, name.replace("__r", "__", 1) if is_reflected else name)

    @functools.wraps(plain)
    def method(self: ComparedInt, other: Any) -> Any:  # noqa: ANN401 - as the original
        result = plain(self, other)
        if type(result) is not int or abs(other) >= _LARGEST or abs(result) >= _LARGEST:
            return result
        theirs = other.of_ranks if type(other) is ComparedInt else other
        with np.errstate(divide="ignore"):  # On another rank, which does not divide.
            values = (
                compute(theirs, self.of_ranks) if is_reflected else compute(self.of_ranks, theirs)
            )
        return ComparedInt(result, values)

    return method


class ComparedInt(int):
    """An int that records how it is compared.

    Attributes:
        of_ranks: Its value on each rank.
    """

    of_ranks: OfRanks

    def __new__(cls, value: int, of_ranks: OfRanks) -> ComparedInt:
        """Make it of its value, and of those of all ranks."""
        made = super().__new__(cls, value)
        made.of_ranks = of_ranks
        return made

    def __bool__(self) -> bool:
        """Return whether it is not 0."""
        outcome = int.__bool__(self)
        _note(self, 0, outcome, operator.ne, sys._getframe(1))  # noqa: SLF001 - the comparison
        return outcome

    def __hash__(self) -> int:
        """Return the int's hash; of a look-up, record the keys that it is compared with."""
        _note_keys(self, int, sys._getframe(1))  # noqa: SLF001 - the look-up
        return int.__hash__(self)

    def __neg__(self) -> int:
        """Return the negative number."""
        return ComparedInt(int.__neg__(self), -self.of_ranks)

    def __divmod__(self, other: Any) -> Any:  # noqa: ANN401 - as an int's
        """Return quotient and remainder."""
        return self // other, self % other

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Pickle and copy it as an int."""
        return int, (int(self),)


class ComparedText(str):
    """The number of a rank as text, as in its environment; it records how it is compared."""

    numbers: OfRanks

    @property
    def of_ranks(self) -> npt.NDArray[np.str_]:
        """The text on each rank."""
        return self.numbers.astype(np.str_)

    def __hash__(self) -> int:
        """Return the text's hash; of a look-up, record the keys that it is compared with."""
        _note_keys(self, str, sys._getframe(1))  # noqa: SLF001 - the look-up
        return str.__hash__(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle and copy it as text."""
        return str, (str.__str__(self),)


for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(ComparedInt, _name, _comparison(_name, int, (int, float, np.integer)))
for _name in ("__eq__", "__ne__"):
    setattr(ComparedText, _name, _comparison(_name, str, str))
for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor"):
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(ComparedInt, _method, _arithmetic(_method))


class ComparedBytes(bytes):
    """The number of a rank in the storage of its environment; it is decoded as `ComparedText`."""

    numbers: OfRanks

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the text."""
        text = ComparedText(super().decode(encoding, errors))
        text.numbers = self.numbers
        return text


@functools.lru_cache(maxsize=64)
def along_axis(world_size: int, size: int, stride: int) -> OfRanks:
    """Return the coordinate of each rank along an axis of a layout."""
    made: OfRanks = np.arange(world_size, dtype=np.int64) // stride % size
    made.flags.writeable = False
    return made


@functools.lru_cache(maxsize=64)
def _places(ranks: Sequence[int], world_size: int) -> OfRanks:
    """Return the place of each rank in its group along an axis; -1: unknown."""
    size = len(ranks)
    stride = ranks[1] - ranks[0] if size > 1 else 1
    if stride > 0 and world_size % (size * stride) == 0:
        first = ranks[0] // (size * stride) * size * stride + ranks[0] % stride
        if list(ranks) == list(range(first, first + size * stride, stride)):
            return along_axis(world_size, size, stride)
    places = np.full(world_size, -1, np.int64)
    for place, rank in enumerate(ranks):
        places[rank] = place
    return places


# ---- look-ups by hash: the keys of the dictionary or set are what is compared ----


def _note_keys(value: ComparedInt | ComparedText, kind: type, frame: FrameType) -> None:
    """Record a look-up as comparisons with the keys of a dictionary or set."""
    program = rank_program()
    recorder: Any = None if program is None else comparisons_of(program)
    if recorder is None or program is None or is_library(frame.f_code.co_filename):
        return
    expression = _container(frame.f_code, frame.f_lasti)
    if expression is None:
        return
    plain = kind.__str__(value) if kind is str else int.__int__(value)  # type: ignore[arg-type]
    for key in _keys(expression, frame):
        if isinstance(key, kind) and type(key) is not bool:
            outcomes = functools.partial(operator.eq, value.of_ranks, key)
            recorder.note(program.rank, frame, plain == key, key, outcomes)


@functools.lru_cache(maxsize=256)
def _container(code: CodeType, instruction: int) -> ast.expr | None:
    """Return the expression of the dictionary or set that an instruction looks something up in."""
    positions = list(code.co_positions())[instruction // 2]
    line, end_line, column, end_column = positions
    if line is None or line != end_line:
        return None
    text = linecache.getline(code.co_filename, line).encode()[column:end_column].decode()
    try:
        found = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None
    if isinstance(found, ast.Compare) and isinstance(found.ops[-1], ast.In | ast.NotIn):
        return found.comparators[-1]
    if isinstance(found, ast.Subscript):
        return found.value
    if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute):
        return found.func.value
    return None


def _keys(expression: ast.expr, frame: FrameType) -> Iterable[object]:
    """Return the keys of a literal, or of what a name or an attribute holds; no code is run."""
    if isinstance(expression, ast.Dict | ast.Set):
        parts = expression.keys if isinstance(expression, ast.Dict) else expression.elts
        return [part.value for part in parts if isinstance(part, ast.Constant)]
    found: object = None
    if isinstance(expression, ast.Name):
        found = frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    elif isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
        name = expression.value.id
        holder = frame.f_locals.get(name, frame.f_globals.get(name))
        found = attributes_of(holder).get(expression.attr)
    return list(found) if isinstance(found, dict | set | frozenset) else ()


# ---- `int(os.environ["RANK"])` in the program's text: int() itself returns plain ints only ----


def as_int(*args: Any) -> int:  # noqa: ANN401 - as int's
    """Return `int(*args)`; of the number of a rank one that records its comparisons."""
    (value,) = args if len(args) == 1 else (None,)
    if type(value) is ComparedInt:
        return value
    if type(value) is ComparedText:
        return ComparedInt(int(str.__str__(value)), value.numbers)
    return int(*args)


_AS_INT = "__simrank_as_int__"


class _Conversions(ast.NodeTransformer):
    """Replaces calls of `int` with one argument."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_int = isinstance(node.func, ast.Name) and node.func.id == "int"
        if is_int and len(node.args) == 1 and not node.keywords:
            node.func = ast.copy_location(ast.Name(_AS_INT, ast.Load()), node.func)
        return node


@functools.lru_cache(maxsize=512)
def with_compared_ints(code: CodeType) -> CodeType:
    """Return the code of a module in which `int(...)` keeps numbers of ranks that record."""
    try:
        tree = ast.parse(Path(code.co_filename).read_bytes())
    except (OSError, SyntaxError, ValueError):  # From an archive, say: as it is.
        return code
    names = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    names |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    if "int" in names:
        return code
    tree = _Conversions().visit(tree)
    place = 0
    for place, statement in enumerate(tree.body):  # noqa: B007 - where the loop ended
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not is_text and not is_future:
            break
    added = ast.ImportFrom(__name__, [ast.alias("as_int", _AS_INT)], 0, lineno=1, col_offset=0)
    tree.body.insert(place, added)
    return compile(ast.fix_missing_locations(tree), code.co_filename, "exec", dont_inherit=True)
