"""Reductions, scans and sorts along a dim of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.kernels import machine
from simrank.kernels.language.elementwise import TYPES_NUMBERS_FIRST, add, mul, widened
from simrank.kernels.language.shapes import as_dims, settled, with_program_axis
from simrank.kernels.machine.running import SIMPLE, spend
from simrank.kernels.values.block import Block, as_block, as_truth, cast_to
from simrank.kernels.values.types import element_type, float32, int1, int32, uint32

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import SupportsInt

    import triton.language as tl

    from simrank.kernels.machine.protocols import Array, Value
    from simrank.kernels.values.block import Operand
    from simrank.kernels.values.types import ElementType

# A row of a dot's result is spread over four lanes, which exchange partial results in two steps
# (PTX ISA, fragments of "mma" and "wgmma"). An exchange takes as long as two simple operations (32
# lanes a clock; CUDA C++ Programming Guide, "Arithmetic Instructions"). Assumed for other blocks,
# too.
_PER_RESULT = 4 * 2 * (2 + 1)


def _flat(block: Block) -> Array:
    values = with_program_axis(block)
    return values.reshape(len(values), -1)


def _axis(block: Block, axis: SupportsInt) -> int:
    """Return the axis of a dim in the values, which have a program axis in front.

    Raises:
        ValueError: The block does not have the dim.
    """
    number, num_dims = int(axis), len(block.shape)
    if not -num_dims <= number < num_dims:
        raise ValueError(f"invalid axis {number}. Expected {-num_dims} <= axis < {num_dims}")
    return number % num_dims + 1


def _along(block: Block, axis: SupportsInt | None) -> tuple[Array, int]:
    """Return a block's values and the axis to reduce; all dims are flattened if axis is None.

    Raises:
        ValueError: The block is a scalar.
        TypeError: The block contains pointers.
    """
    if not block.shape:
        raise ValueError(f"a reduction takes a block, not a scalar of type {block.element}")
    if block.element.kind == "p":
        raise TypeError("cannot add pointers together")
    spend(SIMPLE, block.values)
    if axis is None:
        return _flat(block), 1
    return with_program_axis(block), _axis(block, axis)


def _reduced(result: Array, block: Block, axis: SupportsInt | None, *, keep_dims: bool) -> Value:
    """Return reduced values in the shape of the result."""
    if len(block.shape) > 1:
        spend(SIMPLE, result, _PER_RESULT)
    if not keep_dims:
        return settled(result)
    if axis is None:
        return result.reshape((len(result),) + (1,) * len(block.shape))
    return np.expand_dims(result, _axis(block, axis))


# ---- Reductions of numpy ----


def sum_(
    input: Operand,
    axis: SupportsInt | None = None,
    keep_dims: bool = False,
    dtype: tl.dtype | None = None,
) -> Block:
    """Sum along a dim, rounded once, or at every step with the hardware's precision."""
    block = as_block(input)
    element = _sum_type(block.element, dtype)
    block = cast_to(block, element)
    if element.round is not None and machine.is_as_hardware():
        result: Block = reduce(block, axis, add, keep_dims)
        return result
    values, along = _along(block, axis)
    if element is int1:  # A sum of int1 has one bit.
        total = np.logical_xor.reduce(values, axis=along)
    else:
        total = values.sum(axis=along, dtype=element.compute)
    return Block(_reduced(element.rounded(total), block, axis, keep_dims=keep_dims), element)


def _sum_type(own: ElementType, dtype: tl.dtype | None) -> ElementType:
    """Return the type of a sum: integers below 32 bits are widened to 32 bits."""
    if dtype is not None:
        return element_type(dtype)
    if own.kind in "iub" and own.bits < 32:
        return int32 if own.kind == "i" else uint32  # int1 counts as unsigned.
    return own


def _widened(block: Block) -> Block:
    """Widen a block for max and min: narrow floats and integers to 32 bits."""
    if block.element.bits >= 32:
        return block
    return cast_to(block, float32 if block.element.kind == "f" else int32)


def _extreme(ufunc: np.ufunc, choose: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(
        input: Operand,
        axis: SupportsInt | None = None,
        return_indices: bool = False,
        return_indices_tie_break_left: bool = True,
        keep_dims: bool = False,
    ) -> Block | tuple[Block, Block]:
        del return_indices_tie_break_left  # The leftmost index is always valid.
        if return_indices and axis is None:
            raise ValueError("a reduction that returns indices needs an axis")
        block = as_block(widened(input))
        block = block if return_indices else _widened(block)
        values, along = _along(block, axis)
        result = Block(
            _reduced(ufunc.reduce(values, axis=along), block, axis, keep_dims=keep_dims),
            block.element,
        )
        if not return_indices:
            return result
        indices = choose(values, along).astype(np.int32)
        return result, Block(_reduced(indices, block, axis, keep_dims=keep_dims), int32)

    return extreme


def _argument(choose: np.ufunc | Callable[..., Any], worst: float) -> Callable[..., Any]:
    """Return a function that finds the first best element; NaN is best only if all are NaN."""

    def find(values: Array, along: int) -> Value:
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), worst, values)
        result: Value = choose(values, axis=along)
        return result

    return find


_first_largest = _argument(np.argmax, -np.inf)
_first_smallest = _argument(np.argmin, np.inf)
max_ = _extreme(np.fmax, _first_largest)
min_ = _extreme(np.fmin, _first_smallest)


def argmax(
    input: Operand, axis: SupportsInt | None, tie_break_left: bool = True, keep_dims: bool = False
) -> Block:
    """Return the index of the largest element, the leftmost of equal ones."""
    result: Block = max_(input, axis, True, tie_break_left, keep_dims)[1]
    return result


def argmin(
    input: Operand, axis: SupportsInt | None, tie_break_left: bool = True, keep_dims: bool = False
) -> Block:
    """Return the index of the smallest element, the leftmost of equal ones."""
    result: Block = min_(input, axis, True, tie_break_left, keep_dims)[1]
    return result


def _bitwise(ufunc: np.ufunc, name: str) -> Callable[..., Block]:
    def reduce_bits(
        input: Operand, axis: SupportsInt | None = None, keep_dims: bool = False
    ) -> Block:
        block = as_block(input)
        if block.element.kind not in "iub":
            raise ValueError(f"{name} only supported for integers")
        values, along = _along(block, axis)
        result = ufunc.reduce(values, axis=along)
        return Block(_reduced(result, block, axis, keep_dims=keep_dims), block.element)

    return reduce_bits


xor_sum = _bitwise(np.bitwise_xor, "xor_sum")
reduce_or = _bitwise(np.bitwise_or, "reduce_or")


# ---- Arbitrary combine functions ----


def reduce(
    input: Operand | Sequence[Operand],
    axis: SupportsInt | None,
    combine_fn: Callable[..., Any],
    keep_dims: bool = False,
) -> Any:
    """Reduce one or several blocks by an associative function."""
    blocks = _as_blocks(input)
    parts = [_along(block, axis) for block in blocks]
    along = parts[0][1]
    values = [np.moveaxis(v, along, 1) for v, _ in parts]
    elements = [block.element for block in blocks]
    while values[0].shape[1] > 1:  # Neighbors first: the order of a tree.
        left = [Block(v[:, 0::2], e) for v, e in zip(values, elements, strict=True)]
        right = [Block(v[:, 1::2], e) for v, e in zip(values, elements, strict=True)]
        combined = _combined(combine_fn, left, right)
        _check_combined(combined, elements)
        values = [_spread(c, b) for c, b in zip(combined, left, strict=True)]
    result = [
        Block(_reduced(v[:, 0], block, axis, keep_dims=keep_dims), e)
        for v, block, e in zip(values, blocks, elements, strict=True)
    ]
    return tuple(result) if isinstance(input, tuple | list) else result[0]


def _check_combined(combined: Sequence[Block], elements: Sequence[ElementType]) -> None:
    """Raise if a combine function does not return the types of its arguments.

    Raises:
        TypeError: The types differ.
    """
    own = [block.element for block in combined]
    if own != list(elements):
        raise TypeError(f"combine_fn takes {list(elements)} and returns {own}")


def _as_blocks(input: Operand | Sequence[Operand]) -> list[Block]:
    if isinstance(input, tuple | list):
        blocks = [as_block(block) for block in input]
        shape = np.broadcast_shapes(*(block.shape for block in blocks))
        return [
            Block(
                np.broadcast_to(with_program_axis(b), (len(with_program_axis(b)), *shape)),
                b.element,
            )
            for b in blocks
        ]
    return [as_block(input)]  # type: ignore[arg-type] # Not a tuple, so an operand.


def _combined(
    combine_fn: Callable[..., Any], left: Sequence[Block], right: Sequence[Block]
) -> list[Block]:
    result = combine_fn(*left, *right)
    return [as_block(f) for f in result] if isinstance(result, tuple | list) else [as_block(result)]


def _spread(block: Block, like: Block) -> Array:
    """Return the values of a combined block, broadcast to the axes of its inputs."""
    values = with_program_axis(block)
    shape = (max(len(values), len(like.values)), *like.values.shape[1:])
    return np.broadcast_to(values, shape)


def reduce_with_indices(
    input: Operand,
    axis: SupportsInt | None,
    combine_fn: Callable[..., Any],
    keep_dims: bool = False,
) -> Any:
    """Reduce values together with their positions."""
    block = as_block(input)
    if axis is None:
        block = Block(_flat(block), block.element)
        axis = 0
    along = _axis(block, axis)
    shape = [1] * block.values.ndim
    shape[along] = block.values.shape[along]
    indices = np.arange(shape[along], dtype=np.int32).reshape(shape)
    indices = np.broadcast_to(indices, (1, *block.values.shape[1:]))
    return reduce((block, Block(indices, int32)), axis, combine_fn, keep_dims)


def associative_scan(
    input: Operand | Sequence[Operand],
    axis: SupportsInt,
    combine_fn: Callable[..., Any],
    reverse: bool = False,
) -> Any:
    """Scan by an associative function (Hillis and Steele, 1986)."""
    blocks = _as_blocks(input)
    along = _axis(blocks[0], axis)
    values = [np.moveaxis(with_program_axis(block), along, 1) for block in blocks]
    if reverse:
        values = [v[:, ::-1] for v in values]
    elements = [block.element for block in blocks]
    step = 1
    while step < values[0].shape[1]:
        left = [Block(v[:, :-step], e) for v, e in zip(values, elements, strict=True)]
        right = [Block(v[:, step:], e) for v, e in zip(values, elements, strict=True)]
        combined = _combined(combine_fn, left, right)
        values = [
            np.concatenate([_for_programs(v[:, :step], len(_spread(c, b))), _spread(c, b)], axis=1)
            for v, c, b in zip(values, combined, right, strict=True)
        ]
        step *= 2
    if reverse:
        values = [v[:, ::-1] for v in values]
    result = [Block(np.moveaxis(v, 1, along), e) for v, e in zip(values, elements, strict=True)]
    return tuple(result) if isinstance(input, tuple | list) else result[0]


def _for_programs(values: Array, num_programs: int) -> Array:
    return np.broadcast_to(values, (num_programs, *values.shape[1:]))


def _cumulative(ufunc: np.ufunc, combine: Callable[..., Block]) -> Callable[..., Block]:
    def scan(
        input: Operand, axis: int = 0, reverse: bool = False, dtype: tl.dtype | None = None
    ) -> Block:
        block = as_block(widened(input))
        element = _sum_type(block.element, dtype)
        if ufunc is np.multiply and TYPES_NUMBERS_FIRST:  # It takes no type then, and widens none.
            if dtype is not None:
                raise TypeError("cumprod() got an unexpected keyword argument 'dtype'")
            element = block.element
        block = cast_to(block, element)
        if element.round is not None and machine.is_as_hardware():
            scanned: Block = associative_scan(block, axis, combine, reverse)
            return scanned
        along = _axis(block, axis)
        values = np.flip(block.values, along) if reverse else block.values
        if element is int1:
            ufunc_of_bits = np.logical_xor if ufunc is np.add else np.logical_and
            result = ufunc_of_bits.accumulate(values, axis=along)
        else:
            result = ufunc.accumulate(values, axis=along, dtype=element.compute)
        result = element.rounded(result)
        return Block(np.flip(result, along) if reverse else result, element)

    return scan


# ---- Order ----


def sort(x: Block, dim: SupportsInt | None = None, descending: bool = False) -> Block:
    """Sort a block along its last dim."""
    along = _last_dim(x, dim, "sort")
    if x.shape[-1] == 1:  # Implemented by `tl.max`, which widens.
        x = _widened(x)
    values = np.sort(x.values, axis=along)
    return Block(np.flip(values, along) if descending else values, x.element)


def topk(
    x: Block, k: SupportsInt, dim: SupportsInt | None = None, descending: bool = True
) -> Block:
    """Return the k largest (or smallest) elements along the last dim, the most extreme first."""
    along = _last_dim(x, dim, "topk")
    size = int(k)
    if size < 1:
        raise AssertionError("static assertion failed: topk: k must be greater than 0")
    if size & (size - 1):
        raise AssertionError("static assertion failed: topk: k must be a power of two")
    if size > x.shape[-1]:
        raise AssertionError(
            "static assertion failed: topk: k must not exceed the size of the selected dimension"
        )
    if size < x.shape[-1] or size == 1:  # Implemented by `tl.max`, which widens.
        x = _widened(x)
    values = np.sort(x.values, axis=along)
    values = np.flip(values, along) if descending else values
    return Block(np.take(values, np.arange(size), axis=along), x.element)


def _last_dim(x: Block, dim: SupportsInt | None, name: str) -> int:
    num_dims = len(x.shape)
    if dim is not None and int(dim) % num_dims != num_dims - 1:
        raise AssertionError(
            f"static assertion failed: {name}: only minor dimension is currently supported"
        )
    return num_dims


def flip(x: Block, dim: SupportsInt | None = None) -> Block:
    """Reverse a block along a dim."""
    along = len(x.shape) if dim is None else _axis(x, dim)
    return Block(np.flip(x.values, along), x.element)


def histogram(input: Block, num_bins: SupportsInt, mask: Operand | None = None) -> Block:
    """Count the occurrences of each number from 0 to num_bins - 1."""
    if len(input.shape) != 1:
        raise ValueError("histogram only supports 1D input")
    if input.element.kind not in "iu" or input.element.bits != 32:
        raise ValueError(f"histogram only supports 32-bit integer input, but got {input.element}")
    num_bins = as_dims((num_bins,))[0]
    values = with_program_axis(input).astype(np.int64)
    counted = (values >= 0) & (values < num_bins)
    if mask is not None:
        counted = counted & with_program_axis(as_truth(mask))
        values = np.broadcast_to(values, counted.shape)
    rows = np.arange(len(values))[:, None] * num_bins
    flat = (np.where(counted, values, 0) + rows)[counted]
    result = np.bincount(flat, minlength=len(values) * num_bins)
    return Block(result.reshape(len(values), num_bins).astype(np.int32), int32)


def gather(src: Block, index: Block, axis: SupportsInt) -> Block:
    """Pick elements of a block along a dim by an index block."""
    if index.element.kind not in "iu":
        raise ValueError("index must be an integer tensor")
    along = _axis(src, axis)
    values, indices = src.values, index.values.astype(np.int64)
    size = values.shape[along]
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise ValueError(f"gather: an index is outside of 0 to {size - 1}")
    programs = max(len(values), len(indices))
    result = np.take_along_axis(
        _for_programs(values, programs), _for_programs(indices, programs), axis=along
    )
    return Block(result, src.element)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "reduce": reduce,
    "_reduce_with_indices": reduce_with_indices,
    "associative_scan": associative_scan,
    "histogram": histogram,
    "gather": gather,
}
STANDARD: dict[str, Callable[..., Any]] = {
    "sum": sum_,
    "max": max_,
    "min": min_,
    "argmax": argmax,
    "argmin": argmin,
    "xor_sum": xor_sum,
    "reduce_or": reduce_or,
    "cumsum": _cumulative(np.add, add),
    "cumprod": _cumulative(np.multiply, mul),
    "sort": sort,
    "topk": topk,
    "flip": flip,
}
