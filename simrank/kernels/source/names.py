"""Table of emulated Triton functions, by module and name, and the state of each name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from simrank.kernels import language
from simrank.kernels.language import REFUSED
from simrank.kernels.ptx import inline_asm_elementwise
from simrank.kernels.shmem.libraries import extern_elementwise

if TYPE_CHECKING:
    from collections.abc import Callable

_CORE: dict[str, Callable[..., Any]] = {
    **language.CORE,
    "extern_elementwise": extern_elementwise,
    "inline_asm_elementwise": inline_asm_elementwise,
}
BY_MODULE: dict[str, dict[str, Callable[..., Any]]] = {
    "triton.language": _CORE,  # For names that this version of triton has removed.
    "triton.language.core": _CORE,
    "triton.language.math": language.MATH,
    "triton.language.standard": language.STANDARD,
    "triton.language.target_info": language.TARGET,
    **language.EXTRA,
}


# ---- coverage of `triton.language`: a state for every public name ----

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
