"""Loads and stores through pointers and block pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from simrank.kernels import machine, memory
from simrank.kernels.values.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.values.block import Operand


class BlockWindow(Protocol):
    """A block pointer or descriptor, loaded and stored as a whole; see `windows`."""

    def load_block(self, boundary_check: Any, padding_option: str) -> Block:
        """Load the block."""
        ...

    def store_block(self, value: Operand, boundary_check: Any) -> None:
        """Store the block."""
        ...


_LOAD_MODIFIERS = ("", ".ca", ".cg", ".cs", ".cv")
_STORE_MODIFIERS = ("", ".wb", ".cg", ".cs", ".wt")
_EVICTION_POLICIES = ("", "evict_first", "evict_last", "evict_normal")


def _check_hints(modifier: str, modifiers: tuple[str, ...], policy: str) -> None:
    if (modifier or "") not in modifiers:
        raise ValueError(f"Cache modifier {modifier} not supported")
    if (policy or "") not in _EVICTION_POLICIES:
        raise ValueError(f"Eviction policy {policy} not supported")


def load(
    pointer: Block | BlockWindow,
    mask: Operand | None = None,
    other: Operand | None = None,
    boundary_check: Any = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> Block:
    """Load from pointers; see `tl.load`. Cache hints are checked and otherwise ignored."""
    if cache_modifier or eviction_policy:
        _check_hints(cache_modifier, _LOAD_MODIFIERS, eviction_policy)
    if type(pointer) is not Block and hasattr(pointer, "load_block"):
        result: Block = pointer.load_block(boundary_check, padding_option)
        return result
    if other is not None and mask is None:
        raise ValueError("`other` cannot be provided without `mask`")
    sync = machine.now().sync
    if sync is None:
        return memory.load(pointer, mask, other)
    is_look = volatile or cache_modifier == ".cv"
    sync.before_load(pointer, volatile=is_look)
    loaded = memory.load(pointer, mask, other)
    if is_look:
        sync.after_look()
    return loaded


def store(
    pointer: Block | BlockWindow,
    value: Operand,
    mask: Operand | None = None,
    boundary_check: Any = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    """Store to pointers; see `tl.store`."""
    if cache_modifier or eviction_policy:
        _check_hints(cache_modifier, _STORE_MODIFIERS, eviction_policy)
    if type(pointer) is not Block and hasattr(pointer, "store_block"):
        pointer.store_block(value, boundary_check)
        return
    memory.store(pointer, value, mask)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "load": load,
    "store": store,
}
