"""Loads and stores of kernels: from pointers to storages, with bounds, counts and undo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import SimrankError
from simrank.kernels import machine
from simrank.kernels.block import Block, addresses, aligned, as_block, as_truth, cast_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.device.memory import AddressSpace, Storage
    from simrank.kernels.machine import Programs
    from simrank.kernels.types import ElementType

Array = np.ndarray[Any, Any]
_ndarray = np.ndarray
_SMALL = 64  # elements; below it fancy indexing is faster than `take` (measured)


class IllegalAccessError(SimrankError):
    """A kernel touched memory that is not its own, as CUDA's illegal memory access.

    Attributes:
        address: The first wrong simulated address.
        program_ids: The programs that touched it, at most eight.
    """

    def __init__(self, message: str, address: int, program_ids: tuple[int, ...]) -> None:
        super().__init__(message)
        self.address = address
        self.program_ids = program_ids


class PublishedError(Exception):
    """Programs in lockstep write to another device: each must do so at its own time."""


def load(pointer: Block, mask: Any, other: Any) -> Block:
    """Return what a block of pointers points to; `other` where masked off."""
    programs = machine.now()
    element = pointee(pointer)
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
    element = pointee(pointer)
    block = cast_to(as_block(value), element)
    places, active = _lanes(pointer, block.values, mask)
    values = block.values
    if type(places) is _ndarray:
        values = np.broadcast_to(aligned(places, values)[1], places.shape)
    if active is not None:
        if type(places) is not _ndarray:
            if not active:
                return
        else:
            places, values = places[active], values[active]
    if pointer.base is not None:
        _scatter(programs, pointer.base, places, values, element, active)
        return
    for storage, chosen, own in segments(programs, places, element):
        _scatter(
            programs, storage, own, values if chosen is None else values[chosen], element, None
        )


def pointee(pointer: Any) -> ElementType:
    """Return the type that a block of pointers points to.

    Raises:
        ValueError: It is no block of pointers.
    """
    if type(pointer) is not Block or pointer.element.pointee is None:
        shown = pointer.element if type(pointer) is Block else type(pointer).__name__
        raise ValueError(f"Unsupported ptr type {shown}: expected a pointer or a block of pointers")
    return pointer.element.pointee


def _lanes(pointer: Block, values: Any, mask: Any) -> tuple[Any, Any]:
    """Return the places of an access and its active lanes, broadcast to one shape.

    The active lanes are None where none is masked off.
    """
    places = pointer.values
    active = None
    if mask is not None:
        active = as_truth(mask).values
        if type(active) is not _ndarray:
            if active:
                active = None
        elif active.all():
            active = None
    if active is None and values is None:
        return places, None
    arrays = [a for a in (places, values, active) if type(a) is _ndarray]
    if not arrays:
        return places, active
    num_axes = max(array.ndim for array in arrays)
    wide = [_with_axes(array, num_axes) for array in arrays]
    shape = np.broadcast_shapes(*(array.shape for array in wide))
    places = np.broadcast_to(_with_axes(places, num_axes), shape)
    if active is not None:
        active = np.broadcast_to(_with_axes(active, num_axes), shape)
    return places, active


def _with_axes(values: Any, num_axes: int) -> Any:
    """Return an array with more axes behind the program axis; scalars broadcast by themselves."""
    if type(values) is not _ndarray or values.ndim == num_axes:
        return values
    missing = (1,) * (num_axes - values.ndim)
    return values.reshape(values.shape[:1] + missing + values.shape[1:])


def view_of(storage: Storage, dtype: np.dtype[Any]) -> Array:
    """Return a storage as an array of a dtype, as far as whole elements go."""
    size_bytes = storage.size_bytes - storage.size_bytes % dtype.itemsize
    storage.check_values("a kernel")
    raw: Array = storage.array(np.dtype(np.uint8))[:size_bytes]
    return raw.view(dtype)


def _gather(
    programs: Programs,
    storage: Storage,
    places: Any,
    active: Any,
    element: ElementType,
) -> Any:
    view = view_of(storage, element.carrier)
    if active is not None:
        places = np.where(active, places, 0)
    if type(places) is not _ndarray:
        if not 0 <= places < len(view):
            raise _illegal(programs, storage, places, active, element, "load")
        programs.statistics.count(
            storage, 1, 1 if active is None or active else 0,
            (int(places), int(places), element.itemsize), writes=False,
        )  # fmt: skip
        if programs.sync is not None:
            first = int(places) * element.itemsize
            programs.sync.loaded(storage, first, first + element.itemsize)
        return _arrived(view[places : places + 1], element)[0]
    low, high = (places.min(), places.max()) if places.size else (0, 0)
    if low < 0 or high >= len(view):
        raise _illegal(programs, storage, places, active, element, "load")
    num_active = places.size if active is None else int(np.count_nonzero(active))
    programs.statistics.note_block(places.size // len(places) if places.ndim > 1 else 1)
    extent = (int(low), int(high), element.itemsize)
    programs.statistics.count(storage, places.size, num_active, extent, writes=False)
    if programs.sync is not None:
        itemsize = element.itemsize
        programs.sync.loaded(storage, int(low) * itemsize, (int(high) + 1) * itemsize)
    found = view[places] if places.size < _SMALL else view.take(places, mode="clip")
    return _arrived(found, element)


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
    return np.where(active, values, _with_axes(fill, num_axes)).astype(element.compute, copy=False)


def _poison(element: ElementType) -> Any:
    if element.kind == "f":
        return element.compute.type(np.nan)
    if element.kind == "b":
        return np.bool_(True)
    return element.compute.type(np.iinfo(element.compute).max)


def check_bounds(
    programs: Programs, storage: Storage, places: Array, element: ElementType, what: str
) -> None:
    """Raise unless elements lie in a storage.

    Raises:
        IllegalAccessError: One does not.
    """
    num_elements = storage.size_bytes // element.itemsize
    if places.size and (places.min() < 0 or places.max() >= num_elements):
        raise _illegal(programs, storage, places, None, element, what)


def _scatter(
    programs: Programs,
    storage: Storage,
    places: Any,
    values: Any,
    element: ElementType,
    active: Any,
) -> None:
    view = view_of(storage, element.memory)
    if type(places) is not _ndarray:
        low = high = places
        num_lanes = num_active = 1
    else:
        num_active = places.size
        num_lanes = num_active if active is None else active.size
        if not num_active:
            programs.statistics.num_lanes += num_lanes
            programs.statistics.num_masked_lanes += num_lanes
            return
        low, high = places.min(), places.max()
    if low < 0 or high >= len(view):
        raise _illegal(programs, storage, places, None, element, "store")
    extent = (int(low), int(high), element.itemsize)
    programs.statistics.count(storage, num_lanes, num_active, extent, writes=True)
    if type(places) is not _ndarray and type(values) is _ndarray:
        values = values.reshape(-1)[-1]  # Every program writes here; the last one stays.
    sync = programs.sync
    if sync is None:
        if storage.device is not programs.device:
            raise PublishedError
        if programs.undo is not None:
            programs.undo.append((view, places, view[places]))
        view[places] = values
        return
    bytes_touched = int(low) * element.itemsize, (int(high) + 1) * element.itemsize
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
        ((storage, _, own),) = segments(programs, places, element)
        return _gather(programs, storage, own, None, element)
    found = np.zeros(places.shape, element.compute)
    chosen_places = places if active is None else places[active]
    flat = np.zeros(chosen_places.size, element.compute)
    chosen_places = chosen_places.reshape(-1)
    for storage, chosen, own in segments(programs, chosen_places, element):
        flat[slice(None) if chosen is None else chosen] = _gather(
            programs, storage, own, None, element
        )
    if active is None:
        return flat.reshape(places.shape)
    found[active] = flat
    return found


def segments(
    programs: Programs,
    places: Any,
    element: ElementType,
) -> Iterator[tuple[Storage, Any, Any]]:
    """Yield the storages that addresses lie in: storage, which of them, and element offsets.

    Raises:
        IllegalAccessError: An address is of no storage, or not aligned.
    """
    space = programs.device.memory.space
    if type(places) is not _ndarray:
        storage = _find(programs, space, int(places), element)
        yield storage, None, np.int64((int(places) - storage.address) // element.itemsize)
        return
    left = np.ones(places.shape, bool)
    while left.any():
        first = int(places[left].min())
        storage = _find(programs, space, first, element)
        end = storage.address + storage.size_bytes
        chosen = left & (places < end)
        offsets = places[chosen] - storage.address
        if (offsets % element.itemsize).any():
            raise _misaligned(programs, first, element)
        is_all = chosen.all()
        own = offsets // element.itemsize
        yield storage, None if is_all else chosen, own.reshape(places.shape) if is_all else own
        left &= ~chosen


def _find(programs: Programs, space: AddressSpace, address: int, element: ElementType) -> Storage:
    storage = space.find(address)
    if storage is None:
        raise IllegalAccessError(
            f"illegal memory access in kernel '{programs.kernel}': address {address:#x} is of no "
            "allocation",
            address,
            tuple(programs.ids[:8].tolist()),
        )
    if (address - storage.address) % element.itemsize:
        raise _misaligned(programs, address, element)
    return storage


def _misaligned(programs: Programs, address: int, element: ElementType) -> IllegalAccessError:
    return IllegalAccessError(
        f"misaligned address in kernel '{programs.kernel}': {address:#x} is no multiple of "
        f"{element.itemsize}, the size of {element}",
        address,
        tuple(programs.ids[:8].tolist()),
    )


def _illegal(
    programs: Programs,
    storage: Storage,
    places: Any,
    active: Any,
    element: ElementType,
    what: str,
) -> IllegalAccessError:
    """Build the error of an access outside of a storage."""
    num_elements = storage.size_bytes // element.itemsize
    flat = np.atleast_1d(np.asarray(places))
    is_wrong = (flat < 0) | (flat >= num_elements)
    if active is not None:
        is_wrong &= np.asarray(active)
    first = int(flat[is_wrong][0])
    if flat.shape[0] == len(programs.ids):
        wrong_programs = np.flatnonzero(is_wrong.reshape(flat.shape[0], -1).any(axis=1))
        ids = programs.ids[wrong_programs]
    else:
        ids = programs.ids
    site = storage.site()
    where = "" if site is None else f", allocated at {site.line()}"
    shown = ", ".join(str(i) for i in ids[:8].tolist()) + (", ..." if len(ids) > 8 else "")
    line = _user_line(programs)
    return IllegalAccessError(
        f"illegal memory access in kernel '{programs.kernel}'{line}: {what} of element {first} of "
        f"{element} from an allocation of {num_elements} elements{where}; program {shown}",
        storage.address + first * element.itemsize,
        tuple(ids[:8].tolist()),
    )


def _user_line(programs: Programs) -> str:
    from simrank.engine import user_site  # noqa: PLC0415 - only for the message

    del programs
    site = user_site()
    return "" if site is None else f" at {site.line()}"


__all__ = ["IllegalAccessError", "addresses", "load", "pointee", "segments", "store", "view_of"]
