"""`torch.cuda.Stream`, `Event` and `CUDAGraph`: torch's own over bases that CPU torch lacks."""

from __future__ import annotations

import weakref
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from simrank.errors import UnsupportedError
from simrank.torch.cuda.library import native, operators, require_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CUDA_TYPE = 1  # c10::DeviceType::CUDA


def here() -> torch.device:
    """Return the current device."""
    return torch.device("cuda", native().simrank_current_device())


class StreamBase(torch.Stream):
    """Replacement of `torch._C._CudaStreamBase`."""

    def __new__(
        cls,
        priority: int = 0,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
        stream_ptr: int | None = None,
    ) -> StreamBase:
        """Make a stream, or find one by its number or pointer (which is its number)."""
        require_device()
        number = stream_ptr if stream_ptr is not None else stream_id
        if number is None:
            made = super().__new__(cls, device=here(), priority=priority)
        else:
            made = super().__new__(
                cls,
                stream_id=number,
                device_index=here().index if device_index is None else device_index,
                device_type=CUDA_TYPE if device_type is None else device_type,
            )
        made._priority = priority
        return made

    _priority: int

    @property
    def cuda_stream(self) -> int:
        """The stream's number, in place of CUDA's pointer."""
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        """The stream's priority."""
        return self._priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority, as of CUDA devices of today."""
        return (0, -5)


class EventBase(torch.Event):
    """Replacement of `torch._C._CudaEventBase`.

    It delegates to a plain `torch.Event`, as torch compares no Event with a subclass.
    """

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> EventBase:
        """Make an event on the current device."""
        require_device()
        if interprocess and external:
            raise UnsupportedError("CUDA events that are both interprocess and external")
        made = super().__new__(cls, device=here(), enable_timing=enable_timing, blocking=blocking)
        made._inner = torch.Event("cuda", enable_timing=True)
        made._has_timing = enable_timing
        return made

    _inner: torch.Event
    _has_timing: bool

    def record(self, stream: torch.Stream | None = None) -> None:
        """Record on a stream, by default the current one."""
        self._inner.record(stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Make a stream wait for the event."""
        self._inner.wait(stream)

    def query(self) -> bool:
        """Return whether the recorded work is complete."""
        return self._inner.query()

    def synchronize(self) -> None:
        """Wait for the recorded work."""
        self._inner.synchronize()

    def elapsed_time(self, other: torch.Event) -> float:
        """Return the milliseconds to another event."""
        if not isinstance(other, EventBase):
            raise TypeError(f"expected a torch.cuda.Event, got {type(other).__name__}")
        if not (self._has_timing and other._has_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return self._inner.elapsed_time(other._inner)

    @property
    def cuda_event(self) -> int:
        """The event's number, in place of CUDA's pointer."""
        return int(self._inner.event_id)

    def ipc_handle(self) -> Any:
        """Raise: simulated ranks share one process."""
        raise UnsupportedError("IPC handles of CUDA events: simulated ranks are one process")

    @staticmethod
    def from_ipc_handle(*_: object) -> EventBase:
        """Raise: simulated ranks share one process."""
        raise UnsupportedError("IPC handles of CUDA events: simulated ranks are one process")


# ---- `torch.cuda.CUDAGraph`: torch's own class over the base that CPU torch lacks ----
# A capture computes its operations as it goes, and puts back what memory held before; a replay
# computes them again on the same memory. What others give to streams meanwhile, kernels and
# collectives, they hand in as calls to repeat.

_pools = count(1)


def graph_pool_handle() -> tuple[int, int]:
    """Return the name of a new memory pool, which graphs may share."""
    return (0, next(_pools))


class GraphBase:
    """Replacement of `torch._C._CUDAGraph`."""

    def __new__(cls, keep_graph: bool = False) -> GraphBase:
        """Make an empty graph."""
        made = super().__new__(cls)
        made._handle = native().simrank_graph_new()
        # Drops what was captured, with its memory; torch's class has a __del__ that calls no other.
        weakref.finalize(made, native().simrank_graph_free, made._handle).atexit = False
        made._calls = []
        made._pool = graph_pool_handle()
        made._keeps = keep_graph
        return made

    _handle: int
    _drawn: int  # How far the device's generator was.
    _calls: list[tuple[int, Callable[[], object]]]  # After how many operations, what is called.
    _pool: tuple[int, int]
    _keeps: bool

    def capture_begin(
        self,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "global",  # noqa: ARG002 - torch's signature.
    ) -> None:
        """Begin to capture this rank's launches."""
        if pool is not None and any(pool):
            self._pool = pool
        if native().simrank_graph_begin(self._handle, self._pool[1]):
            raise RuntimeError("CUDA error: a graph is being captured already")
        capturing[native().simrank_rank_tag()] = self
        self._drawn = _generator().get_offset()

    _has_graph_exec = True  # Otherwise torch 2.14 instantiates before the first replay.

    def capture_end(self) -> None:
        """End the capture."""
        GraphBase.capture_end_pre(self)

    def capture_end_post(self) -> None:
        """Do nothing: the second half of `capture_end` since torch 2.14."""

    def capture_end_pre(self) -> None:
        """End the capture: the first half of `capture_end` since torch 2.14."""
        if not native().simrank_is_capturing():
            raise RuntimeError("capture_end without capture_begin")
        native().simrank_graph_end()
        capturing.pop(native().simrank_rank_tag(), None)
        _listener.captured()
        native().simrank_graph_restore(self._handle)
        _generator().set_offset(self._drawn)

    def instantiate(self) -> None:
        """Do nothing: a graph can be replayed as soon as it is captured."""

    def replay(self) -> None:
        """Replay the captured operations on the current stream.

        Raises:
            UnsupportedError: Another graph is being captured.
        """
        if captured_graph() is not None:
            raise UnsupportedError(
                "a graph that is replayed in a captured graph on simulated CUDA devices\n"
                "  to fix: replay it outside of torch.cuda.graph"
            )
        _listener.replay(self._replay)

    def _replay(self) -> None:
        done = 0
        for position, call in self._calls:
            operators.replay(self._handle, done, position)
            call()
            done = position
        operators.replay(self._handle, done, self._size())

    def _size(self) -> int:
        return int(native().simrank_graph_size(self._handle))

    def keep(self, call: Callable[[], object], tensors: Iterable[torch.Tensor] = ()) -> None:
        """Add a call at this place of every replay.

        Args:
            call: What to call.
            tensors: What it may write, which has not happened once the capture has ended.
        """
        self._calls.append((self._size(), call))
        for tensor in tensors:
            operators.keep_in_graph(self._handle, tensor)

    def reset(self) -> None:
        """Drop the captured operations."""
        native().simrank_graph_reset(self._handle)
        self._calls.clear()

    def pool(self) -> tuple[int, int]:
        """Return the name of the graph's memory pool."""
        return self._pool

    def pools(self) -> list[tuple[int, int]]:
        """Return the names of the graph's memory pools, since torch 2.14."""
        return [self._pool]

    def _retain_pool(self, pool: tuple[int, int]) -> None:
        """Do nothing: a pool lives as long as its graphs."""

    def raw_cuda_graph(self) -> int:
        """Raise: there is no graph of a driver."""
        raise UnsupportedError("raw_cuda_graph of a CUDAGraph on simulated CUDA devices")

    def raw_cuda_graph_exec(self) -> int:
        """Raise: there is no graph of a driver."""
        raise UnsupportedError("raw_cuda_graph_exec of a CUDAGraph on simulated CUDA devices")

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Do nothing: every replay draws new random numbers from its generators."""

    def enable_debug_mode(self) -> None:
        """Do nothing: there is no driver with debug output."""

    def debug_dump(self, debug_path: str, **_: object) -> None:
        """Write the number of the graph's operations."""
        with open(debug_path, "w") as file:
            file.write(f"digraph {{ // {self._size() + len(self._calls)} operations\n}}\n")


def as_one_launch(call: Callable[[], None]) -> None:
    """Run a call whose operations are one launch of the host, as those of a replay are."""
    _listener.replay(call)


def frozen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that keeps the current memory of another one."""
    if not tensor.is_cuda:
        return tensor
    made: torch.Tensor = operators.frozen(tensor)
    return made


def frozen_all(value: Any) -> Any:
    """Return arguments of a call, in lists, tuples and dicts, with their tensors frozen."""
    if isinstance(value, torch.Tensor):
        return frozen(value)
    if isinstance(value, dict):
        return {key: frozen_all(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        made = map(frozen_all, value)
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value


def _generator() -> torch.Generator:
    return torch.cuda.default_generators[torch.cuda.current_device()]


capturing: dict[int, GraphBase] = {}  # By the number of the rank: what it captures.


class PerRank(type):
    """torch's class `graph` with one capture stream per rank."""

    @property
    def default_capture_stream(cls) -> object:
        """Return the running rank's stream, or None."""
        return _streams.get(native().simrank_rank_tag())

    @default_capture_stream.setter
    def default_capture_stream(cls, stream: object) -> None:
        _streams[native().simrank_rank_tag()] = stream


_streams: dict[int, object] = {}


def per_rank(kind: type) -> type:
    """Return torch's class `graph` with one capture stream per rank."""
    left_out = ("__dict__", "__weakref__", "default_capture_stream")
    names = {name: value for name, value in vars(kind).items() if name not in left_out}
    return PerRank(kind.__name__, kind.__bases__, names)


class GraphListener:
    """The simulator's part in graphs; this base class does nothing."""

    def captured(self) -> None:
        """Follow the end of a capture, whose operations would not have run on a GPU."""

    def replay(self, play: Callable[[], None]) -> None:
        """Replay a graph of the running rank as one launch."""
        play()


_listener = GraphListener()


def listen_to_graphs(listener: GraphListener) -> None:
    """Register the simulator's listener."""
    global _listener  # noqa: PLW0603 - one simulator, from its import on
    _listener = listener


def captured_graph() -> GraphBase | None:
    """Return the graph that the running rank captures, or None."""
    return capturing.get(native().simrank_rank_tag()) if capturing else None


def forget_graphs() -> None:
    """End all captures."""
    capturing.clear()
    _streams.clear()


def is_capturing() -> bool:
    """Return whether this rank captures a graph."""
    return bool(native().simrank_is_capturing())
