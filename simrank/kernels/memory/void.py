"""Memory without values, as kernels of shape-only runs see it: loads give one number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from simrank.kernels.machine.arrays import Array, Value

# Bits of a number that is neither zero nor large, whatever is made of them: 0.0079 or 1 of 16-bit
# floats, 1.5 of fp8. Integers are 1: they may be offsets.
_BITS = {1: 0x3C, 2: 0x3C00}


class VoidView:
    """Stands for an array whose elements are all the same, and which stores nothing.

    Args:
        size: Number of elements.
        dtype: Of what is loaded; narrow floats come as unsigned integers of their size.
        fill: Whether it is another number than zero.
    """

    def __init__(self, size: int, dtype: np.dtype[Any], *, fill: bool) -> None:
        self._size = size
        self.dtype = dtype
        number = _BITS.get(dtype.itemsize, 1) if dtype.kind == "u" else 1
        self._value = dtype.type(number if fill else 0)

    def __len__(self) -> int:
        """Return the number of elements."""
        return self._size

    def __getitem__(self, index: Any) -> Value:  # noqa: ANN401 - what arrays take
        """Return as many numbers as are asked for."""
        if isinstance(index, slice):
            return np.full(len(range(*index.indices(self._size))), self._value)
        return np.full(np.shape(index), self._value)[()]

    def take(self, index: Array, mode: str = "clip") -> Array:
        """Return as many numbers as there are places."""
        del mode
        return np.full(index.shape, self._value)

    def __setitem__(self, index: Any, values: Any) -> None:  # noqa: ANN401 - what arrays take
        """Store nothing."""
