"""Promises to the compiler: `tl.multiple_of`, `tl.max_contiguous` and `tl.max_constancy`.

The compiler merges accesses by them without a check, so a false one moves wrong elements on a GPU.
Here a false promise is an error, as a false `tl.assume`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.kernels import machine
from simrank.kernels.language.control import device_assert
from simrank.kernels.values.block import Block, addresses, as_block
from simrank.kernels.values.types import int1

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.protocols import Array
    from simrank.kernels.values.block import Operand


def _hint(name: str, holds: Callable[[Array, int, int], Array]) -> Callable[[Operand, Any], Any]:
    """Return a compiler hint with one value per dim, which changes no element.

    Args:
        name: Its name in triton.language.
        holds: Returns which rows keep the promise, given rows of elements along a dim, [n, size],
            their value of the hint, and the difference of neighbors.
    """

    def hint(input: Operand, values: Any) -> Any:
        given = values if isinstance(values, list | tuple) else (values,)
        for place, value in enumerate(given):
            if type(value) is not int:
                kind = type(value).__name__
                raise TypeError(
                    f"values element {place} must have type `constexpr[int]`, got {kind}"
                )
        block = as_block(input)
        if max(len(block.shape), 1) != len(given):
            raise ValueError(f"Shape of input to {name} does not match the length of values")
        if machine.now().statistics.fill is None and block.element.kind in "iup":
            _check(name, block, given, holds)
        return input

    return hint


def _check(name: str, block: Block, given: Any, holds: Callable[[Array, int, int], Array]) -> None:
    """Raise unless the elements of all programs keep a promise along each dim.

    Raises:
        KernelAssertionError: They do not.
    """
    pointee = block.element.pointee
    step = 1 if pointee is None else pointee.itemsize
    values = np.asarray(block.values if pointee is None else addresses(block)).astype(np.int64)
    values = values.reshape(-1, 1) if not block.shape else values
    for dim, value in enumerate(given):
        if value <= 1:
            continue
        along = np.moveaxis(values, dim + 1, -1)
        kept = holds(along.reshape(-1, along.shape[-1]), value, step)
        if not kept.all():
            per_program = kept.reshape(len(values), -1).all(axis=1)
            row = along.reshape(-1, along.shape[-1])[int(kept.argmin())]
            shown = ", ".join(map(str, row[:4].tolist())) + (", ..." if len(row) > 4 else "")
            device_assert(
                Block(per_program, int1),
                f"tl.{name} does not hold: {value} along dim {dim} of {shown}; the compiler "
                "relies on it, and merges accesses to wrong elements",
            )


def _are_multiples(rows: Array, value: int, step: int) -> Array:
    """Return the rows in which each run of contiguous elements begins at a multiple."""
    is_first = np.ones(rows.shape, bool)
    is_first[:, 1:] = _steps(rows) != step
    is_wrong: Array = is_first & (rows % value != 0)
    return _apart_from_edges(rows, is_wrong, step)


def _are_contiguous(rows: Array, value: int, step: int) -> Array:
    """Return the rows whose groups of `value` elements are contiguous."""
    is_wrong: Array = np.zeros(rows.shape, bool)
    is_wrong[:, 1:] = _steps(rows) != step
    is_wrong[:, ::value] = False
    return _apart_from_edges(rows, is_wrong, step)


def _are_constant(rows: Array, value: int, step: int) -> Array:
    """Return the rows whose groups of `value` elements are equal."""
    del step
    is_wrong = np.zeros(rows.shape, bool)
    is_wrong[:, 1:] = _steps(rows) != 0
    is_wrong[:, ::value] = False
    return _rows_without(is_wrong)


def _rows_without(is_wrong: Array) -> Array:
    result: Array = np.logical_not(np.logical_or.reduce(is_wrong, axis=1))
    return result


def _steps(rows: Array) -> Array:
    result: Array = rows[:, 1:] - rows[:, :-1]
    return result


def _apart_from_edges(rows: Array, is_wrong: Array, step: int) -> Array:
    """Return the rows without wrong elements, apart from lanes beyond an edge.

    Kernels bring such lanes back with `% n` or `tl.where(..., 0)`, so that they begin again at zero
    or stay at one element. Their values are masked off at the store.
    """
    kept = _rows_without(is_wrong)
    for row in np.flatnonzero(~kept).tolist():
        first = int(is_wrong[row].argmax())
        is_break = np.diff(rows[row]) != step
        start = int(is_break.argmax()) + 1 if is_break.any() else 0
        rest = rows[row, start:]
        again = rest[0] == 0 and (np.diff(rest) == step).all()
        kept[row] = 0 < start <= first and bool(again or (rest == rest[0]).all())
    return kept


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "multiple_of": _hint("multiple_of", _are_multiples),
    "max_contiguous": _hint("max_contiguous", _are_contiguous),
    "max_constancy": _hint("max_constancy", _are_constant),
}
