"""Generation and clock of an NVIDIA GPU, derived from its facts in a cluster."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simrank.hardware.spec import DeviceSpec

# By a part of the device's name. Source: developer.nvidia.com/cuda-gpus.
_CAPABILITIES = (
    ("V100", (7, 0)),
    ("A100", (8, 0)),
    ("A30", (8, 0)),
    ("A10", (8, 6)),
    ("A40", (8, 6)),
    ("L4", (8, 9)),
    ("RTX 4090", (8, 9)),
    ("H20", (9, 0)),
    ("H100", (9, 0)),
    ("B200", (10, 0)),
    ("B300", (10, 3)),
    ("RTX PRO", (12, 0)),
    ("RTX 5090", (12, 0)),
)


@cache
def compute_capability(name: str) -> tuple[int, int] | None:
    """Return the compute capability of a device; None where its name says nothing of it."""
    return next((found for part, found in _CAPABILITIES if part in name.upper()), None)


def clock_hz(spec: DeviceSpec) -> float | None:
    """Return the clock at which a device reaches its FP32 rate; None where it has none."""
    fused_per_s = spec.peak_flops.get("float32", spec.peak_flops.get("float64"))
    return None if fused_per_s is None else fused_per_s / (2 * spec.fp32_lanes * spec.num_sms)
