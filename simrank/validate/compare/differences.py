"""Differences of two returned values: the first places and errors, element by element."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.validate.compare.tolerance import ulps, wide
from simrank.validate.compare.values import Array, Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.validate.compare.tolerance import Tolerance

_MAX_TEXT = 80
_FEW = 4
_FLOATS = "fcV"  # V: types of ml_dtypes.


@dataclass(frozen=True, slots=True)
class Difference:
    """One place at which the sides differ.

    Attributes:
        place: For example `['loss'][3]`; empty: the whole value.
        simulated: What is there on the simulated rank.
        real: What is there on the real one.
        detail: How far, for numbers.
    """

    place: str
    simulated: str
    real: str
    detail: str = ""

    def __str__(self) -> str:
        """Return the text for reports."""
        detail = f" ({self.detail})" if self.detail else ""
        what = f"value{self.place}" if self.place else "the value"
        return f"{what}: simulated {self.simulated}, real {self.real}{detail}"


@dataclass(slots=True)
class Likeness:
    """The result of a comparison of two values.

    Attributes:
        num_values: Tensors, arrays and plain values that were compared.
        num_rounded: Of these, how many are within bounds, but not equal bit by bit.
        most_ulp: The most steps between two elements within bounds.
        differences: In the order of the value.
    """

    num_values: int = 0
    num_rounded: int = 0
    most_ulp: int = 0
    differences: list[Difference] = field(default_factory=list)


def likeness(simulated: Any, real: Any, tolerance: Tolerance) -> Likeness:  # noqa: ANN401 - captured values
    """Compare two values, as `values.captured` returns them."""
    found = Likeness()
    _compare(simulated, real, tolerance, "", found)
    return found


def _compare(one: Any, other: Any, tolerance: Tolerance, place: str, found: Likeness) -> None:  # noqa: ANN401 - as above
    if isinstance(one, Node) and isinstance(other, Node) and _is_alike(one, other, place, found):
        for (name, mine), (_, theirs) in zip(one.parts, other.parts, strict=True):
            _compare(mine, theirs, tolerance, place + name, found)
    elif isinstance(one, Array) and isinstance(other, Array):
        found.num_values += 1
        _compare_arrays(one, other, tolerance, place, found)
    elif not isinstance(one, Node) or not isinstance(other, Node):
        found.num_values += 1
        if type(one) is float and type(other) is float:
            _compare_arrays(*_as_arrays(one, other), tolerance, place, found)
        elif type(one) is not type(other) or one != other:
            found.differences.append(Difference(place, shown(one), shown(other)))


def _as_arrays(one: float, other: float) -> tuple[Array, Array]:
    """Return Python numbers as arrays; values of float32 precision come from `item()`."""
    with np.errstate(over="ignore"):
        is_narrow = all(float(np.float32(each)) == each for each in (one, other))
    dtype = "float32" if is_narrow else "float64"
    return Array("float", dtype, np.array(one, dtype)), Array(
        "float", dtype, np.array(other, dtype)
    )


def _is_alike(one: Node, other: Node, place: str, found: Likeness) -> bool:
    """Return whether containers have the same parts; else that is the difference."""
    mine, theirs = ([name for name, _ in each.parts] for each in (one, other))
    if one.kind != other.kind:
        found.differences.append(Difference(place, shown(one), shown(other)))
    elif mine != theirs:
        only_one = [name for name in mine if name not in theirs]
        only_other = [name for name in theirs if name not in mine]
        detail = f"{len(mine)} and {len(theirs)} parts"
        if only_one or only_other:
            detail = f"only simulated: {_few(only_one)}; only real: {_few(only_other)}"
        found.differences.append(Difference(place, shown(one), shown(other), detail))
    return one.kind == other.kind and mine == theirs


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "-"


def _compare_arrays(
    one: Array, other: Array, tolerance: Tolerance, place: str, found: Likeness
) -> None:
    facts = [(a.kind, a.dtype, a.values.shape) for a in (one, other)]
    if facts[0] != facts[1]:
        found.differences.append(Difference(place, shown(one), shown(other)))
        return
    mine, theirs = one.values.reshape(-1), other.values.reshape(-1)
    outside = tolerance.is_outside(mine, theirs, one.dtype)
    if outside.any():
        found.differences.append(_of_elements(one, other, outside, place))
        return
    if mine.size and mine.dtype.kind in _FLOATS:
        most = int(ulps(mine, theirs).max())
        found.num_rounded += most > 0
        found.most_ulp = max(found.most_ulp, most)


def _of_elements(one: Array, other: Array, outside: Any, place: str) -> Difference:  # noqa: ANN401 - an array
    mine, theirs = one.values.reshape(-1), other.values.reshape(-1)
    first = int(np.flatnonzero(outside)[0])
    index = "".join(f"[{each}]" for each in np.unravel_index(first, one.values.shape))
    num, total = int(outside.sum()), mine.size
    parts = [f"{one.dtype}, {num} of {total} elements" if total > 1 else one.dtype]
    if mine.dtype.kind != "b":
        parts += _how_far(mine[outside], theirs[outside])
    return Difference(place + index, str(mine[first]), str(theirs[first]), ", ".join(parts))


def _how_far(mine: Any, theirs: Any) -> Iterator[str]:  # noqa: ANN401 - arrays
    """Yield the largest error, its ulps, and whether NaNs differ."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(wide(mine) - wide(theirs))
    known = np.isfinite(apart)
    if known.any():
        worst = int(np.argmax(np.where(known, apart, -1.0)))
        yield f"max error {apart[worst]:.3g}"
        if mine.dtype.kind in _FLOATS:
            yield f"{int(ulps(mine, theirs)[worst])} ulp"
    if np.isnan(apart).any() and (np.isnan(wide(mine)) != np.isnan(wide(theirs))).any():
        yield "NaN on one side"


def shown(value: Any) -> str:  # noqa: ANN401 - a captured value
    """Return a value in a line."""
    if isinstance(value, Array):
        shape = list(value.values.shape)
        return f"{value.kind} of {value.dtype} {shape}"
    if isinstance(value, Node):
        return f"{value.kind} of {len(value.parts)}"
    text = value.text if hasattr(value, "text") else repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def brief(value: Any) -> str:  # noqa: ANN401 - a captured value
    """Return a value with its parts, as much of it as a line holds."""
    text = _with_parts(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _with_parts(value: Any) -> str:  # noqa: ANN401 - as above
    if isinstance(value, Node):
        return f"{value.kind}({', '.join(name + ' ' + _with_parts(v) for name, v in value.parts)})"
    if isinstance(value, Array) and value.values.size <= _FEW:
        return f"{value.values.tolist()} of {value.dtype}"
    return shown(value)
