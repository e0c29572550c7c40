"""Divergent programs in lockstep: programs on other branches are masked off.

A kernel is rewritten for it as `thread_rewrite` says: an `if`, `for` or `while` goes on with the
programs that take it, and what it assigns stays as it was for the others. What touches memory is
done for the programs that are there, as if they were the whole batch. What cannot be done so is
left to batches that are split: nothing depends on which of the two runs a kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.kernels import machine
from simrank.kernels.machine import UnmaskableError
from simrank.kernels.values.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.arrays import Array

_WITH_MEMORY = (
    "load", "store", "dot", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or",
    "atomic_xor", "atomic_xchg", "atomic_cas", "atomic_load", "atomic_store",
)  # fmt: skip
_WHOLE = ("device_print", "device_assert", "assume", "atomic_poll", "map_elementwise")


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of the language for calls with masked-off programs."""
    if name in _WITH_MEMORY:
        return _for_those_there(function)
    return _for_all(function) if name in _WHOLE else function


def _for_all(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if machine.now().active is not None:
            raise UnmaskableError
        return function(*args, **kwargs)

    return call


def _for_those_there(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        programs = machine.now()
        active, ids = programs.active, programs.ids
        if active is None:
            return function(*args, **kwargs)
        there = np.flatnonzero(active)
        args = tuple(_rows(value, there) for value in args)
        kwargs = {name: _rows(value, there) for name, value in kwargs.items()}
        programs.active, programs.ids = None, ids[there]
        try:
            result = function(*args, **kwargs)
        finally:
            programs.active, programs.ids = active, ids
        return _spread(result, there, len(ids))

    return call


def _rows(value: object, there: Array) -> Any:
    """Return a block's rows of some programs; shared and other values unchanged.

    Raises:
        UnmaskableError: It may hold blocks that are not seen from here, as descriptors do.
    """
    if type(value) is Block:
        values = value.values
        if type(values) is not np.ndarray or len(values) == 1:
            return value
        return Block(values[there], value.element, value.base)
    if value is None or isinstance(value, int | float | str | bool) or hasattr(value, "scalar"):
        return value
    if isinstance(value, tuple) and not any(type(part) is Block for part in value):
        return value
    raise UnmaskableError


def _spread(result: object, there: Array, total: int) -> Any:
    """Return a result in the rows of its programs; the other rows are never read."""
    if type(result) is not Block or type(result.values) is not np.ndarray or len(there) == total:
        return result
    values = result.values
    if len(values) == 1:
        return result
    rows = np.zeros((total, *values.shape[1:]), values.dtype)
    rows[there] = values
    return Block(rows, result.element, result.base)
