"""Coverage of `triton.language`: a state for every public name."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from simrank.kernels.language import REFUSED
from simrank.kernels.source.names import BY_MODULE

NATIVE = "native"
OWN_SOURCE = "from its own source"
TYPE_OR_CLASS = "type, class or module"
REFUSED_BY_NAME = "refused"
MISSING = "missing"


def coverage() -> dict[str, str]:
    """Return the state of every name of `tl.__all__`."""
    return {name: _state(name, getattr(tl, name)) for name in tl.__all__}


def _state(name: str, value: Any) -> str:
    if name in REFUSED:
        return REFUSED_BY_NAME
    function = value.fn if isinstance(value, triton.runtime.jit.JITFunction) else value
    module = getattr(function, "__module__", "")
    if getattr(function, "__name__", None) in BY_MODULE.get(module, {}):
        return NATIVE
    if function is not value:
        return OWN_SOURCE
    is_function = callable(value) and not isinstance(value, type | tl.dtype)
    return MISSING if is_function else TYPE_OR_CLASS
