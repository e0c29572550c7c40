"""One accelerator: memory, streams, operations and, in a room of their own, tensors.

Read `stream` (operations in order), then `memory` and `tensors.tensor`.
"""

import sys
from types import ModuleType
from typing import Any

from simrank.device.device import HOST, Device, HostDevice
from simrank.device.dtypes import DTYPES, DType, as_dtype
from simrank.device.memory import Accesses, AddressSpace, Buffer
from simrank.device.network import Network
from simrank.device.stream import (
    Event,
    Operation,
    Stream,
    current_device,
    current_stream,
    parse_device,
    use_stream,
)
from simrank.device.tensors.tensor import Tensor

__all__ = [
    "DTYPES",
    "Accesses",
    "AddressSpace",
    "Buffer",
    "DType",
    "Device",
    "Event",
    "Network",
    "Operation",
    "Stream",
    "Tensor",
    "as_dtype",
    "current_device",
    "current_stream",
    "use_stream",
]


class _DeviceModule(ModuleType):
    """This module, which is also what `torch.device` is: a function, and a class to ask for."""

    def __call__(self, device: object, index: int | None = None) -> Any:  # noqa: ANN401 - a Device
        """Return the device of a name, an index, or a name and an index."""
        name = device if index is None else f"{device}:{index}"
        return parse_device(name) or HOST

    def __instancecheck__(self, value: object) -> bool:
        """Return whether a value is a device, or the host."""
        return isinstance(value, Device | HostDevice)


sys.modules[__name__].__class__ = _DeviceModule
