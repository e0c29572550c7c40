"""Operators of blocks, from tables: broadcasting, promotion, pointer arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language as tl

from simrank.kernels.machine.running import FUSED, SIMPLE, SPECIAL, spend
from simrank.kernels.values import types
from simrank.kernels.values.block import Block, as_block, pointee_of, scalar_of, wide
from simrank.kernels.values.types import (
    ElementType,
    converted,
    int1,
    promote,
    promote_number,
    uint64,
)

if TYPE_CHECKING:
    from simrank.kernels.machine.protocols import Value
    from simrank.kernels.values.block import Operand


# ---- broadcasting of shapes and arrays; the program axis stays in front ----

_ndarray = np.ndarray
MAX_NUMEL: int = tl.TRITON_MAX_TENSOR_NUMEL


def aligned(first: Value, second: Value) -> tuple[Any, Any]:
    """Return two blocks' values with equal numbers of axes, ready to broadcast in numpy.

    Axes are inserted behind the program axis, since Triton broadcasts shapes from the right.
    """
    if type(first) is _ndarray and type(second) is _ndarray:
        if first.ndim > second.ndim:
            second = with_axes(second, first.ndim)
        elif first.ndim < second.ndim:
            first = with_axes(first, second.ndim)
    return first, second


def check_broadcast(first: Block, second: Block) -> None:
    """Raise, with Triton's text, if two shapes cannot be broadcast."""
    common_shape(first.shape, second.shape)


@lru_cache(maxsize=1024)
def common_shape(ours: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common shape of two shapes.

    Raises:
        ValueError: The shapes are incompatible, or the result has too many elements.
    """
    if not ours or not theirs:
        return ours or theirs
    num_dims = max(len(ours), len(theirs))
    result, numel = [], 1
    for dim in range(-num_dims, 0):
        one = ours[dim] if -dim <= len(ours) else 1
        other = theirs[dim] if -dim <= len(theirs) else 1
        if one != other and 1 not in (one, other):
            raise ValueError(
                "Cannot make_shape_compatible: incompatible dimensions at index "
                f"{num_dims + dim}: {one} and {other}"
            )
        result.append(max(one, other))
        numel *= result[-1]
    if numel > MAX_NUMEL:
        raise ValueError(f"numel ({numel}) exceeds triton maximum tensor numel ({MAX_NUMEL})")
    return tuple(result)


def with_axes(values: Value, num_axes: int) -> Value:
    """Insert axes behind the program axis of an array; scalars need none."""
    if type(values) is not _ndarray or values.ndim == num_axes:
        return values
    missing = (1,) * (num_axes - values.ndim)
    return values.reshape(values.shape[:1] + missing + values.shape[1:])


# ---- operators ----

BinaryOperator = Callable[[Block, Any], Block]


def operands(
    first: Block, second: Operand, *, divides: bool = False
) -> tuple[Any, Any, ElementType]:
    """Return two operands' values, promoted and with equal numbers of axes, and their type."""
    own = first.element
    if type(second) is Block:
        other = second.element
        ours, theirs = first.values, second.values
        both = type(ours) is _ndarray and type(theirs) is _ndarray
        if both and ours.shape[1:] != theirs.shape[1:]:
            common_shape(ours.shape[1:], theirs.shape[1:])  # Raises for incompatible shapes.
            ours, theirs = aligned(ours, theirs)
        if own is other and not (divides and own.round is not None):
            return ours, theirs, own
        result = promote(own, other, divides=divides)
        if own is not result:
            ours = converted(ours, own, result)
        if other is not result:
            theirs = converted(theirs, other, result)
        return ours, theirs, result
    if isinstance(second, np.generic):
        second = second.item()
    # The cache does not distinguish 0.0 and -0.0, so zeros bypass it.
    find = _number if second else _number.__wrapped__
    number, result = find(own, second, divides)
    ours = first.values
    if own is not result:
        ours = converted(ours, own, result)
    return ours, number, result


@lru_cache(maxsize=4096, typed=True)
def _number(own: ElementType, number: float, divides: bool) -> tuple[Any, ElementType]:
    """Return a Python number converted for an operation with a block, and the result type."""
    result = promote_number(own, number, divides=divides)
    return scalar_of(number, result), result


def _arithmetic(compute: Callable[[Any, Any], Any], name: str, *, swapped: bool) -> BinaryOperator:
    def applied(self: Block, other: Operand) -> Block:
        own = self.element
        if own.is_plain and type(other) is Block and other.element is own:
            ours, theirs = self.values, other.values
            is_one = type(ours) is not _ndarray or type(theirs) is not _ndarray
            if is_one or ours.shape[1:] == theirs.shape[1:]:
                values = compute(theirs, ours) if swapped else compute(ours, theirs)
                if own.kind == "f":
                    spend(FUSED, values)
                return Block(values, own)
        if own.kind == "p" or (type(other) is Block and other.element.kind == "p"):
            return _move_pointer(self, other, name)
        ours, theirs, result = operands(self, other)
        if result.kind == "b":
            ours, theirs = _as_bits(ours), _as_bits(theirs)
        values = compute(theirs, ours) if swapped else compute(ours, theirs)
        if result.round is not None:
            values = result.round(values)
        elif result.kind == "b":
            values = (values & 1).astype(np.bool_)
        if result.kind == "f":
            spend(FUSED, values)
        return Block(values, result)

    return applied


def _as_bits(values: Value) -> Value:
    return values.astype(np.int8)


def _move_pointer(first: Block, second: Operand, name: str) -> Block:
    """Move a pointer by a number of elements."""
    if first.element.kind == "p" and name in ("add", "sub"):  # The common case.
        if type(second) is int:
            return _moved(first, first.values, second, name)
        if type(second) is Block and second.element.kind == "i":
            steps = second.values
            if type(steps) is not _ndarray:
                return _moved(first, first.values, steps, name)
    pointer, offset = first, as_block(second)
    if offset.element.kind == "p":
        pointer, offset = offset, first
        if name != "add" or offset.element.kind == "p":
            raise TypeError("cannot add pointers together")
    if name not in ("add", "sub") or offset.element.kind not in "iub":
        raise TypeError(f"invalid operands of type {first.element} and {offset.element}")
    targets, steps = pointer.values, offset.values
    are_blocks = type(targets) is _ndarray and type(steps) is _ndarray
    if are_blocks and targets.shape[1:] != steps.shape[1:]:
        common_shape(targets.shape[1:], steps.shape[1:])
        targets, steps = aligned(targets, steps)
    # numpy promotes int64 with every integer type except uint64 to int64, for arrays slowly.
    if type(steps) is _ndarray or offset.element is uint64:
        steps = wide(steps)
    return _moved(pointer, targets, steps, name)


def _moved(pointer: Block, targets: Value, steps: Any, name: str) -> Block:
    """Move a pointer by steps whose axes match."""
    if pointer.base is None:
        steps = steps * np.int64(pointee_of(pointer.element).itemsize)
    moved = targets + steps if name == "add" else targets - steps
    return Block(moved, pointer.element, pointer.base)


# Besides the reciprocal, `div.full.f32` has two comparisons and five products (sm_90, ptxas 12.9,
# as nvdisasm shows). Elements with one divisor, say of a row, share most of them: not counted.
_DIVISION_COMPARISONS, _DIVISION_PRODUCTS = 2, 5


def spend_division(values: Value, divisor: Value, element: ElementType) -> None:
    """Count the operations of quotients of floats, given their values, divisors and type."""
    spend(SPECIAL, values)
    if element is types.float32 and np.shape(divisor) == np.shape(values):
        spend(SIMPLE, values, _DIVISION_COMPARISONS)
        spend(FUSED, values, 2 * _DIVISION_PRODUCTS)  # None of them joins another one.


def _divide(first: Block, second: Operand, *, swapped: bool) -> Block:
    ours, theirs, result = operands(first, second, divides=True)
    if result.kind != "f":
        result = types.float32
        ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
    values = np.true_divide(theirs, ours) if swapped else np.true_divide(ours, theirs)
    spend_division(values, ours if swapped else theirs, result)
    return Block(values, result)


def _floor_divide(first: Block, second: Operand, *, swapped: bool) -> Block:
    ours, theirs, result = operands(first, second, divides=True)
    if result.kind not in "iub":
        raise TypeError(f"unexpected type {result}: // is for integers")
    return Block(truncated(theirs, ours) if swapped else truncated(ours, theirs), result)


def truncated(number: Value, by: Value) -> Value:
    """Compute an integer quotient rounded toward zero, as hardware does."""
    quotient = np.floor_divide(number, by)
    if quotient.dtype.kind != "i":
        return quotient
    is_below = (quotient < 0) & (quotient * by != number)
    result: Value = quotient + is_below.astype(quotient.dtype)
    return result


def _modulo(first: Block, second: Operand, *, swapped: bool) -> Block:
    ours, theirs, result = operands(first, second, divides=True)
    values = np.fmod(theirs, ours) if swapped else np.fmod(ours, theirs)
    return Block(values, result)


def _bitwise(compute: Callable[[Any, Any], Any], *, swapped: bool) -> BinaryOperator:
    def applied(self: Block, other: Operand) -> Block:
        ours, theirs, result = operands(self, other)
        if result.kind in "fp":
            raise TypeError(f"invalid operands of type {self.element} and {result}")
        values = compute(theirs, ours) if swapped else compute(ours, theirs)
        if result.kind != "b":  # Masks cost nothing: one register holds those of 32 lanes.
            spend(SIMPLE, values)
        return Block(values, result)

    return applied


def _shift_right(first: Block, second: Operand, *, swapped: bool) -> Block:
    """Shift right, arithmetically if the block that defines the operator has a signed type.

    That block is the left operand, or the right one if the left is a number. The result has the
    promoted type, whose signedness may differ.
    """
    ours, theirs, result = operands(first, second)
    if result.kind in "fp":
        raise TypeError(f"invalid operands of type {first.element} and {result}")
    number, by = (theirs, ours) if swapped else (ours, theirs)
    if result.kind == "b":
        return Block(number & ~by, result)
    is_signed = first.element.kind == "i"
    if is_signed != (result.kind == "i"):
        other = np.dtype(f"{'i' if is_signed else 'u'}{result.itemsize}")
        shifted = np.right_shift(number.view(other), by.astype(other)).view(result.compute)
    else:
        shifted = number >> by
    spend(SIMPLE, shifted)
    return Block(shifted, result)


def _comparison(compute: Callable[[Any, Any], Any], *, equals: bool) -> BinaryOperator:
    def applied(self: Block, other: Any) -> Any:
        if equals and (other is None or isinstance(other, str)):
            return NotImplemented
        if self.element.kind == "p" or (type(other) is Block and other.element.kind == "p"):
            theirs = as_block(other).element
            raise TypeError(f"invalid operands of type {self.element} and {theirs}")
        ours, theirs, computed = operands(self, other)
        values = compute(ours, theirs)
        if computed.kind == "f":
            spend(SIMPLE, values)
        return Block(values, int1)

    return applied


_Table = tuple[tuple[str, Any], ...]
# Python's operators give the same results as numpy's functions; for scalars ten times as fast.
_ARITHMETIC: _Table = (("add", operator.add), ("sub", operator.sub), ("mul", operator.mul))
_BITWISE: _Table = (
    ("and", operator.and_), ("or", operator.or_), ("xor", operator.xor),
    ("lshift", operator.lshift),
)  # fmt: skip
_COMPARISONS: _Table = (
    ("lt", operator.lt), ("le", operator.le), ("gt", operator.gt), ("ge", operator.ge),
    ("eq", operator.eq), ("ne", operator.ne),
)  # fmt: skip

for _name, _compute in _ARITHMETIC:
    _reflected = "add" if _name == "add" else f"r{_name}"
    setattr(Block, f"__{_name}__", _arithmetic(_compute, _name, swapped=False))
    setattr(Block, f"__r{_name}__", _arithmetic(_compute, _reflected, swapped=True))
_FUNCTIONS: _Table = (
    ("truediv", _divide), ("floordiv", _floor_divide), ("mod", _modulo), ("rshift", _shift_right),
)  # fmt: skip
for _name, _function in _FUNCTIONS:
    for _prefix, _swapped in (("", False), ("r", True)):

        def _operator(
            self: Block,
            other: Operand,
            function: Callable[..., Block] = _function,
            swapped: bool = _swapped,
        ) -> Block:
            result: Block = function(self, other, swapped=swapped)
            return result

        setattr(Block, f"__{_prefix}{_name}__", _operator)
for _name, _compute in _BITWISE:
    setattr(Block, f"__{_name}__", _bitwise(_compute, swapped=False))
    setattr(Block, f"__r{_name}__", _bitwise(_compute, swapped=True))
for _name, _compute in _COMPARISONS:
    setattr(Block, f"__{_name}__", _comparison(_compute, equals=_name in ("eq", "ne")))
