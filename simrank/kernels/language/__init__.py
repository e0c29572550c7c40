"""Emulated functions of `triton.language`, by Triton module and name.

Read `access` and `elementwise` first. `kernels/source/names.py` adds functions that need higher
layers (inline assembly, external functions). A function that is missing in both, and is not written
in Triton, raises an error when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.kernels.language import (
    access,
    control,
    dots,
    elementwise,
    hints,
    libdevice,
    reductions,
    shapes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CORE: dict[str, Callable[..., Any]] = {
    **shapes.FUNCTIONS,
    **elementwise.FUNCTIONS,
    **reductions.FUNCTIONS,
    **access.FUNCTIONS,
    **dots.FUNCTIONS,
    **control.FUNCTIONS,
    **hints.FUNCTIONS,
    "range": control.Range,
    "static_range": control.static_range,
}
MATH: dict[str, Callable[..., Any]] = elementwise.MATH
# Functions written in Triton itself, emulated here as a whole.
STANDARD: dict[str, Callable[..., Any]] = reductions.STANDARD
TARGET: dict[str, Callable[..., Any]] = control.TARGET
EXTRA: dict[str, dict[str, Callable[..., Any]]] = libdevice.BY_MODULE
# Names that exist but are not emulated.
REFUSED = ("float8e4b15",)
