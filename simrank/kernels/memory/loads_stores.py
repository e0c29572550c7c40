"""Loads and stores of kernels, with bounds, counts and undo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.device.memory import GRANULE_BYTES, Storage
from simrank.kernels import machine
from simrank.kernels.machine import ALL_PROGRAMS, Extent
from simrank.kernels.memory import illegal
from simrank.kernels.memory.addresses import (
    element_at,
    launch_view,
    owners_of,
    pointee,
    segments_from,
    segments_of,
    writable_pointee,
)
from simrank.kernels.memory.illegal import Asked
from simrank.kernels.values.block import Anchor, Block, as_block, cast_to
from simrank.kernels.values.broadcasting import aligned, common_shape, with_axes
from simrank.kernels.values.types import int1

if TYPE_CHECKING:
    from simrank.kernels.machine import Programs
    from simrank.kernels.machine.arrays import Array, Value
    from simrank.kernels.machine.protocols import AccessLog, Lanes, Sync
    from simrank.kernels.values.block import Operand
    from simrank.kernels.values.types import ElementType

_ndarray = np.ndarray
_SMALL = 64  # elements; below it fancy indexing is faster than `take` (measured)


class _Store(NamedTuple):
    """A store with its arguments.

    Attributes:
        targets: What all its lanes point to.
        active: Lanes that are not masked off; None for all.
        copies: How many programs each lane stands for.
        owners: Which program does each lane; None without race checks.
    """

    targets: Value
    active: Value | None
    copies: int
    owners: Array | None


def load(pointer: Block, mask: Operand | None, other: Operand | None) -> Block:
    """Load the values of a block of pointers; `other` where masked off."""
    programs = machine.now()
    machine.require_all(programs)
    element = pointee(pointer)
    if programs.lanes is not None:
        _look_at_lanes(programs.lanes, pointer, None, mask)
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


def _look_at_lanes(
    lanes: Lanes, pointer: Block, values: Value | None, mask: Operand | None
) -> None:
    """Check an access lane by lane."""
    targets, active = _lanes(pointer, values, mask)
    if type(targets) is _ndarray or active is None:
        base = 0 if pointer.base is None else pointer.base.address
        size = 1 if pointer.base is None else pointee(pointer).itemsize
        at = targets * np.int64(size) + np.int64(base)
        if values is None:
            lanes.loaded(at, active)
        else:
            lanes.stored(at, values, active)


def _log_load(
    programs: Programs, log: AccessLog, pointer: Block, lanes: tuple[Value, Value | None]
) -> None:
    """Log a load for race checks if the launch may write the same memory."""
    element = pointee(pointer)
    if isinstance(pointer.base, Storage) and not log.watches(pointer.base):
        return
    targets, active = np.atleast_1d(lanes[0]), lanes[1]
    owners = owners_of(programs, targets)
    if active is not None:
        chosen = np.broadcast_to(active, targets.shape)
        targets, owners = targets[chosen], owners[chosen]
    if isinstance(pointer.base, Storage):  # Memory past its end is never written.
        is_own = targets < pointer.base.size_bytes // element.itemsize
        if not is_own.all():
            targets, owners = targets[is_own], owners[is_own]
    for storage, chosen, index in segments_from(programs, pointer.base, targets, element):
        own = owners if chosen is None else owners[chosen]
        if log.watches(storage):
            log.loads(storage, index, element.itemsize, own)


def store(pointer: Block, value: Operand, mask: Operand | None) -> None:
    """Write a block where pointers point to, but for masked-off lanes."""
    programs = machine.now()
    machine.require_all(programs)
    element = writable_pointee(pointer)
    block = cast_to(as_block(value), element)
    if programs.lanes is not None:
        _look_at_lanes(programs.lanes, pointer, block.values, mask)
    targets, active = _lanes(pointer, block.values, mask)
    values = block.values
    owners = None if programs.log is None else _owners(programs, targets, values, active)
    asked = _Store(targets, active, _copies(programs, targets), owners)
    if type(targets) is _ndarray:
        if type(values) is not _ndarray or values.shape != targets.shape:
            values = np.broadcast_to(aligned(targets, values)[1], targets.shape)
        if active is not None:
            targets, values = targets[active], values[active]
    elif active is not None and not active:
        return
    if pointer.base is not None:
        _scatter(programs, pointer.base, targets, values, element, asked)
    else:
        _scatter_anywhere(programs, targets, values, element, asked)


def _owners(programs: Programs, targets: Value, values: Value, active: Value | None) -> Array:
    """Return the program of each lane of a store; `ALL_PROGRAMS` if all do the same."""
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
    programs: Programs, addresses: Value, values: Value, element: ElementType, asked: _Store
) -> None:
    """Store to addresses that may lie in several storages, of several devices."""
    for storage, chosen, index in segments_of(programs, addresses, element):
        own, owners = values, asked.owners
        if chosen is not None:
            own, owners = values[chosen], None if owners is None else owners[chosen]
        inside = _Store(index, None, asked.copies, owners)
        _scatter(programs, storage, index, own, element, inside)


def _lanes(pointer: Block, values: Value | None, mask: Operand | None) -> tuple[Any, Any]:
    """Return the targets of an access and its active lanes, broadcast to one shape.

    The active lanes are None where none is masked off.

    Raises:
        ValueError: Shapes or the mask's type do not go together, in Triton's words.
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
        common_shape(tuple(pointer.shape), array.shape[1:])  # Else it says so in Triton's words.
    num_axes = max(array.ndim for array in arrays)
    wide = [with_axes(array, num_axes) for array in arrays]
    common = np.broadcast_shapes(*(array.shape for array in wide))
    targets = np.broadcast_to(with_axes(targets, num_axes), common)
    if active is not None:
        active = np.broadcast_to(with_axes(active, num_axes), common)
    return targets, active


def active_lanes(mask: Operand) -> Value | None:
    """Return the active lanes of a mask; None if all are."""
    block = as_block(mask)
    if block.element is not int1:
        raise ValueError("Mask must have boolean scalar type")
    active = block.values
    if type(active) is not _ndarray:
        return None if active else active
    return None if np.count_nonzero(active) == active.size else active


def check_lanes(pointer: Block, values: Value | None, active: Value | None) -> None:
    """Raise if a pointer would have to be copied for more values than it has lanes."""
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
    """Load from one storage; `copies` as `_copies` says of index that have lost their rows."""
    if type(index) is not _ndarray:
        if active is not None:  # It is not, else it would be None.
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
        asked = Asked(given, active, "load")
        is_past = past_end(programs, storage, asked, index, element)
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
        raise illegal.outside(programs, storage, Asked(np.int64(index), None, "load"), element)
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
    """Return absolute addresses of elements outside of the anchor's storage."""
    return index * np.int64(element.itemsize) + np.int64(base.address)


def _arrived(result: Array, element: ElementType) -> Array:
    """Return loaded elements as values in flight."""
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
    """Put `other` where lanes are masked off; poison in debug mode, else zero, if there is none."""
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
    asked: _Store,
) -> None:
    """Store to one storage."""
    lanes, active, copies, owners = asked
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
            _scatter_anywhere(programs, elsewhere, values, element, asked)
            return
        raise illegal.outside(programs, storage, Asked(lanes, active, "store"), element)
    extent = Extent(low, high, element.itemsize, sector_waste(lanes, element.itemsize))
    statistics = programs.statistics
    statistics.count(storage, num_lanes * copies, num_active * copies, extent, writes=True)
    if programs.log is not None and owners is not None:
        _note(programs.log, storage, index, np.asarray(values, view.dtype), owners)
    if type(index) is not _ndarray and type(values) is _ndarray:
        values = values.reshape(-1)[-1]  # Every program writes here; the last one stays.
    if programs.sync is not None:
        _publish(programs.sync, storage, view, index, values, extent)
        return
    if storage.device is not programs.device and storage.device is not None:
        raise machine.PublishedError
    if programs.undo is not None:
        programs.undo.append((view, index, view[index]))
    view[index] = values


def _note(log: AccessLog, storage: Storage, index: Value, values: Array, owners: Array) -> None:
    """Note a store for race checks, lane by lane also where all programs store to one element."""
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
    """Write to shared memory, at the program's own time."""
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


# ---- pointers that were numbers ----


def _gather_anywhere(
    programs: Programs,
    addresses: Value,
    active: Value | None,
    element: ElementType,
) -> Value:
    """Load from addresses that may lie in several storages, of several devices."""
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
    """Load from addresses none of which is masked off: nearly always of one storage."""
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
# Lanes are dealt to the elements of a block along the dim in which these lie side by side, as
# Triton's coalescing does. So it is the stride of the densest dim that decides, and how many
# elements there are before it jumps.
#
# Source: CUDA C++ Best Practices Guide 13.0, "Coalesced Access to Global Memory"; the same size
# is assumed for AMD.

SECTOR_BYTES = 32
_FEW_HOLES = 8  # Assumed: with less than one lane in so many masked off, sectors are as without.


def sector_waste(index: Value, itemsize: int) -> float:
    """Return the bytes that are moved for each byte of an access.

    Args:
        index: [1 or P, *shape] the elements touched; what the first program touches stands for all.
        itemsize: Bytes of an element.
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
    """Return the waste along the densest dim."""
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
    """Return the moved bytes per requested byte, for lanes along a line."""
    num_sectors = len(np.unique(line * itemsize // SECTOR_BYTES))
    return max(num_sectors * SECTOR_BYTES / (len(line) * itemsize), 1.0)


def masked_waste(index: Value, active: Value, itemsize: int) -> float:
    """Return the waste of an access of which some lanes are masked off.

    Args:
        index: As in `sector_waste`.
        active: Which lanes are not; of the same shape.
        itemsize: Bytes of an element.
    """
    if type(index) is not np.ndarray or type(active) is not np.ndarray or index.ndim == 1:
        return 1.0
    if np.count_nonzero(active) * _FEW_HOLES > active.size * (_FEW_HOLES - 1):
        return sector_waste(index, itemsize)
    spread = np.broadcast_to(active, index.shape)
    row = int(spread.reshape(len(spread), -1).any(axis=1).argmax())
    return _waste_along(index[row][spread[row]].reshape(-1), itemsize)


# ---- What lies between the end of a tensor and that of its allocation, which is rounded up ----
# A GPU reads there without a fault: kernels load whole tiles at the end of a table, and mask
# what comes of them. No program wrote these bytes, so what is loaded is what a wrong result
# shows by.


def poison(element: ElementType) -> Value:
    """Return poison for unwritten elements: NaN, true, or the largest integer."""
    if element.kind == "f":
        return element.scalar(np.nan)
    if element.kind == "b":
        return element.scalar(1)
    return element.scalar(np.iinfo(element.compute).max)


def past_end(
    programs: Programs,
    storage: Storage,
    asked: illegal.Asked,
    index: Array,
    element: ElementType,
) -> Array:
    """Return the lanes of a load that read past the end of a tensor.

    Args:
        programs: Who loads.
        storage: What they load from.
        asked: The load, for the error.
        index: Its elements; lanes that are masked off repeat one that is not.
        element: Their type.

    Raises:
        IllegalAccessError: A lane leaves the allocation, a program loads a single number, or all is
            checked, as under `strict`.
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
        raise illegal.outside(programs, storage, asked, element)
    device.memory.space.hints[illegal.past_end_text(programs, storage)] = None
    is_past: Array = index >= storage.size_bytes // itemsize
    return is_past
