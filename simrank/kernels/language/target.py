"""Compile target as seen by kernels: the simulated device acts as an NVIDIA GPU.

The compute capability follows from the device's name, see `hardware/spec.py`; assumed 9.0
(Hopper) for other names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.kernels import machine
from simrank.kernels.compiler.targets import nvidia_target_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from triton.backends.compiler import GPUTarget


def current_target() -> GPUTarget:
    """Return the compile target of the kernel."""
    return nvidia_target_of(machine.now().device.spec)


def is_cuda() -> bool:
    """Return True: the device acts as an NVIDIA GPU."""
    return True


def cuda_capability_geq(major: int, minor: int = 0) -> bool:
    """Return whether the device has at least this compute capability."""
    return int(current_target().arch) >= major * 10 + minor


def _is_other() -> bool:
    return False


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "current_target": current_target,
    "is_cuda": is_cuda,
    "cuda_capability_geq": cuda_capability_geq,
    "is_hip": _is_other,
    "is_hip_cdna3": _is_other,
    "is_hip_cdna4": _is_other,
}
