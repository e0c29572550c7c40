"""The emulated functions of `triton.language`, by Triton's module and name.

Read `access` and `elementwise` first. Functions that stand on rooms above (inline assembly,
external functions) are added in `source/names.py`; one that is neither here nor there nor written
in Triton itself raises UnsupportedError when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.kernels.language import (
    access,
    atomics,
    control,
    dots,
    elementwise,
    libdevice,
    mapping,
    reductions,
    scaled,
    shapes,
    target,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CORE: dict[str, Callable[..., Any]] = {
    **shapes.FUNCTIONS,
    **elementwise.FUNCTIONS,
    **reductions.FUNCTIONS,
    **access.FUNCTIONS,
    **atomics.FUNCTIONS,
    **dots.FUNCTIONS,
    **scaled.FUNCTIONS,
    **mapping.FUNCTIONS,
    **windows.FUNCTIONS,
    **control.FUNCTIONS,
    "range": control.Range,
    "static_range": control.static_range,
}
MATH: dict[str, Callable[..., Any]] = elementwise.MATH
# Functions that Triton has in its own language, done at once here.
STANDARD: dict[str, Callable[..., Any]] = reductions.STANDARD
TARGET: dict[str, Callable[..., Any]] = target.FUNCTIONS
EXTRA: dict[str, dict[str, Callable[..., Any]]] = libdevice.BY_MODULE
# Names that are there to say that they are not emulated.
REFUSED = ("float8e4b15",)
