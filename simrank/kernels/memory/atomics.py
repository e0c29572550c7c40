"""Atomic operations of kernels: lane by lane, in the order of programs and lanes.

The result is the old value in that order. Lanes on different elements are computed at once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.kernels import machine
from simrank.kernels.machine.protocols import AtomicEffect
from simrank.kernels.memory.addresses import (
    AttemptedAccess,
    Element,
    Segment,
    check_bounds,
    element_at,
    launch_view,
    outside,
    pointee,
    segments_from,
    writable_pointee,
)
from simrank.kernels.memory.loads_stores import active_lanes, check_lanes, look_at_lanes
from simrank.kernels.values.block import Anchor, Block, as_block, as_truth, cast_to
from simrank.kernels.values.operators import with_axes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device.memory import Storage
    from simrank.kernels.machine import Order, Programs
    from simrank.kernels.machine.protocols import AccessLog, Array, Sync, Value
    from simrank.kernels.values.block import Operand
    from simrank.kernels.values.types import ElementType

_ndarray = np.ndarray
_FEW = 16  # lanes; below it a loop is faster than numpy's array calls (measured)
_MAX_ROUNDS = 64  # assumed: with more lanes on one element a prefix sum is faster than rounds


class _Atomic(NamedTuple):
    """Arguments of an atomic.

    Attributes:
        pointer: The targets.
        element: Type of the elements.
        order: Memory order.
        compute: Returns the new value, given the old one and the operands.
        wants_old: Whether the result is used.
    """

    pointer: Block
    element: ElementType
    order: Order
    compute: Callable[..., Any]
    wants_old: bool


class _Flattened(NamedTuple):
    """Active lanes of an atomic, in the order of programs and lanes.

    Attributes:
        targets: Indices in the pointer's storage, or addresses, [n].
        operands: Operands, [n] each.
        chosen: Indices of the active lanes; None for all.
        shape: Shape of the access.
    """

    targets: Array
    operands: list[Array]
    chosen: Array | None
    shape: tuple[int, ...]


def _lanes(
    programs: Programs, pointer: Block, values: Sequence[Any], mask: Operand | None
) -> _Flattened:
    """Return the active lanes of an access, flattened from a row for each program."""
    arrays: list[Any] = [pointer.values, *values]
    if mask is not None:
        arrays.append(as_truth(mask).values)
    num_axes = max([np.ndim(array) for array in arrays] + [1])
    rows = [_as_rows(array, num_axes) for array in arrays]
    shape = np.broadcast_shapes((len(programs),) + (1,) * (num_axes - 1), *(r.shape for r in rows))
    targets, *operands = (np.broadcast_to(row, shape).reshape(-1) for row in rows)
    if mask is None:
        return _Flattened(targets, operands, None, shape)
    chosen = np.flatnonzero(operands.pop())
    return _Flattened(targets[chosen], [value[chosen] for value in operands], chosen, shape)


def _as_rows(values: Value, num_axes: int) -> Array:
    array = np.asarray(values)
    if array.ndim == 0:
        array = array.reshape(1)
    rows: Array = with_axes(array, num_axes)
    return rows


def modify(
    pointer: Block,
    operands: Sequence[Any],
    mask: Operand | None,
    order: Order,
    compute: Callable[..., Any],
    *,
    wants_old: bool = True,
) -> Block:
    """Apply a function to elements in memory atomically, and return the old values.

    Args:
        pointer: The targets.
        operands: Blocks of the pointee's type that `compute` takes after the old value.
        mask: Active lanes; None for all.
        order: Memory order.
        compute: Returns the new value, given the old one and the operands.
        wants_old: Whether the result is used.
    """
    programs = machine.now()
    machine.require_all(programs)
    element = writable_pointee(pointer) if operands else pointee(pointer)
    atomic = _Atomic(pointer, element, order, compute, wants_old)
    values = [cast_to(as_block(operand), element).values for operand in operands]
    active = None if mask is None else active_lanes(mask)
    for own in values:
        check_lanes(pointer, own, active)
    if programs.lanes is not None and operands:
        look_at_lanes(programs.lanes.updated, pointer, values[0], mask)
    if mask is None and len(programs.ids) == 1 and _are_scalars(pointer.values, *values):
        if programs.log is not None:
            at = np.array([pointer.values])
            _log(programs, programs.log, atomic, _Flattened(at, values, None, (1,)))
        return Block(_one(programs, atomic, values), element)
    lanes = _lanes(programs, pointer, values, mask)
    num_lanes = len(lanes.targets)
    programs.statistics.count_atomics(num_lanes)
    if programs.log is not None and num_lanes:
        _log(programs, programs.log, atomic, lanes)
    old = np.zeros(num_lanes, element.compute)
    if num_lanes > _FEW:
        _together(programs, atomic, lanes, old)
    elif num_lanes:
        targets = [_target(programs, atomic, target) for target in lanes.targets.tolist()]
        of_lanes = [[value[lane] for value in lanes.operands] for lane in range(num_lanes)]
        old[:] = _one_by_one(programs, atomic, targets, of_lanes)
    return Block(_shaped(old, lanes), element)


def _log(programs: Programs, log: AccessLog, atomic: _Atomic, lanes: _Flattened) -> None:
    """Record an atomic for race checks, with the program of each lane."""
    base, element, writes = atomic.pointer.base, atomic.element, bool(lanes.operands)
    lane = np.arange(len(lanes.targets)) if lanes.chosen is None else lanes.chosen
    owners = programs.ids[lane // math.prod(lanes.shape[1:])]
    for storage, chosen, index in segments_from(programs, base, lanes.targets, element):
        own = owners if chosen is None else owners[chosen]
        asked = atomic.order, writes, atomic.wants_old
        log.atomics(storage, index, element.itemsize, own, asked)


def _are_scalars(*values: Value) -> bool:
    return not any(type(value) is _ndarray for value in values)


def _shaped(old: Array, lanes: _Flattened) -> Value:
    """Return the old values in the shape of the access; zero where masked off."""
    if lanes.chosen is not None:
        whole = np.zeros(math.prod(lanes.shape), old.dtype)
        whole[lanes.chosen] = old
        old = whole
    shaped = old.reshape(lanes.shape)
    return shaped[0] if shaped.ndim == 1 and len(shaped) == 1 else shaped


# ---- Few lanes, one by one ----


def _one(programs: Programs, atomic: _Atomic, operands: Sequence[Any]) -> Value:
    """Apply an atomic of one program to one element, and return the old value."""
    programs.statistics.count_atomics(1)
    target = _target(programs, atomic, int(atomic.pointer.values))
    sync = programs.sync
    if sync is None:
        return _on_element(programs, atomic, target, operands)
    storages = (target.storage,)
    sync.before_atomic(storages, atomic.order)
    old = _on_element(programs, atomic, target, operands)
    sync.after_atomic(storages)
    return old


def _one_by_one(
    programs: Programs,
    atomic: _Atomic,
    targets: Sequence[Element],
    operands: Sequence[Sequence[Any]],
) -> list[Any]:
    """Apply an atomic to elements with the operands of each, and return the old values."""
    sync = programs.sync
    if sync is not None:
        storages = list({target.storage: None for target in targets})
        sync.before_atomic(storages, atomic.order)
    old = [
        _on_element(programs, atomic, target, own)
        for target, own in zip(targets, operands, strict=True)
    ]
    if sync is not None:
        sync.after_atomic(storages)
    return old


def _target(programs: Programs, atomic: _Atomic, target: int) -> Element:
    """Return the element that a pointer points to."""
    base, element = atomic.pointer.base, atomic.element
    if base is None:
        return element_at(programs, target, element)
    if not isinstance(base, Anchor):
        return Element(base, target)
    if 0 <= target < base.storage.size_bytes // element.itemsize:
        return Element(base.storage, target)
    return element_at(programs, base.address + target * element.itemsize, element)


def _on_element(
    programs: Programs, atomic: _Atomic, target: Element, operands: Sequence[Any]
) -> Value:
    """Apply an atomic to one element of a storage, and return the old value."""
    element, (storage, index) = atomic.element, target
    view = launch_view(programs, storage, element.memory)
    if not 0 <= index < len(view):
        wrong = AttemptedAccess(np.int64(index), None, "atomic")
        raise outside(programs, storage, wrong, element)
    _require_own(programs, storage)
    before = view[index]
    if programs.undo is not None:
        programs.undo.append((view, index, before))
    old: Value = before if element.memory is element.compute else before.astype(element.compute)
    view[index] = element.rounded(atomic.compute(old, *operands))
    if programs.sync is not None:
        changed = _bits_differ(view[index], before)
        _notify(programs.sync, atomic, storage, index, changed=changed, writes=bool(operands))
        if operands and programs.sync.races is not None and element.kind in "iu":
            values = int(before), int(view[index])
            programs.sync.races.set_flag(storage, index * element.itemsize, *values)
    return old


def _require_own(programs: Programs, storage: Storage) -> None:
    """Raise if programs in lockstep change the memory of another device.

    Raises:
        PublishedError: The storage is on another device.
    """
    is_own = storage.device is programs.device or storage.device is None
    if programs.sync is None and not is_own:
        raise machine.PublishedError


def _notify(
    sync: Sync,
    atomic: _Atomic,
    storage: Storage,
    index: Value | int,
    *,
    changed: bool,
    writes: bool,
) -> None:
    """Report an atomic on elements of one storage to waiting programs and race checks."""
    if isinstance(index, int):
        low = high = index
    else:
        low, high = int(index.min()), int(index.max())
    itemsize = atomic.element.itemsize
    sync.applied(storage, low * itemsize, (high + 1) * itemsize, changed=changed)
    if sync.races is not None:
        hands = changed or (writes and atomic.order.releases)
        if atomic.compute is replaced:
            sync.races.rewrites(storage, np.atleast_1d(index), itemsize)
        asked = AtomicEffect(atomic.order, hands=hands, takes=atomic.wants_old)
        sync.races.atomic(storage, np.atleast_1d(index), itemsize, asked)


def _bits_differ(now: Value, before: Value) -> bool:
    """Return whether elements differ bit by bit: equal NaNs do not, zeros of two signs do."""
    if type(now) is not _ndarray and now.dtype.kind in "iu":
        return bool(now != before)
    result: bool = now.tobytes() != before.tobytes()
    return result


# ---- Many lanes, as arrays ----


def _together(programs: Programs, atomic: _Atomic, lanes: _Flattened, old: Array) -> None:
    """Apply an atomic to many lanes; `old` receives the old values."""
    segments = list(segments_from(programs, atomic.pointer.base, lanes.targets, atomic.element))
    sync, storages = programs.sync, [segment.storage for segment in segments]
    if sync is not None:
        sync.before_atomic(storages, atomic.order)
    for segment in segments:
        own = slice(None) if segment.chosen is None else segment.chosen
        mine = [value[own] for value in lanes.operands]
        old[own] = _on_segment(programs, atomic, segment, mine)
    if sync is not None:
        sync.after_atomic(storages)


def _on_segment(
    programs: Programs, atomic: _Atomic, segment: Segment, operands: Sequence[Array]
) -> Array:
    element, (storage, _, index) = atomic.element, segment
    view = launch_view(programs, storage, element.memory)
    check_bounds(programs, storage, index, element, "atomic")
    _require_own(programs, storage)
    if programs.undo is not None:
        touched = np.unique(index)
        programs.undo.append((view, touched, view[touched]))
    if programs.sync is None:
        return _in_order(view, index, operands, atomic)
    before = view[index]
    old = _in_order(view, index, operands, atomic)
    changed = _bits_differ(view[index], before)
    _notify(programs.sync, atomic, storage, index, changed=changed, writes=bool(operands))
    return old


def _in_order(view: Array, index: Array, operands: Sequence[Array], atomic: _Atomic) -> Array:
    """Apply an atomic lane by lane; lanes on different elements at once."""
    element, compute = atomic.element, atomic.compute
    if len(index) == 1 or len(np.unique(index)) == len(index):
        old = view[index].astype(element.compute)
        view[index] = element.rounded(compute(old, *operands))
        return old
    nth = _rank_on_element(index)
    num_rounds = int(nth.max()) + 1
    if num_rounds > _MAX_ROUNDS and compute is np.add:
        return _add_many(view, index, operands[0], element)
    is_ufunc = isinstance(compute, np.ufunc) and element.round is None
    if num_rounds > _MAX_ROUNDS and not atomic.wants_old and is_ufunc:
        compute.at(view, index, operands[0])  # type: ignore[attr-defined]
        return np.zeros(len(index), element.compute)
    old = np.zeros(len(index), element.compute)
    for number in range(num_rounds):
        lanes = np.flatnonzero(nth == number)
        own = index[lanes]
        old[lanes] = view[own].astype(element.compute)
        view[own] = element.rounded(compute(old[lanes], *(value[lanes] for value in operands)))
    return old


def _rank_on_element(index: Array) -> Array:
    """Return for each lane the number of earlier lanes on the same element."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.r_[True, ordered[1:] != ordered[:-1]]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(index)), 0))
    result = np.empty(len(index), np.int64)
    result[order] = np.arange(len(index)) - first
    return result


def _add_many(view: Array, index: Array, values: Array, element: ElementType) -> Array:
    """Add many lanes per element: running sums within each element, in order."""
    order = np.argsort(index, kind="stable")
    ordered, added = index[order], values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    wide = np.float64 if element.kind == "f" else element.compute
    total = np.cumsum(added, dtype=wide)
    before = total - added
    lengths = np.diff(np.r_[starts, len(ordered)])
    base = view[ordered[starts]].astype(wide)
    running = before - np.repeat(before[starts], lengths) + np.repeat(base, lengths)
    old = np.empty(len(index), element.compute)
    old[order] = running.astype(element.compute)
    ends = starts + lengths - 1
    sums = (running[ends] + added[ends]).astype(element.compute)
    view[ordered[starts]] = element.rounded(sums)
    return old


# ---- New values ----


def unchanged(old: Value) -> Value:
    """Return the new value of an atomic read."""
    return old


def replaced(old: Value, new: Value) -> Value:
    """Return the new value of an exchange, of elements or of one element."""
    if type(old) is not _ndarray:
        return new
    return np.where(True, new, old)  # Broadcast to the shape of both.


def swap_if_equal(old: Value, expected: Value, new: Value) -> Value:
    """Return the new value of a compare-and-swap, of elements or of one element."""
    if type(old) is not _ndarray:
        return new if old == expected else old
    return np.where(old == expected, new, old)
