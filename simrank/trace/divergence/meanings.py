"""Names under which ranks make equal calls: keys and loop variables that should agree.

Two ranks that reduce their metrics in another order swap numbers, and nothing fails. At each call
of a group the strings that functions were given, the variables of loops, and the keys of the dicts
that they go through are kept. A finding names those that differ at one call between ranks that
agree elsewhere, or that have the same ones in another order; not those of one rank alone, nor data:
values of a dict, numbers that are no counter's, and names that come in no order that repeats.
"""

from __future__ import annotations

import ast
import linecache
from collections import Counter, defaultdict
from functools import lru_cache
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from simrank.engine.callsite import SourceLine, is_installed
from simrank.errors import RankState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from simrank.distributed.group import ProcessGroup

    Meanings = dict[tuple[SourceLine, str], object]

_MAX_FRAMES = 4  # Assumed: of the program, from the call outwards.
_MAX_LETTERS = 80  # Assumed: of a name; longer strings are data.
_MAX_CALLS = 512  # Assumed: compared calls of a line.
_MAX_KEYS = 1024  # Assumed: of a dict that is searched for the key of a value.
_VIEWS = ("values", "items", "keys")
_COUNTERS = ("range", "enumerate")


class _Loop(NamedTuple):
    """A loop around a line.

    Attributes:
        targets: Its variables.
        through: The names that lead to what it goes through: `self`, `metrics`; empty if unknown.
        counter: The variable that counts; empty if none does.
        value: The variable that has the values of a dict; empty if none has.
    """

    targets: tuple[str, ...]
    through: tuple[str, ...]
    counter: str
    value: str


def meanings_at(frame: FrameType) -> Meanings:
    """Return the names under which the program makes a call, by line and variable.

    Args:
        frame: Its innermost frame.
    """
    found: Meanings = {}
    left: FrameType | None = frame
    for _ in range(_MAX_FRAMES):
        if left is None or is_installed(left.f_code.co_filename):
            break
        line = SourceLine(left.f_code.co_filename, left.f_lineno)
        for name, value in _names_in(left, line):
            if _is_name(value):
                found[line, name] = value
        left = left.f_back
    return found


def _is_name(value: object) -> bool:
    if isinstance(value, str):
        return 0 < len(value) <= _MAX_LETTERS and not any(map(str.isspace, value))
    return isinstance(value, int) and not isinstance(value, bool)


def _names_in(frame: FrameType, line: SourceLine) -> Iterator[tuple[str, object]]:
    """Yield strings that the function was given, variables of its loops, and their keys."""
    code, own = frame.f_code, frame.f_locals
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        if isinstance(own.get(name), str):
            yield name, own[name]
    for loop in _loops_around(*line):
        for name in loop.targets:
            if name in own:
                if name != loop.value:
                    yield name, own[name]
                key = _key_of(own[name], loop.through, frame)
                if key is not None:
                    yield f"the key of {name}", key


def _key_of(value: object, through: Sequence[str], frame: FrameType) -> object:
    """Return the key of a value in the dict that a loop goes through, or None."""
    if not through or isinstance(value, str | int | float | None):  # Other keys may have it, too.
        return None
    held: Any = frame.f_locals.get(through[0], frame.f_globals.get(through[0]))
    for name in through[1:]:  # Not by getattr: that may run the program's code.
        held = getattr(held, "__dict__", {}).get(name)
    if not isinstance(held, dict) or len(held) > _MAX_KEYS:
        return None
    return next((key for key, each in held.items() if each is value), None)


@lru_cache(maxsize=4096)
def _loops_around(file: str, line: int) -> tuple[_Loop, ...]:
    """Return the loops of the innermost function around a line, the outermost first."""
    tree = _tree(file)
    return () if tree is None else tuple(_loops_in(tree, line))


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # A notebook's cell, which has lines of IPython's.
        return None


def _loops_in(node: ast.AST, line: int) -> list[_Loop]:
    """Return the loops in a node that are around a line and in no function of their own."""
    found: list[_Loop] = []
    for child in ast.iter_child_nodes(node):
        first = getattr(child, "lineno", None)
        if first is not None and not first <= line <= child.end_lineno:  # type: ignore[attr-defined]
            continue
        inner = _loops_in(child, line)
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            return inner
        if isinstance(child, ast.For | ast.AsyncFor | ast.comprehension):
            targets = [each.id for each in ast.walk(child.target) if isinstance(each, ast.Name)]
            called = child.iter.func if isinstance(child.iter, ast.Call) else None
            is_count = isinstance(called, ast.Name) and called.id in _COUNTERS
            has_values = isinstance(called, ast.Attribute) and called.attr in ("values", "items")
            counter, value = targets[0] * is_count, targets[-1] * has_values
            found.append(_Loop(tuple(targets), _through(child.iter), counter, value))
        found += inner
    return found


def _through(iterated: ast.expr) -> tuple[str, ...]:
    """Return the names that lead to the dict of `for value in self.metrics.values()`."""
    call = iterated.func if isinstance(iterated, ast.Call) else iterated
    if call is not iterated and isinstance(call, ast.Attribute) and call.attr in _VIEWS:
        call = call.value
    elif call is not iterated:
        return ()
    names: list[str] = []
    while isinstance(call, ast.Attribute):
        names.append(call.attr)
        call = call.value
    return (call.id, *reversed(names)) if isinstance(call, ast.Name) else ()


class DifferentThings:
    """Calls of one line that the members of a group have made, and under which names."""

    def __init__(self) -> None:
        self._calls: defaultdict[tuple[str, int, SourceLine, str], list[_Named]] = defaultdict(list)
        self._numbers: WeakKeyDictionary[ProcessGroup, int] = WeakKeyDictionary()
        self._next = count()  # Groups of several spawns have the same name.

    def note(self, group: ProcessGroup, call: str, by_rank: Mapping[int, Meanings]) -> None:
        """Note a call of all members of a group.

        Args:
            group: The group.
            call: What a report calls it.
            by_rank: The names of each rank.
        """
        number = self._numbers.get(group)
        if number is None:
            number = self._numbers[group] = next(self._next)
        first, *others = by_rank.values()
        for line, name in first:
            if all((line, name) in each for each in others):
                calls = self._calls[group.name, number, line, name]
                if len(calls) < _MAX_CALLS:
                    values = {rank: own[line, name] for rank, own in by_rank.items()}
                    calls.append(_Named(call, values))

    @property
    def found(self) -> dict[tuple[str, str], str]:
        """Findings by group and call: the first of each line at which ranks differ."""
        found: dict[tuple[str, str], str] = {}  # One for each call: frames have names in common.
        for (group, _, line, name), calls in self._calls.items():
            is_counter = any(name == loop.counter for loop in _loops_around(*line))
            odd = _first_odd(calls, is_counter=is_counter)
            if odd is not None:
                states: dict[object, list[int]] = {}
                for rank, value in odd.values.items():
                    states.setdefault(value, []).append(rank)
                sides = "; ".join(
                    str(RankState(tuple(ranks), f"{name} = {value!r}", *line))
                    for value, ranks in states.items()
                )
                text = f"equal calls for different things (suspected), {odd.call} on '{group}'"
                found.setdefault((group, odd.call), f"{text}: {sides}")
        return found


class _Named(NamedTuple):
    """A call, and the value of one variable on each rank."""

    call: str
    values: dict[int, object]


def _first_odd(calls: Sequence[_Named], *, is_counter: bool) -> _Named | None:
    """Return the first call at which two ranks differ that are meant to be alike, or None."""
    ours, *others = calls[0].values
    own = [call.values[ours] for call in calls]
    for theirs in others:
        other = [call.values[theirs] for call in calls]
        differing = [call for call, one, two in zip(calls, own, other, strict=True) if one != two]
        if differing and _repeats(own) and _repeats(other):
            can_agree = is_counter or all(isinstance(each, str) for each in own)
            if (can_agree and len(differing) < len(calls)) or Counter(own) == Counter(other):
                return differing[0]
    return None


def _repeats(values: Sequence[object]) -> bool:
    """Return whether values come in one order, again and again: those of a shuffled list do not."""
    runs = [(value, len([*run])) for value, run in groupby(values)]
    length = len({value for value, _ in runs})
    whole = runs[:-1]  # The last may not have ended.
    return all(one == other for one, other in zip(whole, whole[length:], strict=False))
