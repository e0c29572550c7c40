"""Functions shared with another library's tensors, with bitwise equal results.

CUDA's torch and Triton call one libdevice. Where a program's tensors are another library's, its
function is used in kernels too; otherwise numpy's, or our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.kernels import library_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

_FLOATS = (np.float32, np.float64)


def shared(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of floats that is the library's where the running program has one.

    Args:
        name: Of the function, as torch has it.
        compute: What computes it otherwise.
    """

    def function(*values: Any) -> Any:
        library = library_tensors.running()
        own = None if library is None else library.function(name)
        if own is None or any(value.dtype not in _FLOATS for value in values):
            return compute(*values)
        result = own(*(np.ascontiguousarray(value) for value in values))
        is_block = any(type(value) is np.ndarray for value in values)
        return result if is_block else result.reshape(())[()]

    return function
