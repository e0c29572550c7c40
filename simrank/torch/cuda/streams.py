"""`torch.cuda.Stream` and `Event`: torch's own classes over bases that CPU torch lacks."""

from __future__ import annotations

from typing import Any

import torch

from simrank.errors import UnsupportedError
from simrank.torch.cuda.native import native, require_device

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
