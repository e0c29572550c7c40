"""Simulated CUDA devices under simulated ranks: torch's streams, events and memory are simrank's.

torch computes at once; what it did is recorded and given to simrank's streams with its cost before
anybody else runs. Nothing of this is there until a rank first asks for a device.
"""

from __future__ import annotations

import logging
import os
import warnings
from threading import get_ident  # noqa: TID251 - which thread a rank's state is bound to
from typing import TYPE_CHECKING, Any

from simrank.device.current import devices_of, streams_of, synchronize
from simrank.device.stream import Event, Stream
from simrank.engine import user_site
from simrank.errors import SimrankError, UnsupportedError
from simrank.ranks import require_rank
from simrank.ranks.current import rank_program
from simrank.torch import cuda, in_flight
from simrank.torch.costs import Cost
from simrank.torch.cuda import (
    Callbacks,
    DeviceProperties,
    RankState,
    StreamCall,
    library,
)
from simrank.torch.cuda.native import NOT_COMPILED, native, when_missing
from simrank.torch.cuda.operations import Launch, drain_launches, start_recording_forms
from simrank.torch.operations import form_of, issue
from simrank.torch.shared import SharedAccess, arranger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from simrank.device import Device
    from simrank.engine import CallSite
    from simrank.ranks import Program

_log = logging.getLogger("simrank")
_KEY, _LATER = "torch's devices", "calls for torch's devices"
_SHOWN_BYTES, _NUM_SHOWN = 1 << 20, 5  # Which blocks are named where memory runs out.
_SLEEP_HZ = 1_755_000_000  # Assumed: cycles of `torch.cuda._sleep`; an H100's base clock.


class RankDevices:
    """What one rank has of its node's devices.

    Attributes:
        state: What C++ knows of it.
        first: The index, in the cluster, of its cuda:0.
        shared: Accesses to memory that other ranks reach, of which nobody knows yet.
        num_waits: How many operations of torch wait right now to touch memory.
    """

    def __init__(self, program: Program, number: int) -> None:
        seen = visible(program)
        self.first, num_devices = seen.start, len(seen)
        self.state = RankState(number, first_device=self.first, num_devices=num_devices)
        self._program = program
        context: Any = program.context
        self._charges = context.compute_time != "none"
        self._streams: dict[tuple[int, int], Stream] = {}
        self._bound: set[int] = set()
        self._events: dict[int, Event] = {}
        self.shared: list[SharedAccess] = []
        self.num_waits = 0

    def bind(self) -> None:
        """Let the running thread be the rank's, for C++."""
        thread = get_ident()
        if thread not in self._bound:
            self._bound.add(thread)
            self.state.bind()

    def unbind(self) -> None:
        """Let the running thread be nobody's: it ends."""
        if get_ident() in self._bound:
            self._bound.discard(get_ident())
            cuda.unbind()

    def device(self, index: int) -> Device:
        """Return the simulated device that the rank sees as cuda:index."""
        return devices_of(self._program)[self.first + index]

    def stream(self, index: int, number: int) -> Stream:
        """Return the simulated stream of a device and torch's number; 0 is the default one."""
        found = self._streams.get((index, number))
        if found is None:
            streams = streams_of(self.device(index), self._program)
            found = streams.new(f"stream {number}") if number else streams.default
            self._streams[index, number] = found
        return found

    def make_current(self, index: int | None = None) -> None:
        """Let simrank's current device and stream be torch's on a device (None: the current)."""
        if index is None:
            index = int(native().simrank_current_device())
        program = self._program
        program.local["current_stream"] = self.current_stream(index)
        program.device_index = self.first + index

    def current_stream(self, index: int | None = None) -> Stream:
        """Return the stream that is torch's current one on a device (None: the current)."""
        library = native()
        if index is None:
            index = int(library.simrank_current_device())
        return self.stream(index, library.simrank_current_stream(index))

    # ---- what was computed ----

    def flush(self) -> None:
        """Give what torch computed since the last flush to the streams, with its cost."""
        launches = drain_launches()
        if launches and self._charges:
            self._submit_all(launches)
        if self.shared and not self.num_waits:
            accesses, self.shared = self.shared, []
            arranger().touched(self.current_stream(), accesses)

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
        """Issue operations of one stream: one by one if somebody looks, else as one."""
        stream = self.stream(launches[0].device, launches[0].stream)
        device = stream.device
        forms = [form_of(device, launch.form) for launch in launches]
        if device.engine.observers:
            for form in forms:
                issue(stream, form.name, form.cost, form.shapes)
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

    # ---- streams and events ----

    def stream_call(self, what: StreamCall, index: int, number: int, event: int) -> bool:
        """Do on simulated streams what torch asked of its own; the answer is that of a query."""
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
        """Return an event by torch's number; one that was never recorded has happened."""
        return self._events.get(number) or Event()

    def forget(self, number: int) -> None:
        """Forget an event that torch has destroyed."""
        self._events.pop(number, None)

    def elapsed_ms(self, first: int, last: int) -> float:
        """Return the simulated time between two events."""
        return self.event(first).elapsed_time(self.event(last))


def _sleep(_: RankDevices, stream: Stream, cycles: int) -> None:
    issue(stream, "spin", Cost(round(cycles * 1e12 / _SLEEP_HZ), 0, 1))


_IGNORED = (StreamCall.STREAM_CREATE, StreamCall.RECORD_STREAM)
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
}


# ---- the process ----


class _Enabled:
    """The simulated devices of the process, while they are on.

    Attributes:
        context: Whose cluster they are of.
        by_number: The ranks that have a state, by the number that C++ gives back.
        blocks: Large blocks by address: device, size and line.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        self.by_number: dict[int, RankDevices] = {}
        self.blocks: dict[int, tuple[int, int, CallSite | None]] = {}


_enabled: list[_Enabled] = []
_refused: list[UnsupportedError] = []  # Why there are no devices in this process.
_checked: list[bool] = []  # Whether there may be: asked once.


_is_enabling = False


def is_enabled() -> bool:
    """Whether devices are on, or are being turned on."""
    return bool(_enabled) or _is_enabling


def may_be_had() -> bool:
    """Whether devices can be turned on in this process; what is in the way is said once."""
    if not _refused and not _checked:
        try:
            library.check_available()
            _checked.append(True)
        except UnsupportedError as error:
            _refuse(error)
    return not _refused


def _refuse(error: UnsupportedError) -> None:
    _refused.append(error)
    warnings.warn(f"no simulated CUDA devices: {error}", stacklevel=2)


def visible(program: Program) -> range:
    """Return the devices of the cluster that a rank sees: its node's, or those of them it asks for.

    Raises:
        UnsupportedError: `CUDA_VISIBLE_DEVICES` leaves some out in between, or permutes them.
    """
    cluster, rank = program.context.cluster, program.rank or 0
    first = rank - rank % cluster.devices_per_node
    node = range(first, min(first + cluster.devices_per_node, cluster.num_devices))
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
    return range(first + start, first + start + len(numbers))


def num_visible(program: Program) -> int:
    """Return how many devices a rank sees."""
    return len(visible(program))


def enable_for(program: Program) -> RankDevices:
    """Turn devices on if they are not, and return what a rank has of them, bound to its thread.

    Raises:
        UnsupportedError: They cannot be had; the text says what to do.
        AssertionError: The rank has hidden them from itself; torch's words.
        SimrankError: They are those of another Context.
    """
    if _refused:
        raise _refused[0]
    if not visible(program):
        raise AssertionError(NOT_COMPILED)
    if not _enabled:
        _enable(program.context)
    enabled = _enabled[0]
    if enabled.context is not program.context:
        raise SimrankError("CUDA devices of torch belong to one Context at a time")
    own: RankDevices | None = program.local.get(_KEY)
    if own is None:
        number = len(enabled.by_number)
        own = program.local[_KEY] = enabled.by_number[number] = RankDevices(program, number)
    own.bind()
    for call in program.local.pop(_LATER, ()):
        call()
    return own


def enable_where_possible(program: Program) -> None:
    """Turn devices on if the rank sees some and they can be had: nothing was asked of one yet."""
    if may_be_had() and num_visible(program):
        enable_for(program)


def call_later(program: Program, call: Callable[[], None]) -> None:
    """Call something on the rank's thread as soon as it has devices."""
    program.local.setdefault(_LATER, []).append(call)


def _enable(context: Any) -> None:
    spec, cluster = context.cluster.device, context.cluster
    properties = DeviceProperties(
        name=spec.name,
        total_memory=spec.memory_bytes,
        multi_processor_count=spec.num_sms,
    )
    listeners = Callbacks(
        on_alloc=_allocated,
        on_free=_freed,
        alloc_threshold_bytes=_SHOWN_BYTES,
        on_out_of_memory=_out_of_memory,
        on_pending=_wait_for_pending,
        on_stream_call=_stream_call,
        elapsed_ms=_elapsed_ms,
        on_rendezvous=arranger().rendezvous,
        on_signal=arranger().signal,
    )
    global _is_enabling  # noqa: PLW0603 - what is asked meanwhile is torch's own affair
    _is_enabling = True
    try:
        cuda.enable(cluster.num_devices, properties, callbacks=listeners)
    except UnsupportedError as error:
        _refuse(error)
        raise
    finally:
        _is_enabling = False
    start_recording_forms()
    when_missing(_provide)
    _enabled.append(_Enabled(context))
    context.devices[0].memory.space.elsewhere = arranger().find
    arranger().enabled(context)


def _provide() -> bool:
    """Turn devices on for a rank that uses one, in a process that has had some before."""
    program = rank_program()
    if program is None or _is_enabling or _refused:
        return False
    enable_for(program)
    return True


def disable() -> None:
    """Turn devices off; their memory's peaks are kept by simrank's."""
    _refused.clear()
    if not _enabled:
        return
    enabled = _enabled.pop()
    enabled.context.devices[0].memory.space.elsewhere = None
    in_flight.forget_all()
    arranger().disabled()
    cuda.stop_recording()
    cuda.disable()
    for own in enabled.by_number.values():
        own.state.free()


def end_of_rank(program: Program) -> None:
    """Issue what the rank computed last, and let its thread go."""
    own: RankDevices | None = program.local.get(_KEY)
    if own is not None and _enabled:
        own.flush()
        _keep_peaks(own)
        own.unbind()


def _keep_peaks(own: RankDevices) -> None:
    from simrank.torch.cuda.memory import memory_stats  # noqa: PLC0415 - only here

    for index in range(own.state.num_devices):
        memory = own.device(index).memory
        peak = memory_stats(own.first + index)["allocated_bytes"]["all"]["peak"]
        memory.peak_bytes = max(memory.peak_bytes, peak)


def devices_in_use() -> RankDevices | None:
    """Return the running rank's devices, if it has asked for them."""
    if not _enabled:
        return None
    program = rank_program()
    own: RankDevices | None = None if program is None else program.local.get(_KEY)
    return own


def global_index(address: int) -> int | None:
    """Return the device of the cluster in whose memory an address lies, or None."""
    return cuda.device_of(address) if _enabled else None


def use_devices_of(tensor: torch.Tensor) -> None:
    """Issue what was computed so far, and make the tensor's device and its stream simrank's own."""
    own = devices_in_use()
    assert own is not None, "the tensor lies on a device"
    own.flush()
    own.make_current(tensor.device.index)


def flush() -> None:
    """Issue what the running rank has computed so far."""
    own = devices_in_use()
    if own is not None:
        own.flush()


# ---- what C++ calls ----


def _own(number: int) -> RankDevices:
    return _enabled[0].by_number[number]


def _stream_call(what: StreamCall, rank: int, device: int, stream: int, event: int) -> bool | None:
    if rank < 0:
        return True
    return _own(rank).stream_call(what, device, stream, event)


def _elapsed_ms(first: int, last: int) -> float:
    own = require_rank("elapsed_time").local[_KEY]
    return float(own.elapsed_ms(first, last))


def _wait_for_pending(address: int, size_bytes: int, is_write: bool, number: int) -> None:
    program = require_rank("an operation of torch")
    own: RankDevices = program.local[_KEY]
    own.flush()
    if in_flight.is_shared(number):
        own.shared.append(SharedAccess(address, size_bytes, is_write))
    own.num_waits += 1
    try:
        in_flight.wait(program, number, own.current_stream())
    finally:
        own.num_waits -= 1


def _allocated(rank: int, device: int, address: int, size_bytes: int, stream: int) -> None:
    del rank, stream
    _enabled[0].blocks[address] = device, size_bytes, user_site()


def _freed(rank: int, device: int, address: int, size_bytes: int, stream: int) -> None:
    del rank, device, size_bytes, stream
    if _enabled:
        _enabled[0].blocks.pop(address, None)


def _out_of_memory(rank: int, device: int, requested_bytes: int) -> str:
    own = _own(rank)
    total = own.device(device).spec.memory_bytes
    held = [
        (size, site) for d, size, site in _enabled[0].blocks.values() if d == own.first + device
    ]
    largest = sorted(held, key=lambda block: -block[0])[:_NUM_SHOWN]
    lines = [
        f"CUDA out of memory. Tried to allocate {requested_bytes / 2**20:.2f} MiB. "
        f"GPU {device} has a total capacity of {total / 2**30:.2f} GiB."
    ]
    lines += [
        f"  {size / 2**20:.2f} MiB allocated at {'?' if site is None else site.line()}"
        for size, site in largest
    ]
    return "\n".join(lines)
