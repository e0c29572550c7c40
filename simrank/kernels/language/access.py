"""Loads, stores and atomics of kernels: pointers, block pointers, tensor descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import triton.language as tl

from simrank.kernels import machine, memory
from simrank.kernels.language import shapes, special
from simrank.kernels.machine import Order
from simrank.kernels.machine.protocols import Unmet
from simrank.kernels.memory.atomics import modify, replaced, swap_if_equal, unchanged
from simrank.kernels.values.block import Block, Shape, as_block, cast_to, constant
from simrank.kernels.values.types import ElementType, float32, int1, int32, int64, pointer_to
from simrank.units import PS_PER_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import SupportsInt

    from simrank.kernels.machine.protocols import Value
    from simrank.kernels.values.block import Operand


class BlockWindow(Protocol):
    """A block pointer or descriptor, loaded and stored as a whole; see `Window`."""

    def load_block(self, boundary_check: Any, padding_option: str) -> Block:
        """Load the block."""

    def store_block(self, value: Operand, boundary_check: Any) -> None:
        """Store the block."""


_LOAD_MODIFIERS = ("", ".ca", ".cg", ".cs", ".cv")
_STORE_MODIFIERS = ("", ".wb", ".cg", ".cs", ".wt")
_EVICTION_POLICIES = ("", "evict_first", "evict_last", "evict_normal")


def _check_hints(modifier: str, modifiers: tuple[str, ...], policy: str) -> None:
    if (modifier or "") not in modifiers:
        raise ValueError(f"Cache modifier {modifier} not supported")
    if (policy or "") not in _EVICTION_POLICIES:
        raise ValueError(f"Eviction policy {policy} not supported")


def load(
    pointer: Block | BlockWindow,
    mask: Operand | None = None,
    other: Operand | None = None,
    boundary_check: Any = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> Block:
    """Load from pointers; see `tl.load`. Cache hints are checked and otherwise ignored."""
    if cache_modifier or eviction_policy:
        _check_hints(cache_modifier, _LOAD_MODIFIERS, eviction_policy)
    if type(pointer) is not Block and hasattr(pointer, "load_block"):
        result: Block = pointer.load_block(boundary_check, padding_option)
        return result
    if other is not None and mask is None:
        raise ValueError("`other` cannot be provided without `mask`")
    sync = machine.now().sync
    if sync is None:
        return memory.load(pointer, mask, other)
    is_look = volatile or cache_modifier == ".cv"
    sync.before_load(pointer, volatile=is_look)
    loaded = memory.load(pointer, mask, other)
    if is_look:
        sync.after_look()
    return loaded


def store(
    pointer: Block | BlockWindow,
    value: Operand,
    mask: Operand | None = None,
    boundary_check: Any = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    """Store to pointers; see `tl.store`."""
    if cache_modifier or eviction_policy:
        _check_hints(cache_modifier, _STORE_MODIFIERS, eviction_policy)
    if type(pointer) is not Block and hasattr(pointer, "store_block"):
        pointer.store_block(value, boundary_check)
        return
    memory.store(pointer, value, mask)


# ---- tensor descriptors, and the block pointers of Triton up to 3.8 ----
# Both describe a tensor in memory (base, shape, strides), and load and store whole blocks of it.
# Elements outside the tensor are padded or skipped.

_PADDINGS = ("", "zero", "nan")
_MOST_DIMS = 5


class Window:
    """A tensor in memory, and the shape of its blocks.

    Attributes:
        base: Pointer to the first element.
        sizes: Size of the tensor in each dim, as int64 scalars.
        strides: Stride of each dim in elements, as int64 scalars.
        block_shape: Shape of a block.
    """

    def __init__(
        self,
        base: Block,
        sizes: Sequence[Operand],
        strides: Sequence[Operand],
        block_shape: Sequence[Operand],
    ) -> None:
        self.base = base
        self.sizes = Shape(_scalar(size, int64) for size in sizes)
        self.strides = Shape(_scalar(stride, int64) for stride in strides)
        self.block_shape = Shape(shapes.as_dims(tuple(block_shape)))

    @property
    def element(self) -> ElementType:
        """Type of the elements."""
        return memory.pointee(self.base)

    def targets(self, offsets: Sequence[Any], checked: Sequence[int]) -> tuple[Block, Any]:
        """Return pointers to a block of the tensor, and a mask of the lanes inside the tensor.

        Args:
            offsets: Index of the block's first element in each dim.
            checked: Dims in which a block may extend beyond the tensor.

        Returns:
            Pointers, and a mask; None if no dim is checked.
        """
        pointer: Any = self.base
        inside: Block | None = None
        num_dims = len(self.block_shape)
        for dim, size in enumerate(self.block_shape):
            lanes = shapes.arange(0, size) if size > 1 else shapes.full((1,), 0, int32)
            index = cast_to(lanes, int64) + _scalar(offsets[dim], int64)
            index = index[tuple(slice(None) if d == dim else None for d in range(num_dims))]
            pointer = pointer + index * self.strides[dim]
            if dim in checked:
                own = (index >= 0) & (index < self.sizes[dim])
                inside = own if inside is None else inside & own
        return pointer, inside


def _scalar(value: Operand, element: ElementType) -> Block:
    block = as_block(value)
    if block.shape or block.element.kind not in "iub":
        raise ValueError("Expected an integer scalar type in shape/strides/offsets")
    return cast_to(block, element)


def _padding(option: str, element: ElementType) -> Block:
    """Return the padding value of elements outside the tensor.

    Raises:
        ValueError: The option is unknown, or not supported for this type.
    """
    if option not in _PADDINGS:
        raise ValueError(f"Padding option {option} not supported")
    if option == "nan":
        if element.kind != "f":
            raise ValueError("Padding option `nan` is not supported for integer blocks")
        return constant(float("nan"), element)
    return constant(0, element)


# ---- Tensor descriptors ----


class Descriptor(Window):
    """A `tl.tensor_descriptor`: blocks at any offset, padded or clipped at the tensor's bounds."""

    def __init__(
        self,
        base: Block,
        sizes: Sequence[Operand],
        strides: Sequence[Operand],
        block_shape: Sequence[Operand],
        padding: str,
        *,
        rounds_to_tf32: bool = False,
    ) -> None:
        super().__init__(base, sizes, strides, block_shape)
        self._fill = _padding(padding, self.element)
        self._rounds_to_tf32 = rounds_to_tf32

    @property
    def dtype(self) -> tl.dtype:
        """Triton type of the elements."""
        return self.element.triton

    @property
    def shape(self) -> Shape:
        """Sizes of the tensor."""
        return Shape(cast_to(size, int32) for size in self.sizes)

    def _lanes(self, offsets: Sequence[Operand]) -> tuple[Block, Block]:
        num_dims = len(self.block_shape)
        if len(offsets) != num_dims:
            raise ValueError(f"expected {num_dims} offsets, but got {len(offsets)}")
        for offset in offsets:
            if type(offset) is Block and offset.element.bits == 64:
                raise ValueError(
                    "Expected a 32-bit integer; add a `.to(tl.int32)` to convert the value"
                )
        return self.targets(offsets, range(num_dims))

    def load(self, offsets: Sequence[Operand]) -> Block:
        """Load the block at some offsets."""
        pointer, inside = self._lanes(offsets)
        return self._loaded_block(memory.load(pointer, inside, self._fill))

    def _loaded_block(self, result: Block) -> Block:
        if self._rounds_to_tf32:
            return Block(special.to_tf32(result.values), float32)
        return result

    def _stored(self, value: Block) -> Block:
        if value.shape != self.block_shape:
            raise ValueError(
                f"expected value shape {list(self.block_shape)}, got {list(value.shape)}"
            )
        return cast_to(value, self.element)

    def store(self, offsets: Sequence[Operand], value: Block) -> None:
        """Store a block at some offsets."""
        stored = self._stored(value)
        pointer, inside = self._lanes(offsets)
        memory.store(pointer, stored, inside)

    def gather(self, rows: Block, column: Operand) -> Block:
        """Load rows of a matrix, beginning at a column."""
        pointer, inside = self._rows(rows, column, "gather")
        return self._loaded_block(memory.load(pointer, inside, self._fill))

    def scatter(self, value: Block, rows: Block, column: Operand) -> None:
        """Store rows of a matrix, beginning at a column."""
        pointer, inside = self._rows(rows, column, "scatter")
        memory.store(pointer, cast_to(value, self.element), inside)

    def _rows(self, rows: Block, column: Operand, what: str) -> tuple[Block, Block]:
        shown = list(self.block_shape)
        if len(shown) != 2:
            raise ValueError(f"descriptor must be 2D, but got {shown}")
        if shown[0] != 1:
            raise ValueError(f"descriptor block must have 1 row, but got {shown}")
        if len(rows.shape) != 1 or rows.element.kind != "i" or rows.element.bits not in (16, 32):
            raise ValueError(
                f"x offsets must be 1D of int16 or int32, but got {rows.element}{list(rows.shape)}"
            )
        if rows.shape[0] < 8:
            raise ValueError(
                f"descriptor {what} must have at least 8 rows, but got {list(rows.shape)}"
            )
        least = 32 // self.element.bits * 8
        if shown[1] < least:
            raise ValueError(
                f"descriptor {what} of {self.element} must have at least {least} columns, "
                f"but got {shown[1]}"
            )
        row = cast_to(rows, int64)[:, None]
        index = cast_to(shapes.arange(0, shown[1]), int64) + _scalar(column, int64)
        index = index[None, :]
        inside = (row >= 0) & (row < self.sizes[0]) & (index >= 0) & (index < self.sizes[1])
        return self.base + row * self.strides[0] + index * self.strides[1], inside

    def _reduce(self, name: str, offsets: Sequence[Operand], value: Block) -> None:
        stored = self._stored(value)
        if self.element.triton not in _REDUCED[name]:
            raise ValueError(f"Unsupported dtype {self.element} of a descriptor's {name}")
        pointer, inside = self._lanes(offsets)
        order = Order("relaxed", None)  # As `cp.reduce.async.bulk` (PTX ISA).
        modify(pointer, [stored], inside, order, _COMBINE[name], wants_old=False)


def _reduction(name: str) -> Callable[[Descriptor, Any, Block], None]:
    def method(self: Descriptor, offsets: Sequence[Operand], value: Block) -> None:
        self._reduce(name, offsets, value)

    return method


_WORDS = (tl.uint32, tl.int32, tl.uint64, tl.int64)
_HALVES = (tl.float16, tl.bfloat16)
# Source: Triton 3.9, `semantic.descriptor_atomic_*`.
_REDUCED = {
    "add": (tl.uint32, tl.int32, tl.uint64, tl.float32, *_HALVES),
    "min": (*_WORDS, *_HALVES), "max": (*_WORDS, *_HALVES),
    "and": _WORDS, "or": _WORDS, "xor": _WORDS,
}  # fmt: skip
_COMBINE: dict[str, Callable[..., Any]] = {
    "add": np.add, "min": np.fmin, "max": np.fmax,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
for _name in _COMBINE:
    setattr(Descriptor, f"atomic_{_name}", _reduction(_name))


def make_tensor_descriptor(
    base: Block,
    shape: Sequence[Operand],
    strides: Sequence[Operand],
    block_shape: Sequence[Operand],
    padding_option: str = "zero",
) -> Descriptor:
    """Create a descriptor of a tensor in memory; see `tl.make_tensor_descriptor`.

    Raises:
        ValueError: The tensor memory accelerator does not support the descriptor.
    """
    num_dims = len(shape)
    if not 1 <= num_dims <= _MOST_DIMS:
        raise ValueError(f"Expected 1 <= ndim <= 5 but got {num_dims} dimensions")
    if len(strides) != num_dims:
        raise ValueError(f"Expected {num_dims} strides but got {len(strides)}")
    if len(block_shape) != num_dims:
        raise ValueError(
            f"Expected block_shape to have {num_dims} dimensions but got {len(block_shape)}"
        )
    itemsize = memory.pointee(base).itemsize
    row_bytes = int(block_shape[-1]) * itemsize
    if row_bytes < 16:
        raise ValueError(
            "Descriptor block shape must have at least 16 bytes in the last dimension, but got "
            f"{int(block_shape[-1])} * {itemsize} = {row_bytes} bytes"
        )
    last = strides[-1]
    if not _is_one(last):
        raise ValueError(f"Tensor descriptor last dim must be 1 but got {last}")
    for stride in strides[:-1]:
        _check_aligned(stride, itemsize)
    return Descriptor(base, shape, strides, block_shape, padding_option)


def _is_one(stride: Operand) -> bool:
    """Return whether a stride is 1; the compiler treats an argument of 1 as a constant."""
    values = stride.values if type(stride) is Block else stride
    return type(values) is not np.ndarray and int(values) == 1


def _check_aligned(stride: Operand, itemsize: int) -> None:
    values = stride.values if type(stride) is Block else stride
    if type(values) is not np.ndarray and int(values) * itemsize % 16:
        raise ValueError(
            "Tensor descriptor strides must be 16-byte aligned, but got a stride of "
            f"{values} * {itemsize} = {int(values) * itemsize} bytes"
        )


def of_host(descriptor: Any, base: Block) -> Descriptor:
    """Convert a `triton.tools.tensor_descriptor.TensorDescriptor` argument."""
    return Descriptor(
        base,
        [int(size) for size in descriptor.shape],
        [int(stride) for stride in descriptor.strides],
        [int(size) for size in descriptor.block_shape],
        getattr(descriptor, "padding", "zero"),
        rounds_to_tf32=bool(getattr(descriptor, "round_f32_to_tf32", False)),
    )


def load_tensor_descriptor(desc: Descriptor, offsets: Sequence[Operand]) -> Block:
    """Load the block of a descriptor at some offsets."""
    return desc.load(offsets)


def store_tensor_descriptor(desc: Descriptor, offsets: Sequence[Operand], value: Block) -> None:
    """Store a block of a descriptor at some offsets."""
    desc.store(offsets, value)


# ---- Block pointers ----


class BlockPointer(Window):
    """Result of `tl.make_block_ptr` up to Triton 3.8: a window that is advanced block by block.

    Attributes:
        offsets: Index of the block's first element in each dim, as int64 scalars.
    """

    def __init__(
        self,
        base: Block,
        sizes: Sequence[Operand],
        strides: Sequence[Operand],
        offsets: Sequence[Operand],
        block_shape: Sequence[Operand],
    ) -> None:
        super().__init__(base, sizes, strides, block_shape)
        self.offsets = [_scalar(offset, int64) for offset in offsets]

    @property
    def shape(self) -> Shape:
        """Shape of the block."""
        return self.block_shape

    @property
    def dtype(self) -> tl.dtype:
        """Triton type of a pointer to the elements."""
        return pointer_to(self.element).triton

    @property
    def type(self) -> tl.dtype:
        """Triton type of a pointer to the block."""
        return tl.pointer_type(tl.block_type(self.element.triton, list(self.block_shape)))

    def advance(self, offsets: Sequence[Operand]) -> BlockPointer:
        """Return a window moved by some elements."""
        if len(offsets) != len(self.offsets):
            raise ValueError(f"expected {len(self.offsets)} offsets, but got {len(offsets)}")
        moved = [
            own + _scalar(step, int64) for own, step in zip(self.offsets, offsets, strict=True)
        ]
        return BlockPointer(self.base, self.sizes, self.strides, moved, self.block_shape)

    def _checked(self, boundary_check: Any) -> list[int]:
        dims = (
            list(boundary_check) if isinstance(boundary_check, tuple | list) else [boundary_check]
        )
        for dim in dims:
            if not 0 <= int(dim) < len(self.block_shape):
                raise ValueError(f"boundary_check names dim {dim} of {len(self.block_shape)}")
        if len(set(dims)) != len(dims):
            raise ValueError(f"Duplicate dimension in `boundary_check`: {dims}")
        return [int(dim) for dim in dims]

    def load_block(self, boundary_check: Any, padding_option: str) -> Block:
        """Load the block, padded in the checked dims."""
        pointer, inside = self.targets(self.offsets, self._checked(boundary_check))
        fill = _padding(padding_option, self.element)
        return memory.load(pointer, inside, None if inside is None else fill)

    def store_block(self, value: Operand, boundary_check: Any) -> None:
        """Store the block, clipped in the checked dims."""
        pointer, inside = self.targets(self.offsets, self._checked(boundary_check))
        stored = shapes.broadcast_to(as_block(value), self.block_shape)
        memory.store(pointer, stored, inside)


def make_block_ptr(
    base: Block,
    shape: Sequence[Operand],
    strides: Sequence[Operand],
    offsets: Sequence[Operand],
    block_shape: Sequence[Operand],
    order: Sequence[int],
) -> BlockPointer:
    """Create a block pointer, for kernels written for Triton up to 3.8.

    Raises:
        ValueError: Shape, strides, offsets, block shape and order differ in length.
    """
    lengths = {len(part) for part in (shape, strides, offsets, block_shape, order)}
    if len(lengths) != 1:
        raise ValueError("Expected shape/strides/offsets/block_shape/order to have the same length")
    if sorted(int(dim) for dim in order) != list(range(len(order))):
        raise ValueError("Expected a permutation of (0, 1, ..., len(order)-1) in order")
    if base.shape:
        raise ValueError("Expected a scalar pointer as the base of a block pointer")
    return BlockPointer(base, shape, strides, offsets, block_shape)


def advance(base: BlockPointer, offsets: Sequence[Operand]) -> BlockPointer:
    """Return a block pointer moved by some elements."""
    return base.advance(offsets)


# ---- atomic functions of `tl`; `kernels/memory/atomics.py` applies them to memory ----

_Bits = dict[str, tuple[int, ...]]


def _check_kind(pointer: Block, name: str, bits: _Bits) -> None:
    """Raise if an atomic does not support the kind and bits of its elements.

    Raises:
        ValueError: The atomic does not support the element type.
    """
    element = memory.pointee(pointer)
    if element.bits not in bits.get(element.kind, ()):
        raise ValueError(f"{name} does not support {element}")


def _arithmetic(name: str, compute: Callable[..., Any], bits: _Bits) -> Callable[..., Block]:
    def atomic(
        pointer: Block,
        val: Operand,
        mask: Operand | None = None,
        sem: str | None = None,
        scope: str | None = None,
        wants_old: bool = True,
    ) -> Block:
        _check_kind(pointer, name, bits)
        return modify(pointer, [val], mask, Order(sem, scope), compute, wants_old=wants_old)

    atomic.__name__ = name
    return atomic


def atomic_cas(
    pointer: Block, cmp: Operand, val: Operand, sem: str | None = None, scope: str | None = None
) -> Block:
    """Write `val` where memory holds `cmp`, and return the old values."""
    _check_kind(pointer, "atomic_cas", _ANY)
    memory.writable_pointee(pointer)
    for value, name in ((cmp, "cmp"), (val, "val")):
        _check_swapped(pointer, as_block(value), name)
    return modify(pointer, [cmp, val], None, Order(sem, scope), swap_if_equal)


def _check_swapped(pointer: Block, value: Block, name: str) -> None:
    """Raise if an operand of a compare-and-swap has another type or shape than the pointee.

    Raises:
        TypeError: The type or shape differs; the compiler converts neither.
    """
    element, own = memory.pointee(pointer), value.element
    is_alike = own.bits == element.bits and (own.kind == "f") == (element.kind == "f")
    if not is_alike or (own.kind == "f" and own is not element):
        raise TypeError(
            f"atomic_cas: memory holds {element}, and `{name}` is {own}: the compiler converts no "
            f"operand\n  to fix: {name}=tl.full((), ..., tl.{element.triton})"
        )
    if value.shape != pointer.shape:
        raise TypeError(
            f"atomic_cas: the pointer has shape {list(pointer.shape)}, and `{name}` has "
            f"{list(value.shape)}: the compiler broadcasts no operand"
        )


def atomic_load(
    pointer: Block, mask: Operand | None = None, sem: str | None = None, scope: str | None = None
) -> Block:
    """Return the values in memory."""
    order = Order(sem, scope, default="acquire")
    if order.releases:
        raise ValueError("atomic_load only supports acquire and relaxed semantics")
    return modify(pointer, [], mask, order, unchanged)


def atomic_store(
    pointer: Block,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> None:
    """Write values to memory."""
    order = Order(sem, scope, default="release")
    if order.acquires:
        raise ValueError("atomic_store only supports release and relaxed semantics")
    modify(pointer, [val], mask, order, replaced, wants_old=False)


def _first_unequal(result: Block, expected: Block) -> Unmet:
    """Return the first value that differs from the expected one, and the expected value."""
    pairs = zip(*map(np.ravel, np.broadcast_arrays(result.values, expected.values)), strict=True)
    return next(Unmet(*pair) for pair in pairs if pair[0] != pair[1])


def atomic_poll(
    pointer: Block,
    expected_value: Operand,
    sem: str | None = None,
    scope: str | None = None,
    timeout_ns: SupportsInt | None = None,
) -> Block:
    """Wait until memory holds the expected value; return where it did before the timeout."""
    _check_kind(pointer, "atomic_poll", {"i": _ALL, "u": _ALL})
    order = Order(sem, scope, default="acquire")
    if order.releases:
        raise ValueError("atomic_poll only supports acquire and relaxed semantics")
    if timeout_ns is not None and int(timeout_ns) < 0:
        raise ValueError("atomic_poll timeout_ns must be non-negative")
    sync = machine.now().sync
    element = memory.pointee(pointer)
    expected = cast_to(as_block(expected_value), element)

    def holds() -> Value:
        held: Any = modify(pointer, [], None, order, unchanged)
        equal: Value = (held == expected).values
        if sync is not None and not held.shape and not expected.shape:
            sync.tests("NotEq", int(expected), element.memory, changes=False)
        if sync is not None and not np.all(equal):
            sync.unmet = _first_unequal(held, expected)
        return equal

    if sync is None:
        return Block(holds(), int1)
    budget_ps = None if timeout_ns is None else int(timeout_ns) * PS_PER_NS
    return Block(sync.wait_until(holds, budget_ps, for_value=True), int1)


_ALL, _WIDE = (16, 32, 64), (32, 64)
_ANY: _Bits = {"i": _ALL, "u": _ALL, "f": _ALL}
_WHOLE: _Bits = {"i": _WIDE, "u": _WIDE}
# Source: Triton 3.9, `semantic._validate_atomic_rmw_element_type`.


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "load": load,
    "store": store,
    "make_tensor_descriptor": make_tensor_descriptor,
    "load_tensor_descriptor": load_tensor_descriptor,
    "store_tensor_descriptor": store_tensor_descriptor,
    "make_block_ptr": make_block_ptr,
    "advance": advance,
    "atomic_add": _arithmetic("atomic_add", np.add, _WHOLE | {"f": _ALL}),
    "atomic_max": _arithmetic("atomic_max", np.fmax, _WHOLE | {"f": _WIDE}),
    "atomic_min": _arithmetic("atomic_min", np.fmin, _WHOLE | {"f": _WIDE}),
    "atomic_and": _arithmetic("atomic_and", np.bitwise_and, _WHOLE),
    "atomic_or": _arithmetic("atomic_or", np.bitwise_or, _WHOLE),
    "atomic_xor": _arithmetic("atomic_xor", np.bitwise_xor, _WHOLE),
    "atomic_xchg": _arithmetic("atomic_xchg", replaced, _WHOLE | {"f": _WIDE}),
    "atomic_cas": atomic_cas,
    "atomic_load": atomic_load,
    "atomic_store": atomic_store,
    "atomic_poll": atomic_poll,
}
