"""How long kernels take that torch launches and no table of products has: laws and their constants.

All numbers are of CUDA's kernels. What was measured on two generations, A100 and H100, stands for
others too (assumed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simrank.hardware.capability import clock_hz, compute_capability
from simrank.hardware.roofline import peak_flops
from simrank.units import ceil_ps, transfer_ps

if TYPE_CHECKING:
    from simrank.hardware.spec import DeviceSpec

# These three are fitted to what Liger-Kernel published of its baselines in plain torch: RMSNorm,
# LayerNorm and rotary embeddings, forward and backward, on A100 PCIe and H100 NVL (44 rows of
# benchmark/data/{a100,h100}_all_benchmark_data.csv, version 0.5.2); see ADR 0047.
_OFFSETS_PER_CLOCK = 1.38  # Elements of an SM, where each has its offset computed.
_REDUCTION_RATE = 0.5  # Of the memory's bandwidth, for sums and the like.
_TIMES_READ = {"forward": 2, "backward": 3}  # Rows of a normalisation: statistics come first.

# Of the peak in the type of the queries, forward and backward, by generation. Source: Dao,
# FlashAttention-2 (arXiv 2307.08691): up to 73 and 63 % on A100; Shah et al., FlashAttention-3
# (arXiv 2407.08608): version 2, which torch has, reaches 35 % on H100; triton-lang/triton#1975 and
# #2459. Other generations as H100 (assumed).
_FLASH_RATES = {8: (0.72, 0.65)}
_FLASH_RATES_ELSE = (0.38, 0.34)
_CAUSAL_EXTRA_KEYS = 512  # What uneven programs cost, as keys per query; fitted to the same two.
_EFFICIENT_PER_FLASH = 0.55  # xformers' kernels beside it, in the first of the two papers.
_ATTENTION_BLOCK = 128  # Queries of a program; assumed.
_BACKWARD_PRODUCTS = 2.5  # Five products of a block's scores, where the forward has two.

# Convolutions, of the peak of half precision: in it, and in float32, which rounds to TensorFloat-32
# from Ampere on (torch.backends.cudnn.allow_tf32, torch's default). Fitted to NVIDIA's ResNet-50 of
# DeepLearningExamples on one A100: 2,470 images/s in mixed precision, 938 in float32.
_CONVOLUTION_RATE, _TF32_CONVOLUTION_RATE = 0.5, 0.13
_FIRST_WITH_TF32 = 8


class Convolution(NamedTuple):
    """What a convolution computes.

    Attributes:
        flops: Its operations, of all gradients that it computes.
        is_single: Whether its numbers are float32.
    """

    flops: int
    is_single: bool


class Attention(NamedTuple):
    """What a fused attention computes.

    Attributes:
        num_heads: Over the whole batch.
        num_queries: Per head.
        num_keys: Per head.
        widths: Elements of a key and of a value together.
        is_causal: Whether no query sees keys that come after it.
        is_backward: Whether it computes gradients.
        is_flash: Which of torch's two kernels it is.
    """

    num_heads: int
    num_queries: int
    num_keys: int
    widths: int
    is_causal: bool
    is_backward: bool
    is_flash: bool


def offsets_ps(spec: DeviceSpec, num_elements: int) -> int:
    """Return how long a pointwise kernel takes to compute the offset of each element."""
    hz = clock_hz(spec)
    return 0 if hz is None else ceil_ps(num_elements / (_OFFSETS_PER_CLOCK * spec.num_sms * hz))


def reduction_ps(spec: DeviceSpec, num_bytes: int) -> int:
    """Return how long a reduction takes to read what it reduces."""
    return transfer_ps(num_bytes, int(spec.memory_bandwidth_bytes_per_s * _REDUCTION_RATE))


def times_read(name: str) -> int:
    """Return how often a kernel reads its inputs: once, but for normalisations over rows."""
    base = name.partition(".")[0]
    if not base.endswith(("_norm", "_norm_backward")) or "vector_norm" in base:
        return 1
    return _TIMES_READ["backward" if base.endswith("backward") else "forward"]


def attention_ps(spec: DeviceSpec, dtype: str, attention: Attention) -> int:
    """Return how long the arithmetic of a fused attention takes; 0 without a peak in its type."""
    peak = peak_flops(spec, dtype)
    if peak is None:
        return 0
    generation = (compute_capability(spec.name) or (0, 0))[0]
    rate = _FLASH_RATES.get(generation, _FLASH_RATES_ELSE)[attention.is_backward]
    if not attention.is_flash:
        rate *= _EFFICIENT_PER_FLASH
    blocks = -(-attention.num_queries // _ATTENTION_BLOCK) * attention.num_heads
    waves = -(-blocks // spec.num_sms)
    busy = blocks / (waves * spec.num_sms) if blocks else 1.0
    return ceil_ps(attention_flops(attention) / (peak * rate * busy))


def convolution_ps(spec: DeviceSpec, dtype: str, convolution: Convolution) -> int:
    """Return how long the arithmetic of a convolution takes; 0 without a peak in its type."""
    generation = (compute_capability(spec.name) or (0, 0))[0]
    peak, rate = peak_flops(spec, dtype), _CONVOLUTION_RATE
    if convolution.is_single and generation >= _FIRST_WITH_TF32:
        peak, rate = peak_flops(spec, "float16"), _TF32_CONVOLUTION_RATE
    return 0 if peak is None else ceil_ps(convolution.flops / (peak * rate))


def attention_flops(attention: Attention) -> float:
    """Return the operations that a fused attention takes the time of."""
    queries, keys = attention.num_queries, attention.num_keys
    pairs = queries * keys
    if attention.is_causal:
        square = min(queries, keys)
        seen = square * square // 2 + (queries - square) * keys
        pairs = min(pairs, seen + _CAUSAL_EXTRA_KEYS * queries)
    products = _BACKWARD_PRODUCTS if attention.is_backward else 1.0
    return 2.0 * products * attention.num_heads * pairs * attention.widths
