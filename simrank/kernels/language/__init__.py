"""The emulated functions of `triton.language`, by Triton's module and name.

A function that is neither here nor written in Triton itself is refused by name when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.kernels.language import (
    access,
    atomics,
    control,
    dots,
    elementwise,
    externs,
    libdevice,
    reductions,
    shapes,
    target,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _inline_asm_elementwise(*args: Any, **kwargs: Any) -> Any:
    from simrank.kernels.ptx import inline_asm_elementwise  # noqa: PLC0415 - it uses atomics

    return inline_asm_elementwise(*args, **kwargs)


CORE: dict[str, Callable[..., Any]] = {
    **shapes.FUNCTIONS,
    **elementwise.FUNCTIONS,
    **reductions.FUNCTIONS,
    **access.FUNCTIONS,
    **atomics.FUNCTIONS,
    **dots.FUNCTIONS,
    **windows.FUNCTIONS,
    **control.FUNCTIONS,
    **externs.FUNCTIONS,
    "inline_asm_elementwise": _inline_asm_elementwise,
    "range": control.Range,
    "static_range": control.static_range,
}
MATH: dict[str, Callable[..., Any]] = elementwise.MATH
# Functions that Triton has in its own language, done at once here.
STANDARD: dict[str, Callable[..., Any]] = reductions.STANDARD

BY_MODULE: dict[str, dict[str, Callable[..., Any]]] = {
    "triton.language": CORE,  # Names that this version of triton has no more.
    "triton.language.core": CORE,
    "triton.language.math": MATH,
    "triton.language.standard": STANDARD,
    "triton.language.target_info": target.FUNCTIONS,
    **libdevice.BY_MODULE,
}
# Names that are there to say that they are not emulated.
REFUSED = ("dot_scaled", "map_elementwise", "float8e4b15")
