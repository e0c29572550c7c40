"""Overlap of a kernel's work: memory with units, dots with vector operations."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from simrank.hardware.spec import compute_capability

if TYPE_CHECKING:
    from simrank.hardware.spec import DeviceSpec

# From Hopper on, four warps execute a dot together. Source: PTX ISA, "wgmma.mma_async".
_DOTS_OF_WARP_GROUPS = (9, 0)
_SCHEDULERS = 4  # Per SM, each with a unit for dots. Source: NVIDIA's white papers, V100 to H100.


def num_beside(spec: DeviceSpec, num_resident: int, num_warps: int) -> int:
    """Return the number of instruction streams on an SM that alternate dots and vector work.

    Each program is one; where warps execute dots separately, each warp of one scheduler is one.

    Args:
        spec: The device.
        num_resident: Number of programs that run at the same time.
        num_warps: Warps per program.
    """
    per_sm = max(ceil(num_resident / spec.num_sms), 1)
    if (compute_capability(spec.name) or (0, 0)) >= _DOTS_OF_WARP_GROUPS:
        return per_sm
    return per_sm * ceil(num_warps / _SCHEDULERS)


def together_ps(tensor_ps: int, vector_ps: int, beside: int) -> int:
    """Return the time of alternating dots and vector operations on one SM.

    A single stream does not overlap them: between the two dots of attention each step waits for
    the one before it. Several streams do: a closed queueing network, whose throughput follows from
    mean value analysis (Reiser and Lavenberg, 1980).

    Args:
        tensor_ps: Time of the dots of all programs.
        vector_ps: Time of the vector operations of all programs.
        beside: Number of instruction streams, see `num_beside`.
    """
    longer = max(tensor_ps, vector_ps)
    if not min(tensor_ps, vector_ps):
        return longer
    tensor_queue = vector_queue = round_ps = 0.0
    for number in range(1, beside + 1):
        tensor, vector = tensor_ps * (1 + tensor_queue), vector_ps * (1 + vector_queue)
        round_ps = tensor + vector
        tensor_queue, vector_queue = number * tensor / round_ps, number * vector / round_ps
    return max(ceil(round_ps / beside), longer)


class Work:
    """Busy times of one program since its last synchronization, in picoseconds.

    Attributes:
        memory_ps: Memory and links.
        tensor_ps: Dots.
        vector_ps: Vector operations.
        charged_ps: The part that is charged to its clock already.

    Args:
        beside: Number of instruction streams on its SM, see `num_beside`.
    """

    __slots__ = ("_beside", "charged_ps", "memory_ps", "tensor_ps", "vector_ps")

    def __init__(self, beside: int) -> None:
        self.memory_ps = self.tensor_ps = self.vector_ps = self.charged_ps = 0
        self._beside = beside

    def taken_ps(self) -> int:
        """Return the time of all work; loads of the next step overlap with units."""
        if not self.tensor_ps:
            return max(self.memory_ps, self.vector_ps)
        units_ps = together_ps(self.tensor_ps, self.vector_ps, self._beside)
        return max(self.memory_ps, units_ps)
