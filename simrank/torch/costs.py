"""What an operation of torch on a simulated device takes, by the kind of its kernel."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from simrank.hardware.roofline import kernel_ps, peak_flops, started_ps
from simrank.torch.cuda.operations import OperationFlag
from simrank.torch.kernel_times import (
    Attention,
    Convolution,
    attention_ps,
    convolution_ps,
    offsets_ps,
    reduction_ps,
    times_read,
)
from simrank.torch.layouts import (
    changes_in_place,
    computes_offsets,
    is_reduction,
    picks,
    puts,
)
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
_FLOAT32 = 6
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
    """Return what an operation costs: its start, and the longer of its arithmetic and its bytes.

    Matrix products take what tables or a rule say; convolutions and fused attention are counted as
    such, everything else as one operation per element. Every operand is read or written once, and
    what is changed in place both, but for kernels that read again. A copy from or to the host takes
    the link.

    Source: `kernel_times`.
    """
    operands = (*operation.inputs, *operation.outputs)
    num_bytes = _bytes_moved(operation)
    written = [operand for operand in operands if operand.is_written]
    num_elements = max((prod(operand.sizes) for operand in written or operands), default=1)
    if operation.flags & _COPIES:
        num_bytes = sum(map(_bytes, operands))
        link_ps = transfer_ps(num_bytes, spec.host_link_bandwidth_bytes_per_s)
        return Cost(max(link_ps, spec.kernel_floor_ps), num_bytes, num_elements)
    product = _product(operation)
    if product is not None:
        flops, dtype = 2 * prod(product), _dtype(operation)
        duration_ps = kernel_ps(spec, flops, dtype, num_bytes, product)
    else:
        duration_ps = started_ps(_work_ps(spec, operation, num_bytes, num_elements))
    return Cost(duration_ps, num_bytes, num_elements)


def _work_ps(spec: DeviceSpec, operation: Operation, num_bytes: int, num_elements: int) -> int:
    """Return how long a kernel works that is no product, once it is under way."""
    memory_ps = transfer_ps(num_bytes, spec.memory_bandwidth_bytes_per_s)
    dtype, attention = _dtype(operation), _attention(operation)
    if attention is not None:
        return max(memory_ps, attention_ps(spec, dtype, attention))
    if is_reduction(operation):
        return reduction_ps(spec, num_bytes)
    if computes_offsets(operation):
        return max(memory_ps, offsets_ps(spec, num_elements))
    convolution = _convolution(operation)
    if convolution is not None:
        return max(memory_ps, convolution_ps(spec, dtype, convolution))
    peak = peak_flops(spec, dtype)
    return max(memory_ps, 0 if peak is None else transfer_ps(num_elements, peak))


def _dtype(operation: Operation) -> str:
    """Return the name of the type that an operation computes in: its first operand's."""
    first = next(iter((*operation.inputs, *operation.outputs)), None)
    return "float32" if first is None else DTYPES.get(first.dtype, _UNKNOWN)[0]


def _bytes_moved(operation: Operation) -> int:
    """Return what a kernel reads and writes in the device's memory."""
    times, changes = times_read(operation.name), changes_in_place(operation.name)
    sizes = [_bytes(each) for each in operation.inputs]
    made = sum(map(_bytes, operation.outputs))
    if sizes and picks(operation.name):  # Of the first one no more than what comes of it.
        sizes[0] = min(sizes[0], made)
    elif len(sizes) > 2 and puts(operation.name):  # No more than what is put there.
        sizes[0] = min(sizes[0], max(sizes[1:]))
    inputs = list(zip(operation.inputs, sizes, strict=True))
    read = sum(size for each, size in inputs if changes or not each.is_written)
    return times * read + sum(size for each, size in inputs if each.is_written) + made


def _attention(operation: Operation) -> Attention | None:
    """Return what a fused attention computes, or None where it is none."""
    name = operation.name.partition(".")[0]
    if "_attention" not in name:
        return None
    shaped = [operand.sizes for operand in operation.inputs if len(operand.sizes) == 4]
    is_backward = name.endswith("_backward")
    tensors = shaped[1:4] if is_backward else shaped[:3]  # Of the output first the gradient.
    if len(tensors) < 3:
        return None
    # The kernels proper have heads after queries; those that dispatch to them, before.
    heads, length = (1, 2) if name.startswith("_scaled_dot_product") else (2, 1)
    query, key, value = tensors
    return Attention(
        num_heads=query[0] * query[heads],
        num_queries=query[length],
        num_keys=key[length],
        widths=query[-1] + value[-1],
        is_causal=bool(operation.flags & OperationFlag.CAUSAL),
        is_backward=is_backward,
        is_flash="efficient" not in name,
    )


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


def _convolution(operation: Operation) -> Convolution | None:
    """Return what a convolution computes, or None where it is none."""
    name = operation.name.partition(".")[0]
    is_backward = name == "convolution_backward"
    if not is_backward and "convolution" not in name:
        return None
    shaped = [operand.sizes for operand in operation.inputs if len(operand.sizes) > 2]
    if len(shaped) < 2 + is_backward:
        return None
    # The gradient of the result comes first; then what was convolved, and the weight.
    source, weight = shaped[is_backward : is_backward + 2]
    result = shaped[0] if is_backward else operation.outputs[0].sizes
    # A weight's first dimension is that of the result's channels, or transposed the source's.
    places = result if weight[0] == result[1] else source
    gradients = sum(len(each.sizes) > 2 for each in operation.outputs)
    return Convolution(
        2 * prod(places) * prod(weight[1:]) * (gradients if is_backward else 1),
        is_single=operation.inputs[0].dtype == _FLOAT32,
    )
