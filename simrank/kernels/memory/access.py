"""Loads and stores of kernels, with bounds, counts and undo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.kernels import machine
from simrank.kernels.memory import illegal
from simrank.kernels.memory.addresses import element_at, launch_view, pointee, segments
from simrank.kernels.memory.illegal import Lanes
from simrank.kernels.values.block import Anchor, Block, as_block, cast_to
from simrank.kernels.values.broadcasting import aligned, common_shape, with_axes
from simrank.kernels.values.types import int1

if TYPE_CHECKING:
    from simrank.device.memory import Storage
    from simrank.kernels.machine import Programs
    from simrank.kernels.machine.protocols import StoreLog, Sync
    from simrank.kernels.values.types import ElementType

Array = np.ndarray[Any, Any]
_ndarray = np.ndarray
_SMALL = 64  # elements; below it fancy indexing is faster than `take` (measured)


def load(pointer: Block, mask: Any, other: Any) -> Block:
    """Return what a block of pointers points to; `other` where masked off."""
    programs = machine.now()
    machine.require_all(programs)
    element = pointee(pointer)
    if mask is None and pointer.base is not None and type(pointer.values) is not _ndarray:
        return Block(_gather_one(programs, pointer.base, int(pointer.values), element), element)
    places, active = _lanes(pointer, None, mask)
    if pointer.base is not None:
        values = _gather(programs, pointer.base, places, active, element)
    else:
        values = _gather_anywhere(programs, places, active, element)
    if active is not None:
        values = _masked(programs, values, active, other, element)
    return Block(values, element)


def store(pointer: Block, value: Any, mask: Any) -> None:
    """Write a block where pointers point to, but for masked-off lanes."""
    programs = machine.now()
    machine.require_all(programs)
    element = pointee(pointer)
    block = cast_to(as_block(value), element)
    places, active = _lanes(pointer, block.values, mask)
    values = block.values
    lanes = Lanes(places, active, "store")
    copies = _copies(programs, places)
    owners = None if programs.stores is None else _owners(programs, places, values, active)
    if type(places) is _ndarray:
        if type(values) is not _ndarray or values.shape != places.shape:
            values = np.broadcast_to(aligned(places, values)[1], places.shape)
        if active is not None:
            places, values = places[active], values[active]
    elif active is not None and not active:
        return
    if pointer.base is not None:
        _scatter(programs, pointer.base, places, values, element, (lanes, copies, owners))
    else:
        _scatter_anywhere(programs, places, values, element, (copies, owners))


def _owners(programs: Programs, places: Any, values: Any, active: Any) -> Array:
    """Return which program does each lane of a store; the last where all do the same."""
    ids = programs.ids
    if type(places) is not _ndarray:
        return ids if type(values) is _ndarray and len(values) == len(ids) else ids[-1:]
    rows = ids if len(places) == len(ids) else ids[-1:]
    spread = np.broadcast_to(rows.reshape((-1,) + (1,) * (places.ndim - 1)), places.shape)
    return spread if active is None else spread[active]


def _copies(programs: Programs, places: Any) -> int:
    """Return how many programs each lane of an access stands for."""
    return len(programs.ids) if type(places) is not _ndarray or len(places) == 1 else 1


def _scatter_anywhere(
    programs: Programs, places: Any, values: Any, element: ElementType, asked: tuple[int, Any]
) -> None:
    """Store to addresses that may lie in several storages, of several devices."""
    copies, owners = asked
    for storage, chosen, own in segments(programs, places, element):
        part = values if chosen is None else values[chosen]
        lanes = Lanes(own, None, "store")
        mine = owners if owners is None or chosen is None else owners[chosen]
        _scatter(programs, storage, own, part, element, (lanes, copies, mine))


def _lanes(pointer: Block, values: Any, mask: Any) -> tuple[Any, Any]:
    """Return the places of an access and its active lanes, broadcast to one shape.

    The active lanes are None where none is masked off.

    Raises:
        ValueError: Shapes or the mask's type do not go together, in Triton's words.
    """
    places = pointer.values
    active = None if mask is None else _active(mask)
    is_block = type(places) is _ndarray
    if active is None and values is None:
        return places, None
    shape = places.shape if is_block else None
    if (active is None or (type(active) is _ndarray and active.shape == shape)) and (
        type(values) is not _ndarray or values.shape == shape
    ):
        return places, active
    _check_lanes(pointer, values, active)
    arrays = [a for a in (places, values, active) if type(a) is _ndarray]
    if not arrays:
        return places, active
    for array in arrays[1:] if is_block else ():
        common_shape(tuple(pointer.shape), array.shape[1:])  # Else it says so in Triton's words.
    num_axes = max(array.ndim for array in arrays)
    wide = [with_axes(array, num_axes) for array in arrays]
    common = np.broadcast_shapes(*(array.shape for array in wide))
    places = np.broadcast_to(with_axes(places, num_axes), common)
    if active is not None:
        active = np.broadcast_to(with_axes(active, num_axes), common)
    return places, active


def _active(mask: Any) -> Any:
    """Return where a mask is true; None where it is everywhere."""
    block = as_block(mask)
    if block.element is not int1:
        raise ValueError("Mask must have boolean scalar type")
    active = block.values
    if type(active) is not _ndarray:
        return None if active else active
    return None if np.count_nonzero(active) == active.size else active


def _check_lanes(pointer: Block, values: Any, active: Any) -> None:
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
    places: Any,
    active: Any,
    element: ElementType,
    copies: int = 0,
) -> Any:
    """Load from one storage; `copies` as `_copies` says of places that have lost their rows."""
    if type(places) is not _ndarray:
        if active is not None:  # It is not, else it would be None.
            programs.statistics.count_masked(len(programs.ids))
            return element.compute.type(0)
        return _gather_one(programs, base, int(places), element)
    storage = base.storage if isinstance(base, Anchor) else base
    view = launch_view(programs, storage, element.carrier)
    statistics = programs.statistics
    num_active, copies = places.size, copies or _copies(programs, places)
    if active is not None:
        num_active = int(np.count_nonzero(active))
        if not num_active:
            statistics.count_masked(places.size * copies)
            return np.zeros(places.shape, element.compute)
        given, places = places, np.where(active, places, places.flat[int(active.argmax())])
    low, high = int(np.minimum.reduce(places, None)), int(np.maximum.reduce(places, None))
    if low < 0 or high >= len(view):
        given = places if active is None else given
        if isinstance(base, Anchor):
            return _gather_anywhere(programs, _absolute(base, given, element), active, element)
        wrong = Lanes(given, active, "load")
        raise illegal.outside(programs, storage, wrong, element)
    statistics.note_block(places.size // len(places))
    extent = low, high, element.itemsize
    statistics.count(storage, places.size * copies, num_active * copies, extent, writes=False)
    if programs.sync is not None:
        itemsize = element.itemsize
        programs.sync.loaded(storage, low * itemsize, (high + 1) * itemsize, places, itemsize)
    found = view[places] if places.size < _SMALL else view.take(places, mode="clip")
    return _arrived(found, element)


def _gather_one(
    programs: Programs, base: Storage | Anchor, index: int, element: ElementType
) -> Any:
    """Load one element for all programs."""
    storage = base.storage if isinstance(base, Anchor) else base
    view = launch_view(programs, storage, element.carrier)
    itemsize = element.itemsize
    if not 0 <= index < len(view):
        if isinstance(base, Anchor):
            elsewhere = element_at(programs, base.address + index * itemsize, element)
            return _gather_one(programs, *elsewhere, element)
        raise illegal.outside(programs, storage, Lanes(np.int64(index), None, "load"), element)
    total = len(programs.ids)
    programs.statistics.count(storage, total, total, (index, index, itemsize), writes=False)
    if programs.sync is not None:
        begin = index * itemsize
        own = np.array([index])
        programs.sync.loaded(storage, begin, begin + itemsize, own, itemsize)
    if element.memory is element.compute:
        return view[index]
    return _arrived(view[index : index + 1], element)[0]


def _absolute(base: Anchor, places: Any, element: ElementType) -> Any:
    """Return addresses of what has left an anchor's storage."""
    return places * np.int64(element.itemsize) + np.int64(base.address)


def _arrived(found: Array, element: ElementType) -> Array:
    """Return loaded elements as values in flight."""
    if element.carrier is not element.memory:
        found = found.view(element.memory)
    return found if found.dtype is element.compute else found.astype(element.compute)


def _masked(
    programs: Programs,
    values: Any,
    active: Any,
    other: Any,
    element: ElementType,
) -> Any:
    """Put `other` where lanes are masked off; poison in debug mode, else zero, if there is none."""
    if other is None:
        fill: Any = _poison(element) if programs.options.is_checked else element.compute.type(0)
    else:
        fill = cast_to(as_block(other), element).values
    if type(values) is not _ndarray and type(active) is not _ndarray:
        return values if active else (fill if type(fill) is not _ndarray else fill.reshape(-1)[0])
    num_axes = np.ndim(values)
    return np.where(active, values, with_axes(fill, num_axes)).astype(element.compute, copy=False)


def _poison(element: ElementType) -> Any:
    if element.kind == "f":
        return element.compute.type(np.nan)
    if element.kind == "b":
        return np.bool_(True)
    return element.compute.type(np.iinfo(element.compute).max)


def _scatter(
    programs: Programs,
    base: Storage | Anchor,
    places: Any,
    values: Any,
    element: ElementType,
    asked: tuple[Lanes, int, Any],
) -> None:
    """Store to one storage.

    `asked` is what was asked for, by how many programs each lane, and by which.
    """
    lanes, copies, owners = asked
    storage = base.storage if isinstance(base, Anchor) else base
    view = launch_view(programs, storage, element.memory)
    num_lanes = num_active = 1
    if type(places) is not _ndarray:
        low = high = int(places)
    else:
        num_active = places.size
        num_lanes = num_active if lanes.active is None else lanes.active.size
        if not num_active:
            programs.statistics.count_masked(num_lanes * copies)
            return
        low, high = int(np.minimum.reduce(places, None)), int(np.maximum.reduce(places, None))
    if low < 0 or high >= len(view):
        if isinstance(base, Anchor):
            elsewhere = _absolute(base, places, element)
            _scatter_anywhere(programs, elsewhere, values, element, (copies, owners))
            return
        raise illegal.outside(programs, storage, lanes, element)
    extent = (low, high, element.itemsize)
    statistics = programs.statistics
    statistics.count(storage, num_lanes * copies, num_active * copies, extent, writes=True)
    if programs.stores is not None and owners is not None:
        _note(programs.stores, storage, places, np.asarray(values, view.dtype), owners)
    if type(places) is not _ndarray and type(values) is _ndarray:
        values = values.reshape(-1)[-1]  # Every program writes here; the last one stays.
    if programs.sync is not None:
        _publish(programs.sync, storage, view, places, values, extent)
        return
    if storage.device is not programs.device:
        raise machine.PublishedError
    if programs.undo is not None:
        programs.undo.append((view, places, view[places]))
    view[places] = values


def _note(stores: StoreLog, storage: Storage, places: Any, values: Array, owners: Array) -> None:
    """Note a store for race checks, lane by lane also where all programs store to one place."""
    if type(places) is not _ndarray and values.size > 1:
        values = values.reshape(-1)
        places = np.full(values.shape, places)
    stores.note(storage, places, values, owners)


def _publish(
    sync: Sync,
    storage: Storage,
    view: Array,
    places: Any,
    values: Any,
    extent: tuple[int, int, int],
) -> None:
    """Write where others may see it, at the program's own time."""
    low, high, itemsize = extent
    bytes_touched = low * itemsize, (high + 1) * itemsize
    if sync.races is not None:
        given = np.asarray(values, view.dtype)
        sync.races.stores(storage, np.atleast_1d(np.asarray(places)), given)
    if sync.writes(storage):
        sync.put(storage, view, places, values, bytes_touched)
    else:
        view[places] = values
        sync.wrote(storage, *bytes_touched)


# ---- pointers that were numbers ----


def _gather_anywhere(
    programs: Programs,
    places: Any,
    active: Any,
    element: ElementType,
) -> Any:
    """Load from addresses that may lie in several storages, of several devices."""
    if type(places) is not _ndarray:
        if active is not None and not active:
            return element.compute.type(0)
        return _gather_one(programs, *element_at(programs, int(places), element), element)
    if active is None:
        return _gather_all(programs, places, element)
    found = np.zeros(places.shape, element.compute)
    chosen_places, copies = places[active].reshape(-1), _copies(programs, places)
    flat = np.zeros(chosen_places.size, element.compute)
    for storage, chosen, own in segments(programs, chosen_places, element):
        flat[slice(None) if chosen is None else chosen] = _gather(
            programs, storage, own, None, element, copies
        )
    found[active] = flat
    return found


def _gather_all(programs: Programs, places: Array, element: ElementType) -> Array:
    """Load from addresses none of which is masked off: nearly always of one storage."""
    parts = list(segments(programs, places, element))
    if len(parts) == 1:
        storage, _, own = parts[0]
        loaded: Array = _gather(programs, storage, own, None, element)
        return loaded
    found, copies = np.zeros(places.shape, element.compute), _copies(programs, places)
    for storage, chosen, own in parts:
        found[chosen] = _gather(programs, storage, own, None, element, copies)
    return found
