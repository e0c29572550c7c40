"""What simrank needs to know of Triton's objects for device functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FunctionType


class Parameter(Protocol):
    """One parameter of a device function."""

    name: str
    is_constexpr: bool
    is_const: bool
    has_default: bool
    default: Any
    annotation_type: str
    do_not_specialize: bool
    do_not_specialize_on_alignment: bool


class Jit(Protocol):
    """A device function: triton's `JITFunction`."""

    fn: FunctionType
    src: str
    raw_src: Sequence[str]
    starting_line_number: int
    arg_names: Sequence[str]
    params: Sequence[Parameter]
    pre_run_hooks: Sequence[Callable[..., object]]
    run: Callable[..., Any]
    __name__: str
