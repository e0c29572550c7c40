"""Readings of clocks whose comparisons are choices: both outcomes are possible.

Arithmetic of a reading gives a reading. Printed, it is zero, so that texts do not follow the clock.
What takes a reading as a plain number (an index, `int`, a conversion in C) leaves the search: it is
noted where Python lets it be seen, and a second run with faster clocks shows the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable

_ARITHMETIC = (
    "abs", "add", "floordiv", "mod", "mul", "neg", "pos", "pow", "radd", "rfloordiv", "rmod",
    "rmul", "round", "rsub", "rtruediv", "sub", "truediv",
)  # fmt: skip
_COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")
_ESCAPES = ("ceil", "floor", "index", "int", "trunc")


class WholeReading(int):
    """A reading in whole units."""


class Reading(float):
    """A reading in seconds."""


READINGS = (WholeReading, Reading)


def reading(value: object) -> Any:  # noqa: ANN401 - what it was given, as a reading
    """Return a number as a reading; anything else as it is."""
    if type(value) is float:
        return Reading(value)
    return WholeReading(value) if type(value) is int else value


def _kept(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: Any, *args: Any) -> Any:  # noqa: ANN401 - a number's
        return reading(original(self, *args))

    return compute


def _chosen(original: Callable[..., Any]) -> Callable[..., Any]:
    def compare(self: Any, other: Any) -> Any:  # noqa: ANN401 - a number's
        outcome, task = original(self, other), running_task()
        if outcome is NotImplemented or task is None or task.engine.choices is None:
            return outcome
        return task.engine.choices.compare(task, outcome)

    return compare


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    def convert(self: Any, *args: Any) -> Any:  # noqa: ANN401 - a number's
        task = running_task()
        if task is not None and task.engine.choices is not None:
            task.engine.choices.undeclared(task, "a reading of a clock as a plain number")
        return original(self, *args)

    return convert


def _shown(base: type) -> dict[str, Callable[..., Any]]:
    return {
        "__format__": lambda _, how: format(base(0), how),
        "__repr__": lambda _: repr(base(0)),
        "__str__": lambda _: str(base(0)),
    }


for _kind, _base in ((WholeReading, int), (Reading, float)):
    for _names, _patch in ((_ARITHMETIC, _kept), (_COMPARISONS, _chosen), (_ESCAPES, _noted)):
        for _name in _names:
            _found = getattr(_base, f"__{_name}__", None)
            if _found is not None:
                setattr(_kind, f"__{_name}__", _patch(_found))
    for _name, _method in _shown(_base).items():
        setattr(_kind, _name, _method)
    _kind.__hash__ = _base.__hash__  # type: ignore[method-assign]
