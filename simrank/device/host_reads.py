"""Host reads of a tensor: barriers for that tensor alone (rule D4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from simrank.device.stream import stream_on
from simrank.ranks.current import race_order

if TYPE_CHECKING:
    from simrank.device.device import RaceHooks
    from simrank.device.memory import Buffer


def touch_host(buffer: Buffer, *, is_write: bool) -> None:
    """Report an access of the host to host memory to race checks.

    Raises:
        RaceError: Something in flight uses it that the host has not waited for.
    """
    races = race_order()
    if races is not None:
        cast("RaceHooks", races).host_touches(buffer, is_write=is_write)


def wait_values(buffer: Buffer) -> None:
    """Wait for the operations of all ranks that still write a buffer (D4).

    Of symmetric memory also for the current stream, as a copy of it would.

    Raises:
        UninitializedValueError: A shape-only run does not have the values.
    """
    storage, device = buffer.storage, buffer.cuda_device
    if device is None:
        touch_host(buffer, is_write=False)
    else:
        stream = stream_on(device)
        if storage.is_symmetric and stream.tail is not None:
            device.engine.wait(stream.tail)  # A barrier of the stream may stand before the read.
        if device.races is not None:
            device.races.host_reads(buffer, stream)
    for operation in storage.pending_writes(buffer.array):
        operation.stream.device.engine.wait(operation)
    if not storage.has_values:
        storage.check_values(f"a {buffer.dtype.name} tensor of shape {list(buffer.shape)}")
