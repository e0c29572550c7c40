"""Atomic functions of kernels: one lane after the other, in the order of programs and lanes.

The old value is what the lane would have seen in that order. Lanes that touch different elements
are done at once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.kernels import machine
from simrank.kernels.memory import illegal
from simrank.kernels.memory.addresses import (
    check_bounds,
    element_at,
    launch_view,
    pointee,
    segments,
)
from simrank.kernels.values.block import Anchor, Block, as_block, as_truth, cast_to
from simrank.kernels.values.broadcasting import with_axes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device.memory import Storage
    from simrank.kernels.machine import Order, Programs
    from simrank.kernels.values.types import ElementType

Array = np.ndarray[Any, Any]
_ndarray = np.ndarray
_FEW = 16  # lanes; with so few, numpy's calls on arrays cost more than a loop (measured)
_MAX_ROUNDS = 64  # assumed: with more lanes on one element a prefix sum is faster than rounds


def _are_scalars(*values: Any) -> bool:
    return not any(type(value) is _ndarray for value in values)


def _lanes(
    programs: Programs, pointer: Block, values: Sequence[Any], mask: Any
) -> tuple[Array, list[Array], Array | None, tuple[int, ...]]:
    """Return places, operands and active lanes as arrays of one shape, a row for each program."""
    arrays: list[Any] = [pointer.values, *values]
    if mask is not None:
        arrays.append(as_truth(mask).values)
    num_axes = max([np.ndim(array) for array in arrays] + [1])
    rows = [_as_rows(array, num_axes) for array in arrays]
    shape = np.broadcast_shapes((len(programs),) + (1,) * (num_axes - 1), *(r.shape for r in rows))
    spread = [np.broadcast_to(row, shape) for row in rows]
    active = spread.pop() if mask is not None else None
    return spread[0], spread[1:], active, shape


def _as_rows(values: Any, num_axes: int) -> Array:
    array = np.asarray(values)
    if array.ndim == 0:
        array = array.reshape(1)
    rows: Array = with_axes(array, num_axes)
    return rows


def modify(
    pointer: Block,
    operands: Sequence[Any],
    mask: Any,
    order: Order,
    compute: Callable[..., Any],
    *,
    wants_old: bool = True,
) -> Block:
    """Apply a function to elements in memory, atomically; return what was there before.

    Args:
        pointer: Where.
        operands: Blocks of the pointee's type that `compute` takes after the old value.
        mask: Lanes that do it, or None.
        order: How it orders memory.
        compute: Returns the new value of the old one and the operands.
        wants_old: Whether somebody uses the result.
    """
    programs = machine.now()
    machine.require_all(programs)
    element = pointee(pointer)
    values = [cast_to(as_block(operand), element).values for operand in operands]
    if mask is None and len(programs.ids) == 1 and _are_scalars(pointer.values, *values):
        return _one(programs, pointer, values, element, order, compute)
    places, spread, active, shape = _lanes(programs, pointer, values, mask)
    flat = places.reshape(-1)
    arguments = [value.reshape(-1) for value in spread]
    chosen = None if active is None else np.flatnonzero(active.reshape(-1))
    if chosen is not None:
        flat, arguments = flat[chosen], [value[chosen] for value in arguments]
    programs.statistics.count_atomics(len(flat))
    if len(flat) <= _FEW:
        old = _one_by_one(programs, pointer, flat, arguments, element, order, compute)
    else:
        old = _together(programs, pointer, flat, arguments, element, order, compute, wants_old)
    return Block(_shaped(old, chosen, shape), element)


def _together(
    programs: Programs,
    pointer: Block,
    flat: Array,
    arguments: list[Array],
    element: ElementType,
    order: Order,
    compute: Callable[..., Any],
    wants_old: bool,
) -> Array:
    """Apply an atomic to many lanes, with arrays; return the old values."""
    old = np.zeros(len(flat), element.compute)
    found = list(_by_storage(programs, pointer, flat, element))
    storages = [storage for storage, _, _ in found]
    if programs.sync is not None and storages:
        programs.sync.before_atomic(storages, order)
    for storage, part, own in found:
        mine = arguments if part is None else [value[part] for value in arguments]
        target = slice(None) if part is None else part
        old[target] = _on_storage(programs, storage, own, mine, element, order, compute, wants_old)
    if programs.sync is not None and storages:
        programs.sync.after_atomic(storages)
    return old


def _one_by_one(
    programs: Programs,
    pointer: Block,
    flat: Array,
    arguments: list[Array],
    element: ElementType,
    order: Order,
    compute: Callable[..., Any],
) -> Array:
    """Apply an atomic to few lanes, one after the other; return the old values."""
    sync = programs.sync
    targets = [_target(programs, pointer, place, element) for place in flat.tolist()]
    storages = list(dict.fromkeys([storage for storage, _ in targets]))
    if sync is not None and storages:
        sync.before_atomic(storages, order)
    old = np.zeros(len(flat), element.compute)
    for lane, (storage, index) in enumerate(targets):
        operands = [argument[lane] for argument in arguments]
        old[lane] = _on_element(programs, storage, index, operands, element, order, compute)
    if sync is not None and storages:
        sync.after_atomic(storages)
    return old


def _one(
    programs: Programs,
    pointer: Block,
    operands: Sequence[Any],
    element: ElementType,
    order: Order,
    compute: Callable[..., Any],
) -> Block:
    """Apply an atomic to the one element that one program means; return the old value."""
    programs.statistics.count_atomics(1)
    storage, index = _target(programs, pointer, int(pointer.values), element)
    if programs.sync is None:
        old = _on_element(programs, storage, index, operands, element, order, compute)
    else:
        programs.sync.before_atomic([storage], order)
        old = _on_element(programs, storage, index, operands, element, order, compute)
        programs.sync.after_atomic([storage])
    return Block(old, element)


def _target(
    programs: Programs, pointer: Block, place: int, element: ElementType
) -> tuple[Storage, int]:
    """Return the storage and the element that a pointer means."""
    base = pointer.base
    if base is None:
        return element_at(programs, place, element)
    if not isinstance(base, Anchor):
        return base, place
    if 0 <= place < base.storage.size_bytes // element.itemsize:
        return base.storage, place
    return element_at(programs, base.address + place * element.itemsize, element)


def _on_element(
    programs: Programs,
    storage: Storage,
    index: int,
    operands: Sequence[Any],
    element: ElementType,
    order: Order,
    compute: Callable[..., Any],
) -> Any:
    """Apply an atomic to one element of a storage; return the old value."""
    view = launch_view(programs, storage, element.memory)
    if not 0 <= index < len(view):
        wrong = illegal.Lanes(np.int64(index), None, "atomic")
        raise illegal.outside(programs, storage, wrong, element)
    sync = programs.sync
    if sync is None and storage.device is not programs.device:
        raise machine.PublishedError
    before = view[index]
    if programs.undo is not None:
        programs.undo.append((view, index, before))
    old = before if element.memory is element.compute else before.astype(element.compute)
    view[index] = _rounded(compute(old, *operands), element)
    if sync is not None:
        changed = _differ(view[index], before)
        sync.applied(
            storage, index * element.itemsize, (index + 1) * element.itemsize, changed=changed
        )
        if sync.races is not None:
            hands = changed or (bool(operands) and order.releases)
            sync.races.atomic(storage, np.array([index]), element.itemsize, order, hands=hands)
    return old


def _by_storage(programs: Programs, pointer: Block, flat: Array, element: ElementType) -> Any:
    if not len(flat):
        return []
    base = pointer.base
    if isinstance(base, Anchor):
        flat = flat * np.int64(element.itemsize) + np.int64(base.address)
    elif base is not None:
        return [(base, None, flat)]
    return segments(programs, flat, element)


def _shaped(old: Array, chosen: Array | None, shape: tuple[int, ...]) -> Any:
    """Return the old values in the shape of the access; zero where masked off."""
    if chosen is not None:
        found = np.zeros(math.prod(shape), old.dtype)
        found[chosen] = old
        old = found
    shaped = old.reshape(shape)
    return shaped[0] if shaped.ndim == 1 and len(shaped) == 1 else shaped


def _on_storage(
    programs: Programs,
    storage: Storage,
    places: Array,
    operands: Sequence[Array],
    element: ElementType,
    order: Order,
    compute: Callable[..., Any],
    wants_old: bool,
) -> Array:
    view = launch_view(programs, storage, element.memory)
    check_bounds(programs, storage, places, element, "atomic")
    sync = programs.sync
    if sync is None and storage.device is not programs.device:
        raise machine.PublishedError
    if programs.undo is not None:
        touched = np.unique(places)
        programs.undo.append((view, touched, view[touched]))
    before = view[places] if sync is not None else None
    old = _in_order(view, places, operands, element, compute, wants_old=wants_old)
    if sync is not None:
        changed = _differ(view[places], before)
        low, high = int(places.min()), int(places.max()) + 1
        sync.applied(storage, low * element.itemsize, high * element.itemsize, changed=changed)
        if sync.races is not None:
            hands = changed or (bool(operands) and order.releases)
            sync.races.atomic(storage, places, element.itemsize, order, hands=hands)
    return old


def _differ(now: Any, before: Any) -> bool:
    """Whether elements have other bits: a NaN is no change, a zero of another sign is one."""
    found: bool = now.tobytes() != before.tobytes()
    return found


def _in_order(
    view: Array,
    places: Array,
    operands: Sequence[Array],
    element: ElementType,
    compute: Callable[..., Any],
    *,
    wants_old: bool,
) -> Array:
    """Apply lane after lane; lanes on different elements at once."""
    if len(places) == 1 or len(np.unique(places)) == len(places):
        old = view[places].astype(element.compute)
        view[places] = _rounded(compute(old, *operands), element)
        return old
    nth = _nth_on_its_element(places)
    num_rounds = int(nth.max()) + 1
    if num_rounds > _MAX_ROUNDS and compute is np.add:
        return _add_many(view, places, operands[0], element)
    if num_rounds > _MAX_ROUNDS and not wants_old and element.round is None and _has_at(compute):
        compute.at(view, places, operands[0])  # type: ignore[attr-defined]
        return np.zeros(len(places), element.compute)
    old = np.zeros(len(places), element.compute)
    for number in range(num_rounds):
        lanes = np.flatnonzero(nth == number)
        where = places[lanes]
        old[lanes] = view[where].astype(element.compute)
        view[where] = _rounded(compute(old[lanes], *(value[lanes] for value in operands)), element)
    return old


def _has_at(compute: Callable[..., Any]) -> bool:
    return isinstance(compute, np.ufunc)


def _rounded(values: Any, element: ElementType) -> Any:
    return values if element.round is None else element.round(values)


def _nth_on_its_element(places: Array) -> Array:
    """Return for each lane how many lanes before it touch the same element."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.r_[True, ordered[1:] != ordered[:-1]]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(places)), 0))
    found = np.empty(len(places), np.int64)
    found[order] = np.arange(len(places)) - first
    return found


def _add_many(view: Array, places: Array, values: Array, element: ElementType) -> Array:
    """Add many lanes per element: running sums within each element, in order."""
    order = np.argsort(places, kind="stable")
    ordered, added = places[order], values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    wide = np.float64 if element.kind == "f" else element.compute
    total = np.cumsum(added, dtype=wide)
    before = total - added
    lengths = np.diff(np.r_[starts, len(ordered)])
    base = view[ordered[starts]].astype(wide)
    running = before - np.repeat(before[starts], lengths) + np.repeat(base, lengths)
    old = np.empty(len(places), element.compute)
    old[order] = running.astype(element.compute)
    ends = starts + lengths - 1
    sums = (running[ends] + added[ends]).astype(element.compute)
    view[ordered[starts]] = _rounded(sums, element)
    return old


# ---- what atomics leave ----


def unchanged(old: Any) -> Any:
    """Return what a look leaves."""
    return old


def replaced(old: Any, new: Any) -> Any:
    """Return what an exchange leaves, of elements or of one."""
    if type(old) is not _ndarray:
        return new
    return np.where(True, new, old)  # Of the shape of both.


def swap_if_equal(old: Any, expected: Any, new: Any) -> Any:
    """Return what a compare-and-swap leaves, of elements or of one."""
    if type(old) is not _ndarray:
        return new if old == expected else old
    return np.where(old == expected, new, old)
