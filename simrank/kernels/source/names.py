"""Table of emulated Triton functions, by module and name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.kernels import language
from simrank.kernels.ptx import inline_asm_elementwise
from simrank.kernels.shmem.externs import extern_elementwise

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
