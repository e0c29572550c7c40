"""Blocks: values of a kernel, for one program or for many in lockstep (rule K1).

A block's array has a leading program axis: size 1 if all programs have the same values, else one
entry per program. A scalar that all programs share is a numpy scalar, which is ten times as fast.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language as tl

from simrank.kernels import machine
from simrank.kernels.machine.running import SIMPLE, spend
from simrank.kernels.values import types
from simrank.kernels.values.types import ElementType, converted, element_type, int1

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from simrank.device.memory import Storage
    from simrank.kernels.machine.protocols import Array, Value

_ndarray = np.ndarray
_INT64 = np.dtype(np.int64)


class Diverged(Exception):  # noqa: N818 - not an error: the programs continue in groups
    """Programs in lockstep take different paths.

    Attributes:
        choices: The choice of each program, [P].
    """

    def __init__(self, choices: Array) -> None:
        super().__init__("programs in lockstep go different ways")
        self.choices = choices


class Shape(tuple[Any, ...]):
    """Shape of a block: a tuple that can be concatenated with lists, as kernels do."""

    __slots__ = ()

    def __add__(self, other: Any) -> Shape:
        return Shape((*self, *other))

    def __radd__(self, other: Iterable[int]) -> Shape:
        return Shape((*other, *self))

    def __getitem__(self, index: Any) -> Any:
        result = tuple.__getitem__(self, index)
        return Shape(result) if isinstance(index, slice) else result


_SCALAR = Shape()
_EVERYTHING = slice(None)


class Anchor:
    """Base of pointers that were integers: offsets count from a storage, but may leave it.

    Attributes:
        storage: The storage that the integer pointed into.
        address: Start address of the storage.
    """

    __slots__ = ("address", "storage")

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.address = storage.address


class Block:
    """A value of a kernel, as `tl.tensor`.

    Attributes:
        values: Array [1 or P, *shape], or a numpy scalar if shape is () and all programs share it.
        element: Type of the elements.
        base: For pointers: the storage or anchor from which `values` count elements. None:
            `values` are byte addresses.
    """

    __slots__ = ("base", "element", "values")
    __array_ufunc__ = None  # Leaves mixed expressions to this class.

    def __init__(
        self, values: Value | np.generic, element: ElementType, base: Storage | Anchor | None = None
    ) -> None:
        self.values: Value = values  # type: ignore[assignment] # A scalar has the same methods.
        self.element = element
        self.base = base

    # ---- Attributes and methods of tl.tensor ----

    @property
    def shape(self) -> Shape:
        """Size of each dim; () for a scalar."""
        values = self.values
        return Shape(values.shape[1:]) if type(values) is _ndarray else _SCALAR

    @property
    def dtype(self) -> tl.dtype:
        """Triton type of the elements."""
        return self.element.triton

    @property
    def type(self) -> tl.dtype:
        """Triton type of the block, or of the elements of a scalar."""
        shape = self.shape
        return tl.block_type(self.element.triton, list(shape)) if shape else self.element.triton

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def T(self) -> Block:  # noqa: N802 - Triton's name
        """The block with its two dims swapped."""
        if len(self.shape) != 2:
            raise ValueError(
                "permute dims must have the same length as input shape, "
                f"got {len(self.shape)} and 2"
            )
        return Block(np.swapaxes(self.values, -1, -2), self.element, self.base)

    @property
    def storage(self) -> Storage | None:
        """Storage from which pointers count elements; None for addresses and numbers."""
        base = self.base
        return base.storage if isinstance(base, Anchor) else base

    @property
    def handle(self) -> Block:
        """The block itself, in place of the compiler's value handle."""
        return self

    def __repr__(self) -> str:
        """Return type and values, for debuggers."""
        return f"Block({self.type}, {self.values})"

    def __getitem__(self, index: Any) -> Block:
        if type(index) is tuple and len(index) == 2 and self.values.ndim == 2:
            first, second = index
            if second is None and first == _EVERYTHING:
                return Block(self.values[:, :, None], self.element, self.base)
            if first is None and second == _EVERYTHING:
                return Block(self.values[:, None], self.element, self.base)
        indices = index if isinstance(index, tuple | list) else (index,)
        for part in indices:
            if part is not None and not (isinstance(part, slice) and part == slice(None)):
                raise ValueError(f"unsupported tensor index: {part}")
        values = self.values
        if type(values) is not _ndarray:
            values = values.reshape(1)
        num_used = sum(part is not None for part in indices)
        if num_used > values.ndim - 1:
            raise ValueError(f"too many indices for tensor of rank {values.ndim - 1}")
        return Block(values[(slice(None), *indices)], self.element, self.base)

    def to(
        self,
        dtype: tl.dtype,
        fp_downcast_rounding: str | None = None,
        bitcast: bool = False,
    ) -> Block:
        """Convert the block to another type; see `tl.cast`."""
        if fp_downcast_rounding not in (None, "rtne", "rtz"):
            raise ValueError(
                f"Invalid rounding mode: {fp_downcast_rounding}. Supported rounding modes are "
                "'rtne' and 'rtz'."
            )
        target = element_type(dtype)
        if bitcast:
            return bitcast_to(self, target)
        if (
            fp_downcast_rounding
            and self.element is not target
            and not _narrows(self.element, target)
        ):
            raise ValueError(
                "fp_downcast_rounding should be set only for truncating fp conversions. "
                f"Source scalar type is {self.element} and destination type is {target}"
            )
        return cast_to(self, target, toward_zero=fp_downcast_rounding == "rtz")

    # ---- Conversions to Python values, where programs may diverge ----

    def shared(self) -> Any:
        """Return the value that all programs share.

        Raises:
            Diverged: The programs have different values.
            ValueError: The block is not a scalar.
        """
        values = self.values
        if type(values) is not _ndarray:
            return values
        if values.ndim != 1:
            if values.size == 1:
                return values.reshape(-1)[0]
            raise ValueError(
                "the truth or number of a block is ambiguous: only scalars steer a program\n"
                "  to fix: reduce it first, for example with tl.max"
            )
        first = values[0]
        if len(values) == 1 or (values == first).all():
            return first
        active = machine.now().active
        if active is not None and len(active) == len(values):
            first = values[int(active.argmax())]
            if (values[active] == first).all():
                return first
        raise Diverged(values)

    def __bool__(self) -> bool:
        """Return the truth of a scalar; diverging programs are split."""
        # Of a pointer the address counts: its index may be 0.
        values = self.values if self.base is None else addresses(self)
        if type(values) is _ndarray and values.dtype != np.bool_:
            return bool(Block(values != 0, int1).shared())
        if self.base is not None:
            return bool(values)
        return bool(self.shared())

    def __index__(self) -> int:
        """Return the value of a scalar integer; diverging programs are split."""
        if self.element.kind == "f":
            raise TypeError(f"an index must be an integer, not {self.element}")
        return int(self.shared())

    def __int__(self) -> int:
        """Return the value of a scalar; diverging programs are split."""
        return int(self.shared())

    def __float__(self) -> float:
        """Return the value of a scalar; diverging programs are split."""
        return float(self.shared())

    __hash__ = object.__hash__

    # ---- Operators ----

    def __neg__(self) -> Block:
        if self.element.kind == "p":
            raise ValueError(f"wrong type argument to unary minus ({self.element})")
        if self.element.kind == "b":  # 0 - x in one bit.
            return self
        return Block(-self.values, self.element)

    def __pos__(self) -> Block:
        return self

    def __invert__(self) -> Block:
        if self.element.kind in "pf":
            raise ValueError(f"wrong type argument to unary invert ({self.element})")
        return Block(~self.values, self.element)

    def logical_and(self, other: Block) -> Block:
        """Compute the logical and of two blocks."""
        return as_logical(self) & as_logical(other)

    def logical_or(self, other: Block) -> Block:
        """Compute the logical or of two blocks."""
        return as_logical(self) | as_logical(other)

    # Set in `operators`, from a table: + - * / // % & | ^ << >> and comparisons.
    __add__: Callable[[Block, Any], Block]
    __radd__: Callable[[Block, Any], Block]
    __sub__: Callable[[Block, Any], Block]
    __rsub__: Callable[[Block, Any], Block]
    __mul__: Callable[[Block, Any], Block]
    __rmul__: Callable[[Block, Any], Block]
    __truediv__: Callable[[Block, Any], Block]
    __rtruediv__: Callable[[Block, Any], Block]
    __floordiv__: Callable[[Block, Any], Block]
    __rfloordiv__: Callable[[Block, Any], Block]
    __mod__: Callable[[Block, Any], Block]
    __rmod__: Callable[[Block, Any], Block]
    __and__: Callable[[Block, Any], Block]
    __rand__: Callable[[Block, Any], Block]
    __or__: Callable[[Block, Any], Block]
    __ror__: Callable[[Block, Any], Block]
    __xor__: Callable[[Block, Any], Block]
    __lshift__: Callable[[Block, Any], Block]
    __rshift__: Callable[[Block, Any], Block]
    __lt__: Callable[[Block, Any], Block]
    __le__: Callable[[Block, Any], Block]
    __gt__: Callable[[Block, Any], Block]
    __ge__: Callable[[Block, Any], Block]


Operand = Block | float  # Argument type of tl functions.


# ---- Numbers ----


@lru_cache(maxsize=4096)
def _whole(number: int) -> Block:
    """Return a Python integer as a cached scalar block; blocks are immutable."""
    element = types.type_of_number(number)
    return Block(scalar_of(number, element), element)


def constant(number: Any, element: ElementType | None = None) -> Block:
    """Convert a Python number to a scalar block."""
    if type(number) is int and element is None:
        return _whole(number)
    if element is None:
        element = types.type_of_number(number)
    return Block(scalar_of(number, element), element)


def scalar_of(number: Any, element: ElementType) -> Any:
    """Convert a Python number to a numpy scalar of the compute dtype, rounded to the type."""
    if element.kind in "iu":
        number = int(number) & ((1 << element.bits) - 1)  # Two's complement.
        if element.kind == "i" and number >> (element.bits - 1):
            number -= 1 << element.bits
    value = element.compute.type(number)
    return value if element.round is None else element.round(value)


def as_block(value: Operand) -> Block:
    """Convert a block or number to a block."""
    return value if type(value) is Block else constant(value)


# ---- Conversions ----


def cast_to(block: Block, target: ElementType, *, toward_zero: bool = False) -> Block:
    """Convert a block to another type, as `tl.cast` without bitcast."""
    own = block.element
    if own is target:
        return block
    values = block.values
    if "p" in (own.kind, target.kind):
        return _cast_pointer(block, target)
    if "f" in (own.kind, target.kind) and own.kind != target.kind and 8 in _float_bits(own, target):
        raise ValueError(f"cannot cast {own} to {target}")
    if own.kind != target.kind or _narrows(own, target):
        spend(SIMPLE, values)
    return Block(converted(values, own, target, toward_zero=toward_zero), target)


def _float_bits(*elements: ElementType) -> list[int]:
    return [element.bits for element in elements if element.kind == "f"]


def _narrows(own: ElementType, target: ElementType) -> bool:
    return own.kind == "f" == target.kind and target.bits < own.bits


def _cast_pointer(block: Block, target: ElementType) -> Block:
    own = block.element
    if target.kind == "p" and own.kind == "p":
        if own.is_constant and not target.is_constant:
            raise ValueError(f"cannot cast {own} to {target}: nothing is stored through it")
        if (
            target.itemsize == own.itemsize
            and pointee_of(target).itemsize == pointee_of(own).itemsize
        ):
            return Block(block.values, target, block.base)
        return _pointer_at(addresses(block), target)
    if target.kind == "p":
        if own.kind == "f" or own.bits != 64:
            raise ValueError(f"cannot cast {own} to {target}: an address has 64 bits")
        return _pointer_at(wide(block.values), target)
    if target.kind in "iu" and target.bits == 64:
        return Block(addresses(block).astype(target.compute), target)
    if target.kind == "b":
        return Block(addresses(block) != 0, int1)
    raise ValueError(f"cannot cast {own} to {target}")


def _pointer_at(at: Value, target: ElementType) -> Block:
    """Return pointers to addresses; a shared address counts from its storage."""
    if type(at) is _ndarray or not machine.is_running():
        return Block(at, target)
    address = int(at)
    storage = machine.now().device.memory.space.find(address)
    if storage is None:
        return Block(at, target)
    index, odd = divmod(address - storage.address, pointee_of(target).itemsize)
    return Block(at, target) if odd else Block(np.int64(index), target, Anchor(storage))


def wide(values: Any) -> Any:
    """Convert integers to int64; numpy would promote int64 and uint64 to floats."""
    if type(values) is np.int64:
        return values
    if type(values) is not _ndarray:
        return values.view(np.int64) if type(values) is np.uint64 else np.int64(values)
    if values.dtype is _INT64:
        return values
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)


def pointee_of(element: ElementType) -> ElementType:
    """Return the element type of a pointer type."""
    assert element.pointee is not None, "it is a pointer"
    return element.pointee


def addresses(pointer: Block) -> Value:
    """Return the targets of a pointer block as simulated byte addresses."""
    if pointer.base is None:
        return pointer.values
    itemsize = pointee_of(pointer.element).itemsize
    return pointer.values * np.int64(itemsize) + np.int64(pointer.base.address)


def bitcast_to(block: Block, target: ElementType) -> Block:
    """Reinterpret the bits as another type of the same width.

    Raises:
        ValueError: The widths differ.
    """
    own = block.element
    if own is target:
        return block
    if "p" in (own.kind, target.kind):
        return _cast_pointer(block, target)
    if own.bits != target.bits:
        raise ValueError(
            f"Cannot bitcast data-type of size {own.bits} to data-type of size {target.bits}"
        )
    stored = block.values.astype(own.memory)
    return Block(stored.view(target.memory).astype(target.compute), target)


def as_truth(value: Operand) -> Block:
    """Return the elements that are not zero, as Triton's logical operators do."""
    block = as_block(value)
    if block.element is int1:
        return block
    if block.element.kind not in "iu":
        raise ValueError(f"a condition must be an integer or int1, not {block.element}")
    return Block(block.values != 0, int1)


def as_logical(value: Operand) -> Block:
    """Convert an operand of `and`, `or` and `not` to int1, as Triton does.

    Raises:
        ValueError: The operand has another type.
    """
    return bitcast_to(as_block(value), int1)
