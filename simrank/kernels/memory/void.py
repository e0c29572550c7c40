"""Memory without values, as kernels of shape-only runs see it: loads give one number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from simrank.kernels.machine.arrays import Array, Value

# Bits, whatever is made of them: 0.0079 or 1 of 16-bit floats, 1.5 of fp8; large ones.
_BITS = {1: (0, 0x3C, 0x70), 2: (0, 0x3C00, 0x7000)}
_NUMBERS = (0, 1, 100_000)  # The second may be an offset, too.
_LARGE_BYTE = 100


class VoidView:
    """Stands for an array whose elements are all the same, and which stores nothing.

    Args:
        size: Number of elements.
        dtype: Of what is loaded; narrow floats come as unsigned integers of their size.
        fill: Which number: zero, one, or a large one.
    """

    def __init__(self, size: int, dtype: np.dtype[Any], *, fill: int) -> None:
        self._size = size
        self.dtype = dtype
        numbers = _BITS.get(dtype.itemsize, _NUMBERS) if dtype.kind == "u" else _NUMBERS
        number = min(numbers[fill], _LARGE_BYTE) if dtype == np.int8 else numbers[fill]
        self._value = np.array(min(number, 32_767) if dtype == np.int16 else number, dtype)[()]

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
