"""The current device and stream of the running program."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakValueDictionary

from simrank.device.hardware_queues import HardwareQueues
from simrank.errors import SimrankError, UnsupportedError
from simrank.ranks import Program, current_program, require_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from simrank.device.device import Device
    from simrank.device.stream import Stream

_KEY = "current_stream"
_NONE: Mapping[int, ProgramStreams] = {}


class Devices(Protocol):
    """The devices of a cluster, by index."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __getitem__(self, index: int) -> Device:
        """Return one of them."""


class ContextOfDevices(Protocol):
    """What this layer needs of a Context."""

    @property
    def devices(self) -> Devices:
        """Return the devices of the cluster."""


def devices_of(program: Program) -> Devices:
    """Return the devices of a program's cluster."""
    return cast("ContextOfDevices", program.context).devices


def current_device(program: Program | None = None) -> Device:
    """Return the device that the running program uses by default."""
    program = program or require_program("current_device")
    return devices_of(program)[program.device_index]


def parse_device(device: Any) -> Device | None:  # noqa: ANN401 - torch's spellings
    """Return the device named by None (the current one), "cpu", "cuda", "cuda:3", 3 or itself.

    Raises:
        SimrankError: There is no such device.
    """
    if hasattr(device, "memory"):
        given: Device = device
        return given
    if device in ("cpu", "cpu:0"):
        return None
    program = require_program("a tensor factory")
    if device is None or device == "cuda":
        return current_device(program)
    if isinstance(device, str) and device.startswith("cuda:") and device[5:].isdigit():
        device = int(device[5:])
    if isinstance(device, int):
        devices = devices_of(program)
        if not 0 <= device < len(devices):
            raise SimrankError(f"device {device} does not exist: the cluster has {len(devices)}")
        return devices[device]
    raise UnsupportedError(f"device {device!r}: expected 'cpu', 'cuda', 'cuda:N' or N")


class ProgramStreams:
    """A program's streams on one device.

    Each program has its own, as each process has: one of them that ends takes only its own along.
    Streams that nobody holds and that have nothing in flight are forgotten.

    Attributes:
        default: The default stream, as in CUDA.
    """

    def __init__(self, device: Device) -> None:
        self.default = device.new_stream("default")
        self._queues = HardwareQueues.of_environment()
        self._share_queue(self.default)
        self._others: WeakValueDictionary[int, Stream] | None = None  # Most have none.
        self._num_made = 0

    def new(self, name: str | None, *, by_host: bool = False) -> Stream:
        """Return another stream; one of work that the host does shares nothing of the device."""
        stream = self.default.device.new_stream(name or f"stream {self._num_made + 1}")
        self.add(stream, by_host=by_host)
        return stream

    def add(self, stream: Stream, *, by_host: bool = False) -> int:
        """Count a stream as one of the program's; return its number."""
        self._num_made += 1
        if self._others is None:
            self._others = WeakValueDictionary()
        self._others[self._num_made] = stream
        stream.cuda_stream = self._num_made
        if not by_host:
            self._share_queue(stream)
        return self._num_made

    def _share_queue(self, stream: Stream) -> None:
        if self._queues is not None:
            stream.hardware_queue = self._queues.next()

    def __iter__(self) -> Iterator[Stream]:
        """Yield the default stream, then the others in the order they were made."""
        yield self.default
        yield from [stream for _, stream in sorted((self._others or {}).items())]


def streams_of(device: Device, program: Program) -> ProgramStreams:
    """Return a program's streams on a device."""
    by_device: dict[int, ProgramStreams] = program.local.setdefault("streams", {})
    streams = by_device.get(device.index)
    if streams is None:
        streams = by_device[device.index] = ProgramStreams(device)
    return streams


def new_stream(device: Device, name: str | None = None, *, by_host: bool = False) -> Stream:
    """Return a new stream of the running program on a device, or of its host's work for it."""
    return streams_of(device, require_program("Stream")).new(name, by_host=by_host)


def current_stream(program: Program | None = None) -> Stream:
    """Return the running program's current stream: its device's default stream, unless set."""
    program = program or current_program() or require_program("current_stream")
    local = program.local
    chosen: Stream | None = local.get(_KEY)
    if chosen is not None:
        return chosen
    streams: ProgramStreams | None = local.get("streams", _NONE).get(program.device_index)
    if streams is None:
        streams = streams_of(current_device(program), program)
    return streams.default


def stream_on(device: Device) -> Stream:
    """Return the stream that the running program's operations on `device` go to."""
    program = require_program("an operation on a device")
    stream = current_stream(program)
    return stream if stream.device is device else streams_of(device, program).default


def synchronize(device: Device) -> None:
    """Block the host until everything the running program issued to a device has ended."""
    for stream in streams_of(device, require_program("synchronize")):
        stream.synchronize()


def drop_streams(program: Program) -> None:
    """Forget everything that a program has in flight: it was aborted."""
    for streams in program.local.get("streams", {}).values():
        for stream in streams:
            stream.drop()


def set_stream(program: Program, stream: Stream | None) -> None:
    """Make `stream` the current stream of a program, and its device the current one.

    None: the default stream of the current device.
    """
    program.local[_KEY] = stream
    if stream is not None:
        program.device_index = stream.device.index


@contextmanager
def use_stream(stream: Stream) -> Iterator[Stream]:
    """Make `stream` the current stream within the block, and its device the current one."""
    program = require_program("stream")
    before, device_index = program.local.get(_KEY), program.device_index
    set_stream(program, stream)
    try:
        yield stream
    finally:
        program.local[_KEY] = before
        program.device_index = device_index
