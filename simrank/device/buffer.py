"""What collectives, copies and race checks see of a tensor, simrank's or another library's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from simrank.device.current import stream_on
from simrank.ranks.current import race_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from simrank.device.device import Device
    from simrank.device.dtypes import DType
    from simrank.device.memory import Storage
    from simrank.device.races import RaceChecker


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


def touch_host(buffer: Buffer, *, is_write: bool) -> None:
    """Let race checks see that the host reads or writes host memory.

    Raises:
        RaceError: Something in flight uses it that the host has not waited for.
    """
    races = race_order()
    if races is not None:
        cast("RaceChecker", races).host_touches(buffer, is_write=is_write)


def wait_values(buffer: Buffer) -> None:
    """Wait for the operations that still write a buffer, whoever issued them (D4).

    Raises:
        UninitializedValueError: A shape-only run does not have the values.
    """
    storage, device = buffer.storage, buffer.cuda_device
    if device is None:
        touch_host(buffer, is_write=False)
    elif device.races is not None:
        device.races.host_reads(buffer, stream_on(device))
    for operation in storage.pending_writes(buffer.array):
        operation.stream.device.engine.wait(operation)
    storage.check_values(f"a {buffer.dtype.name} tensor of shape {list(buffer.shape)}")
