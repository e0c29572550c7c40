"""`simrank.predict_gemm`: times of single kernels on a cluster's device, with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

from simrank.config.quantity import choice_text, hint
from simrank.errors import UnsupportedError
from simrank.hardware import load_cluster
from simrank.hardware.gemm_model import OWN, SIBLING, product_model
from simrank.hardware.gemm_rows import ANY
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
    time_us = model.time_us((batch, m, n, k))
    width = model.half_width((batch, m, n, k))
    return KernelPrediction(
        time_us,
        time_us * exp(-width),
        time_us * exp(width),
        2.0 * batch * m * n * k / time_us / 1e6,
        START_US,
        model.relation,
        _words(spec, model),
    )


def check_extent(name: str, value: object) -> None:
    """Check a size of a kernel.

    Raises:
        ValueError: It is not a whole number from 1 to 2^31.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
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
