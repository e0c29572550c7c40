"""The devices of one rank: torch's streams, events and operations are simrank's."""

from __future__ import annotations

import os
from contextlib import contextmanager
from threading import get_ident  # noqa: TID251 - which thread a rank's state is bound to
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from simrank.device.stream import (
    Event,
    KernelOperation,
    Stream,
    devices_of,
    streams_of,
    synchronize,
)
from simrank.device.tensors.tensor import Tensor
from simrank.errors import UnsupportedError
from simrank.torch import cuda
from simrank.torch.cuda import RankState, StreamCall
from simrank.torch.cuda.library import native
from simrank.torch.cuda.operations import Launch, drain_launches, form, phase
from simrank.torch.devices.costs import Cost, cost_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np

    from simrank.device import Accesses, Buffer, Device, DType, Operation
    from simrank.device.memory import Storage
    from simrank.engine import Engine, Handle
    from simrank.hardware.spec import DeviceSpec
    from simrank.ranks import Program
    from simrank.torch.cuda import Rendezvous
    from simrank.torch.cuda.operations import DeviceOperation
    from simrank.torch.devices.allocations import Allocations

    Array = np.ndarray[Any, Any]


# ---- torch's operations on simrank's streams: computed already, they only take their time ----


class TorchOperation(KernelOperation):
    """A computed operation of torch; it is issued as the turn ends, where nothing may wait."""

    __slots__ = ("basis", "flops")
    is_launch = False


class Form(NamedTuple):
    """An operation with its shapes and without addresses.

    Attributes:
        name: The operator's.
        cost: On this kind of device.
        shapes: Of its inputs.
    """

    name: str
    cost: Cost
    shapes: list[list[int]]


_forms: dict[tuple[DeviceSpec, int], Form] = {}


def form_of(device: Device, number: int) -> Form:
    """Return a form by its number; cached per kind of device."""
    key = (device.spec, number)
    found = _forms.get(key)
    if found is None:
        operation = form(number)
        shapes = [list(operand.sizes) for operand in operation.inputs]
        found = _forms[key] = Form(operation.name, cost_of(device.spec, operation), shapes)
    return found


def issue(
    stream: Stream,
    name: str,
    cost: Cost,
    shapes: list[list[int]] | None = None,
    touched: Accesses | None = None,
    phase: str = "",
) -> None:
    """Submit an operation to a stream; it shares the device with concurrent operations.

    Raises:
        RaceError: It races with what it touches, and races are errors.
    """
    device, duration_ps = stream.device, max(cost.duration_ps, 1)
    num_sms = min(max(-(-cost.num_elements // _ELEMENTS_PER_SM), 1), device.spec.num_sms)
    rate = min(cost.bytes_moved / duration_ps, device.hbm.capacity)
    demands = ((device.sms, float(num_sms)), (device.hbm, rate))
    issued = TorchOperation(stream, name, touched=touched, duration_ps=duration_ps, demands=demands)
    issued.phase, issued.flops, issued.basis = phase, cost.flops, cost.basis
    if shapes is not None:
        issued.details = {"shapes": shapes}
    stream.submit(issued)


_ELEMENTS_PER_SM = 8 * 1024  # As of simrank's own kernels (assumed there).


# ---- operations in flight on simulated streams, for which torch's operations wait (T6) ----
# torch computes at once. So an operation waits first if one in flight on a simulated stream still
# uses its memory, unless both only read.


class View(Tensor):
    """A view of a torch tensor, with the entry of what is in flight on it.

    Attributes:
        noted: The entry of the operation that used it last.
    """

    __slots__ = ("__weakref__", "noted")

    def __init__(self, storage: Storage, dtype: DType, view: Array) -> None:
        self.storage = storage  # As a tensor does: one call less for each of torch's.
        self.dtype = dtype
        self.cuda_device = storage.device
        self.array = view
        self.noted: Noted | None = None


class Noted:
    """An operation in flight, and a number for the memory that it uses.

    Attributes:
        number: The number.
        operation: The operation; None once it has ended.
        program: The rank that waits for it, None for all.
        is_write: Whether it writes the memory.
    """

    __slots__ = ("is_write", "number", "operation", "program")

    def __init__(self, operation: Operation, program: Program | None, *, is_write: bool) -> None:
        _in_flight.num_made += 1
        self.number = _in_flight.num_made
        self.operation: Operation | None = operation
        self.program = program
        self.is_write = is_write
        _in_flight.entries[self.number] = self

    def __call__(self) -> None:
        """Forget the operation, which has ended."""
        if self.operation is not None:
            self.operation = None
            del _in_flight.entries[self.number]
            cuda.pending_remove(self.number)


class _InFlight:
    """Operations in flight, by number.

    Attributes:
        entries: The operations in flight, by number.
        num_made: The number of entries so far, for the next number.
        streams: The stream on which a rank's operations were noted last, and the number of the
            last entry before it was.
        num_fenced: The number of the last entry before memory was noted that is one rank's.
    """

    def __init__(self) -> None:
        self.entries: dict[int, Noted] = {}
        self.num_made = self.num_fenced = 0
        self.streams: dict[int | None, tuple[Stream, int]] = {}

    def clear(self) -> None:
        """Forget all entries, those that views keep included."""
        for entry in self.entries.values():
            entry.operation = None
        self.entries.clear()
        self.streams.clear()
        self.num_made = self.num_fenced = 0


_in_flight = _InFlight()


def note_pending(operation: Operation, reads: Sequence[Buffer], writes: Sequence[Buffer]) -> None:
    """Make torch's operations wait for one that still reads or writes tensors."""
    if operation.complete:
        return
    last = _in_flight.streams.get(operation.rank)
    if last is None or last[0] is not operation.stream:
        last = operation.stream, _in_flight.num_made
        _in_flight.streams[operation.rank] = last
    newer_than = max(last[1], _in_flight.num_fenced)
    for buffer in writes:
        _note_buffer(operation, buffer, newer_than, is_write=True)
    for buffer in reads:
        for written in writes:
            if written is buffer:
                break
        else:
            _note_buffer(operation, buffer, newer_than, is_write=False)


def _note_buffer(operation: Operation, buffer: Buffer, newer_than: int, *, is_write: bool) -> None:
    """Note an operation that uses a buffer.

    A stream ends its operations in order. So where the one before on this stream does the same to
    the same buffer, and no other stream has come between them, its entry stands for this one from
    now on.
    """
    view = buffer if type(buffer) is View else None
    entry = None if view is None else view.noted
    if entry is not None and entry.is_write is is_write and entry.number > newer_than:
        before = entry.operation
        if before is not None and before.stream is operation.stream:
            before.pass_on(entry, operation)
            entry.operation = operation
            return
    entry = Noted(operation, None, is_write=is_write)
    storage = buffer.storage
    start, end = storage.bounds(buffer.array)
    cuda.pending_add(storage.address + start, end - start, writes=is_write, pending_id=entry.number)
    operation.on_complete(entry)
    if view is not None:
        view.noted = entry


def note_storages(
    operation: Operation, reads: Iterable[Storage], writes: Iterable[Storage], program: Program
) -> None:
    """Make a rank's torch operations wait for one of its operations that uses memory.

    Only this rank waits: other ranks may have to write this memory before the operation can end.
    """
    if operation.complete:
        return
    entry = Noted(operation, program, is_write=True)
    _in_flight.num_fenced = entry.number
    for storages, is_write in ((reads, False), (writes, True)):
        for storage in storages:
            cuda.pending_add(
                storage.address, storage.size_bytes, writes=is_write, pending_id=entry.number
            )
    operation.on_complete(entry)


def share_pending(address: int, size_bytes: int) -> None:
    """Make operations on memory that other ranks reach run in the order of their streams.

    Such memory is an entry without an operation; its number is minus its address.

    What other ranks do to it before and after is ordered by what this rank's stream waits for:
    signals, collectives, kernels. So a torch operation waits there until its turn would come.
    """
    _in_flight.num_fenced = _in_flight.num_made
    cuda.pending_remove(-address)
    cuda.pending_add(address, size_bytes, writes=True, pending_id=-address)


def is_shared(number: int) -> bool:
    """Return whether a number names memory that other ranks reach, and not an operation."""
    return number < 0


def wait_for_pending(program: Program, number: int, stream: Stream) -> None:
    """Wait for an operation in flight, by number; `stream` is the rank's current stream."""
    if is_shared(number):
        tail = stream.tail
        if tail is not None and any(
            entry.operation is not None and entry.operation.rank == program.rank
            for entry in _in_flight.entries.values()
        ):
            _wait_for_values(program.engine, tail)
        return
    entry = _in_flight.entries.get(number)
    if entry is not None and entry.operation is not None and entry.program in (None, program):
        _wait_for_values(program.engine, entry.operation)


def _wait_for_values(engine: Engine, handle: Handle) -> None:
    """Wait for an operation, although the host would go on (rule T6)."""
    task = engine.current_task()
    if task is None:
        engine.wait(handle)
        return
    task.is_functional = True
    try:
        engine.wait(handle)
    finally:
        task.is_functional = False


def settle_pending(reads: Iterable[Storage], writes: Iterable[Storage]) -> None:
    """Wait, as torch's operations do, until memory may be read and written."""
    written = {storage.address: storage for storage in writes}
    read = {storage.address: storage for storage in reads if storage.address not in written}
    for storages, is_write in ((read, False), (written, True)):
        for storage in storages.values():
            cuda.touch(storage.address, storage.size_bytes, writes=is_write)


def forget_pending() -> None:
    """Forget all entries as the devices are turned off."""
    _in_flight.clear()


# ---- interface between devices and symmetric memory, which registers itself here ----


class SharedAccess(NamedTuple):
    """An access of a torch operation to memory that other ranks reach."""

    address: int
    size_bytes: int
    is_write: bool


class SharedMemoryOwner(Protocol):
    """Owner of memory that ranks share."""

    def find(self, address: int) -> Storage | None:
        """Return the storage at an address of torch's memory."""

    def rendezvous(self, address: int, group: str) -> Rendezvous:
        """Answer `Callbacks.on_rendezvous`."""

    def has_window(self, address: int, group: str) -> bool:
        """Return whether nccl reaches memory of all members of a group directly."""

    def signal(
        self, address: int, group: str, what: int, peer: int, channel: int, timeout_ms: int
    ) -> None:
        """Answer `Callbacks.on_signal`."""

    def enabled(self, context: Any) -> None:
        """Follow a Context's devices, which are on."""

    def disabled(self) -> None:
        """Forget a Context's devices, which are off."""

    def touched(self, stream: Stream, accesses: list[SharedAccess]) -> None:
        """Record accesses of a rank's torch operations; `stream` is its current stream."""


class _NoOwner:
    """Owner of no memory: ranks share none."""

    rendezvous = signal = None

    def find(self, _address: int) -> None:
        """Return None."""

    def enabled(self, _context: object) -> None:
        """Do nothing."""

    def disabled(self) -> None:
        """Do nothing."""

    def touched(self, _stream: object, _accesses: object) -> None:
        """Do nothing."""


_registered: list[Any] = [_NoOwner()]


def register_shared_memory(shared_memory_owner: SharedMemoryOwner) -> None:
    """Register the owner of shared memory, for devices that are turned on later."""
    _registered[:] = [shared_memory_owner]


def shared_memory_owner() -> Any:
    """Return the owner of shared memory."""
    return _registered[0]


# ---- the devices of one rank ----

_SLEEP_HZ = 1_755_000_000  # Assumed: cycles of `torch.cuda._sleep`; an H100's base clock.

_FIRST_SEED = 67280421310721  # Source: c10::detail::default_rng_seed_val; torch's own start.
_NOT_TORCHS = 1 << 32  # Numbers of streams that torch has not made begin here.


def first_seed(program: Program) -> int:
    """Return a rank's first random seed, which a process would draw."""
    return _FIRST_SEED + (program.started_rank or 0) + (program.engine.seed << 20)


def visible(program: Program) -> range:
    """Return the devices of the cluster that a rank sees: its node's, or CUDA_VISIBLE_DEVICES.

    Raises:
        UnsupportedError: `CUDA_VISIBLE_DEVICES` leaves some out in between, or permutes them.
    """
    cluster, rank = program.context.cluster, program.started_rank or 0
    first = rank - rank % cluster.devices_per_node
    return visible_in_node(range(first, min(first + cluster.devices_per_node, cluster.num_devices)))


def visible_in_node(node: range) -> range:
    """Return the devices of a node that CUDA_VISIBLE_DEVICES selects.

    Raises:
        UnsupportedError: `CUDA_VISIBLE_DEVICES` leaves some out in between, or permutes them.
    """
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return node
    numbers = []
    for text in asked.split(","):  # As CUDA reads it: up to the first that does not exist.
        if not text.strip().isdigit() or int(text) >= len(node):
            break
        numbers.append(int(text))
    start = numbers[0] if numbers else 0
    if numbers != list(range(start, start + len(numbers))):
        raise UnsupportedError(
            f"CUDA_VISIBLE_DEVICES={asked}: simulated ranks see neighbouring devices, in order"
        )
    first = node.start + start
    return range(first, first + len(numbers))


def num_visible(program: Program) -> int:
    """Return the number of devices that a rank sees."""
    return len(visible(program))


class RankDevices:
    """The devices of one rank.

    Attributes:
        program: The rank.
        state: C++'s state of the rank.
        first: The cluster's index of the rank's cuda:0.
        shared: Accesses to memory that other ranks reach, not reported yet.
        num_waits: Operations of torch that wait now for memory.
    """

    def __init__(self, program: Program, number: int, allocations: Allocations) -> None:
        seen = visible(program)
        self.first, num_devices = seen.start, len(seen)
        self.state = RankState(
            number, first_device=self.first, num_devices=num_devices, seed=first_seed(program)
        )
        self.program = program
        context: Any = program.context
        self._charges = context.compute_time != "none"
        self._streams: dict[tuple[int, int], Stream] = {}
        self._numbers: dict[Stream, int] = {}  # Of streams that torch has not made.
        self._bound: set[int] = set()
        self._events: dict[int, Event] = {}
        self.allocations = allocations
        self.deferred_error: BaseException | None = None  # To be raised by the next operation.
        self.shared: list[SharedAccess] = []
        self.num_waits = 0

    def bind(self) -> None:
        """Bind the running thread to the rank, for C++."""
        thread = get_ident()
        if thread not in self._bound:
            self._bound.add(thread)
            self.state.bind()

    def unbind(self) -> None:
        """Unbind the running thread, which ends."""
        if get_ident() in self._bound:
            self._bound.discard(get_ident())
            cuda.unbind()

    def lose_threads(self) -> None:
        """Forget the bound threads: a fork has none of them, and may give others their numbers."""
        self._bound.clear()

    def device(self, index: int) -> Device:
        """Return the simulated device that the rank sees as cuda:index."""
        return devices_of(self.program)[self.first + index]

    def stream(self, index: int, number: int) -> Stream:
        """Return the simulated stream of a device and torch's number; 0 is the default one."""
        found = self._streams.get((index, number))
        if found is None:
            streams = streams_of(self.device(index), self.program)
            found = streams.new(f"stream {number}") if number else streams.default
            self._streams[index, number] = found
        return found

    def make_current(self, index: int | None = None) -> None:
        """Make torch's stream on a device (None: the current device) simrank's current stream."""
        if index is None:
            index = int(native().simrank_current_device())
        program = self.program
        number = native().simrank_current_stream(index)
        stream = self._streams.get((index, number)) or self.stream(index, number)
        program.local["current_stream"] = stream
        program.device_index = self.first + index

    def current_stream(self, index: int | None = None) -> Stream:
        """Return torch's current stream on a device (None: the current device)."""
        library = native()
        if index is None:
            index = int(library.simrank_current_device())
        return self.stream(index, library.simrank_current_stream(index))

    def stream_of(self, device: int, number: int) -> Stream:
        """Return the stream of a device of the cluster and torch's number."""
        return self.stream(device - self.first, number)

    @contextmanager
    def on_stream(self, stream: Stream) -> Iterator[torch.device]:
        """Make a stream of simrank, such as a group's, torch's current stream for a block."""
        index = stream.device.index - self.first
        number = self._numbers.setdefault(stream, _NOT_TORCHS + len(self._numbers))
        self._streams[index, number] = stream
        library = native()
        before = library.simrank_current_stream(index)
        library.simrank_set_stream(index, number)
        try:
            yield torch.device("cuda", index)
        finally:
            library.simrank_set_stream(index, before)

    # ---- what was computed ----

    def launched(self, operation: DeviceOperation) -> None:
        """Issue an operation at once, where races are looked for.

        Raises:
            RaceError: It races, or memory was taken before it that another stream may use.
        """
        self.raise_deferred()
        stream = self.stream(operation.device, operation.stream)
        cost = cost_of(stream.device.spec, operation) if self._charges else Cost(0, 0, 1)
        shapes = [list(operand.sizes) for operand in operation.inputs]
        touched = self.allocations.accesses(operation)
        issue(stream, operation.name, cost, shapes, touched, phase())

    def raise_deferred(self) -> None:
        """Raise an error that was found where nothing may be raised."""
        deferred_error, self.deferred_error = self.deferred_error, None
        if deferred_error is not None:
            raise deferred_error

    def flush(self) -> None:
        """Submit the operations that torch has computed since the last flush, with their costs."""
        if self.deferred_error is not None:
            self.raise_deferred()
        launches = drain_launches()
        if launches and self._charges:
            self._submit_all(launches)
        if self.shared and not self.num_waits:
            accesses, self.shared = self.shared, []
            shared_memory_owner().touched(self.current_stream(), accesses)

    def _submit_all(self, launches: Sequence[Launch]) -> None:
        """Issue operations in order, those of one stream together."""
        first = 0
        for index, launch in enumerate(launches):
            before = launches[first]
            if launch.stream != before.stream or launch.device != before.device:
                self._submit(launches[first:index])
                first = index
        self._submit(launches[first:])

    def _submit(self, launches: Sequence[Launch]) -> None:
        """Submit operations of one stream: one by one for observers, else as one."""
        stream = self.stream(launches[0].device, launches[0].stream)
        device = stream.device
        forms = [form_of(device, launch.form) for launch in launches]
        if device.engine.observers:
            for launch, form in zip(launches, forms, strict=True):
                issue(stream, form.name, form.cost, form.shapes, phase=launch.phase)
            return
        launch_ps = device.launch_overhead_ps
        issued_ps = end_ps = 0  # From the first one's issue on: when each is issued, when it ends.
        num_bytes = num_elements = 0
        for form in forms:
            cost = form.cost
            end_ps = max(end_ps, issued_ps) + cost.duration_ps
            issued_ps += launch_ps
            num_bytes += cost.bytes_moved
            num_elements = max(num_elements, cost.num_elements)
        name = forms[0].name if len(forms) == 1 else f"{len(forms)} operations of torch"
        issue(stream, name, Cost(end_ps, num_bytes, num_elements))
        if len(forms) > 1:
            device.engine.charge(issued_ps - launch_ps, name)

    def replay(self, call: Callable[[], object]) -> None:
        """Replay the operations of a graph as one launch.

        Simulated cost: on the host one launch overhead for all operations (assumed).
        """
        self.flush()
        device = self.device(int(native().simrank_current_device()))
        before = device.launch_overhead_ps
        device.engine.charge(before, "replay of a graph")
        device.launch_overhead_ps = 0
        try:
            call()
            self.flush()
        finally:
            device.launch_overhead_ps = before

    # ---- streams and events ----

    def stream_call(self, what: StreamCall, index: int, number: int, event: int) -> bool:
        """Apply a call on torch's streams and events to simulated ones; return a query's answer."""
        self.flush()
        if what in _IGNORED:
            return True
        answer = _STREAM_CALLS[what](self, self.stream(index, number), event)
        return answer is not False

    def record(self, stream: Stream, number: int) -> None:
        """Record an event."""
        event = self._events[number] = Event(enable_timing=True)
        event.record(stream)

    def event(self, number: int) -> Event:
        """Return an event by torch's number; an event without a record counts as complete."""
        return self._events.get(number) or Event()

    def forget(self, number: int) -> None:
        """Forget an event that torch has destroyed."""
        self._events.pop(number, None)

    def elapsed_ms(self, first: int, last: int) -> float:
        """Return the simulated time between two events."""
        return self.event(first).elapsed_time(self.event(last))


def _sleep(_: RankDevices, stream: Stream, cycles: int) -> None:
    issue(stream, "spin", Cost(round(cycles * 1e12 / _SLEEP_HZ), 0, 1))


_IGNORED = (StreamCall.STREAM_CREATE,)
_STREAM_CALLS: dict[StreamCall, Callable[[RankDevices, Stream, int], bool | None]] = {
    StreamCall.EVENT_RECORD: RankDevices.record,
    StreamCall.STREAM_WAIT_EVENT: lambda own, stream, n: stream.wait_event(own.event(n)),
    StreamCall.STREAM_SYNCHRONIZE: lambda _, stream, __: stream.synchronize(),
    StreamCall.EVENT_SYNCHRONIZE: lambda own, _, n: own.event(n).synchronize(),
    StreamCall.DEVICE_SYNCHRONIZE: lambda _, stream, __: synchronize(stream.device),
    StreamCall.STREAM_QUERY: lambda _, stream, __: stream.query(),
    StreamCall.EVENT_QUERY: lambda own, _, n: own.event(n).query(),
    StreamCall.EVENT_DESTROY: lambda own, _, n: own.forget(n),
    StreamCall.HOST_READ: lambda _, stream, __: stream.synchronize(),
    StreamCall.SLEEP: _sleep,
    StreamCall.RECORD_STREAM: lambda own, stream, address: own.allocations.recorded(
        stream, address
    ),
}
