"""Costs of torch's operations on simulated devices, by kind of kernel."""

from __future__ import annotations

from functools import lru_cache
from math import expm1, log1p, log2, prod
from typing import TYPE_CHECKING, NamedTuple

import torch

from simrank.hardware.capability import clock_hz, compute_capability
from simrank.hardware.roofline import kernel_ps, peak_flops, started_ps
from simrank.torch.cuda.operations import OperationFlag
from simrank.units import PS_PER_US, ceil_ps, transfer_ps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.hardware.spec import DeviceSpec, Product
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
    """The cost of an operation.

    Attributes:
        duration_ps: On a device that it has to itself, in picoseconds.
        bytes_moved: Read and written in the device's memory.
        num_elements: What it computes.
    """

    duration_ps: int
    bytes_moved: int
    num_elements: int


def cost_of(spec: DeviceSpec, operation: Operation) -> Cost:
    """Return the cost of an operation: kernel start plus the longer of arithmetic and memory.

    Matrix products take what tables or a rule say; convolutions and fused attention are counted as
    such, everything else as one operation per element. Every operand is read or written once, and
    what is changed in place both, but for kernels that read again. A copy from or to the host takes
    the link.

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
    product = _product(operation)
    if product is not None:
        flops, dtype = 2 * prod(product), _dtype(operation)
        duration_ps = kernel_ps(spec, flops, dtype, num_bytes, product)
    else:
        duration_ps = started_ps(_work_ps(spec, operation, num_bytes, num_elements))
    return Cost(duration_ps, num_bytes, num_elements)


def _work_ps(spec: DeviceSpec, operation: Operation, num_bytes: int, num_elements: int) -> int:
    """Return the time of a kernel other than a product, after its start."""
    memory_ps = transfer_ps(num_bytes, spec.memory_bandwidth_bytes_per_s)
    dtype, attention = _dtype(operation), _attention(operation)
    if attention is not None:
        return max(memory_ps, attention_ps(spec, dtype, attention))
    rows = _softmax_rows(operation)
    if rows is not None:
        passes = softmax_passes(spec, operation.name, rows.row_bytes)
        return transfer_ps(passes * rows.num_bytes, spec.memory_bandwidth_bytes_per_s)
    if is_reduction(operation):
        return reduction_ps(spec, num_bytes)
    memory_ps += loss_ps(_loss_reads(operation), is_backward="backward" in operation.name)
    memory_ps += sorted_sums_ps(*_sorted_indices(operation))
    if computes_offsets(operation):
        return max(memory_ps, offsets_ps(spec, num_elements))
    convolution = _convolution(operation)
    if convolution is not None:
        return max(memory_ps, convolution_ps(spec, dtype, convolution))
    peak = peak_flops(spec, dtype)
    return max(memory_ps, 0 if peak is None else transfer_ps(num_elements, peak))


def _dtype(operation: Operation) -> str:
    """Return the name of the first operand's type, in which the operation computes."""
    first = next(iter((*operation.inputs, *operation.outputs)), None)
    return "float32" if first is None else DTYPES.get(first.dtype, _UNKNOWN)[0]


def _bytes_moved(operation: Operation) -> int:
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
    return times * read + sum(size for each, size in inputs if each.is_written) + made


def _attention(operation: Operation) -> Attention | None:
    """Return the shape of a fused attention, or None for other operations."""
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
        may_use_cudnn=bool(operation.flags & OperationFlag.CUDNN),
    )


def _softmax_rows(operation: Operation) -> SoftmaxRows | None:
    """Return the rows of a softmax, or None for other operations."""
    if operation.name.partition(".")[0] not in _SOFTMAX_PASSES:
        return None
    rows = operation.outputs[0] if operation.outputs else operation.inputs[0]
    num_bytes = _bytes(rows)
    width = rows.sizes[-1] if rows.sizes else 1
    return SoftmaxRows(num_bytes, num_bytes * width // max(prod(rows.sizes), 1))


def _is_loss(name: str) -> bool:
    """Return whether an operator is a negative log likelihood."""
    return name.partition(".")[0] in _LOSS_TARGET


def _loss_reads(operation: Operation) -> int:
    """Return the rows that one block of a loss reads; 0 for other operations."""
    if not _is_loss(operation.name):
        return 0
    target = operation.inputs[_LOSS_TARGET[operation.name.partition(".")[0]]]
    scalar = operation.inputs[0] if "backward" in operation.name else operation.outputs[0]
    return prod(target.sizes) if prod(scalar.sizes) == 1 else 0


def _sorted_indices(operation: Operation) -> tuple[int, int]:
    """Return the indices of an embedding's gradient and the rows of its weight; else no indices."""
    if operation.name.partition(".")[0] != "embedding_dense_backward":
        return 0, 1
    return prod(operation.inputs[1].sizes), operation.outputs[0].sizes[0]


def _bytes(operand: Operand) -> int:
    """Return the bytes of an operand; an expanded dimension counts once."""
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
    # A weight's first dimension is that of the result's channels, or transposed the source's.
    places = result if weight[0] == result[1] else source
    gradients = sum(len(each.sizes) > 2 for each in operation.outputs)
    return Convolution(
        2 * prod(places) * prod(weight[1:]) * (gradients if is_backward else 1),
        is_single=operation.inputs[0].dtype == _FLOAT32,
    )


# ---- How long kernels take that torch launches and no table of products has ----
# All numbers are of CUDA's kernels. What was measured on two generations, A100 and H100, stands
# for others too (assumed).

# These three are fitted to what Liger-Kernel published of its baselines in plain torch: RMSNorm,
# LayerNorm and rotary embeddings, forward and backward, on A100 PCIe and H100 NVL (44 rows of
# benchmark/data/{a100,h100}_all_benchmark_data.csv, version 0.5.2); see ADR 0047.
_OFFSETS_PER_CLOCK = 1.38  # Elements of an SM, where each has its offset computed.
_REDUCTION_RATE = 0.5  # Of the memory's bandwidth, for sums and the like.
_TIMES_READ = {"forward": 2, "backward": 3}  # Rows of a normalisation: statistics come first.

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
_DEFAULT_L2_BYTES = 50 << 20

# The mean of nll_loss is one block's: threads take a row each, read its target, then its element.
# Source: aten/src/ATen/native/cuda/Loss.cu. The latency of a read is fitted to the part of
# Liger-Kernel's cross-entropy that does not grow with the vocabulary: 0.56 ms for 16,384 rows by 32
# threads, as torch had them then, forward on A100 and H100; 0.29 and 0.33 ms backward.
_LOSS_TARGET = {"nll_loss_forward": 1, "nll_loss_backward": 2}  # -> Input with the targets.
_READ_US = 0.55
_FEWEST_LOSS_THREADS, _MOST_LOSS_THREADS, _ROWS_OF_LOSS_THREAD = 32, 1024, 16

# Gradients of an embedding: above 3,072 indices torch sorts them, finds where each begins, and
# sums the rows of each (aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu). Both
# times are fitted to three rows of Liger-Kernel 0.2.1 on A100 SXM: 16,384 indices, 4k to 131k rows.
_MOST_UNSORTED = 3072
_SORT_US, _SUM_US = 214.0, 0.0234  # Of all indices; of each one that is there.

# Share of the peak in the type of the queries, forward and backward, by width of a head. torch 2.13
# takes cuDNN's kernels on compute capability 9.0, 10.0 and 10.3 where it has cuDNN 9.15 (its wheels
# do) and FlashAttention-2 elsewhere (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
# H100: Shah et al., FlashAttention-3 (arXiv 2407.08608), figures 5 and 6, at 16k keys; 2.13's cuDNN
# is newer, by an unknown amount. A100: Dao, FlashAttention-2 (arXiv 2307.08691), up to 73 and 63 %.
# Blackwell: Zadouri et al., FlashAttention-4, measured 1613 TFLOPS on B200, 1.3 times cuDNN 9.13;
# its other shares are H100's times the ratio of the two (assumed).
_CUDNN_CAPABILITIES = ((9, 0), (10, 0), (10, 3))
_RATES = {
    ("cudnn", 9): {64: (0.417, 0.44), 128: (0.63, 0.535), 256: (0.59, 0.5)},
    ("cudnn", 10): {64: (0.36, 0.38), 128: (0.551, 0.46), 256: (0.51, 0.43)},
    ("flash", 8): {64: (0.72, 0.65), 128: (0.72, 0.65), 256: (0.72, 0.65)},
    ("flash", 9): {64: (0.345, 0.315), 128: (0.39, 0.34), 256: (0.34, 0.31)},
}
# Starts and uneven programs, as keys per query: of causal kernels fitted to A100's paper; of Hopper
# and later to the third one's figures from 512 tokens on: without a mask, causal, and backward.
_CAUSAL_EXTRA_KEYS = 512
_FULL_EXTRA_HOPPER, _CAUSAL_EXTRA_HOPPER, _BACKWARD_EXTRA_HOPPER = 90, 256, 290
_EFFICIENT_PER_FLASH = 0.55  # xformers' kernels beside it, in the first of the two papers.
_ATTENTION_BLOCK = 128  # Queries of a program; assumed.
_FIRST_WITH_CLUSTERS = 9
_BACKWARD_PRODUCTS = 2.5  # Five products of a block's scores, where the forward has two.

# Convolutions, of the peak of half precision: in it, and in float32, which rounds to TensorFloat-32
# from Ampere on (torch.backends.cudnn.allow_tf32, torch's default). Fitted to NVIDIA's ResNet-50 of
# DeepLearningExamples on one A100: 2,470 images/s in mixed precision, 938 in float32.
_CONVOLUTION_RATE, _TF32_CONVOLUTION_RATE = 0.5, 0.13
_FIRST_WITH_TF32 = 8


class Convolution(NamedTuple):
    """The shape of a convolution.

    Attributes:
        flops: Its operations, of all gradients that it computes.
        is_single: Whether its numbers are float32.
    """

    flops: int
    is_single: bool


class Attention(NamedTuple):
    """The shape of a fused attention.

    Attributes:
        num_heads: Over the whole batch.
        num_queries: Per head.
        num_keys: Per head.
        widths: Elements of a key and of a value together.
        is_causal: Whether no query sees keys that come after it.
        is_backward: Whether it computes gradients.
        is_flash: Whether torch takes a fused kernel for half precision without a mask.
        may_use_cudnn: Whether the program has left cuDNN's kernels enabled.
    """

    num_heads: int
    num_queries: int
    num_keys: int
    widths: int
    is_causal: bool
    is_backward: bool
    is_flash: bool
    may_use_cudnn: bool = False


class SoftmaxRows(NamedTuple):
    """The rows of a softmax.

    Attributes:
        num_bytes: Of all rows.
        row_bytes: Of one.
    """

    num_bytes: int
    row_bytes: int


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


def sorted_sums_ps(num_indices: int, num_rows: int) -> int:
    """Return the time of the sort and the sums of an embedding's gradient, besides its bytes.

    Indices are taken to be uniform: of `num_rows` some are not among them.
    """
    if num_indices <= _MOST_UNSORTED:
        return 0
    num_distinct = -num_rows * expm1(num_indices * log1p(-1 / num_rows)) if num_rows > 1 else 1.0
    return int((_SORT_US + _SUM_US * num_distinct) * PS_PER_US)


def offsets_ps(spec: DeviceSpec, num_elements: int) -> int:
    """Return the time in which a pointwise kernel computes the offsets of its elements."""
    hz = clock_hz(spec)
    return 0 if hz is None else ceil_ps(num_elements / (_OFFSETS_PER_CLOCK * spec.num_sms * hz))


def reduction_ps(spec: DeviceSpec, num_bytes: int) -> int:
    """Return the time in which a reduction reads its inputs."""
    return transfer_ps(num_bytes, int(spec.memory_bandwidth_bytes_per_s * _REDUCTION_RATE))


def times_read(name: str) -> int:
    """Return a kernel's number of reads of its inputs: 1, except for row normalizations."""
    base = name.partition(".")[0]
    if not base.endswith(("_norm", "_norm_backward")) or "vector_norm" in base:
        return 1
    return _TIMES_READ["backward" if base.endswith("backward") else "forward"]


def attention_ps(spec: DeviceSpec, dtype: str, attention: Attention) -> int:
    """Return the arithmetic time of a fused attention; 0 if its type has no peak rate."""
    peak = peak_flops(spec, dtype)
    if peak is None:
        return 0
    capability = compute_capability(spec.name) or (0, 0)
    kernel = sdpa_kernel(spec, attention)
    family = "cudnn" if kernel == "cudnn" else "flash"
    known = _RATES.get((family, capability[0]), _RATES["flash", 9])
    width = min(known, key=lambda each: abs(each - attention.widths / 2))
    rate = known[width][attention.is_backward]
    if kernel == "efficient":
        rate *= _EFFICIENT_PER_FLASH
    blocks = -(-attention.num_queries // _ATTENTION_BLOCK) * attention.num_heads
    waves = -(-blocks // spec.num_sms)
    busy = blocks / (waves * spec.num_sms) if blocks else 1.0
    extra_keys = _extra_keys(attention, is_new=capability[0] >= _FIRST_WITH_CLUSTERS)
    return ceil_ps(attention_flops(attention, extra_keys) / (peak * rate * busy))


def _extra_keys(attention: Attention, *, is_new: bool) -> int:
    """Return the keys per query that starts and uneven programs cost."""
    if not is_new:
        return _CAUSAL_EXTRA_KEYS if attention.is_causal else 0
    if attention.is_backward:
        return _BACKWARD_EXTRA_HOPPER
    return _CAUSAL_EXTRA_HOPPER if attention.is_causal else _FULL_EXTRA_HOPPER


def sdpa_kernel(spec: DeviceSpec, attention: Attention) -> str:
    """Return the kernel of torch's scaled_dot_product_attention: cudnn, flash or efficient."""
    if not attention.is_flash:
        return "efficient"
    has_cudnn = compute_capability(spec.name) in _CUDNN_CAPABILITIES
    return "cudnn" if has_cudnn and attention.may_use_cudnn else "flash"


def convolution_ps(spec: DeviceSpec, dtype: str, convolution: Convolution) -> int:
    """Return the arithmetic time of a convolution; 0 if its type has no peak rate."""
    generation = (compute_capability(spec.name) or (0, 0))[0]
    peak, rate = peak_flops(spec, dtype), _CONVOLUTION_RATE
    if convolution.is_single and generation >= _FIRST_WITH_TF32:
        peak, rate = peak_flops(spec, "float16"), _TF32_CONVOLUTION_RATE
    return 0 if peak is None else ceil_ps(convolution.flops / (peak * rate))


def attention_flops(attention: Attention, extra_keys: int = 0) -> float:
    """Return the FLOPs of a fused attention.

    Args:
        attention: Its shape.
        extra_keys: Keys per query that starts and uneven programs cost; a causal kernel with them
            takes no longer than one without a mask.
    """
    queries, keys = attention.num_queries, attention.num_keys
    pairs = queries * keys
    if attention.is_causal:
        square = min(queries, keys)
        seen = square * square // 2 + (queries - square) * keys
        pairs = min(pairs, seen + extra_keys * queries)
    else:
        pairs += extra_keys * queries
    products = _BACKWARD_PRODUCTS if attention.is_backward else 1.0
    return 2.0 * products * attention.num_heads * pairs * attention.widths


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
_BOOL = 11  # c10::ScalarType
_NO_TAGS: frozenset[object] = frozenset()


def is_reduction(operation: Operation) -> bool:
    """Return whether an operation uses torch's reduction kernel: sum, mean, argmax, ..."""
    return getattr(torch.Tag, "reduction", None) in _tags(operation.name)


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


def computes_offsets(operation: Operation) -> bool:
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
    return not all(_lie_alike(whole, operand) for operand in operands) or _converts(operands)


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
