"""What an operation on a simulated device takes: the roofline, and a library's matrix products."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from simrank.hardware.roofline import kernel_ps
from simrank.torch.cuda.operations import OperationFlag
from simrank.units import transfer_ps

if TYPE_CHECKING:
    from simrank.hardware.roofline import Product
    from simrank.hardware.spec import DeviceSpec
    from simrank.torch.cuda.operations import Operand, Operation

# c10::ScalarType; source: torch's c10/core/ScalarType.h.
DTYPES = {
    0: ("uint8", 1), 1: ("int8", 1), 2: ("int16", 2), 3: ("int32", 4), 4: ("int64", 8),
    5: ("float16", 2), 6: ("float32", 4), 7: ("float64", 8), 8: ("float16", 4), 9: ("float32", 8),
    10: ("float64", 16), 11: ("bool", 1), 15: ("bfloat16", 2), 23: ("float8_e5m2", 1),
    24: ("float8_e4m3fn", 1), 27: ("uint16", 2), 28: ("uint32", 4), 29: ("uint64", 8),
}  # fmt: skip
_UNKNOWN = ("float32", 4)  # Quantised and exotic types: charged as fp32 (assumed).
_COPIES = OperationFlag.HOST_TO_DEVICE | OperationFlag.DEVICE_TO_HOST


class Cost(NamedTuple):
    """What an operation costs.

    Attributes:
        duration_ps: On a device that it has to itself, in picoseconds.
        bytes_moved: Read and written in the device's memory.
        num_elements: What it computes.
    """

    duration_ps: int
    bytes_moved: int
    num_elements: int


def cost_of(spec: DeviceSpec, operation: Operation) -> Cost:
    """Return what an operation costs: the longest of its arithmetic, its bytes and the floor.

    Matrix products and convolutions are counted as such, everything else as one operation per
    element; every operand is read or written once. A copy from or to the host takes the link.
    """
    operands = (*operation.inputs, *operation.outputs)
    bytes_moved = sum(_bytes(operand) for operand in operands)
    written = [operand for operand in operands if operand.is_written]
    num_elements = max((prod(operand.sizes) for operand in written or operands), default=1)
    if operation.flags & _COPIES:
        link_ps = transfer_ps(bytes_moved, spec.host_link_bandwidth_bytes_per_s)
        return Cost(max(link_ps, spec.kernel_floor_ps), bytes_moved, num_elements)
    product = _product(operation)
    flops = 2 * prod(product) if product is not None else _flops(operation, num_elements)
    dtype = DTYPES.get(operands[0].dtype, _UNKNOWN)[0] if operands else "float32"
    duration_ps = kernel_ps(spec, flops, dtype, bytes_moved, product)
    return Cost(duration_ps, bytes_moved, num_elements)


def _bytes(operand: Operand) -> int:
    """Return the bytes that are really there: an expanded dimension is read once."""
    size = DTYPES.get(operand.dtype, _UNKNOWN)[1]
    for length, stride in zip(operand.sizes, operand.strides, strict=True):
        if stride or not length:
            size *= length
    return size


def _product(operation: Operation) -> Product | None:
    """Return the shape of a matrix product, or None."""
    first = _FIRST_FACTOR.get(operation.name.partition(".")[0])
    if first is None or len(operation.inputs) < first + 2:
        return None
    a, b = (operand.sizes for operand in operation.inputs[first : first + 2])
    if len(a) < 2 or len(b) < 2:
        return None
    batch = prod(a[:-2])
    return batch, a[-2], b[-1], a[-1]


# Operators that are products -> which of their tensors is the left factor.
_FIRST_FACTOR = {
    "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "addbmm": 1, "_scaled_mm": 0, "_int_mm": 0,
    "_addmm_activation": 1,
}  # fmt: skip


def _flops(operation: Operation, num_elements: int) -> int:
    """Return the operations of what is no matrix product."""
    name = operation.name
    if "convolution" in name and len(operation.inputs) > 1:
        weight = operation.inputs[1].sizes
        return 2 * num_elements * prod(weight[1:]) * (2 if "backward" in name else 1)
    return num_elements
