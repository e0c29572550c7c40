"""Readings of clocks, whose comparisons are choices unless a sleep decides them.

Two readings of one clock are as far apart as the rank has slept in between, or further. What is
computed from readings keeps such bounds; a comparison that they decide has one outcome, any other
has two, and sets the bounds by which it was decided. Printed, a reading is zero, so that texts do
not follow the clock. What takes a reading as a plain number (an index, `int`, a conversion in C)
leaves the search: it is noted where Python lets it be seen, and a second run with faster clocks
shows the rest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable

_ARITHMETIC = (
    "abs", "add", "floordiv", "mod", "mul", "neg", "pos", "pow", "radd", "rfloordiv", "rmod",
    "rmul", "round", "rsub", "rtruediv", "sub", "truediv",
)  # fmt: skip
_COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")
_ESCAPES = ("ceil", "floor", "index", "int", "trunc")


class Moment(NamedTuple):
    """When a clock was read.

    Attributes:
        clock: Which, and of which rank.
        number: Of the reading, among those of the rank.
        slept: For how long the rank had slept, in units of the clock.
        later: What the program has added since.
        start: What the clock shows at first, at least.
    """

    clock: object
    number: int
    slept: float
    later: float = 0.0
    start: float = -math.inf


class Bounds(NamedTuple):
    """A number that is not known: at least `low`, at most `high`."""

    low: float = -math.inf
    high: float = math.inf


_UNKNOWN = Bounds()


class WholeReading(int):
    """A reading in whole units."""

    of: Moment | Bounds = _UNKNOWN


class Reading(float):
    """A reading in seconds."""

    of: Moment | Bounds = _UNKNOWN


READINGS = (WholeReading, Reading)


def reading(value: Any, of: Moment | Bounds = _UNKNOWN) -> Any:  # noqa: ANN401 - what it was given, as a reading
    """Return a number as a reading; anything else as it is."""
    kind = {float: Reading, int: WholeReading}.get(type(value))
    if kind is None:
        return value
    made: Any = kind(value)
    made.of = of
    return made


def _minus(one: Moment | Bounds, other: Moment | Bounds) -> Bounds:
    """Return the bounds of a difference."""
    if isinstance(one, Moment) and isinstance(other, Moment):
        if one.clock != other.clock:
            return _UNKNOWN
        apart = one.slept - other.slept + one.later - other.later
        low = apart if one.number >= other.number else -math.inf
        high = apart if one.number <= other.number else math.inf
        return Bounds(low, high)
    if isinstance(one, Bounds) and isinstance(other, Bounds):
        return Bounds(one.low - other.high, one.high - other.low)
    if isinstance(one, Moment) and isinstance(other, Bounds):
        return _since(one, other)
    if isinstance(one, Bounds) and isinstance(other, Moment):
        return Bounds(-math.inf, -_since(other, one).low)
    return _UNKNOWN


def _scaled(of: Moment | Bounds, factor: float) -> Bounds:
    if isinstance(of, Moment) or not factor:
        return _UNKNOWN
    ends = of.low * factor, of.high * factor
    return Bounds(min(ends), max(ends))


def _since(moment: Moment, number: Bounds) -> Bounds:
    """Return the bounds of the difference of a reading and a number."""
    return Bounds(moment.start + moment.slept + moment.later - number.high, math.inf)


def _of(number: Any) -> Moment | Bounds:  # noqa: ANN401 - a number
    return number.of if isinstance(number, READINGS) else Bounds(number, number)


def _computed(name: str, one: Any, others: tuple[Any, ...]) -> Moment | Bounds:  # noqa: ANN401 - numbers
    """Return the bounds of a result of arithmetic."""
    of, other = one.of, others[0] if others else 0
    rule = _RULES.get(name)
    if rule is None or not isinstance(other, int | float):
        return _UNKNOWN
    is_plain = not isinstance(other, READINGS)
    if name in ("add", "radd", "sub") and isinstance(of, Moment) and is_plain:
        return of._replace(later=of.later + (-other if name == "sub" else other))
    if name in ("mul", "rmul", "truediv") and not is_plain:
        return _UNKNOWN
    return rule(of, other)


_RULES: dict[str, Callable[[Moment | Bounds, Any], Bounds]] = {
    "add": lambda of, other: _minus(of, _scaled(_of(other), -1)),
    "radd": lambda of, other: _minus(of, _scaled(_of(other), -1)),
    "sub": lambda of, other: _minus(of, _of(other)),
    "rsub": lambda of, other: _minus(_of(other), of),
    "mul": _scaled,
    "rmul": _scaled,
    "truediv": lambda of, other: _scaled(of, 1 / other),
    "neg": lambda of, _: _scaled(of, -1),
}


def _kept(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: Any, *args: Any) -> Any:  # noqa: ANN401 - a number's
        return reading(original(self, *args), _computed(name, self, args))

    return compute


def _decided(name: str, apart: Bounds) -> bool | None:
    """Return the outcome of a comparison, by the bounds of the difference; None: there are two."""
    if name in ("gt", "le") and (apart.low > 0 or apart.high <= 0):
        return (name == "gt") == (apart.low > 0)
    if name in ("ge", "lt") and (apart.low >= 0 or apart.high < 0):
        return (name == "ge") == (apart.low >= 0)
    if name in ("eq", "ne") and (apart.low > 0 or apart.high < 0 or apart.low == apart.high):
        return (name == "eq") == (apart.low == apart.high == 0)
    return None


def _chosen(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def compare(self: Any, other: Any) -> Any:  # noqa: ANN401 - a number's
        outcome, task = original(self, other), running_task()
        if outcome is NotImplemented or task is None or task.engine.choices is None:
            return outcome
        decided = _decided(name, _minus(self.of, _of(other)))
        if decided is not None:
            return decided
        found = task.engine.choices.compare(task, outcome=outcome)
        if isinstance(self.of, Bounds) and not isinstance(other, READINGS) and name[0] in "gl":
            is_above = found == (name in ("gt", "ge"))
            low, high = (other, math.inf) if is_above else (-math.inf, other)
            self.of = Bounds(max(self.of.low, low), min(self.of.high, high))
        return found

    return compare


def _noted(_: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def convert(self: Any, *args: Any) -> Any:  # noqa: ANN401 - a number's
        task = running_task()
        if task is not None and task.engine.choices is not None:
            task.engine.choices.undeclared(task, "a reading of a clock as a plain number")
        return original(self, *args)

    return convert


def _shown(base: type) -> dict[str, Callable[..., Any]]:
    """Return methods that show a reading; lines are compared without it, and nothing else is."""

    def shown(text: str) -> str:
        task = running_task()
        if task is not None and task.engine.choices is not None:
            task.engine.choices.note_text(text)
        return text

    return {
        "__format__": lambda self, how: shown(format(base(self), how)),
        "__repr__": lambda self: shown(repr(base(self))),
        "__str__": lambda self: shown(repr(base(self))),
    }


for _kind, _base in ((WholeReading, int), (Reading, float)):
    for _names, _patch in ((_ARITHMETIC, _kept), (_COMPARISONS, _chosen), (_ESCAPES, _noted)):
        for _name in _names:
            _found = getattr(_base, f"__{_name}__", None)
            if _found is not None:
                setattr(_kind, f"__{_name}__", _patch(_name, _found))
    for _name, _method in _shown(_base).items():
        setattr(_kind, _name, _method)
    _kind.__hash__ = _base.__hash__  # type: ignore[method-assign]
