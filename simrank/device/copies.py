"""Copies between devices and the host: bytes that share the links they cross (E11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.device.host_reads import wait_values
from simrank.device.memory import Accesses, Touched, guarded
from simrank.device.stream import Operation, stream_on
from simrank.engine import Activity

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from simrank.device.device import Device
    from simrank.device.memory import Buffer
    from simrank.device.stream import Stream


class TransferOperation(Operation):
    """A copy between two devices, or between a device and its host.

    Args:
        stream: A stream of the device that drives the copy.
        route: (source, target) device indices; None stands for the host.
        size_bytes: What crosses.
        effect: Moves the values, at the end.
        touched: What it reads and writes.
    """

    __slots__ = ("_drop", "_route")
    kind = "copy"

    def __init__(
        self,
        stream: Stream,
        route: tuple[int | None, int | None],
        size_bytes: int,
        effect: Callable[[], None] | None = None,
        touched: Touched | None = None,
    ) -> None:
        source, into = ("host" if end is None else f"device {end}" for end in route)
        super().__init__(stream, f"copy {source} to {into}", effect, touched)
        self._route = route
        self._drop: Callable[[], None] | None = None
        self.details = {"bytes": size_bytes}

    def begin(self) -> None:
        """Cross the route, or the host link at the bandwidth of the device's host link."""
        assert self.details is not None, "set when made"
        device, size_bytes = self.stream.device, self.details["bytes"]
        source, into = self._route
        if source is not None and into is not None:
            self._drop = device.network.transfer(source, into, size_bytes, self.end)
        else:
            activity = Activity(float(size_bytes), [(device.host_link, 1.0)], self.end)
            device.pool.start(activity)
            self._drop = lambda: device.pool.drop(activity)

    def end(self) -> None:
        """Drop the activity, which refers back, and complete."""
        self._drop = None
        super().end()

    def drop(self) -> None:
        """Take it out of flight."""
        if self._drop is not None:
            self._drop()


def copy_between(target: Buffer, src: Buffer) -> TransferOperation:
    """Issue a copy from or to a device on its current stream; on that of the source if both are."""
    device = src.cuda_device or target.cuda_device
    assert device is not None, "copies within the host are no transfers"
    if src.cuda_device is None:
        wait_values(src)
    stream = stream_on(device)
    other = None if target.cuda_device in (None, device) else stream_on(target.cuda_device)
    if other is not None:
        stream.wait_stream(other)  # As in torch: the target's own work comes first,
    operation = TransferOperation(
        stream,
        (_index(src), _index(target)),
        src.nbytes,
        _effect(target, src),
        Accesses((src,) if src.cuda_device is not None else (), (target,)),
    )
    stream.submit(operation)
    if other is not None:
        other.wait_for(operation)  # and goes on when the bytes have arrived.
    return operation


def _index(buffer: Buffer) -> int | None:
    return None if buffer.storage.device is None else buffer.storage.device.index


def upload(tensor: Buffer, values: np.ndarray[Any, Any], device: Device) -> None:
    """Fill a new tensor of `device` with a copy of an array, copied in stream order.

    The values are in place at once: no program can read a new tensor without a wait for
    the copy, and the caller may change its array as soon as this returns.
    """
    if tensor.storage.has_values:
        tensor.array[...] = values
    operation = TransferOperation(
        stream_on(device), (None, device.index), tensor.nbytes, touched=Accesses((), (tensor,))
    )
    tensor.storage.note_write(operation, tensor.array)
    operation.stream.submit(operation)


def _effect(target: Buffer, src: Buffer) -> Callable[[], None]:
    # Host memory is read at once, as a copy from pageable memory does.
    view, from_host = target.array, src.cuda_device is None
    values = src.array.copy() if from_host and src.storage.knows(src.array) else src.array

    def assign() -> None:
        view[...] = values.astype(view.dtype) if values.dtype != view.dtype else values

    return guarded(assign, (src,), (target,))
