"""Loads, stores, dots and what else touches memory or tensor cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels import machine, memory
from simrank.kernels.block import Block, as_block, cast_to
from simrank.kernels.types import element_type, float16, float32, float64, int32

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]
_CACHE_MODIFIERS = ("", ".ca", ".cg", ".cv", ".wb", ".cs", ".wt")


def load(
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Any = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> Block:
    """Return what pointers point to; see `tl.load`. Hints to the caches change no value."""
    del eviction_policy
    if cache_modifier not in _CACHE_MODIFIERS:
        raise ValueError(f"Cache modifier {cache_modifier} not supported")
    if hasattr(pointer, "load_block"):
        found: Block = pointer.load_block(boundary_check, padding_option)
        return found
    if other is not None and mask is None:
        raise ValueError("`other` cannot be provided without `mask`")
    programs = machine.now()
    if programs.sync is not None:
        programs.sync.before_load(pointer, volatile=volatile or cache_modifier == ".cv")
    return memory.load(pointer, mask, other)


def store(
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    """Write values where pointers point to; see `tl.store`."""
    del eviction_policy
    if cache_modifier not in _CACHE_MODIFIERS:
        raise ValueError(f"Cache modifier {cache_modifier} not supported")
    if hasattr(pointer, "store_block"):
        pointer.store_block(value, boundary_check)
        return
    memory.store(pointer, value, mask)


def dot(
    input: Block,  # noqa: A002 - Triton's name
    other: Block,
    acc: Any = None,
    input_precision: str | None = None,
    allow_tf32: Any = None,
    max_num_imprecise_acc: Any = None,
    out_dtype: Any = None,
) -> Block:
    """Return the product of two matrices, accumulated in fp32 (fp64, int32 where those go in)."""
    del max_num_imprecise_acc, allow_tf32
    _check_dot(input, other)
    if input_precision not in (None, "tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"):
        raise ValueError(
            f"input_precision must be one of tf32, tf32x3, ieee, got {input_precision}"
        )
    ours, theirs = input.values, other.values
    if input.element.kind in "iu":
        # Products of 8-bit integers and their sums are whole numbers that float64 holds.
        found = np.matmul(ours.astype(np.float64), theirs.astype(np.float64)).astype(np.int32)
        result = int32
    else:
        result = float64 if input.element is float64 else float32
        found = np.matmul(
            ours.astype(result.compute, copy=False), theirs.astype(result.compute, copy=False)
        )
    if acc is not None:
        acc = as_block(acc)
        if acc.shape and tuple(acc.shape) != tuple(found.shape[1:]):
            raise ValueError(f"acc has shape {acc.shape}, the product {found.shape[1:]}")
        found = acc.values + found if acc.element.compute is found.dtype else found + acc.values
        result = acc.element if acc.element is float16 else result
    programs = machine.now()
    inner = ours.shape[-1]
    copies = len(programs) if len(found) == 1 else 1
    programs.statistics.count_flops(input.element.name, 2 * found.size * inner * copies)
    wanted = result if out_dtype is None else element_type(out_dtype)
    if result.round is not None:
        found = result.round(found)
    return cast_to(Block(found, result), wanted)


def _check_dot(first: Block, second: Block) -> None:
    """Raise, as the compiler does, for operands that no tensor core takes."""
    ours, theirs = first.shape, second.shape
    if len(ours) != len(theirs) or len(ours) not in (2, 3):
        raise ValueError(f"Both inputs must be either 2D or 3D; (lhs: {ours} vs rhs: {theirs})")
    if ours[-1] != theirs[-2]:
        raise ValueError(
            f"First input shape ({list(ours)}) and second input shape {list(theirs)} are not "
            "compatible for matmul (second index of first shape "
            f"({ours[-1]}) must be equal to first index of second shape ({theirs[-2]})"
        )
    if first.element is not second.element and not (first.element.bits == second.element.bits == 8):
        raise ValueError(
            f"Both operands must be same dtype. Got {first.element} and {second.element}"
        )
    if first.element.kind == "b" or (first.element.kind in "iu" and first.element.bits != 8):
        raise ValueError(f"only int8 supported! got {first.element}")
    least_k = 32 if first.element.bits == 8 else 16
    if ours[-1] < least_k:
        raise ValueError(
            f"Input shapes should have M >= 1, N >= 1 and K >= {least_k}, got K = {ours[-1]}"
        )


def dot_scaled(*args: Any, **kwargs: Any) -> Block:
    """Refuse: microscaling formats are not emulated."""
    del args, kwargs
    raise UnsupportedError("tl.dot_scaled is not supported: no microscaling formats")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "load": load,
    "store": store,
    "dot": dot,
    "dot_scaled": dot_scaled,
}
