"""Atomic functions of `tl`; `memory/atomics.py` applies them to memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.kernels import machine, memory
from simrank.kernels.machine import Order
from simrank.kernels.machine.protocols import Unmet
from simrank.kernels.memory.atomics import modify, replaced, swap_if_equal, unchanged
from simrank.kernels.values.block import Block, as_block, cast_to
from simrank.kernels.values.types import int1
from simrank.units import PS_PER_NS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import SupportsInt

    from simrank.kernels.machine.arrays import Value
    from simrank.kernels.values.block import Operand


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
