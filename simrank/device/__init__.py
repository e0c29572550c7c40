"""One accelerator: memory, streams, operations and, in a room of their own, tensors.

Read `stream` (operations in order), then `memory` and `tensors.tensor`.
"""

from simrank.device.buffer import Buffer
from simrank.device.current import current_device, current_stream, use_stream
from simrank.device.device import Device
from simrank.device.dtypes import DTYPES, DType, as_dtype
from simrank.device.memory import AddressSpace
from simrank.device.races import Accesses
from simrank.device.stream import Event, Operation, Stream
from simrank.device.tensors.tensor import Tensor
from simrank.device.transfer import Network

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
