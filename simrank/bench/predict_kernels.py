"""`simrank.predict_gemm`: times of single kernels on a cluster's device, with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

import numpy as np

from simrank.config.quantity import choice_text, hint
from simrank.errors import UnsupportedError
from simrank.hardware import load_cluster
from simrank.hardware.attention import (
    PHASES,
    attention_class,
    attention_us,
    least_read_us,
    read_attention_fits,
    read_attention_widths,
    residual_log,
)
from simrank.hardware.gemm_model import NO_RELATIVE, OWN, SIBLING, product_model
from simrank.hardware.gemm_rows import ANY, measured_devices
from simrank.hardware.spec import START_US

if TYPE_CHECKING:
    from simrank.config.load import ClusterRef
    from simrank.hardware.gemm_model import ProductModel
    from simrank.hardware.spec import DeviceSpec

# What a caller writes -> the kind of product.
GEMM_DTYPES = {
    "bfloat16": "bfloat16",
    "float16": "bfloat16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
}
_MAX_EXTENT = 1 << 31


@dataclass(frozen=True, slots=True)
class KernelPrediction:
    """The predicted time of one kernel.

    Attributes:
        time_us: Time in a CUDA graph, one kernel after the other, in microseconds.
        low_us: Lower end of the 90% prediction interval.
        high_us: Upper end of it.
        tflops: Rate at `time_us`, in 10^12 operations per second.
        launch_us: Start of a kernel that is launched alone, in addition to `time_us`.
        basis: `own`: measured rows of the device; `sibling`: those of a device of its architecture,
            scaled by peaks and bandwidths; `no relative`: a rule alone.
        source: The measured rows, or the constants of the rule, in words.
    """

    time_us: float
    low_us: float
    high_us: float
    tflops: float
    launch_us: float
    basis: str
    source: str


def predict_gemm(
    cluster: ClusterRef,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    dtype: str = "bfloat16",
) -> KernelPrediction:
    """Predict the time of a library's matrix product, m x k by k x n.

    It is the time in a CUDA graph at boost clock, the weights of a few layers in turn. fp8 and
    nvfp4 include quantising the bfloat16 activations, as in serving; results are bfloat16.

    Args:
        cluster: A built-in name, a file, a mapping or a configuration.
        m: Rows of the activations (tokens).
        n: Columns of the weights.
        k: Length of the sums.
        batch: Products in one kernel. The rows that were measured have one, but for MI355X.
        dtype: bfloat16, float16, float8_e4m3fn or float8_e5m2 (one scale per tensor), fp8_block
            (DeepSeek's scales per block of 128) or nvfp4.

    Raises:
        ValueError: A size is not a whole number above 0, or the dtype is unknown.
        UnsupportedError: The device does not compute products of this dtype.
        ConfigError: The cluster is wrong.
    """
    if dtype not in GEMM_DTYPES:
        raise ValueError(_unknown("dtype", dtype, tuple(GEMM_DTYPES)))
    for name, value in (("m", m), ("n", n), ("k", k), ("batch", batch)):
        check_extent(name, value)
    kind = GEMM_DTYPES[dtype]
    spec = load_cluster(cluster).device
    model = product_model(spec, kind)
    if model is None:
        raise UnsupportedError(
            f"products of {dtype} on {spec.name}: the device has no such units, or no peak for them"
            f"\n  to fix: take another dtype, or state the peak in device.peak_flops"
        )
    least_us = 2.0 * batch * m * n * k / model.machine.peak_flops * 1e6
    time_us = max(model.time_us((batch, m, n, k)), least_us)
    width = model.half_width((batch, m, n, k))
    return KernelPrediction(
        time_us,
        max(time_us * exp(-width), least_us),
        time_us * exp(width),
        2.0 * batch * m * n * k / time_us / 1e6,
        START_US,
        model.relation,
        _words(spec, model),
    )


def predict_attention(  # noqa: PLR0913 - the shape of an attention
    cluster: ClusterRef,
    heads: int,
    head_dim: int,
    length: int,
    batch: int = 1,
    *,
    kv_heads: int | None = None,
    phase: str = "prefill",
) -> KernelPrediction:
    """Predict the time of a serving framework's attention kernel, in bfloat16.

    It is the time in a CUDA graph of the fastest of FlashAttention-2 and -3, FlashInfer and
    TensorRT-LLM; torch's own SDPA differs, and simulated programs are charged for that.

    Args:
        cluster: A built-in name, a file, a mapping or a configuration.
        heads: Heads of queries.
        head_dim: Width of a head.
        length: Tokens of each sequence; of its keys for decode.
        batch: Sequences.
        kv_heads: Heads of keys and values; None: as many as of queries.
        phase: prefill (causal, writes the KV cache), full (no mask) or decode (one query).

    Raises:
        ValueError: A size is not a whole number above 0, or `phase` is unknown.
        UnsupportedError: No attention was measured on the device or one of its architecture.
        ConfigError: The cluster is wrong.
    """
    if phase not in PHASES:
        raise ValueError(_unknown("phase", phase, PHASES))
    kv_heads = heads if kv_heads is None else kv_heads
    numbers = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    for name, value in {**numbers, "length": length, "batch": batch}.items():
        check_extent(name, value)
    if heads % kv_heads:
        raise ValueError(f"kv_heads={kv_heads}: expected a divisor of heads={heads}")
    spec = load_cluster(cluster).device
    model = product_model(spec, "bfloat16")
    if model is None or (phase, model.basis) not in read_attention_fits():
        known = sorted(device for its, device in read_attention_fits() if its == phase)
        raise UnsupportedError(
            f"{phase} attention on {spec.name}: none was measured on a device of its architecture\n"
            f"  to fix: name one in device.measured_as: {choice_text(known)}"
        )
    shape = np.array([heads, kv_heads, head_dim, length, batch], dtype=np.float64)
    constants = read_attention_fits()[phase, model.basis]
    time_us = float(attention_us(model.machine, shape[None], phase, constants)[0])
    if model.donor is not None:
        measured = measured_devices()[model.donor].machine
        log = residual_log(phase, model.donor, measured, shape, model.machine.num_sms)
        time_us *= exp(log)
    device = model.basis if model.relation == OWN else ANY
    widths = read_attention_widths()
    by_class = widths.get((phase, model.relation, device), widths[phase, NO_RELATIVE, ANY])
    width = by_class.get(int(attention_class(shape[None], phase)[0]), max(by_class.values()))
    pairs = float(length) * (1 if phase == "decode" else length / (2 if phase == "prefill" else 1))
    flops = 4.0 * heads * batch * head_dim * pairs
    least_us = max(flops / model.machine.peak_flops * 1e6, least_read_us(model.machine, shape))
    time_us = max(time_us, least_us)
    return KernelPrediction(
        time_us,
        max(time_us * exp(-width), least_us),
        time_us * exp(width),
        flops / time_us / 1e6,
        START_US,
        model.relation,
        f"measured {phase} attention on {model.basis}, {model.relation}",
    )


def check_extent(name: str, value: object) -> None:
    """Check a size of a kernel.

    Raises:
        ValueError: It is not a whole number from 1 to 2^31.
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or not 1 <= value <= _MAX_EXTENT:  # type: ignore[operator]
        raise ValueError(f"{name}={value!r}: expected a whole number from 1 to 2^31")


def _unknown(name: str, given: object, known: tuple[str, ...]) -> str:
    text = f"{name}={given!r}: expected {choice_text(known)}"
    to_fix = hint(str(given), known)
    return text if to_fix is None else f"{text}\n  to fix: {to_fix}"


def _words(spec: DeviceSpec, model: ProductModel) -> str:
    """Return the source of a prediction in words."""
    of = f"products of {model.kind}"
    if model.relation == OWN:
        return f"measured {of} on {model.basis}"
    if model.relation == SIBLING:
        return f"measured {of} on {model.basis}, scaled to the peak and the memory of {spec.name}"
    if model.donor is not None:
        return f"measured {of} on {model.basis}, of another architecture than {spec.name}"
    devices = "all measured devices" if model.basis == ANY else model.basis
    return f"a rule with constants of {devices}; nothing was measured on {spec.name} or a sibling"
