"""Compile targets by device name."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from triton.backends.compiler import GPUTarget

from simrank.errors import ConfigError, ConfigProblem
from simrank.hardware.spec import compute_capability

if TYPE_CHECKING:
    from simrank.hardware.spec import DeviceSpec

# By a part of the device's name; NVIDIA's are in `hardware/spec.py`.
_OTHERS = (
    ("MI300", GPUTarget("hip", "gfx942", 64)),
    ("MI325", GPUTarget("hip", "gfx942", 64)),
    ("MI35", GPUTarget("hip", "gfx950", 64)),
)
_HOPPER = GPUTarget("cuda", 90, 32)

# Shared memory per SM, and the part per program that the system reserves.
# Source: CUDA C++ Programming Guide, technical specifications per compute capability.
_SHARED_BYTES = {80: 164 * 1024, 89: 100 * 1024}
_SHARED_BYTES_OF_OTHERS = 228 * 1024  # 9.0 to 10.3
SHARED_BYTES_RESERVED = 1024


def shared_bytes_of_sm(arch: int) -> int:
    """Return the shared memory of an NVIDIA SM in bytes."""
    return _SHARED_BYTES.get(arch, _SHARED_BYTES_OF_OTHERS)


def most_shared_bytes(arch: int) -> int:
    """Return the largest shared memory of a program in bytes."""
    return shared_bytes_of_sm(arch) - SHARED_BYTES_RESERVED


def target_of(spec: DeviceSpec) -> GPUTarget:
    """Return the compile target of a device; an H100's for unknown names."""
    return _target(spec.name)


@cache
def _target(name: str) -> GPUTarget:
    capability = compute_capability(name)
    if capability is not None:
        return GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    return next((target for part, target in _OTHERS if part in name.upper()), _HOPPER)


def nvidia_target_of(spec: DeviceSpec) -> GPUTarget:
    """Return the NVIDIA target of a device as seen by kernels; an H100's for other vendors."""
    target = target_of(spec)
    return target if target.backend == "cuda" else _HOPPER


def parse_target(text: str) -> GPUTarget:
    """Parse a target name such as sm_90 or gfx942.

    Raises:
        ConfigError: The name is not a target.
    """
    name = text.strip()
    if name.startswith("sm_") and name[3:].rstrip("a").isdecimal():
        return GPUTarget("cuda", int(name[3:].rstrip("a")), 32)
    if name.startswith("gfx") and len(name) > 5:
        return GPUTarget("hip", name, 64 if name.startswith("gfx9") else 32)
    expected = "names of targets such as sm_90,gfx942"
    raise ConfigError(ConfigProblem("command line", None, "--target", expected, text))
