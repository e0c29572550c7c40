"""Loads and stores of kernels, with bounds checks, statistics and undo.

With them accesses by plain address, sectors of memory, and padding behind tensors.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.device.memory import GRANULE_BYTES, Storage
from simrank.kernels import machine
from simrank.kernels.machine import ALL_PROGRAMS, Extent
from simrank.kernels.memory.addresses import (
    AttemptedAccess,
    element_at,
    launch_view,
    outside,
    owners_of,
    past_end_text,
    pointee,
    segments_from,
    segments_of,
    writable_pointee,
)
from simrank.kernels.values.block import Anchor, Block, as_block, cast_to
from simrank.kernels.values.operators import aligned, common_shape, with_axes
from simrank.kernels.values.types import int1

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine import Programs
    from simrank.kernels.machine.protocols import AccessLog, Array, Sync, Value
    from simrank.kernels.values.block import Operand
    from simrank.kernels.values.types import ElementType

_ndarray = np.ndarray
_SMALL = 64  # elements; below it fancy indexing is faster than `take` (measured)


class _Store(NamedTuple):
    """Arguments of a store.

    Attributes:
        targets: Targets of all lanes.
        active: Lanes that are not masked off; None for all.
        copies: Number of programs that each lane represents.
        owners: Program of each lane; None without a race log.
    """

    targets: Value
    active: Value | None
    copies: int
    owners: Array | None


def load(pointer: Block, mask: Operand | None, other: Operand | None) -> Block:
    """Load the elements that a block of pointers points to; masked-off lanes get `other`."""
    programs = machine.now()
    machine.require_all(programs)
    element = pointee(pointer)
    if programs.lanes is not None:
        look_at_lanes(programs.lanes.loaded, pointer, None, mask)
    if mask is None and pointer.base is not None and type(pointer.values) is not _ndarray:
        if programs.log is not None:
            _log_load(programs, programs.log, pointer, (pointer.values, None))
        return Block(_gather_one(programs, pointer.base, int(pointer.values), element), element)
    targets, active = _lanes(pointer, None, mask)
    if pointer.base is not None:
        values = _gather(programs, pointer.base, targets, active, element)
    else:
        values = _gather_anywhere(programs, targets, active, element)
    if active is not None:
        values = _masked(programs, values, active, other, element)
    if programs.log is not None:
        _log_load(programs, programs.log, pointer, (targets, active))
    return Block(values, element)


def look_at_lanes(
    check: Callable[[Value, Value | None], None],
    pointer: Block,
    values: Value | None,
    mask: Operand | None,
) -> None:
    """Pass the byte addresses and active lanes of an access to a lane check."""
    targets, active = _lanes(pointer, values, mask)
    if type(targets) is _ndarray or active is None:
        base = 0 if pointer.base is None else pointer.base.address
        size = 1 if pointer.base is None else pointee(pointer).itemsize
        check(targets * np.int64(size) + np.int64(base), active)


def _log_load(
    programs: Programs, log: AccessLog, pointer: Block, lanes: tuple[Value, Value | None]
) -> None:
    """Record a load for race checks, unless the launch cannot write the memory."""
    element = pointee(pointer)
    if isinstance(pointer.base, Storage) and not log.watches(pointer.base):
        return
    targets, active = np.atleast_1d(lanes[0]), lanes[1]
    owners = owners_of(programs, targets)
    if active is not None:
        chosen = np.broadcast_to(active, targets.shape)
        targets, owners = targets[chosen], owners[chosen]
    if isinstance(pointer.base, Storage):  # No program writes beyond its end.
        is_own = targets < pointer.base.size_bytes // element.itemsize
        if not is_own.all():
            targets, owners = targets[is_own], owners[is_own]
    for storage, chosen, index in segments_from(programs, pointer.base, targets, element):
        own = owners if chosen is None else owners[chosen]
        if log.watches(storage):
            log.loads(storage, index, element.itemsize, own)


def store(pointer: Block, value: Operand, mask: Operand | None) -> None:
    """Store a block to the elements that pointers point to, except masked-off lanes."""
    programs = machine.now()
    machine.require_all(programs)
    element = writable_pointee(pointer)
    block = cast_to(as_block(value), element)
    if programs.lanes is not None:
        check = partial(programs.lanes.stored, block.values)
        look_at_lanes(check, pointer, block.values, mask)
    targets, active = _lanes(pointer, block.values, mask)
    values = block.values
    owners = None if programs.log is None else _owners(programs, targets, values, active)
    request = _Store(targets, active, _copies(programs, targets), owners)
    if type(targets) is _ndarray:
        if type(values) is not _ndarray or values.shape != targets.shape:
            values = np.broadcast_to(aligned(targets, values)[1], targets.shape)
        if active is not None:
            targets, values = targets[active], values[active]
    elif active is not None and not active:
        return
    if pointer.base is not None:
        _scatter(programs, pointer.base, targets, values, element, request)
    else:
        _scatter_anywhere(programs, targets, values, element, request)


def _owners(programs: Programs, targets: Value, values: Value, active: Value | None) -> Array:
    """Return the program of each lane of a store; `ALL_PROGRAMS` if they act alike."""
    ids = programs.ids
    if type(targets) is not _ndarray:
        is_one = len(ids) > 1 and not (type(values) is _ndarray and len(values) == len(ids))
        return np.array([ALL_PROGRAMS]) if is_one else ids
    spread = owners_of(programs, targets)
    return spread if active is None else spread[active]


def _copies(programs: Programs, targets: Value) -> int:
    """Return the number of programs that each lane of an access represents."""
    return len(programs.ids) if type(targets) is not _ndarray or len(targets) == 1 else 1


def _scatter_anywhere(
    programs: Programs, addresses: Value, values: Value, element: ElementType, request: _Store
) -> None:
    """Store to addresses in several storages, on any devices."""
    for storage, chosen, index in segments_of(programs, addresses, element):
        own, owners = values, request.owners
        if chosen is not None:
            own, owners = values[chosen], None if owners is None else owners[chosen]
        inside = _Store(index, None, request.copies, owners)
        _scatter(programs, storage, index, own, element, inside)


def _lanes(pointer: Block, values: Value | None, mask: Operand | None) -> tuple[Any, Any]:
    """Return the targets of an access and its active lanes, broadcast to one shape.

    The active lanes are None if no lane is masked off.

    Raises:
        ValueError: Shapes or the mask's type do not match; the text is Triton's.
    """
    targets = pointer.values
    active = None if mask is None else active_lanes(mask)
    is_block = type(targets) is _ndarray
    if active is None and values is None:
        return targets, None
    shape = targets.shape if is_block else None
    if (active is None or (type(active) is _ndarray and active.shape == shape)) and (
        type(values) is not _ndarray or values.shape == shape
    ):
        return targets, active
    check_lanes(pointer, values, active)
    arrays = [a for a in (targets, values, active) if type(a) is _ndarray]
    if not arrays:
        return targets, active
    for array in arrays[1:] if is_block else ():
        common_shape(tuple(pointer.shape), array.shape[1:])  # Raises with Triton's text.
    num_axes = max(array.ndim for array in arrays)
    wide = [with_axes(array, num_axes) for array in arrays]
    common = np.broadcast_shapes(*(array.shape for array in wide))
    targets = np.broadcast_to(with_axes(targets, num_axes), common)
    if active is not None:
        active = np.broadcast_to(with_axes(active, num_axes), common)
    return targets, active


def active_lanes(mask: Operand) -> Value | None:
    """Return the active lanes of a mask; None if all are active."""
    block = as_block(mask)
    if block.element is not int1:
        raise ValueError("Mask must have boolean scalar type")
    active = block.values
    if type(active) is not _ndarray:
        return None if active else active
    return None if np.count_nonzero(active) == active.size else active


def check_lanes(pointer: Block, values: Value | None, active: Value | None) -> None:
    """Raise if values or mask have more lanes than the pointer."""
    own = list(pointer.shape)
    for array, what in ((values, "Value"), (active, "Mask")):
        shape = list(array.shape[1:]) if type(array) is _ndarray else []
        if not own and shape:
            raise ValueError(
                f"{what} argument cannot be block type if pointer argument is not a block"
            )
        if array is values and shape:
            wider = np.broadcast_shapes(tuple(own), tuple(shape))
            if list(wider) != own:
                raise ValueError(
                    f"Expected pointer argument to have shape {list(wider)} but got {own}"
                )


def _gather(
    programs: Programs,
    base: Storage | Anchor,
    index: Value,
    active: Value | None,
    element: ElementType,
    copies: int = 0,
) -> Value:
    """Load from one storage; `copies` is given if the indices are flattened."""
    if type(index) is not _ndarray:
        if active is not None:  # An inactive scalar: an active one is None.
            programs.statistics.count_masked(len(programs.ids))
            return element.scalar(0)
        return _gather_one(programs, base, int(index), element)
    storage = base.storage if isinstance(base, Anchor) else base
    view = launch_view(programs, storage, element.carrier)
    statistics = programs.statistics
    num_active, copies, given = index.size, copies or _copies(programs, index), index
    if active is not None:
        num_active = int(np.count_nonzero(active))
        if not num_active:
            statistics.count_masked(index.size * copies)
            return np.zeros(index.shape, element.compute)
        index = np.where(active, index, index.flat[int(active.argmax())])
    is_past, low, high = None, int(index.min()), int(index.max())
    if low < 0 or high >= len(view):
        if isinstance(base, Anchor):
            return _gather_anywhere(programs, _absolute(base, given, element), active, element)
        request = AttemptedAccess(given, active, "load")
        is_past = past_end(programs, storage, request, index, element)
        index, high = np.minimum(index, len(view) - 1), len(view) - 1
        low = min(low, high)
    statistics.note_block(index.size // len(index))
    itemsize = element.itemsize
    waste = (
        sector_waste(given, itemsize) if active is None else masked_waste(given, active, itemsize)
    )
    extent = Extent(low, high, itemsize, waste)
    statistics.count(storage, index.size * copies, num_active * copies, extent, writes=False)
    if programs.sync is not None:
        programs.sync.loaded(storage, low * itemsize, (high + 1) * itemsize, index, itemsize)
    result = view[index] if index.size < _SMALL else view.take(index, mode="clip")
    values = _arrived(result, element)
    if is_past is not None:
        values = np.where(is_past, poison(element), values).astype(element.compute)
    return values


def _gather_one(
    programs: Programs, base: Storage | Anchor, index: int, element: ElementType
) -> Value:
    """Load one element for all programs."""
    storage = base.storage if isinstance(base, Anchor) else base
    view = launch_view(programs, storage, element.carrier)
    itemsize = element.itemsize
    if not 0 <= index < len(view):
        if isinstance(base, Anchor):
            elsewhere = element_at(programs, base.address + index * itemsize, element)
            return _gather_one(programs, *elsewhere, element)
        raise outside(programs, storage, AttemptedAccess(np.int64(index), None, "load"), element)
    total = len(programs.ids)
    programs.statistics.count(storage, total, total, Extent(index, index, itemsize), writes=False)
    if programs.sync is not None:
        begin = index * itemsize
        programs.sync.loaded(storage, begin, begin + itemsize, index, itemsize)
    if element.memory is element.compute:
        own: Value = view[index]
    else:
        own = _arrived(view[index : index + 1], element)[0]
    return own


def _absolute(base: Anchor, index: Value, element: ElementType) -> Value:
    """Return the addresses of elements, some of which lie outside the anchor's storage."""
    return index * np.int64(element.itemsize) + np.int64(base.address)


def _arrived(result: Array, element: ElementType) -> Array:
    """Return loaded elements in the type that values are computed in."""
    if element.carrier is not element.memory:
        result = result.view(element.memory)
    return result if result.dtype is element.compute else result.astype(element.compute)


def _masked(
    programs: Programs,
    values: Value,
    active: Value,
    other: Operand | None,
    element: ElementType,
) -> Value:
    """Fill masked-off lanes with `other`; by default with zero, in debug mode with poison."""
    if other is None:
        fill: Any = poison(element) if programs.options.is_checked else element.scalar(0)
    else:
        fill = cast_to(as_block(other), element).values
    if type(values) is not _ndarray and type(active) is not _ndarray:
        return values if active else (fill if type(fill) is not _ndarray else fill.reshape(-1)[0])
    num_axes = np.ndim(values)
    return np.where(active, values, with_axes(fill, num_axes)).astype(element.compute, copy=False)


def _scatter(
    programs: Programs,
    base: Storage | Anchor,
    index: Value,
    values: Value,
    element: ElementType,
    request: _Store,
) -> None:
    """Store to one storage."""
    lanes, active, copies, owners = request
    storage = base.storage if isinstance(base, Anchor) else base
    view = launch_view(programs, storage, element.memory)
    num_lanes = num_active = 1
    if type(index) is not _ndarray:
        low = high = int(index)
    else:
        num_active = index.size
        num_lanes = num_active if active is None else active.size
        if not num_active:
            programs.statistics.count_masked(num_lanes * copies)
            return
        low, high = int(index.min()), int(index.max())
    if low < 0 or high >= len(view):
        if isinstance(base, Anchor):
            elsewhere = _absolute(base, index, element)
            _scatter_anywhere(programs, elsewhere, values, element, request)
            return
        raise outside(programs, storage, AttemptedAccess(lanes, active, "store"), element)
    extent = Extent(low, high, element.itemsize, sector_waste(lanes, element.itemsize))
    statistics = programs.statistics
    statistics.count(storage, num_lanes * copies, num_active * copies, extent, writes=True)
    if programs.log is not None and owners is not None:
        _log_store(programs.log, storage, index, np.asarray(values, view.dtype), owners)
    if type(index) is not _ndarray and type(values) is _ndarray:
        # Every program writes this element; the last value remains.
        values = values.reshape(-1)[-1]
    if programs.sync is not None:
        _publish(programs.sync, storage, view, index, values, extent)
        return
    if storage.device is not programs.device and storage.device is not None:
        raise machine.PublishedError
    if programs.undo is not None:
        programs.undo.append((view, index, view[index]))
    view[index] = values


def _log_store(
    log: AccessLog, storage: Storage, index: Value, values: Array, owners: Array
) -> None:
    """Record a store for race checks; stores of all programs to one element keep their lanes."""
    if type(index) is not _ndarray and values.size > 1:
        values = values.reshape(-1)
        index = np.full(values.shape, index)
    log.stores(storage, np.atleast_1d(np.asarray(index)), values, owners)


def _publish(
    sync: Sync,
    storage: Storage,
    view: Array,
    index: Value,
    values: Value,
    extent: Extent,
) -> None:
    """Write memory that other programs can see, at the program's own time."""
    low, high, itemsize, _ = extent
    bytes_touched = low * itemsize, (high + 1) * itemsize
    if sync.races is not None:
        given = np.asarray(values, view.dtype)
        sync.races.stores(storage, np.atleast_1d(np.asarray(index)), given)
    if sync.writes(storage):
        sync.put(storage, view, index, values, bytes_touched)
    else:
        view[index] = values
        sync.wrote(storage, *bytes_touched)


# ---- Pointers without a base: addresses ----


def _gather_anywhere(
    programs: Programs,
    addresses: Value,
    active: Value | None,
    element: ElementType,
) -> Value:
    """Load from addresses in several storages, on any devices."""
    if type(addresses) is not _ndarray:
        if active is not None and not active:
            return element.scalar(0)
        return _gather_one(programs, *element_at(programs, int(addresses), element), element)
    if active is None:
        return _gather_all(programs, addresses, element)
    result = np.zeros(addresses.shape, element.compute)
    own_addresses, copies = addresses[active].reshape(-1), _copies(programs, addresses)
    flat = np.zeros(own_addresses.size, element.compute)
    for storage, chosen, index in segments_of(programs, own_addresses, element):
        flat[slice(None) if chosen is None else chosen] = _gather(
            programs, storage, index, None, element, copies
        )
    result[active] = flat
    return result


def _gather_all(programs: Programs, addresses: Array, element: ElementType) -> Array:
    """Load from addresses without a mask; nearly always they lie in one storage."""
    parts = list(segments_of(programs, addresses, element))
    if len(parts) == 1:
        storage, _, index = parts[0]
        loaded: Array = _gather(programs, storage, index, None, element)
        return loaded
    result, copies = np.zeros(addresses.shape, element.compute), _copies(programs, addresses)
    for storage, chosen, index in parts:
        result[chosen] = _gather(programs, storage, index, None, element, copies)
    return result


# ---- Sectors ----
# Lanes are assigned to the elements of a block along the dim in which these are contiguous, as
# Triton's coalescing does. The cost depends on the stride of the densest dim, and on the number of
# elements before it jumps.
#
# Source: CUDA C++ Best Practices Guide 13.0, "Coalesced Access to Global Memory"; the same size
# is assumed for AMD.

SECTOR_BYTES = 32
_FEW_HOLES = 8  # Assumed: fewer masked-off lanes than one in this many do not change the sectors.


def sector_waste(index: Value, itemsize: int) -> float:
    """Return the bytes moved for each byte of an access.

    Args:
        index: Indices of the elements, [1 or P, *shape]; the first program represents all.
        itemsize: Size of an element in bytes.
    """
    if type(index) is not np.ndarray or index.ndim == 1 or itemsize >= SECTOR_BYTES:
        return 1.0
    at, step = index.item, 1
    for size in reversed(index.shape[1:]):
        if size > 1 and size * itemsize % SECTOR_BYTES == 0:
            first = at(0)
            if at(step) - first == 1 and at((size - 1) * step) - first == size - 1:
                return 1.0
        step *= size
    return _least_waste(index[0], itemsize)


def _least_waste(own: Value, itemsize: int) -> float:
    """Return the bytes moved for each byte along the densest dim."""
    if own.size == 1:
        return 1.0
    found = [
        _waste_along(
            own[tuple(slice(None) if dim == each else 0 for dim in range(own.ndim))], itemsize
        )
        for each, size in enumerate(own.shape)
        if size > 1
    ]
    return min(found)


def _waste_along(line: Value, itemsize: int) -> float:
    """Return the bytes moved for each byte of a line of elements."""
    num_sectors = len(np.unique(line * itemsize // SECTOR_BYTES))
    return max(num_sectors * SECTOR_BYTES / (len(line) * itemsize), 1.0)


def masked_waste(index: Value, active: Value, itemsize: int) -> float:
    """Return the bytes moved for each byte of an access with masked-off lanes.

    The program that moves most represents all: one with a single active lane moves a sector for it.

    Args:
        index: As in `sector_waste`.
        active: The active lanes, of the same shape.
        itemsize: Size of an element in bytes.
    """
    if type(index) is not np.ndarray or type(active) is not np.ndarray or index.ndim == 1:
        return 1.0
    if np.count_nonzero(active) * _FEW_HOLES > active.size * (_FEW_HOLES - 1):
        return sector_waste(index, itemsize)
    spread = np.broadcast_to(active, index.shape)
    row = int(np.count_nonzero(spread.reshape(len(spread), -1), axis=1).argmax())
    return _waste_along(index[row][spread[row]].reshape(-1), itemsize)


# ---- Padding between the end of a tensor and that of its allocation, which is rounded up ----
# A GPU reads it without a fault: kernels load whole tiles at the end of a table and mask the
# results. No program has written these bytes, so loads return a value that shows up in a wrong
# result.


def poison(element: ElementType) -> Value:
    """Return the value of unwritten memory: NaN, true, or the largest integer."""
    if element.kind == "f":
        return element.scalar(np.nan)
    if element.kind == "b":
        return element.scalar(1)
    return element.scalar(np.iinfo(element.compute).max)


def past_end(
    programs: Programs,
    storage: Storage,
    request: AttemptedAccess,
    index: Array,
    element: ElementType,
) -> Array:
    """Return the lanes of a load that read beyond the end of a tensor.

    Args:
        programs: The loading programs.
        storage: The storage.
        request: The load, for the error.
        index: Indices of the elements; masked-off lanes repeat an active one.
        element: Type of the elements.

    Raises:
        IllegalAccessError: A lane leaves the allocation, the load is of a single number, or
            accesses are checked, as under `strict`.
    """
    itemsize, options = element.itemsize, programs.options
    end_bytes = -(-storage.size_bytes // GRANULE_BYTES) * GRANULE_BYTES
    device = storage.device
    if (
        options.is_checked
        or device is None
        or index.ndim == 1
        or not storage.size_bytes >= itemsize
        or int(index.min()) < 0
        or int(index.max()) >= end_bytes // itemsize
    ):
        raise outside(programs, storage, request, element)
    device.memory.space.hints[past_end_text(programs, storage)] = None
    is_past: Array = index >= storage.size_bytes // itemsize
    return is_past
