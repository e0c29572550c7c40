"""Functions that kernels share with the tensors of another library: bit-identical results.

torch on CUDA and Triton use the same libdevice. Where a program's tensors belong to another
library, kernels use that library's function; otherwise numpy's, or one written here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.kernels import library_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

_FLOATS = (np.float32, np.float64)


def shared(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a float function that prefers the running program's tensor library.

    Args:
        name: Name of the function in torch.
        compute: The fallback.
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
