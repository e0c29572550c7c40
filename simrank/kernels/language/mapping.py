"""`tl.map_elementwise`: a scalar function applied to each element, with divergence.

Each element temporarily is a program. All run in lockstep; where they diverge, the function runs
again for each group of elements on the same path.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.language.shapes import with_program_axis
from simrank.kernels.machine import Programs, Setting
from simrank.kernels.values.block import Block, Diverged, as_block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.kernels.machine.arrays import Array
    from simrank.kernels.values.block import Operand
    from simrank.kernels.values.types import ElementType


def map_elementwise(
    scalar_fn: Callable[..., Any], *args: Operand, pack: int = 1
) -> Block | tuple[Block, ...]:
    """Apply a function to every element, or to `pack` neighbors at once.

    The compiler chooses the neighbors; here they are consecutive in the last dim. A function that
    treats all elements alike does not depend on the choice.

    Raises:
        ValueError: An argument is missing, elements do not divide into packs, or result types
            differ between paths.
        UnsupportedError: The function accesses memory, or the kernel reads thread indices.
    """
    if pack < 1:
        raise ValueError(f"pack must be >= 1, got {pack}")
    if not args:
        raise ValueError("map_elementwise must have at least 1 input tensor")
    if machine.now().options.num_threads:
        raise UnsupportedError(
            "tl.map_elementwise in a kernel that asks which thread it is, is not supported"
        )
    blocks = [as_block(arg) for arg in args]
    shape = np.broadcast_shapes(*(block.shape for block in blocks))
    num_rows = max(len(with_program_axis(block)) for block in blocks)
    if np.prod(shape, dtype=np.int64) % pack:
        raise ValueError(f"blocks of shape {list(shape)} do not divide into packs of {pack}")
    columns = []
    for block in blocks:
        if block.element.kind == "p":
            raise UnsupportedError("tl.map_elementwise of pointers is not supported")
        rows = with_program_axis(block)
        rows = rows.reshape(len(rows), *[1] * (len(shape) - rows.ndim + 1), *rows.shape[1:])
        whole = np.broadcast_to(rows, (num_rows, *shape)).reshape(-1, pack)
        columns += [(whole[:, place], block.element) for place in range(pack)]
    results, is_single = _map_columns(scalar_fn, columns, num_rows)
    if len(results) % pack:
        raise ValueError(f"the function gives {len(results)} results, no multiple of {pack}")
    found = []
    for first in range(0, len(results), pack):
        parts = results[first : first + pack]
        if len({element for _, element in parts}) > 1:
            raise ValueError("type mismatch in unpacked results")
        together = np.stack([values for values, _ in parts], axis=-1)
        found.append(Block(together.reshape(num_rows, *shape), parts[0][1]))
    return found[0] if is_single and pack == 1 else tuple(found)


Column = tuple["Array", "ElementType"]


def _map_columns(
    scalar_fn: Callable[..., Any], columns: Sequence[Column], num_rows: int
) -> tuple[list[Column], bool]:
    """Return the results of all elements, and whether the function returns a single value."""
    outer = machine.now()
    ids = outer.ids if num_rows > 1 else outer.ids[:1]
    setting = Setting(outer.kernel, outer.grid, outer.device, outer.statistics, outer.options)
    total = len(columns[0][0])
    owners = np.repeat(ids, total // num_rows)
    copies = len(outer.ids) if num_rows == 1 else 1
    waiting, finished = [np.arange(total)], []
    accesses = outer.statistics.num_lanes, outer.statistics.num_atomics
    while waiting:
        chosen = waiting.pop()
        before = outer.statistics.snapshot()
        rows = _Rows(setting, owners[chosen], copies)
        given = [Block(values[chosen], element) for values, element in columns]
        found: list[Any] = []
        try:
            machine.run(rows, partial(_call, scalar_fn, given, found))
        except Diverged as split:
            outer.statistics.restore(before)
            waiting += [chosen[split.choices == way] for way in np.unique(split.choices)]
            continue
        if accesses != (outer.statistics.num_lanes, outer.statistics.num_atomics):
            raise UnsupportedError("memory in a function for tl.map_elementwise is not supported")
        finished.append((chosen, found[0]))
    return _merged(finished, total), not isinstance(finished[0][1], tuple | list)


def _call(function: Callable[..., Any], given: Sequence[Block], found: list[Any]) -> None:
    found.append(function(*given))


class _Rows(Programs):
    """Elements as programs: their scalars cost as much as elements of blocks."""

    counts_scalars = True

    def __init__(self, setting: Setting, ids: Array, copies: int) -> None:
        super().__init__(setting, ids)
        self.copies = copies


def _merged(finished: Sequence[tuple[Array, Any]], total: int) -> list[Column]:
    """Merge the results of all paths, in the order of the elements."""
    columns: list[Column] = []
    for chosen, result in finished:
        blocks = [as_block(r) for r in (result if isinstance(result, tuple | list) else (result,))]
        if not columns:
            columns = [(np.empty(total, block.values.dtype), block.element) for block in blocks]
        if [element for _, element in columns] != [block.element for block in blocks]:
            raise ValueError(
                "ways through a function for tl.map_elementwise give results of different types: "
                f"{[e.name for _, e in columns]} and {[b.element.name for b in blocks]}"
            )
        for (values, _), block in zip(columns, blocks, strict=True):
            values[chosen] = block.values
    return columns


FUNCTIONS: dict[str, Callable[..., Any]] = {"map_elementwise": map_elementwise}
