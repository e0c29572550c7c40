"""Memory: a simulated address space with storages, pending writes and buffers."""

from __future__ import annotations

import gc
import mmap
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable
from weakref import ReferenceType, WeakValueDictionary

import numpy as np
from numpy.lib.array_utils import byte_bounds

from simrank.engine import user_site
from simrank.errors import (
    OutOfMemoryError,
    SimrankError,
    UninitializedValueError,
)
from simrank.ranks import current_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device.device import Device
    from simrank.device.dtypes import DType
    from simrank.device.stream import Operation, Stream
    from simrank.engine import CallSite, Engine

GRANULE_BYTES = 512  # As CUDA's caching allocator rounds (PyTorch c10/cuda, kMinBlockSize).
DEVICE_SPAN_BYTES = 1 << 40
# Addresses of device d start at _FIRST + d * DEVICE_SPAN_BYTES: above all that a process can map,
# so that another library's memory is found at the addresses that it really has.
_FIRST = 1 << 47
VALUES_UP_TO_BYTES = 64 * 1024  # Shape-only device tensors above this size have no values.
# torch's integers, above this size: token ids, routes and pickled objects steer a program.
INTEGERS_UP_TO_BYTES = 8 << 20
PATTERN = 0xFF  # A NaN in every floating type, -1 in signed integers: garbage that shows.
_NUM_LARGEST = 5

_void = mmap.mmap(-1, mmap.PAGESIZE)


def _void_bytes(size_bytes: int) -> np.ndarray[Any, Any]:
    """Return bytes that are only measured, never touched: shape-only tensors share them."""
    global _void  # noqa: PLW0603 - one reservation for the process, grown on demand
    if size_bytes > len(_void):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        _void = mmap.mmap(-1, size_bytes, flags=flags, prot=mmap.PROT_READ)
    return np.frombuffer(_void, dtype=np.uint8, count=size_bytes)


def _host_bytes(size_bytes: int) -> np.ndarray[Any, Any]:
    """Return bytes for values.

    Raises:
        SimrankError: This machine has not that much memory left.
    """
    try:
        return np.empty(size_bytes, np.uint8)
    except MemoryError:
        raise SimrankError(
            f"this machine has no {size_bytes} bytes of memory left for the values of a tensor\n"
            "  to fix: run shape-only with Context(data=False)"
        ) from None


# Multicast addresses lie above all memory, each in a span of its own.
_MULTICAST = 1 << 62
_MULTICAST_SPAN_BITS = 44


class MulticastTarget(NamedTuple):
    """The target of a multicast address: the same offset in several storages."""

    storages: list[Storage]
    offset: int


class _Block(NamedTuple):
    """Record of an allocation; its rank is None for the main program."""

    size_bytes: int
    site: CallSite | None
    rank: int | None


class _Gap(NamedTuple):
    """Free addresses, from the first to the one behind the last."""

    start: int
    end: int


class WatchesMemory(Protocol):
    """Waits of programs for changes of memory; see `watch.Watchers`."""

    def wrote(self, engine: Engine, storage: Storage, low: int, high: int) -> None:
        """Wake the programs that watch some of the bytes from `low` to `high`, exclusive."""

    def operation_wrote(self, engine: Engine, touched: Touched) -> None:
        """Wake the programs that watch memory that an operation has written."""


class AddressSpace:
    """Storages by simulated address; one table for all devices of a Context.

    Attributes:
        watchers: Waits for changes of memory, once there are any; see `watch`.
        hints: What may be wrong with accesses to it, seen in passing, in order.
        sampled: By a kernel's id: the kernel, and how many of its launches were looked at.
        sampled_lanes: The same, of launches whose lanes were looked at.
        on_memory: Called with a device, the bytes that it has in use now, and their change.
        elsewhere: Finds the storage at an address below simrank's own, or None: another library's.
    """

    def __init__(self) -> None:
        self.hints: dict[str, None] = {}
        self.sampled: dict[int, tuple[object, int]] = {}
        self.sampled_lanes: dict[int, tuple[object, int]] = {}
        self._multicasts: list[list[ReferenceType[Storage]]] = []
        self.on_memory: list[Callable[[int, int, int], None]] = []
        self.elsewhere: Callable[[int], Storage | None] | None = None
        self.watchers: WatchesMemory | None = None
        self._starts: list[int] = []
        self._segments: WeakValueDictionary[int, Storage] = WeakValueDictionary()

    def add(self, storage: Storage) -> None:
        """Enter a storage under its address."""
        if not self._starts or storage.address > self._starts[-1]:
            self._starts.append(storage.address)
        else:
            insort(self._starts, storage.address)
            index = bisect_right(self._starts, storage.address)
            assert index == len(self._starts) or (
                storage.address + storage.size_bytes <= self._starts[index]
            ), "nothing overlaps in the one address space (D2)"
        self._segments[storage.address] = storage

    def remove(self, address: int) -> None:
        """Forget the storage at an address."""
        index = bisect_right(self._starts, address) - 1
        assert self._starts[index] == address, "only what was allocated is freed"
        del self._starts[index]

    def find(self, address: int) -> Storage | None:
        """Return the storage that contains `address`, or None: no such segment exists."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None if self.elsewhere is None else self.elsewhere(address)
        storage = self._segments.get(self._starts[index])
        if storage is None or address >= storage.address + max(storage.size_bytes, 1):
            return None
        return storage

    def add_multicast(self, members: Sequence[ReferenceType[Storage]]) -> int:
        """Return an address that stands for the same offset in several storages."""
        self._multicasts.append(list(members))
        return _MULTICAST | (len(self._multicasts) - 1) << _MULTICAST_SPAN_BITS

    def multicast(self, address: int) -> MulticastTarget | None:
        """Return the target of a multicast address: storages, and the offset in each of them.

        None for other addresses, and where one of the storages is gone.
        """
        if address < _MULTICAST:
            return None
        index, offset = divmod(address - _MULTICAST, 1 << _MULTICAST_SPAN_BITS)
        if index >= len(self._multicasts):
            return None
        storages = [member() for member in self._multicasts[index]]
        alive = [
            storage for storage in storages if storage is not None and offset < storage.size_bytes
        ]
        return MulticastTarget(alive, offset) if len(alive) == len(storages) else None


class DeviceMemory:
    """The memory of one device: first fit in address order, so addresses repeat run for run.

    Attributes:
        total_bytes: Its size.
        used_bytes: Allocated now.
        peak_bytes: The most that was ever allocated; with tensors that only garbage refers to, in
            cycles that Python has not collected yet, as torch's.
        peak_by_kind: What torch's large tensors were where they took most, in bytes: parameters,
            gradients, ...
        totals_bytes: What torch's large tensors took together after each allocation and free.
        peak_reserved_bytes: The most that torch's allocator had taken.
    """

    def __init__(self, device_index: int, total_bytes: int, space: AddressSpace) -> None:
        self.device_index = device_index
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.peak_by_kind: dict[str, int] = {}
        self.totals_bytes: Sequence[int] = ()
        self.peak_reserved_bytes = 0
        self.space = space
        start = _FIRST + device_index * DEVICE_SPAN_BYTES
        self._gaps = [_Gap(start, start + DEVICE_SPAN_BYTES)]  # By address.
        self._live: dict[int, _Block] = {}

    def allocate(self, size_bytes: int) -> int:
        """Return the address of a new block.

        Raises:
            OutOfMemoryError: It does not fit; names the largest allocations and their lines.
        """
        block_bytes = max(-(-size_bytes // GRANULE_BYTES) * GRANULE_BYTES, GRANULE_BYTES)
        index = self._fitting_gap(block_bytes)
        if index is None:  # What is garbage to Python is free: its pace decides nothing.
            gc.collect()
            index = self._fitting_gap(block_bytes)
        if index is None:
            raise self._out_of_memory(size_bytes)
        start, end = self._gaps[index]
        if end - start == block_bytes:
            del self._gaps[index]
        else:
            self._gaps[index] = _Gap(start + block_bytes, end)
        self.used_bytes += block_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        for tell in self.space.on_memory:
            tell(self.device_index, self.used_bytes, block_bytes)
        program = current_program()
        rank = None if program is None else program.rank
        self._live[start] = _Block(block_bytes, user_site(), rank)
        return start

    def _fitting_gap(self, block_bytes: int) -> int | None:
        """Return the index of the first gap that a block fits in; None if there is no room."""
        if self.used_bytes + block_bytes > self.total_bytes:
            return None
        fits = (i for i, (start, end) in enumerate(self._gaps) if end - start >= block_bytes)
        return next(fits, None)  # Gaps between blocks may leave no room in the device's span.

    def free(self, address: int) -> None:
        """Give a block back; it joins the gaps beside it."""
        block_bytes = self._live.pop(address).size_bytes
        self.used_bytes -= block_bytes
        assert self.used_bytes >= 0, "no more is freed than was allocated (D2)"
        for tell in self.space.on_memory:
            tell(self.device_index, self.used_bytes, -block_bytes)
        self.space.remove(address)
        start, end = address, address + block_bytes
        index = bisect_right(self._gaps, (start, end))
        if index < len(self._gaps) and self._gaps[index].start == end:
            end = self._gaps.pop(index).end
        if index and self._gaps[index - 1].end == start:
            index -= 1
            start = self._gaps.pop(index).start
        self._gaps.insert(index, _Gap(start, end))

    def site(self, address: int) -> CallSite | None:
        """Return the call site of a block's allocation."""
        return self._live[address].site

    def owner(self, address: int) -> int | None:
        """Return the rank that allocated a block; None is the main program."""
        return self._live[address].rank

    def _out_of_memory(self, size_bytes: int) -> OutOfMemoryError:
        largest = sorted(self._live.values(), key=lambda block: -block.size_bytes)[:_NUM_LARGEST]
        lines = [(size, "?" if site is None else str(site.line())) for size, site, _ in largest]
        sizes = (size_bytes, self.total_bytes - self.used_bytes, self.total_bytes)
        return OutOfMemoryError(self.device_index, sizes, lines)


class Storage:
    """Bytes of one device, or of the host, that tensors view.

    Attributes:
        device: Whose memory; None is the host's.
        size_bytes: Its size.
        address: Its simulated address; 0 on the host.
        is_real: False in a shape-only run: the bytes are measured, never touched.
        has_values: False where the bytes are not real, or what they hold is unknown.
        is_symmetric: Whether other ranks reach it.
        writes: What in flight writes them; None before the first such.
    """

    __slots__ = (
        "__weakref__",
        "_bytes",
        "_site",
        "address",
        "device",
        "has_values",
        "is_real",
        "is_symmetric",
        "size_bytes",
        "writes",
    )

    def __init__(
        self,
        device: Device | None,
        size_bytes: int,
        *,
        fresh: bool = True,
        adopted: np.ndarray[Any, Any] | None = None,
    ) -> None:
        self.device = device
        self.size_bytes = size_bytes
        self.address = 0
        self.writes: PendingWrites | None = None
        has_room = device is None or device.has_values or size_bytes <= VALUES_UP_TO_BYTES
        self.is_real = has_room or adopted is not None
        self.has_values = self.is_real
        self.is_symmetric = False
        self._site: CallSite | None = None
        if device is not None:
            self.address = device.memory.allocate(size_bytes)
            device.memory.space.add(self)
        elif adopted is None:
            self._site = user_site()
        if adopted is not None:
            self._bytes = adopted
        elif self.has_values:
            self._bytes = _host_bytes(size_bytes)
            if fresh:
                self._bytes.fill(PATTERN)
        else:
            self._bytes = _void_bytes(size_bytes)

    @property
    def is_mapped(self) -> bool:
        """Return whether kernels reach the storage: device memory, or pinned host memory."""
        return self.device is not None

    @classmethod
    def adopt(cls, values: np.ndarray[Any, Any], device: Device | None) -> Storage:
        """Return a storage over bytes of another owner (D2); the bytes stay where they are.

        Args:
            values: The bytes, as a contiguous array; the storage keeps it alive.
            device: Whose memory they count as, at an address of its own; None is the host's.

        Raises:
            ValueError: The array is not contiguous, or read-only.
            OutOfMemoryError: The device has not that much memory left.
        """
        if not values.flags.c_contiguous:
            raise ValueError(f"adopted memory must be contiguous, got strides {values.strides}")
        if not values.flags.writeable:
            raise ValueError("adopted memory must be writable, got a read-only array")
        return cls(device, values.nbytes, adopted=values.reshape(-1).view(np.uint8))

    def __del__(self) -> None:
        """Give the block back to the device."""
        if self.address and self.device is not None:
            self.device.memory.free(self.address)

    @property
    def history_key(self) -> Storage:
        """Return the key of these bytes in race checks, the same for all views."""
        return self

    def array(self, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return the bytes as a flat array."""
        return self._bytes.view(dtype)

    def site(self) -> CallSite | None:
        """Return the call site of the allocation, or None if unknown."""
        if self.device is None or not self.address:
            return self._site
        return self.device.memory.site(self.address)

    def bounds(self, view: np.ndarray[Any, Any]) -> tuple[int, int]:
        """Return the first byte of a view within the storage, and the one behind its last."""
        if view.flags.c_contiguous:  # Nearly always; numpy's function takes 2 us.
            if view.nbytes == self.size_bytes:
                return 0, self.size_bytes
            low = _address_of(view) - _address_of(self._bytes)
            return low, low + view.nbytes
        low, high = byte_bounds(view)
        start = _address_of(self._bytes)
        return low - start, high - start

    def note_write(self, operation: Operation, view: np.ndarray[Any, Any]) -> None:
        """Remember that an operation in flight will write `view`."""
        if self.writes is None:
            self.writes = PendingWrites()
        if view.nbytes == self.size_bytes and view.flags.c_contiguous:  # As `bounds` says.
            self.writes.note(operation, 0, self.size_bytes)
        else:
            self.writes.note(operation, *self.bounds(view))

    def pending_writes(self, view: np.ndarray[Any, Any]) -> list[Operation]:
        """Return the operations in flight that write what `view` covers."""
        return self.writes.overlapping(*self.bounds(view)) if self.writes is not None else []

    def write_over(self, view: np.ndarray[Any, Any]) -> None:
        """Forget failed writes that the host writes over now; what it covers is known again."""
        if self.writes is not None:
            self.writes.write_over(*self.bounds(view))
        if not self.has_values and view.nbytes == self.size_bytes:
            self.regain_values()

    def settle(self) -> None:
        """Forget writes that have ended: an operation that keeps its tensors refers back."""
        if self.writes is not None:
            self.writes.settle()

    def lose_values(self) -> None:
        """Mark the bytes as unknown: an operation without values has written them."""
        self.has_values = False

    def regain_values(self) -> bool:
        """Mark the bytes as known, as all are written now; return False if none are real."""
        self.has_values = self.is_real
        return self.is_real

    def knows(self, view: np.ndarray[Any, Any]) -> bool:
        """Return whether the bytes of `view` hold what the program would have there."""
        del view  # This kind of storage is known or unknown as a whole.
        return self.has_values

    def lose(self, view: np.ndarray[Any, Any]) -> None:
        """Mark the bytes of `view` as unknown."""
        del view
        self.lose_values()

    def unknown_elements(self, view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Return a flag per unknown element of `view`, or None if only the whole is tracked."""
        del view
        return None

    def lose_elements(self, view: np.ndarray[Any, Any], which: np.ndarray[Any, Any]) -> None:
        """Mark some elements of `view` as unknown, by their numbers in order."""
        if which.any():
            self.lose(view)

    def regain(self, view: np.ndarray[Any, Any]) -> bool:
        """Mark the bytes of `view`, all of which are written next, as known if they can be."""
        return self.has_values or (view.nbytes == self.size_bytes and self.regain_values())

    def check_values(self, what: str) -> None:
        """Raise if a shape-only run does not have these values.

        Raises:
            UninitializedValueError: It does not; names where the tensor was made.
        """
        if not self.has_values:
            site = self.site()
            made = None if site is None else str(site.line())
            whole = self.device is None or self.device.has_values
            raise UninitializedValueError(what, made, lost=self.is_real and whole)


def guarded(
    compute: Callable[[], None], reads: Sequence[Buffer], writes: Sequence[Buffer]
) -> Callable[[], None]:
    """Return an effect that computes where all values are known, and else makes results unknown.

    Whether they are is only known when the operation takes effect: a collective before it may have
    lost them. Writing a whole storage without reading anything unknown makes it known again.
    """

    def effect() -> None:
        known = all(tensor.storage.knows(tensor.array) for tensor in reads)
        if known and all(tensor.storage.regain(tensor.array) for tensor in writes):
            compute()
        else:
            for tensor in writes:
                tensor.storage.lose(tensor.array)

    return effect


def give_values(tensor: Buffer, values: np.ndarray[Any, Any] | None) -> None:
    """Write values into a buffer, if it can hold some; None: they are unknown from now on."""
    view = tensor.array
    if values is not None and tensor.storage.regain(view):
        view[...] = values.reshape(view.shape)
    else:
        tensor.storage.lose(view)


def _address_of(view: np.ndarray[Any, Any]) -> int:
    address: int = view.__array_interface__["data"][0]
    return address


# ---- Pending writes of a storage, found without a walk of the operations in flight (C7, D4) ----

_new_tuple = tuple.__new__  # What a NamedTuple's constructor calls.
_PRUNE_FROM = 16  # assumed: below it a look at every entry costs less than keeping count


class _Write(NamedTuple):
    """An operation in flight, and the bytes of the storage that it writes."""

    operation: Operation
    low: int
    high: int

    @property
    def is_open(self) -> bool:
        """Whether what it writes is not there: it has not ended, or has failed."""
        return not self.operation.complete or self.operation.error is not None

    def is_within(self, other: _Write) -> bool:
        """Return whether another one covers all that this one writes."""
        return other.low <= self.low and self.high <= other.high


class PendingWrites:
    """The operations in flight that write one storage.

    A stream ends its operations in order, so that of writes of one stream that cover each other
    the last one stands for all. What is left of entries that have ended is thrown out whenever
    their number has doubled: a note costs the same, however much is in flight.
    """

    __slots__ = ("_prune_at", "_writes")

    def __init__(self) -> None:
        self._writes: list[_Write] = []
        self._prune_at = _PRUNE_FROM

    def note(self, operation: Operation, low: int, high: int) -> None:
        """Remember that an operation will write the bytes from `low` to `high`, exclusive."""
        writes = self._writes
        write = _new_tuple(_Write, (operation, low, high))
        if writes:
            last = writes[-1]
            if last.operation.stream is operation.stream and low <= last.low and last.high <= high:
                writes[-1] = write
                return
            if len(writes) >= self._prune_at:
                self._prune()
        self._writes.append(write)

    def overlapping(self, low: int, high: int) -> list[Operation]:
        """Return the operations that write some of these bytes and have not ended, or failed."""
        writes = self._writes
        operations = [
            write.operation
            for index, write in enumerate(writes)
            if write.low < high and low < write.high and write.is_open
            # A failed write that a later one covers is forgotten.
            if not (write.operation.complete and any(map(write.is_within, writes[index + 1 :])))
        ]
        if not operations:
            self.settle()
        return operations

    def write_over(self, low: int, high: int) -> None:
        """Forget failed writes of bytes that the host writes now."""
        self._writes = [
            write
            for write in self._writes
            if not (write.operation.complete and low <= write.low and write.high <= high)
        ]

    def settle(self) -> None:
        """Forget writes that have ended: an operation that keeps its tensors refers back."""
        writes = self._writes
        while writes:  # They nearly always end in order.
            operation = writes[0].operation
            if not operation.complete or operation.error is not None:
                return
            del writes[0]

    def _prune(self) -> None:
        """Keep what is open and not covered later, by its own stream or after it has failed."""
        kept: list[_Write] = []
        last_of: dict[Stream, _Write] = {}
        for index in range(len(self._writes) - 1, -1, -1):
            write = self._writes[index]
            last = last_of.setdefault(write.operation.stream, write)
            later = self._writes[index + 1 :] if write.operation.complete else (last,)
            is_stood_for = any(other is not write and write.is_within(other) for other in later)
            if write.is_open and not is_stood_for:
                kept.append(write)
        self._writes = kept[::-1]
        self._prune_at = max(_PRUNE_FROM, 2 * len(kept))


# ---- Buffers: tensors of simrank or of another library ----


@runtime_checkable
class Buffer(Protocol):
    """Elements of one dtype in a storage.

    Attributes:
        storage: The bytes that it lies in.
        dtype: Element type.
        cuda_device: The device whose streams work on it; None for the host.
    """

    storage: Storage
    dtype: DType
    cuda_device: Device | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the size of each dim."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """Return a numpy view of its values, for operations that run in stream order."""

    def numel(self) -> int:
        """Return the number of elements."""

    def stride(self) -> Sequence[int]:
        """Return the elements from one index of each dim to the next."""

    def is_contiguous(self) -> bool:
        """Return whether its elements lie in C order without gaps."""


class Touched(Protocol):
    """Buffers that an operation reads and writes, and keeps alive until its end."""

    @property
    def reads(self) -> Sequence[Buffer]:
        """Return the buffers that are read."""

    @property
    def writes(self) -> Sequence[Buffer]:
        """Return the buffers that are written."""

    @property
    def waits_for_flags(self) -> bool:
        """Return whether it may wait for flags among them."""


class Accesses(NamedTuple):
    """Buffers that an operation reads and writes, as plain data; see `Touched`."""

    reads: Sequence[Buffer]
    writes: Sequence[Buffer]
    waits_for_flags: bool = False
