"""Creation and reshaping of blocks, as in `triton.language.core`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.kernels import machine
from simrank.kernels.values.block import Block, addresses, as_block, cast_to, constant
from simrank.kernels.values.operators import MAX_NUMEL, aligned, check_broadcast, with_axes
from simrank.kernels.values.types import element_type, int32

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import triton.language as tl

    from simrank.kernels.machine.protocols import Array, Value
    from simrank.kernels.values.block import Operand


def settled(values: Value) -> Value:
    """Return values, as a numpy scalar if all programs share one scalar."""
    if values.ndim == 1 and len(values) == 1:
        result: Value = values[0]
        return result
    return values


def with_program_axis(block: Block) -> Array:
    """Return a block's values as an array with a program axis, also for a shared scalar."""
    values = block.values
    if type(values) is np.ndarray:
        return values
    lifted: Array = values.reshape(1)
    return lifted


def as_dims(shape: Sequence[Any]) -> tuple[int, ...]:
    """Return the dims of a shape, validated as in the compiler.

    Raises:
        ValueError: A size is not a power of two, or the block has too many elements.
    """
    if len(shape) == 1 and isinstance(shape[0], list | tuple):
        shape = shape[0]
    dims = tuple(int(size) for size in shape)
    numel = 1
    for index, size in enumerate(dims):
        if size < 1 or size & (size - 1):
            raise ValueError(f"Shape element {index} must be a power of 2, got {size}")
        numel *= size
    if numel > MAX_NUMEL:
        raise ValueError(f"numel ({numel}) exceeds triton maximum tensor numel ({MAX_NUMEL})")
    return dims


def program_id(axis: int) -> Block:
    """Return the id of the program along an axis."""
    axis = int(axis)
    if not 0 <= axis <= 2:
        raise ValueError(f"program_id axis must be 0, 1, or 2 but got {axis}")
    return Block(machine.now().program_id(axis), int32)


def num_programs(axis: int) -> Block:
    """Return the number of programs along an axis."""
    return constant(machine.now().grid[int(axis)], int32)


@lru_cache(maxsize=256)
def _arange(start: int, end: int) -> Array:
    values = np.arange(start, end, dtype=np.int32)[None]
    values.flags.writeable = False
    return values


def arange(start: Any, end: Any) -> Block:
    """Return the integers from `start` to `end`, exclusive."""
    if type(start) is Block or type(end) is Block:
        raise ValueError("arange's arguments must be of type tl.constexpr")
    if end <= start:
        raise ValueError("arange's end argument must be greater than the start argument")
    size = end - start
    if size & (size - 1):
        raise ValueError("arange's range must be a power of 2")
    as_dims((size,))
    return Block(_arange(start, end), int32)


def full(shape: Sequence[Any], value: Operand, dtype: tl.dtype) -> Block:
    """Create a block filled with a number or a scalar block."""
    element = element_type(dtype)
    dims = as_dims(shape)
    scalar = cast_to(value, element) if type(value) is Block else constant(value, element)
    if isinstance(value, float) and value and element.kind != "f":  # Zero is every type's.
        raise TypeError(f"tl.full: {value} is a float, and the block's type is {element}")
    if scalar.shape:
        raise ValueError("only accepts size-1 tensor")
    values = with_program_axis(scalar)
    if not dims:
        return scalar
    filled = np.broadcast_to(values.reshape(values.shape + (1,) * len(dims)), (len(values), *dims))
    return Block(filled, element)


def broadcast(first: Operand, second: Operand) -> tuple[Block, Block]:
    """Broadcast two blocks to their common shape."""
    first, second = (_require_block(block, "tl.broadcast") for block in (first, second))
    check_broadcast(first, second)
    shape = np.broadcast_shapes(first.shape, second.shape)
    return _broadcast_with_dims(first, shape), _broadcast_with_dims(second, shape)


def _require_block(block: Operand, name: str) -> Block:
    """Return the block; raise for a plain number, which the compiler does not broadcast.

    Raises:
        TypeError: The value is a number.
    """
    if type(block) is not Block:
        raise TypeError(f"{name} takes blocks, not the number {block}")
    return block


def _broadcast_with_dims(block: Block, shape: tuple[int, ...]) -> Block:
    """Broadcast a block to a shape with at least as many dims; new dims come first."""
    missing = len(shape) - len(block.shape)
    return broadcast_to(expand_dims(block, list(range(missing))) if missing else block, shape)


def broadcast_to(block: Operand, *shape: Any) -> Block:
    """Broadcast a block to a larger shape."""
    given = _require_block(block, "tl.broadcast_to")
    if len(shape) == 1 and isinstance(shape[0], list | tuple):
        shape = tuple(shape[0])
    dims = as_dims(shape)
    own = given.shape
    if own == dims:
        return given
    if own and len(own) != len(dims):
        raise ValueError(f"Cannot broadcast, rank mismatch: {list(own)}, {list(dims)}")
    for size, wanted in zip(own, dims, strict=False):
        if size not in (1, wanted):
            raise ValueError(
                f"Cannot broadcast, the expanded size of the tensor ({wanted}) must match the "
                f"existing size ({size}) at non-singleton dimension"
            )
    values = with_axes(with_program_axis(given), len(dims) + 1)
    return Block(np.broadcast_to(values, (len(values), *dims)), given.element, given.base)


def expand_dims(block: Operand, axis: Any) -> Block:
    """Insert dims of size 1 into a block."""
    block = as_block(block)
    axes = [int(a) for a in axis] if isinstance(axis, list | tuple) else [int(axis)]
    values = with_program_axis(block)
    num_dims = values.ndim - 1 + len(axes)
    for given in axes:
        if not -num_dims <= given < num_dims:
            raise ValueError(f"invalid axis {given}. Expected {-num_dims} <= axis < {num_dims}")
    dims = [given % num_dims for given in axes]
    if len(set(dims)) != len(dims):
        raise ValueError(f"expand_dims received duplicate axes, normalized axes = {dims}")
    for dim in sorted(dims):
        values = np.expand_dims(values, dim + 1)
    return Block(values, block.element, block.base)


def reshape(block: Operand, *shape: Any, can_reorder: bool = False) -> Block:
    """Return a block with another shape, with its elements in row-major order."""
    del can_reorder
    block = as_block(block)
    dims = as_dims(shape)
    values = with_program_axis(block)
    numel = 1
    for size in dims:
        numel *= size
    if numel != block.numel:
        raise ValueError(f"reshape() cannot change total number of elements in tensor: {dims}")
    reshaped = values.reshape((len(values), *dims))
    return Block(reshaped if dims else settled(reshaped), block.element, block.base)


def item(block: Block) -> Block:
    """Return the only element of a block as a scalar."""
    if block.numel != 1:
        raise ValueError("item() requires a tensor of one element")
    return reshape(block, ())


def permute(block: Block, *dims: Any) -> Block:
    """Reorder the dims of a block."""
    if len(dims) == 1 and isinstance(dims[0], list | tuple):
        dims = tuple(dims[0])
    if sorted(int(d) % max(len(dims), 1) for d in dims) != list(range(len(block.shape))):
        raise ValueError(f"permute dims must have the same length as shape: {dims}")
    axes = [0, *(int(d) % len(dims) + 1 for d in dims)]
    return Block(np.transpose(block.values, axes), block.element, block.base)


def trans(block: Block, *dims: Any) -> Block:
    """Swap the last two dims of a block, or reorder its dims as given."""
    if not dims:
        if len(block.shape) < 2:
            raise ValueError("tl.trans invoked with a 0- or 1-dimensional tensor")
        return Block(np.swapaxes(block.values, -1, -2), block.element, block.base)
    return permute(block, *dims)


def join(first: Operand, second: Operand) -> Block:
    """Stack two blocks along a new last dim."""
    first, second = _with_common_base(*broadcast(first, second))
    one, other = aligned(with_program_axis(first), with_program_axis(second))
    shape = np.broadcast_shapes(one.shape, other.shape)
    stacked = np.stack([np.broadcast_to(one, shape), np.broadcast_to(other, shape)], axis=-1)
    return Block(stacked, first.element, first.base)


def _with_common_base(first: Block, second: Block) -> tuple[Block, Block]:
    """Return two blocks with a common base; pointers into different storages become addresses.

    Raises:
        TypeError: The element types differ.
    """
    if first.element is not second.element:
        raise TypeError(f"blocks of types {first.element} and {second.element} do not go together")
    if first.base is second.base:
        return first, second
    ours, theirs = (Block(addresses(block), block.element) for block in (first, second))
    return ours, theirs


def split(block: Block) -> tuple[Block, Block]:
    """Split a block along its last dim, which has size 2."""
    if not block.shape or block.shape[-1] != 2:
        raise ValueError("split: the last dimension must have size 2")
    halves = block.values[..., 0], block.values[..., 1]
    first, second = (Block(settled(half), block.element, block.base) for half in halves)
    return first, second


def cat(first: Block, second: Block, can_reorder: bool = False, dim: int = 0) -> Block:
    """Concatenate two blocks along a dim."""
    rank = len(first.shape)
    if can_reorder and (rank, len(second.shape)) != (1, 1):
        raise AssertionError(f"expected 1D input for cat, got {rank}D")
    if not can_reorder and rank != len(second.shape):
        raise AssertionError(f"tensors must have the same rank, got {rank} and {len(second.shape)}")
    if not can_reorder and first.shape != second.shape:
        raise AssertionError(
            f"tl.cat requires tensors of the same shape, got {[*first.shape]} and {[*second.shape]}"
        )
    dim = int(dim)
    if not -rank <= dim < rank:
        raise ValueError(f"invalid axis {dim}. Expected {-rank} <= axis < {rank}")
    dim %= rank
    as_dims([*first.shape[:dim], first.shape[dim] + second.shape[dim], *first.shape[dim + 1 :]])
    first, second = _with_common_base(first, second)
    one, other = with_program_axis(first), with_program_axis(second)
    programs = max(len(one), len(other))
    parts = [np.broadcast_to(part, (programs, *part.shape[1:])) for part in (one, other)]
    return Block(np.concatenate(parts, axis=dim + 1), first.element, first.base)


def to_tensor(value: Operand) -> Block:
    """Convert a number to a scalar."""
    return as_block(value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "program_id": program_id,
    "num_programs": num_programs,
    "arange": arange,
    "full": full,
    "broadcast": broadcast,
    "broadcast_to": broadcast_to,
    "expand_dims": expand_dims,
    "reshape": reshape,
    "view": reshape,
    "item": item,
    "permute": permute,
    "trans": trans,
    "join": join,
    "split": split,
    "cat": cat,
    "to_tensor": to_tensor,
}
