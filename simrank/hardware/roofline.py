"""Times of kernels alone on a device: the roofline, above a floor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.hardware.spec import QUEUED_START_US, START_US
from simrank.units import PS_PER_US, transfer_ps

if TYPE_CHECKING:
    from simrank.hardware.spec import DeviceSpec, Product


_START_PS = round(START_US * PS_PER_US)
QUEUED_START_PS = round(QUEUED_START_US * PS_PER_US)
# What the time of a kernel rests on, if on less than that of others.
BY_BYTES = "bytes alone"  # It may compute more.
GROUPED = "grouped products"  # Those of a batch of even sizes, times a factor that is assumed.


def kernel_ps(
    spec: DeviceSpec, flops: int, dtype: str, bytes_moved: int, product: Product | None = None
) -> int:
    """Return the time of one kernel, in picoseconds, rounded up.

    Args:
        spec: The device.
        flops: Operations of the kernel.
        dtype: Name of the dtype they are done in.
        bytes_moved: Bytes it reads and writes in the device's memory.
        product: The shape of a library's matrix product, which takes the time of
            `library_product_ps`.

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
    arithmetic_ps = None if product is None else library_product_ps(spec, dtype, product)
    if arithmetic_ps is None:
        peak = peak_flops(spec, dtype)
        arithmetic_ps = 0 if peak is None else transfer_ps(flops, peak)
    return max(spec.kernel_floor_ps, memory_ps, arithmetic_ps)


def library_product_ps(spec: DeviceSpec, dtype: str, product: Product) -> int | None:
    """Return the time of a library's product that is launched alone, in picoseconds.

    It is the time of the device's own table (`gemm_table`), or that of `product_ps` after the start
    of the kernel: XLA's times of single launches are those of CUDA graphs and 2.3 us (H100, 46
    common shapes up to 25 us) or 3.1 us (B200). None where nothing is known of the dtype.

    Args:
        spec: The device.
        dtype: torch's name of the dtype.
        product: batch, m, n and k.
    """
    from simrank.hardware.gemm_model import product_ps  # noqa: PLC0415 - as above
    from simrank.hardware.gemm_rows import gemm_ps  # noqa: PLC0415 - few runs need it

    if spec.gemm_table is not None:
        return gemm_ps(spec.gemm_table, dtype, *product)
    graph_ps = product_ps(spec, dtype, product)
    return None if graph_ps is None else _START_PS + graph_ps


def started_ps(work_ps: int) -> int:
    """Return the time of a kernel from its launch, given the time of its work.

    It takes 2.35 us until it is under way, and works at half its rate for as long again.
    """
    return _START_PS + work_ps + min(work_ps, _START_PS)


def queued_ps(work_ps: int) -> int:
    """Return the time of a kernel behind another one, given the time of its work.

    Short work takes the device's time between two kernels and twice its own; long work the time of
    `started_ps`.
    """
    return QUEUED_START_PS + work_ps + min(work_ps, 2 * _START_PS - QUEUED_START_PS)


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
