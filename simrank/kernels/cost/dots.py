"""How long dots take: not every shape reaches what the tensor cores can (rule K4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.hardware.capability import clock_hz, compute_capability
from simrank.hardware.roofline import peak_flops
from simrank.units import ceil_ps

if TYPE_CHECKING:
    from simrank.hardware.spec import DeviceSpec
    from simrank.kernels.machine import Dot, Statistics

# Assumed: what Triton's dots reach of the data sheet's rate, which clocks under load and the ends
# of loops do not allow; fitted to `benches/kernels_published.py`, on A100 and H100 alike.
_EFFICIENCY = 0.72
# Bytes that shared memory delivers in one clock of an SM. Source: CUDA C++ Programming Guide, per
# compute capability: 32 banks of four bytes.
_SHARED_BYTES_PER_CLOCK = 128
# Four warps of Hopper multiply 64 rows together, and take both matrices from shared memory, 128
# bytes a clock. Source: PTX ISA, "wgmma.mma_async"; NVIDIA, "H100 Tensor Core GPU Architecture".
_HOPPER = (9, 0)
_ROWS_TOGETHER, _WARPS_TOGETHER = 64, 4
# What is left of the rate where warps multiply by themselves there. Source: Luo et al.,
# "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024.
_OF_WARPS_ALONE = 0.629
# Lanes that load or store in one clock of an SM. Source: CUDA C++ Programming Guide, per compute
# capability.
_LANES_PER_CLOCK = 32
_THREADS = 32

PEAK_NAMES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",
    "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "int8": "int8", "uint8": "int8",
}  # fmt: skip


def dots_ps(spec: DeviceSpec, dot: Dot, num_flops: int, num_warps: int) -> int:
    """Return how long the whole device takes for operations of dots.

    Args:
        spec: The device.
        dot: Their type and shape.
        num_flops: How many.
        num_warps: Warps of a program.
    """
    peak = peak_flops(spec, PEAK_NAMES.get(dot.element, "float32"))
    if peak is None:
        return 0
    return ceil_ps(num_flops / (peak * _share_of_peak(spec, dot, num_warps)))


def operands_ps(spec: DeviceSpec, read_bytes: float) -> int:
    """Return how long the whole device takes to read operands of dots from shared memory."""
    hz = clock_hz(spec)
    if hz is None or compute_capability(spec.name) == _HOPPER:
        return 0
    return ceil_ps(read_bytes / (_SHARED_BYTES_PER_CLOCK * spec.num_sms * hz))


def _share_of_peak(spec: DeviceSpec, dot: Dot, num_warps: int) -> float:
    """Return what dots of a shape reach of the device's rate."""
    if compute_capability(spec.name) != _HOPPER:
        return _EFFICIENCY
    if dot.rows < _ROWS_TOGETHER or num_warps % _WARPS_TOGETHER:
        return _EFFICIENCY * _OF_WARPS_ALONE
    # For 16 of the inner dim, in clocks: columns / 2 to multiply, 16 + columns / 4 to read.
    return min(_EFFICIENCY, dot.columns / 2 / (16 + dot.columns / 4))


def spilled_ps(statistics: Statistics, spec: DeviceSpec, num_warps: int, num_spilled: int) -> int:
    """Return how long a device takes to move registers that threads keep in memory.

    Assumed: each is written and read once in each step of a loop, which has one dot of each shape.

    Args:
        statistics: What a launch did.
        spec: The device.
        num_warps: Warps of a program.
        num_spilled: Registers of a thread that are in memory.
    """
    hz = clock_hz(spec)
    if not num_spilled or hz is None:
        return 0
    num_steps = max((n / dot.num_flops for dot, n in statistics.flops.items()), default=0)
    lanes = 2 * num_spilled * num_warps * _THREADS * num_steps
    return ceil_ps(lanes / (_LANES_PER_CLOCK * spec.num_sms * hz))
