"""Lookup of storages by pointer, views of storages as elements, errors of illegal accesses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from simrank.engine import user_site
from simrank.errors import SimrankError
from simrank.kernels.machine import ALL_PROGRAMS
from simrank.kernels.machine.running import MAX_SHOWN, programs_text
from simrank.kernels.values.block import Anchor, Block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from simrank.device.memory import AddressSpace, Storage
    from simrank.kernels.machine import Programs
    from simrank.kernels.machine.protocols import Array, Value
    from simrank.kernels.values.types import ElementType


# ---- errors of illegal accesses, with the kernel's line, programs, tensor and bounds ----


class IllegalAccessError(SimrankError):
    """A kernel accessed memory outside of its allocations, as CUDA's illegal memory access.

    Attributes:
        address: The first illegal simulated address.
        program_ids: The programs of the access, at most eight.
    """

    def __init__(self, message: str, address: int, program_ids: tuple[int, ...]) -> None:
        super().__init__(message)
        self.address = address
        self.program_ids = program_ids


class AttemptedAccess:
    """An attempted access, for error messages.

    Attributes:
        index: Indices of all lanes in the storage.
        active: Lanes that are not masked off; None for all.
        verb: "load", "store" or another verb.
    """

    __slots__ = ("active", "index", "verb")

    def __init__(self, index: Value | np.generic, active: Value | None, verb: str) -> None:
        self.index = index
        self.active = active
        self.verb = verb


def outside(
    programs: Programs, storage: Storage, request: AttemptedAccess, element: ElementType
) -> IllegalAccessError:
    """Return the error of an access outside of a storage."""
    num_elements = storage.size_bytes // element.itemsize
    flat = np.atleast_1d(np.asarray(request.index))
    is_wrong = (flat < 0) | (flat >= num_elements)
    if request.active is not None:
        is_wrong = is_wrong & np.asarray(request.active)
    first = int(np.broadcast_to(flat, is_wrong.shape)[is_wrong][0])
    ids = programs.ids
    if is_wrong.shape[0] == len(ids):
        ids = ids[is_wrong.reshape(len(ids), -1).any(axis=1)]
    text = (
        f"{_head('illegal memory access', programs)}: {request.verb} of element {first} of "
        f"{_tensor(programs, storage, element)} with {num_elements} elements, 0 to "
        f"{num_elements - 1}{_made(storage)}; {programs_text(ids.tolist())}"
    )
    return _error(text, storage.address + first * element.itemsize, ids)


def nowhere(programs: Programs, address: int) -> IllegalAccessError:
    """Return the error of an access to an address outside of all allocations."""
    text = f"{_head('illegal memory access', programs)}: address {address:#x} is of no allocation"
    return _error(f"{text}; {programs_text(programs.ids.tolist())}", address, programs.ids)


def past_end_text(programs: Programs, storage: Storage) -> str:
    """Return the hint of a load of the padding behind a tensor."""
    name = programs.options.arguments.get(storage.address, ("",))[0]
    return (
        f"{_head('load past the end', programs)}: of {repr(name) if name else 'an allocation'}"
        f"{_made(storage)}; a GPU reads what lies there, here it is NaN or the largest integer"
    )


def check_vectors(programs: Programs, addresses: Value, element: ElementType, width: int) -> None:
    """Raise unless every address of a vector is a multiple of the vector's size.

    Raises:
        IllegalAccessError: An address is misaligned.
    """
    size_bytes = width * element.itemsize
    is_wrong = addresses % size_bytes != 0
    if is_wrong.any():
        address = int(addresses[is_wrong][0])
        text = (
            f"{_head('misaligned address', programs)}: {address:#x} is no multiple of "
            f"{size_bytes}, the size of {width} {element}; {programs_text(programs.ids.tolist())}"
        )
        raise _error(text, address, programs.ids)


def misaligned(programs: Programs, address: int, element: ElementType) -> IllegalAccessError:
    """Return the error of an address that is not aligned to its element type."""
    text = (
        f"{_head('misaligned address', programs)}: {address:#x} is no multiple of "
        f"{element.itemsize}, the size of {element}; {programs_text(programs.ids.tolist())}"
    )
    return _error(text, address, programs.ids)


def _error(text: str, address: int, ids: Value) -> IllegalAccessError:
    return IllegalAccessError(text, address, tuple(ids[:MAX_SHOWN].tolist()))


def _head(what: str, programs: Programs) -> str:
    site = user_site()
    line = "" if site is None else f" at {site.line()}"
    return f"{what} in kernel '{programs.kernel}'{line}"


def _tensor(programs: Programs, storage: Storage, element: ElementType) -> str:
    result = programs.options.arguments.get(storage.address)
    if result is None:
        return f"an allocation of {element}"
    name, shape = result
    return f"'{name}', {element}{list(shape)},"


def _made(storage: Storage) -> str:
    site = storage.site()
    return "" if site is None else f", allocated at {site.line()}"


# ---- storages by pointer, and their elements ----

_ndarray = np.ndarray


def pointee(pointer: object) -> ElementType:
    """Return the element type of a block of pointers.

    Raises:
        ValueError: The value is not a block of pointers.
    """
    if type(pointer) is not Block or pointer.element.pointee is None:
        shown = pointer.element if type(pointer) is Block else type(pointer).__name__
        raise ValueError(f"Unsupported ptr type {shown}: expected a pointer or a block of pointers")
    return pointer.element.pointee


def writable_pointee(pointer: object) -> ElementType:
    """Return the element type of a block of pointers that may be stored through.

    Raises:
        ValueError: The value is not a block of pointers, or the pointers are constant.
    """
    element = pointee(pointer)
    if isinstance(pointer, Block) and pointer.element.is_constant:
        raise ValueError("Cannot store to a constant pointer")
    return element


def view_of(storage: Storage, dtype: np.dtype[Any]) -> Array:
    """Return the whole elements of a storage as an array of a dtype."""
    size_bytes = storage.size_bytes - storage.size_bytes % dtype.itemsize
    storage.check_values("a kernel")
    raw: Array = storage.array(np.dtype(np.uint8))[:size_bytes]
    return raw.view(dtype)


def launch_view(programs: Programs, storage: Storage, dtype: np.dtype[Any]) -> Array:
    """Return the cached view of a storage for a launch."""
    views = programs.statistics.views
    result = views.get((storage, dtype.num))
    if result is None:
        result = _view_in(programs, storage, dtype)
        views[storage, dtype.num] = result
    return result


def _view_in(programs: Programs, storage: Storage, dtype: np.dtype[Any]) -> Array:
    fill = programs.statistics.fill
    if fill is None or storage.has_values:
        return view_of(storage, dtype)
    return cast("Array", VoidView(storage.size_bytes // dtype.itemsize, dtype, fill=fill))


def check_bounds(
    programs: Programs, storage: Storage, index: Array, element: ElementType, what: str
) -> None:
    """Raise unless all elements lie in a storage.

    Raises:
        IllegalAccessError: An element does not.
    """
    num_elements = storage.size_bytes // element.itemsize
    if index.size and (index.min() < 0 or index.max() >= num_elements):
        raise outside(programs, storage, AttemptedAccess(index, None, what), element)


class Segment(NamedTuple):
    """Addresses within one storage.

    Attributes:
        storage: The storage.
        chosen: Which of the addresses; None for all.
        offsets: Their indices in the storage, in elements.
    """

    storage: Storage
    chosen: Any
    offsets: Any


class Element(NamedTuple):
    """One element of a storage, by its offset in elements."""

    storage: Storage
    offset: int


def segments_of(
    programs: Programs,
    addresses: Value,
    element: ElementType,
) -> Iterator[Segment]:
    """Yield the storages that contain some addresses.

    Raises:
        IllegalAccessError: An address is outside of all storages, or misaligned.
    """
    space = programs.device.memory.space
    if type(addresses) is not _ndarray:
        storage, index = element_at(programs, int(addresses), element)
        yield Segment(storage, None, np.int64(index))
        return
    if not addresses.size:
        return
    storage = _find(programs, space, int(addresses.min()), element)
    offsets = addresses - storage.address
    if offsets.max() < storage.size_bytes:
        if np.bitwise_or.reduce(offsets, None) & (element.itemsize - 1):
            raise misaligned(programs, storage.address + int(offsets.min()), element)
        yield Segment(storage, None, offsets >> (element.itemsize.bit_length() - 1))
        return
    left = np.ones(addresses.shape, bool)
    while left.any():
        first = int(addresses[left].min())
        storage = _find(programs, space, first, element)
        end = storage.address + storage.size_bytes
        chosen = left & (addresses < end)
        offsets = addresses[chosen] - storage.address
        if (offsets % element.itemsize).any():
            raise misaligned(programs, first, element)
        is_all = chosen.all()
        elements = offsets // element.itemsize
        if is_all:
            yield Segment(storage, None, elements.reshape(addresses.shape))
        else:
            yield Segment(storage, chosen, elements)
        left &= ~chosen


def element_at(programs: Programs, address: int, element: ElementType) -> Element:
    """Return the storage that contains an address, and the index of the element.

    Raises:
        IllegalAccessError: The address is outside of all storages, or misaligned.
    """
    storage = _find(programs, programs.device.memory.space, address, element)
    return Element(storage, (address - storage.address) // element.itemsize)


def _find(programs: Programs, space: AddressSpace, address: int, element: ElementType) -> Storage:
    storage = space.find(address)
    if storage is None:
        raise nowhere(programs, address)
    if (address - storage.address) % element.itemsize:
        raise misaligned(programs, address, element)
    return storage


# ---- Race checks ----


def segments_from(
    programs: Programs, base: Storage | Anchor | None, targets: Array, element: ElementType
) -> Iterable[Segment]:
    """Return the storages of an access, given the base of its pointers."""
    if isinstance(base, Anchor):
        targets = targets * np.int64(element.itemsize) + np.int64(base.address)
    elif base is not None:
        return [Segment(base, None, targets)]
    return segments_of(programs, targets, element)


def owners_of(programs: Programs, lanes: Array) -> Array:
    """Return the program of each lane of an access; `ALL_PROGRAMS` if they act alike."""
    ids = programs.ids
    rows = ids if len(lanes) == len(ids) else np.array([ALL_PROGRAMS])
    return np.broadcast_to(rows.reshape((-1,) + (1,) * (lanes.ndim - 1)), lanes.shape)


# ---- Memory without values in shape-only runs: each load returns one number ----

# Bit patterns by size: 0.0079 or 1 as 16-bit float, 1.5 as fp8, and large values.
_BITS = {1: (0, 0x3C, 0x70), 2: (0, 0x3C00, 0x7000)}
_NUMBERS = (0, 1, 100_000)  # The second is also a valid offset.
_LARGE_BYTE = 100


class VoidView:
    """A read-only replacement of an array without values: all elements are equal.

    Args:
        size: Number of elements.
        dtype: Type of loaded elements; narrow floats are unsigned integers of their size.
        fill: The number: 0 for zero, 1 for one, 2 for a large one.
    """

    def __init__(self, size: int, dtype: np.dtype[Any], *, fill: int) -> None:
        self._size = size
        self.dtype = dtype
        numbers = _BITS.get(dtype.itemsize, _NUMBERS) if dtype.kind == "u" else _NUMBERS
        number = min(numbers[fill], _LARGE_BYTE) if dtype == np.int8 else numbers[fill]
        self._value = np.array(min(number, 32_767) if dtype == np.int16 else number, dtype)[()]

    def __len__(self) -> int:
        """Return the number of elements."""
        return self._size

    def __getitem__(self, index: Any) -> Value:  # noqa: ANN401 - any numpy index or value
        """Return an array of the index's length."""
        if isinstance(index, slice):
            return np.full(len(range(*index.indices(self._size))), self._value)
        return np.full(np.shape(index), self._value)[()]

    def take(self, index: Array, mode: str = "clip") -> Array:
        """Return an array of the index's shape."""
        del mode
        return np.full(index.shape, self._value)

    def __setitem__(self, index: Any, values: Any) -> None:  # noqa: ANN401 - any numpy index or value
        """Ignore a store."""
