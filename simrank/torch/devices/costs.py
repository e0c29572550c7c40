"""Costs of torch's operations on simulated devices, by kind of kernel."""

from __future__ import annotations

from functools import lru_cache
from math import expm1, log1p, log2, prod
from typing import TYPE_CHECKING, NamedTuple

import torch

from simrank.hardware.roofline import (
    BY_BYTES,
    GROUPED,
    QUEUED_START_PS,
    kernel_ps,
    peak_flops,
    started_ps,
)
from simrank.hardware.spec import clock_hz, compute_capability
from simrank.torch.cuda.operations import OperationFlag
from simrank.torch.devices.attention import attention_of, attention_ps, model_flops
from simrank.torch.devices.products import base_name, is_grouped, multiplied
from simrank.units import PS_PER_US, ceil_ps, transfer_ps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.hardware.spec import DeviceSpec, Product
    from simrank.torch.cuda.operations import DeviceOperation, Operand
    from simrank.torch.devices.products import Multiplied

# c10::ScalarType; source: torch's c10/core/ScalarType.h.
DTYPES = {
    0: ("uint8", 1), 1: ("int8", 1), 2: ("int16", 2), 3: ("int32", 4), 4: ("int64", 8),
    5: ("float16", 2), 6: ("float32", 4), 7: ("float64", 8), 8: ("float16", 4), 9: ("float32", 8),
    10: ("float64", 16), 11: ("bool", 1), 15: ("bfloat16", 2), 23: ("float8_e5m2", 1),
    24: ("float8_e4m3fn", 1), 27: ("uint16", 2), 28: ("uint32", 4), 29: ("uint64", 8),
}  # fmt: skip
_FLOAT32 = 6
_HALF = {5, 15}  # float16, bfloat16
_UNKNOWN = ("float32", 4)  # Quantised and exotic types: charged as fp32 (assumed).
_SLACK = 0.99  # Stated peaks are rounded.
_COPIES = OperationFlag.HOST_TO_DEVICE | OperationFlag.DEVICE_TO_HOST


class Cost(NamedTuple):
    """The cost of an operation.

    Attributes:
        duration_ps: On a device that it has to itself, in picoseconds.
        bytes_moved: Read and written in the device's memory.
        num_elements: What it computes.
        flops: Of its products.
        basis: `BY_BYTES` where nothing but its bytes is charged though it may compute more,
            `GROUPED` for products of groups, such as those of experts; else empty.
    """

    duration_ps: int
    bytes_moved: int
    num_elements: int
    flops: float = 0.0
    basis: str = ""


def cost_of(spec: DeviceSpec, operation: DeviceOperation) -> Cost:
    """Return the cost of an operation: kernel start plus the longer of arithmetic and memory.

    Matrix products take the time of tables or a rule; convolutions and fused attention have a share
    of the peak. Every operand is read or written once, and one that is changed in place both,
    except in kernels that read again; some kernels are limited by instructions per element instead.
    A copy from or to the host takes the link.

    Sources: the constants of this module.
    """
    operands = (*operation.inputs, *operation.outputs)
    num_bytes = _bytes_moved(operation)
    written = [operand for operand in operands if operand.is_written]
    num_elements = max((prod(operand.sizes) for operand in written or operands), default=1)
    if operation.flags & _COPIES:
        num_bytes = sum(map(_bytes, operands))
        link_ps = transfer_ps(num_bytes, spec.host_link_bandwidth_bytes_per_s)
        return Cost(max(link_ps, spec.kernel_floor_ps), num_bytes, num_elements)
    kernels = multiplied(operation)
    if kernels and not all(each.is_vector for each in kernels):
        duration_ps, flops = _products_ps(spec, operation, num_bytes, kernels)
    else:
        found_ps, flops = _tensor_core_ps(spec, operation, num_bytes)
        flops += sum(each.flops for each in kernels)
        if found_ps is None:
            starts_ps = _starts(operation) * QUEUED_START_PS
            found_ps = starts_ps + _work_ps(spec, operation, num_bytes, num_elements)
        duration_ps = found_ps
    basis = "" if flops or only_moves(operation) else BY_BYTES
    basis = GROUPED if is_grouped(operation.name) else basis
    cost = Cost(duration_ps, num_bytes, num_elements, flops, basis)
    least_ps = _least_ps(spec, operation, cost, kernels)
    assert duration_ps >= _SLACK * least_ps, f"{operation.name} beats its device"
    return cost


def _products_ps(
    spec: DeviceSpec, operation: DeviceOperation, num_bytes: int, kernels: Sequence[Multiplied]
) -> tuple[int, float]:
    """Return time and operations of an operator that multiplies; the first kernel has its bytes."""
    operands = (*operation.inputs, *operation.outputs)
    is_tf32 = bool(operation.flags & OperationFlag.TF32)
    total_ps = 0
    for each in kernels:
        dtype = DTYPES.get(operands[each.factor].dtype, _UNKNOWN)[0]
        if each.product is not None:
            took_ps = product_ps(spec, dtype, num_bytes, each.product, is_tf32=is_tf32)
            total_ps += round(took_ps * each.times)
        else:
            peak = peak_flops(spec, dtype)
            arithmetic_ps = 0 if peak is None else ceil_ps(each.flops / (peak * each.share))
            memory_ps = transfer_ps(num_bytes, spec.memory_bandwidth_bytes_per_s)
            total_ps += started_ps(max(memory_ps, arithmetic_ps))
        num_bytes = 0
    return total_ps, sum(each.flops for each in kernels)


def _least_ps(
    spec: DeviceSpec, operation: DeviceOperation, cost: Cost, kernels: Sequence[Multiplied]
) -> int:
    """Return the time that no device of these facts beats: of its bytes, and of its products."""
    operands = (*operation.inputs, *operation.outputs)
    memory_ps = transfer_ps(cost.bytes_moved, spec.memory_bandwidth_bytes_per_s)
    if not cost.flops:
        return memory_ps
    dtype = _dtype(operation)
    if kernels:
        dtype = DTYPES.get(operands[kernels[0].factor].dtype, _UNKNOWN)[0]
    peak = peak_flops(spec, dtype)
    if operation.flags & OperationFlag.TF32 and dtype == "float32":
        peak = max(peak or 0, (peak_flops(spec, "bfloat16") or 0) // 2)  # Twice the bits.
    return max(memory_ps, int(cost.flops / peak * 1e12) if peak else 0)


def _tensor_core_ps(
    spec: DeviceSpec, operation: DeviceOperation, num_bytes: int
) -> tuple[int | None, float]:
    """Return time and operations of a fused attention or a convolution; None and 0 for others."""
    memory_ps = transfer_ps(num_bytes, spec.memory_bandwidth_bytes_per_s)
    dtype, attention = _dtype(operation), attention_of(operation)
    if attention is not None:
        found_ps = started_ps(max(memory_ps, attention_ps(spec, dtype, attention)))
        return found_ps, model_flops(attention)
    convolution = _convolution(operation)
    if convolution is not None:
        found_ps = started_ps(max(memory_ps, convolution_ps(spec, dtype, convolution)))
        return found_ps, float(convolution.flops)
    return None, 0.0


def _work_ps(
    spec: DeviceSpec, operation: DeviceOperation, num_bytes: int, num_elements: int
) -> int:
    """Return the time of a kernel without tensor cores, after its start."""
    if is_reduction(operation):
        return reduction_ps(spec, num_bytes, _reduction_share(spec, operation))
    memory_ps = transfer_ps(num_bytes, spec.memory_bandwidth_bytes_per_s)
    tensors = _first_list(operation)
    if tensors is not None:
        return lists_ps(spec, operation.name, memory_ps, tensors)
    rows = _softmax_rows(operation)
    if rows is not None:
        work_ps = softmax_ps(spec, operation.name, rows)
    elif picks(operation.name):
        work_ps = int(memory_ps / _PICK_SHARE)
    else:
        memory_ps += loss_ps(_loss_reads(operation), is_backward="backward" in operation.name)
        memory_ps += sorted_sums_ps(spec, *_sorted_indices(operation))
        limit = _elements_per_clock(operation)
        work_ps = max(memory_ps, 0 if limit is None else elements_ps(spec, num_elements, limit))
    return work_ps + min(work_ps, _RAMP_PS)


def _elements_per_clock(operation: DeviceOperation) -> float | None:
    """Return the elements that one SM computes in a clock; None where memory is the limit."""
    base = operation.name.partition(".")[0]
    if base == "cat":
        return None if all(map(_is_dense, operation.inputs)) else _STRIDED_CAT_PER_CLOCK
    if computes_offsets(operation):
        operands = (*operation.inputs, *operation.outputs)
        is_wide = any(each.is_written and each.dtype == _FLOAT32 for each in operands)
        is_slow = is_wide and (len(operands) > 2 or _converts(operands))
        return _WIDE_OFFSETS_PER_CLOCK if is_slow else _OFFSETS_PER_CLOCK
    return _WORK_PER_CLOCK.get(base)


def _starts(operation: DeviceOperation) -> int:
    """Return the number of kernels that an operator launches, one after the other."""
    tensors = _first_list(operation)
    if tensors is not None:
        return -(-num_chunks(tensors) // _CHUNKS_OF_LAUNCH)
    return 2 if operation.name.partition(".")[0] in _TWO_KERNELS else 1


def _first_list(operation: DeviceOperation) -> list[Operand] | None:
    """Return the tensors that an operator on lists changes, or reads; None for other operators."""
    base = operation.name.partition(".")[0]
    if not base.startswith(("_foreach_", "_fused_adam")):
        return None
    written = [each for each in operation.inputs if each.is_written]
    if base.startswith("_fused_adam"):
        return written[: len(written) // _LISTS_OF_ADAM]
    return written or list(operation.inputs[: len(operation.outputs)])


def _reduction_share(spec: DeviceSpec, operation: DeviceOperation) -> float:
    """Return the part of the memory's rate at which a reduction reads."""
    if not operation.inputs or not operation.outputs:
        return 1.0
    sizes, left = operation.inputs[0].sizes, operation.outputs[0].sizes
    if prod(left) <= 1:
        return 1.0
    if left not in (sizes[:-1], (*sizes[:-1], 1)):
        return _COLUMN_RATE
    blocks = -(-prod(left) // _ROWS_OF_SUM)
    return min(blocks / (_SUMS_OF_SM * spec.num_sms), 1.0)


def _dtype(operation: DeviceOperation) -> str:
    """Return the name of the type in which the operation computes: the first operand's."""
    first = next(iter((*operation.inputs, *operation.outputs)), None)
    return "float32" if first is None else DTYPES.get(first.dtype, _UNKNOWN)[0]


def _bytes_moved(operation: DeviceOperation) -> int:
    """Return the bytes that a kernel reads and writes in device memory."""
    times, changes = times_read(operation.name), changes_in_place(operation.name)
    sizes = [_bytes(each) for each in operation.inputs]
    made = sum(map(_bytes, operation.outputs))
    if sizes and picks(operation.name):  # Of the first one no more than what comes of it.
        sizes[0] = min(sizes[0], made)
    elif _is_loss(operation.name):  # One element of a row.
        sizes = [min(size, sizes[_LOSS_TARGET[operation.name.partition(".")[0]]]) for size in sizes]
    elif len(sizes) > 2 and puts(operation.name):  # No more than what is put there.
        sizes[0] = min(sizes[0], max(sizes[1:]))
    inputs = list(zip(operation.inputs, sizes, strict=True))
    read = sum(size for each, size in inputs if changes or not each.is_written)
    written = sum(size for each, size in inputs if each.is_written)
    if operation.name.startswith("_fused_adam"):  # Gradients are declared as written.
        written -= written // _LISTS_OF_ADAM
    return int(times * read) + written + made


def _softmax_rows(operation: DeviceOperation) -> SoftmaxRows | None:
    """Return the rows of a softmax, or None for other operations."""
    if operation.name.partition(".")[0] not in _SOFTMAX_PASSES:
        return None
    rows = operation.outputs[0] if operation.outputs else operation.inputs[0]
    return SoftmaxRows(_bytes(rows), prod(rows.sizes), rows.sizes[-1] if rows.sizes else 1)


def _is_loss(name: str) -> bool:
    """Return whether an operator is a negative log likelihood."""
    return name.partition(".")[0] in _LOSS_TARGET


def _loss_reads(operation: DeviceOperation) -> int:
    """Return the rows that one block of a loss reads; 0 for other operations."""
    if not _is_loss(operation.name):
        return 0
    target = operation.inputs[_LOSS_TARGET[operation.name.partition(".")[0]]]
    scalar = operation.inputs[0] if "backward" in operation.name else operation.outputs[0]
    return prod(target.sizes) if prod(scalar.sizes) == 1 else 0


def _sorted_indices(operation: DeviceOperation) -> tuple[int, int, int]:
    """Return the indices of an embedding's gradient, and the rows and width of its weight."""
    if operation.name.partition(".")[0] != "embedding_dense_backward":
        return 0, 1, 1
    rows, width = operation.outputs[0].sizes
    return prod(operation.inputs[1].sizes), rows, width


def _bytes(operand: Operand) -> int:
    """Return the bytes of an operand; an expanded dimension counts once."""
    size = DTYPES.get(operand.dtype, _UNKNOWN)[1]
    for length, stride in zip(operand.sizes, operand.strides, strict=True):
        if stride or not length:
            size *= length
    return size


def _convolution(operation: DeviceOperation) -> Convolution | None:
    """Return the shape of a convolution, or None for other operations."""
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
    # A weight's first dimension is that of the result's channels, or transposed the source's. Where
    # both have as many, the one with strides has the smaller result, or transposed source.
    ends = [each for each in (result, source) if each[1] == weight[0]]
    places = min(ends or [source], key=prod)
    gradients = sum(len(each.sizes) > 2 for each in operation.outputs)
    return Convolution(
        2 * prod(places) * prod(weight[1:]) * (gradients if is_backward else 1),
        is_tf32=bool(operation.flags & OperationFlag.TF32),
    )


# ---- How long kernels take that torch launches and no table of products has ----
# All numbers are of CUDA's kernels. What was measured on A100, H100 or H200 stands for other
# generations too (assumed). "Liger-Kernel" is what it published of its baselines in plain torch:
# RMSNorm, LayerNorm and rotary embeddings, forward and backward, on A100 PCIe and H100 NVL (44 rows
# of benchmark/data/{a100,h100}_all_benchmark_data.csv, version 0.5.2); see ADR 0047. "H200" is
# configs/torch/h200.csv: one H200, torch 2.11, CUDA 13.0, 2026-11.

# A kernel starts `QUEUED_START_PS` behind the one before, and works at half its rate for as long as
# `started_ps` says: the sources differ. Liger-Kernel's rows of few columns need the ramp (MAE 10 %
# without it, 7 % with it); H200's kernels of 2 million elements (optimizers in loops) show none,
# and are charged 45 % too much.
_RAMP_PS = round(2.35 * PS_PER_US)

# Elements of one SM in a clock, of kernels that instructions limit, not memory (H200, within 4 %
# from 34 to 134 million elements). Kernels that compute an offset for each element: Liger-Kernel's
# casts and broadcasts by themselves say 1.38, which lies between the two kinds; torch's #195542 has
# 1.22 for A100 and float32. Fills write float32 at the memory's rate, and 16 bits at the rate of
# their instructions.
_OFFSETS_PER_CLOCK = 1.53
_WIDE_OFFSETS_PER_CLOCK = 1.29  # To float32: of two tensors, or converted.
_STRIDED_CAT_PER_CLOCK = 0.92
_WORK_PER_CLOCK = {
    "gelu": 3.35, "gelu_backward": 2.53, "silu": 3.66, "native_dropout": 2.32,
    "fill_": 6.3, "zero_": 6.3,
}  # fmt: skip
_TWO_KERNELS = frozenset({"native_layer_norm_backward", "_fused_rms_norm_backward",
                          "_softmax_backward_data"})  # fmt: skip

# Operators on lists of tensors give each block 65,536 elements, and launch at most 320 blocks at a
# time (aten/src/ATen/native/cuda/MultiTensorApply.cuh), which fill part of a wave: such a launch
# takes some us longer than its bytes (H200: 5 to 8 us in ten operators, in both types; fused Adam's
# blocks have more to do, and are limited by instructions in 16 bits).
_CHUNK, _CHUNKS_OF_LAUNCH = 1 << 16, 320
_LISTS_TAIL_PS, _ADAM_TAIL_PS = round(5.5 * PS_PER_US), 20 * PS_PER_US
_ADAM_PER_CLOCK = 0.85  # Elements, as above.
_LISTS_OF_ADAM = 4  # Weights, gradients and two moments.
_PICK_SHARE = 0.83  # Of the memory's rate, where rows are read by index (H200, two tables).

# Sums and the like. A block of 512 threads sums 16 rows (aten/src/ATen/native/cuda/Reduce.cuh), and
# an SM needs two blocks to have its share of the memory's rate: Liger-Kernel's 2,048 rows had half
# of it, as H200's had, where 8,192 and 32,768 rows have all. Sums over other dimensions than the
# last one add up parts that blocks leave in memory.
_ROWS_OF_SUM, _SUMS_OF_SM = 16, 2
_SUM_TAIL_PS = round(5 * PS_PER_US)
_COLUMN_RATE = 0.8
# Reads of a normalization's rows: statistics come first. Liger-Kernel's LayerNorm says 2.1 forward
# and 3.3 backward, H200's 2.4 and 3.2; RMSNorm's own kernel is H200's.
_TIMES_READ = {"forward": 2.1, "rms": 1.7, "backward": 3.1}

# Products in float32. With TensorFloat-32 (off by default) a product takes what one in half
# precision with twice the inner size takes: as many bytes, at half the rate. In IEEE arithmetic
# Hopper's library reaches 0.76 of the peak, in tiles of 64 rows or more (H200: 50.5 to 51.7 of 67
# TFLOPS from 4,096 cubed on); other generations have no measured rows, and run at their peak.
_IEEE_RATES = {9: 0.76}
_IEEE_TILE = 64

# Passes over its rows of a softmax: with rows that stay on the chip, and with rows that do not.
# A forward kernel reads for the maximum, the sum and the result; a backward kernel reads the
# gradient for the sum and again for the result. A softmax's backward multiplies in a kernel of its
# own first. Source: torch's aten/src/ATen/native/cuda/SoftMax.cu. Rows stay where those of all
# blocks in flight fit half of L2, of which each half of the chip has its own copy: 64 KiB on A100
# and H100. Liger-Kernel's cross-entropy (0.2.1 on A100 SXM, 0.5.2 on H100 NVL), 4k to 131k float32
# columns, is within 10 % of that, but for 32k columns on H100.
_SOFTMAX_PASSES = {
    "_softmax": (2, 4), "_log_softmax": (2, 4),
    "_softmax_backward_data": (6, 7), "_log_softmax_backward_data": (3, 4),
}  # fmt: skip
_SOFTMAX_BLOCKS = 2  # Of 1,024 threads, on an SM.
# Newer versions keep rows of 2,049 to 9,216 elements in registers, and read one element at a time:
# elements of an SM in a clock (H200: 1.2 at 4,096 columns, 1.0 at 8,192). Longer rows are read as
# vectors.
_REGISTER_ROWS = range(2049, 9217)
_REGISTER_SOFTMAX_PER_CLOCK, _LONG_SOFTMAX_PER_CLOCK = 1.1, 2.2
_DEFAULT_L2_BYTES = 50 << 20

# The mean of nll_loss is one block's: threads take a row each, read its target, then its element.
# Source: aten/src/ATen/native/cuda/Loss.cu. The latency of a read is fitted to the part of
# Liger-Kernel's cross-entropy that does not grow with the vocabulary: 0.56 ms for 16,384 rows by 32
# threads, as torch had them then, forward on A100 and H100; 0.29 and 0.33 ms backward.
_LOSS_TARGET = {"nll_loss_forward": 1, "nll_loss_backward": 2}  # -> Input with the targets.
_READ_US = 0.55
_FEWEST_LOSS_THREADS, _MOST_LOSS_THREADS, _ROWS_OF_LOSS_THREAD = 32, 1024, 16

# Gradients of an embedding: above 3,072 indices torch sorts them, finds where each begins, and
# sums the rows of each (aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu). The
# sort is 214 us for 16,384 indices (A100, Liger-Kernel 0.2.1), about 100 for 8,192 (H200); sums
# have 0.215 elements of an SM in a clock (A100, three rows of 768 columns) and 0.265 (H200, 4,096).
_MOST_UNSORTED = 3072
_SORT_US, _SUMS_PER_CLOCK = 0.013, 0.235  # Of an index; of all elements of rows that are there.

# Convolutions, of the peak of half precision: in it, and in float32, which rounds to TensorFloat-32
# from Ampere on (torch.backends.cudnn.allow_tf32, torch's default). Fitted to NVIDIA's ResNet-50 of
# DeepLearningExamples on one A100: 2,470 images/s in mixed precision, 938 in float32.
_CONVOLUTION_RATE, _TF32_CONVOLUTION_RATE = 0.5, 0.13
_FIRST_WITH_TF32 = 8


class Convolution(NamedTuple):
    """The shape of a convolution.

    Attributes:
        flops: Its operations, of all gradients that it computes.
        is_tf32: Whether its numbers are float32 that the program lets round to TensorFloat-32.
    """

    flops: int
    is_tf32: bool


class SoftmaxRows(NamedTuple):
    """The rows of a softmax.

    Attributes:
        num_bytes: Of all rows.
        num_elements: Of all rows.
        width: Elements of one.
    """

    num_bytes: int
    num_elements: int
    width: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.num_bytes * self.width // max(self.num_elements, 1)


def product_ps(
    spec: DeviceSpec, dtype: str, num_bytes: int, product: Product, *, is_tf32: bool
) -> int:
    """Return the time of a matrix product.

    Args:
        spec: The device.
        dtype: Name of the factors' type.
        num_bytes: Read and written.
        product: batch, m, n and k.
        is_tf32: Whether float32 may be rounded to TensorFloat-32.
    """
    batch, m, n, k = product
    generation = (compute_capability(spec.name) or (0, 0))[0]
    if dtype != "float32":
        return kernel_ps(spec, 2 * prod(product), dtype, num_bytes, product)
    if is_tf32 and generation >= _FIRST_WITH_TF32:
        half = "bfloat16"
        return kernel_ps(spec, 4 * prod(product), half, num_bytes, (batch, m, n, 2 * k))
    rate = _IEEE_RATES.get(generation)
    flops = 2 * prod(product)
    if rate is not None:
        flops = int(2 * batch * max(m, _IEEE_TILE) * max(n, _IEEE_TILE) * k / rate)
    return kernel_ps(spec, flops, dtype, num_bytes, product)


def softmax_ps(spec: DeviceSpec, name: str, rows: SoftmaxRows) -> int:
    """Return the time of a softmax, after its start."""
    passes = softmax_passes(spec, name, rows.row_bytes)
    memory_ps = transfer_ps(passes * rows.num_bytes, spec.memory_bandwidth_bytes_per_s)
    if "backward" in name or rows.width < _REGISTER_ROWS.start:
        return memory_ps
    is_short = rows.width in _REGISTER_ROWS
    limit = _REGISTER_SOFTMAX_PER_CLOCK if is_short else _LONG_SOFTMAX_PER_CLOCK
    return max(memory_ps, elements_ps(spec, rows.num_elements, limit))


def softmax_passes(spec: DeviceSpec, name: str, row_bytes: int) -> int:
    """Return the number of times that a softmax reads and writes its rows."""
    short, long = _SOFTMAX_PASSES[name.partition(".")[0]]
    l2_bytes = spec.l2_bytes or _DEFAULT_L2_BYTES
    in_flight = spec.num_sms * _SOFTMAX_BLOCKS * row_bytes
    return short if in_flight <= l2_bytes / 2 else long


def loss_ps(num_rows: int, *, is_backward: bool) -> int:
    """Return the time in which one block reads an element of each row, one after the other."""
    wanted = 1 << round(log2(max(num_rows // _ROWS_OF_LOSS_THREAD, 1)))
    threads = min(max(wanted, _FEWEST_LOSS_THREADS), _MOST_LOSS_THREADS)
    steps = -(-num_rows // threads)
    return ceil_ps(steps * _READ_US * (1 if is_backward else 2) / 1e6)


def sorted_sums_ps(spec: DeviceSpec, num_indices: int, num_rows: int, width: int) -> int:
    """Return the time of the sort and the sums of an embedding's gradient, besides its bytes.

    Indices are taken to be uniform: of `num_rows` some are not among them.
    """
    if num_indices <= _MOST_UNSORTED:
        return 0
    num_distinct = -num_rows * expm1(num_indices * log1p(-1 / num_rows)) if num_rows > 1 else 1.0
    sums_ps = elements_ps(spec, int(num_distinct * width), _SUMS_PER_CLOCK)
    return int(_SORT_US * num_indices * PS_PER_US) + sums_ps


def elements_ps(spec: DeviceSpec, num_elements: int, per_clock: float) -> int:
    """Return the time of a number of elements, of which each SM computes some in a clock."""
    hz = clock_hz(spec)
    return 0 if hz is None else ceil_ps(num_elements / (per_clock * spec.num_sms * hz))


def lists_ps(spec: DeviceSpec, name: str, memory_ps: int, tensors: Sequence[Operand]) -> int:
    """Return the time of an operator on lists of tensors, after its start.

    Args:
        spec: The device.
        name: The operator's.
        memory_ps: The time of its bytes.
        tensors: Those of its first list.
    """
    work_ps, tail_ps = memory_ps, _LISTS_TAIL_PS
    if name.startswith("_fused_adam"):
        num_elements = sum(prod(each.sizes) for each in tensors)
        work_ps = max(work_ps, elements_ps(spec, num_elements, _ADAM_PER_CLOCK))
        tail_ps = _ADAM_TAIL_PS
    num_launches = -(-num_chunks(tensors) // _CHUNKS_OF_LAUNCH)
    return work_ps + min(work_ps, num_launches * tail_ps)


def num_chunks(tensors: Sequence[Operand]) -> int:
    """Return the blocks of an operator on a list of tensors; at least 1."""
    return max(sum(-(-prod(each.sizes) // _CHUNK) for each in tensors), 1)


def reduction_ps(spec: DeviceSpec, num_bytes: int, share: float = 1.0) -> int:
    """Return the time of a reduction at a share of the memory's rate, after its start."""
    work_ps = transfer_ps(num_bytes, max(int(spec.memory_bandwidth_bytes_per_s * share), 1))
    return work_ps + min(work_ps, _SUM_TAIL_PS)


def times_read(name: str) -> float:
    """Return a kernel's number of reads of its inputs: 1, except for row normalizations."""
    base = name.partition(".")[0]
    is_norm = base.endswith(("_norm", "_norm_backward"))
    if not is_norm or "vector_norm" in base or base.startswith("_foreach_"):
        return 1.0
    if base.endswith("backward"):
        return _TIMES_READ["backward"]
    return _TIMES_READ["rms" if "rms" in base else "forward"]


def convolution_ps(spec: DeviceSpec, dtype: str, convolution: Convolution) -> int:
    """Return the arithmetic time of a convolution; 0 if its type has no peak rate."""
    generation = (compute_capability(spec.name) or (0, 0))[0]
    peak, rate = peak_flops(spec, dtype), _CONVOLUTION_RATE
    if convolution.is_tf32 and generation >= _FIRST_WITH_TF32:
        peak, rate = peak_flops(spec, "float16"), _TF32_CONVOLUTION_RATE
    return 0 if peak is None else ceil_ps(convolution.flops / (peak * rate))


# ---- Which kernel torch launches for operands as they lie in memory ----
# Pointwise, operands that all lie alike, and are of one type, are read and written as vectors,
# at the memory's rate. Broadcast, strided and converted ones go through a kernel that computes
# an offset for each element, and is limited by that.

_LAYOUT_COPIES = ("copy_", "_to_copy", "clone")  # Pointwise, though not all are tagged.
_ONLY_WRITTEN = ("copy_", "fill_", "zero_", "resize_", "_foreach_zero_", "_foreach_copy_",
                 "random_", "normal_", "uniform_", "bernoulli_", "exponential_", "cauchy_",
                 "log_normal_", "geometric_")  # fmt: skip
_PICKS = frozenset({"index", "index_select", "gather", "take", "embedding"})
_PUTS = frozenset({"index_put_", "_index_put_impl_", "index_add_", "index_copy_", "scatter_",
                   "scatter_add_", "scatter_reduce_"})  # fmt: skip
# Other operators whose kernels move their bytes, or that launch none.
_MOVED = frozenset({
    *(name.removesuffix("_") for name in (*_LAYOUT_COPIES, *_ONLY_WRITTEN, *_PUTS)), *_PICKS,
    "_chunk_cat", "_index_put_impl", "arange", "as_strided", "bernoulli", "cat", "constant_pad_nd",
    "empty",
    "embedding_dense_backward", "eye", "flip", "full", "linspace", "masked_fill",
    "native_dropout", "native_dropout_backward", "ones", "roll", "slice_backward", "stack",
    "select_backward", "tril", "triu", "zeros", "_local_scalar_dense", "_pin_memory",
    "_amp_foreach_non_finite_check_and_unscale", "_fused_sgd", "_fused_adagrad", "normal",
    "rand", "randint", "randn", "randperm", "set", "resize", "repeat", "lift_fresh",
})  # fmt: skip
_MOVES = frozenset(
    tag
    for name in ("pointwise", "reduction", "view_copy")
    if (tag := getattr(torch.Tag, name, None))
)
_BOOL = 11  # c10::ScalarType
_NO_TAGS: frozenset[object] = frozenset()


def is_reduction(operation: DeviceOperation) -> bool:
    """Return whether an operation uses torch's reduction kernel: sum, mean, argmax, ..."""
    return getattr(torch.Tag, "reduction", None) in _tags(operation.name)


def only_moves(operation: DeviceOperation) -> bool:
    """Return whether the cost of an operator is that of its bytes, or has a rule of its own."""
    base = base_name(operation.name)
    return (
        bool(_MOVES & _tags(operation.name))
        or base.startswith(("_foreach_", "_fused_adam"))
        or base.endswith(("_norm", "_norm_backward", "_copy", "_loss", "_loss_backward"))
        or base in _MOVED
        or base in _SOFTMAX_PASSES
        or base in _LOSS_TARGET
        or bool(operation.flags & _COPIES)
    )


def changes_in_place(name: str) -> bool:
    """Return whether an in-place operator reads its output first: `add_` does, `copy_` does not."""
    base = name.partition(".")[0]
    return base.endswith("_") and base not in _ONLY_WRITTEN


def picks(name: str) -> bool:
    """Return whether an operator reads its first operand by index, as `index_select` does."""
    return name.partition(".")[0] in _PICKS


def puts(name: str) -> bool:
    """Return whether an operator writes its first operand by index, as `index_put_` does."""
    return name.partition(".")[0] in _PUTS


def computes_offsets(operation: DeviceOperation) -> bool:
    """Return whether a pointwise operation needs the kernel that computes offsets.

    Source: torch's aten/src/ATen/native/cuda/CUDALoops.cuh and Shape.cu, 2.13.
    """
    operands = [*operation.inputs, *operation.outputs]
    base = operation.name.partition(".")[0]
    if base == "cat":
        return not all(map(_is_dense, operands))
    if not operands or not (base in _LAYOUT_COPIES or torch.Tag.pointwise in _tags(operation.name)):
        return False
    whole = max(operands, key=lambda operand: len(operand.sizes))
    if not all(_lie_alike(whole, operand) for operand in operands):
        return True
    return _converts(operands) and not (base in _LAYOUT_COPIES and _rounds(operands))


@lru_cache(maxsize=1024)
def _tags(name: str) -> frozenset[object]:
    """Return torch's tags of an operator; none for other libraries' operators."""
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
    return _NO_TAGS if operator is None else frozenset(operator.tags)


def _lie_alike(whole: Operand, operand: Operand) -> bool:
    """Return whether two operands share a dense layout."""
    return operand.sizes == whole.sizes and _steps(operand) == _steps(whole) and _is_dense(operand)


def _steps(operand: Operand) -> list[int]:
    """Return the strides of dimensions longer than 1."""
    pairs = zip(operand.sizes, operand.strides, strict=True)
    return [stride for size, stride in pairs if size != 1]


def _is_dense(operand: Operand) -> bool:
    """Return whether an operand fills a range of memory, in any order of dimensions."""
    step = 1
    for stride, size in sorted(zip(operand.strides, operand.sizes, strict=True)):
        if size == 1:
            continue
        if stride != step:
            return False
        step *= size
    return True


def _converts(operands: Sequence[Operand]) -> bool:
    """Return whether an operation converts between number types; masks do not count."""
    return len({operand.dtype for operand in operands} - {_BOOL}) > 1


def _rounds(operands: Sequence[Operand]) -> bool:
    """Return whether float32 is copied to half precision, which has a kernel with vectors.

    Source: torch's aten/src/ATen/native/cuda/Copy.cu, 2.13.
    """
    written = {each.dtype for each in operands if each.is_written}
    read = {each.dtype for each in operands if not each.is_written}
    return read == {_FLOAT32} and written < _HALF
