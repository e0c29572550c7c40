"""Times of kernels alone on a device: the roofline, above a floor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.hardware.gemm import gemm_ps
from simrank.hardware.gemm_rule import predicted_ps
from simrank.units import PS_PER_US, transfer_ps

if TYPE_CHECKING:
    from simrank.hardware.spec import DeviceSpec


# Fitted to what Liger-Kernel published of plain torch on A100 and H100, see ADR 0047; its Triton
# kernels start as slowly there.
_START_PS = round(2.35 * PS_PER_US)

# (batch, m, n, k): `batch` products of an m x k by a k x n matrix.
Product = tuple[int, int, int, int]


def kernel_ps(
    spec: DeviceSpec, flops: int, dtype: str, bytes_moved: int, product: Product | None = None
) -> int:
    """Return the time of one kernel, in picoseconds, rounded up.

    Args:
        spec: The device.
        flops: Operations of the kernel.
        dtype: Name of the dtype they are done in.
        bytes_moved: Bytes it reads and writes in the device's memory.
        product: The shape of a library's matrix product; its arithmetic takes the measured time
            where the device has a table of them, else what a rule carries over from others.

    Returns:
        The longest of its arithmetic, its memory traffic and the device's floor. Arithmetic of
        a dtype without a peak of its own runs at the peak of the next wider one that has one,
        or without cost where there is none.

    Raises:
        ValueError: `flops` or `bytes_moved` is negative.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; the floor is measured.
    """
    if flops < 0 or bytes_moved < 0:
        raise ValueError(f"a kernel has no negative work: {flops} flops, {bytes_moved} bytes")
    memory_ps = transfer_ps(bytes_moved, spec.memory_bandwidth_bytes_per_s)
    arithmetic_ps = None
    if product is not None and spec.gemm_table is not None:
        arithmetic_ps = gemm_ps(spec.gemm_table, dtype, *product)
    elif product is not None:
        arithmetic_ps = predicted_ps(spec, dtype, product)
    if arithmetic_ps is None:
        peak = peak_flops(spec, dtype)
        arithmetic_ps = 0 if peak is None else transfer_ps(flops, peak)
    return max(spec.kernel_floor_ps, memory_ps, arithmetic_ps)


def started_ps(work_ps: int) -> int:
    """Return the time of a kernel from its launch, given the time of its work.

    It takes 2.35 us until it is under way, and works at half its rate for as long again.
    """
    return _START_PS + work_ps + min(work_ps, _START_PS)


def peak_flops(spec: DeviceSpec, dtype: str) -> int | None:
    """Return the operations per second that a device reaches in a dtype.

    Args:
        spec: The device.
        dtype: Name of the dtype.

    Returns:
        Its peak, else that of the next wider dtype with one (float8 runs as float16, integers
        as float32), or None where the device states none of them.
    """
    for name in (dtype, *_WIDER.get(dtype, ("float32", "float64"))):
        if name in spec.peak_flops:
            return spec.peak_flops[name]
    return None


_WIDER = {
    "float8_e4m3fn": ("float8_e5m2", "float16", "bfloat16", "float32"),
    "float8_e5m2": ("float8_e4m3fn", "float16", "bfloat16", "float32"),
    "float16": ("bfloat16", "float32"),
    "bfloat16": ("float16", "float32"),
    "float32": ("float64",),
    "float64": (),
    "uint8": ("int8", "float32"),
}
