"""What of a kernel's work happens at the same time: memory beside units, dots beside vectors."""

from __future__ import annotations

from math import ceil

# Of the vector units' time beside dots, or the other way round where that is less, what is not
# hidden: between the two dots of attention each step waits for the one before it. Fitted, with what
# dots reach, to `benches/kernels_published.py`.
_NOT_HIDDEN = 0.8


def together_ps(tensor_ps: int, vector_ps: int) -> int:
    """Return how long dots and vector operations take that alternate in a program."""
    return max(tensor_ps, vector_ps) + ceil(_NOT_HIDDEN * min(tensor_ps, vector_ps))


class Work:
    """What one program keeps busy since it last met others, in picoseconds.

    Attributes:
        memory_ps: Memory and links.
        tensor_ps: Dots.
        vector_ps: Vector operations.
        charged_ps: What its clock has been told of it.
    """

    __slots__ = ("charged_ps", "memory_ps", "tensor_ps", "vector_ps")

    def __init__(self) -> None:
        self.memory_ps = self.tensor_ps = self.vector_ps = self.charged_ps = 0

    def taken_ps(self) -> int:
        """Return how long all of it takes: loads for what comes next are on their way meanwhile."""
        if not self.tensor_ps:
            return max(self.memory_ps, self.vector_ps)
        return max(self.memory_ps, together_ps(self.tensor_ps, self.vector_ps))
