"""Fused attention: its shape, its operations and its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simrank.hardware.roofline import peak_flops
from simrank.hardware.spec import compute_capability
from simrank.torch.cuda.operations import OperationFlag
from simrank.units import ceil_ps

if TYPE_CHECKING:
    from simrank.hardware.spec import DeviceSpec
    from simrank.torch.cuda.operations import DeviceOperation

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
# Of the peak of eight bits, beside the share in half precision: FlashAttention-3 on H200, 28 rows
# of flashinfer-ai/flashinfer#3575 (benches/products_published.csv).
_EIGHT_BITS_HOPPER = 0.6
_EFFICIENT_PER_FLASH = 0.55  # xformers' kernels beside it, in the first of the two papers.
_ATTENTION_BLOCK = 128  # Queries of a program; assumed.
_FIRST_WITH_CLUSTERS = 9
_BACKWARD_PRODUCTS = 2.5  # Five products of a block's scores, where the forward has two.

_PACKED_DIMS = 3  # Tokens of all sequences, heads and width.
_INTEGERS = (3, 4)  # c10::ScalarType of offsets


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
        is_aligned_last: Whether the last query of a causal one sees all keys, as in FlashAttention;
            else the first sees one, as in torch's scaled_dot_product_attention.
    """

    num_heads: int
    num_queries: int
    num_keys: int
    widths: int
    is_causal: bool
    is_backward: bool
    is_flash: bool
    may_use_cudnn: bool = False
    is_aligned_last: bool = False


def attention_of(operation: DeviceOperation) -> Attention | None:
    """Return the shape of a fused attention, or None for other operations.

    Of sequences that are packed behind each other (`varlen`) the lengths are values, which are not
    known here: they are taken to be even. Uneven ones multiply more.
    """
    name = operation.name.partition(".")[0]
    if "_attention" not in name:
        return None
    dims = max((len(each.sizes) for each in operation.inputs), default=0)
    shaped = [each.sizes for each in operation.inputs if len(each.sizes) == dims]
    is_backward = name.endswith("_backward")
    tensors = shaped[1:4] if is_backward else shaped[:3]  # Of the output first the gradient.
    if len(tensors) < 3 or dims < _PACKED_DIMS:
        return None
    query, key, value = tensors
    offsets = [e.sizes[0] for e in operation.inputs if len(e.sizes) == 1 and e.dtype in _INTEGERS]
    if dims == _PACKED_DIMS:
        heads, length, batch = 1, 0, 1
    else:  # The kernels proper have heads after queries; those that dispatch to them, before.
        heads, length = (1, 2) if name.startswith("_scaled_dot_product") else (2, 1)
        batch = query[0]
    num = offsets[0] - 1 if offsets and batch == 1 and offsets[0] > 1 else 1
    return Attention(
        num_heads=batch * num * query[heads],
        num_queries=-(-query[length] // num),
        num_keys=-(-key[length] // num),
        widths=query[-1] + value[-1],
        is_causal=bool(operation.flags & OperationFlag.CAUSAL),
        is_backward=is_backward,
        is_flash="efficient" not in name,
        may_use_cudnn=bool(operation.flags & OperationFlag.CUDNN),
        is_aligned_last=name.startswith("_flash_attention"),
    )


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
    if dtype.startswith("float8") and capability[0] == _FIRST_WITH_CLUSTERS:
        rate *= _EIGHT_BITS_HOPPER
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
        before = (keys if attention.is_aligned_last else queries) - square  # All see these.
        seen = square * square // 2 + before * square
        pairs = min(pairs, seen + extra_keys * queries)
    else:
        pairs += extra_keys * queries
    products = _BACKWARD_PRODUCTS if attention.is_backward else 1.0
    return 2.0 * products * attention.num_heads * pairs * attention.widths


def model_flops(attention: Attention) -> float:
    """Return the FLOPs that the model needs: a backward kernel computes the scores once more."""
    share = 2 / _BACKWARD_PRODUCTS if attention.is_backward else 1.0
    return attention_flops(attention) * share
