"""Which kernel torch launches for operands as they lie in memory.

Pointwise, operands that all lie alike, and are of one type, are read and written as vectors, at the
memory's rate. Broadcast, strided and converted ones go through a kernel that computes an offset for
each element, and is limited by that.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.torch.cuda.operations import Operand, Operation

_COPIES = ("copy_", "_to_copy", "clone")  # Pointwise, though not all are tagged.
_ONLY_WRITTEN = ("copy_", "fill_", "zero_", "resize_", "_foreach_zero_", "_foreach_copy_",
                 "random_", "normal_", "uniform_", "bernoulli_", "exponential_", "cauchy_",
                 "log_normal_", "geometric_")  # fmt: skip
_PICKS = frozenset({"index", "index_select", "gather", "take", "embedding"})
_PUTS = frozenset({"index_put_", "_index_put_impl_", "index_add_", "index_copy_", "scatter_",
                   "scatter_add_", "scatter_reduce_"})  # fmt: skip
_BOOL = 11  # c10::ScalarType
_NO_TAGS: frozenset[object] = frozenset()


def is_reduction(operation: Operation) -> bool:
    """Whether an operation reduces dimensions by torch's kernel for that: sum, mean, argmax, ..."""
    return getattr(torch.Tag, "reduction", None) in _tags(operation.name)


def changes_in_place(name: str) -> bool:
    """Whether what an operator writes in place is read before, as by `add_` and not by `copy_`."""
    base = name.partition(".")[0]
    return base.endswith("_") and base not in _ONLY_WRITTEN


def picks(name: str) -> bool:
    """Whether an operator reads elements of its first operand by index, and not all of it."""
    return name.partition(".")[0] in _PICKS


def puts(name: str) -> bool:
    """Whether an operator changes elements of its first operand by index, and not all of it."""
    return name.partition(".")[0] in _PUTS


def computes_offsets(operation: Operation) -> bool:
    """Whether an operation is pointwise, and its operands need the kernel for every layout.

    Source: torch's aten/src/ATen/native/cuda/CUDALoops.cuh and Shape.cu, 2.13.
    """
    operands = [*operation.inputs, *operation.outputs]
    base = operation.name.partition(".")[0]
    if base == "cat":
        return not all(map(_is_dense, operands))
    if not operands or not (base in _COPIES or torch.Tag.pointwise in _tags(operation.name)):
        return False
    whole = max(operands, key=lambda operand: len(operand.sizes))
    return not all(_lie_alike(whole, operand) for operand in operands) or _converts(operands)


@lru_cache(maxsize=1024)
def _tags(name: str) -> frozenset[object]:
    """Return what torch says of an operator of its own; of others nothing."""
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
    return _NO_TAGS if operator is None else frozenset(operator.tags)


def _lie_alike(whole: Operand, operand: Operand) -> bool:
    """Whether an operand has its elements at the same places, without gaps."""
    return operand.sizes == whole.sizes and _steps(operand) == _steps(whole) and _is_dense(operand)


def _steps(operand: Operand) -> list[int]:
    """Return the strides that matter."""
    pairs = zip(operand.sizes, operand.strides, strict=True)
    return [stride for size, stride in pairs if size != 1]


def _is_dense(operand: Operand) -> bool:
    """Whether its elements fill a range of memory, in whatever order of dimensions."""
    step = 1
    for stride, size in sorted(zip(operand.strides, operand.sizes, strict=True)):
        if size == 1:
            continue
        if stride != step:
            return False
        step *= size
    return True


def _converts(operands: Sequence[Operand]) -> bool:
    """Whether numbers of one type are computed with, or stored as, another; masks are none."""
    return len({operand.dtype for operand in operands} - {_BOOL}) > 1
