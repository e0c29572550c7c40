"""Tensors from several others or several times one; bounds; what optimizers compute."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.dtypes import DType, promote, promote_scalar
from simrank.device.tensors import arithmetic
from simrank.device.tensors.indexing import where
from simrank.device.tensors.shapes import as_shape, broadcast, wrap_dim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return tensors joined along a dim, promoted as torch does; empty 1-d ones are skipped.

    Raises:
        RuntimeError: Sizes differ elsewhere than in that dim; torch's words.

    Simulated cost: a kernel that reads and writes all of them.
    """
    if not tensors:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    dtype = reduce(promote, [tensor.dtype for tensor in tensors])
    kept = [tensor for tensor in tensors if tensor.shape != (0,)] or [tensors[0]]
    first = kept[0]
    if first.ndim == 0:
        raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated")
    axis = wrap_dim(dim, first.ndim)
    for number, tensor in enumerate(kept):
        if tensor.ndim != first.ndim:
            raise RuntimeError(
                f"Tensors must have same number of dimensions: got {first.ndim} and {tensor.ndim}"
            )
        for position, (size, other) in enumerate(zip(first.shape, tensor.shape, strict=True)):
            if position != axis and size != other:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {axis}. Expected size "
                    f"{size} but got size {other} for tensor number {number} in the list."
                )
    shape = list(first.shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in kept)

    def compute(*arrays: Array) -> Any:  # noqa: ANN401 - numpy's
        return np.concatenate([array.astype(dtype.numpy, copy=False) for array in arrays], axis)

    return arithmetic.produce("cat", compute, kept, shape, dtype)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return tensors of one shape joined along a new dim; see `cat`."""
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    for number, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} "
                f"at entry 0 and {list(tensor.shape)} at entry {number}"
            )
    return cat([tensor.unsqueeze(dim) for tensor in tensors], dim)


def repeat(tensor: Tensor, *sizes: int | Sequence[int]) -> Tensor:
    """Return copies of a tensor side by side, so many along each dim."""
    counts = as_shape(sizes)
    if len(counts) < tensor.ndim:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions "
            "of tensor"
        )
    padded = (1,) * (len(counts) - tensor.ndim) + tensor.shape
    shape = tuple(count * size for count, size in zip(counts, padded, strict=True))
    return _moved("repeat", lambda values: np.tile(values, counts), tensor, shape)


def repeat_interleave(tensor: Tensor, repeats: int, dim: int | None = None) -> Tensor:
    """Return a tensor with every entry of a dim so many times in a row."""
    source = tensor.flatten() if dim is None else tensor
    axis = wrap_dim(0 if dim is None else dim, source.ndim)
    shape = [
        size * repeats if position == axis else size for position, size in enumerate(source.shape)
    ]
    return _moved("repeat_interleave", lambda x: np.repeat(x, repeats, axis), source, shape)


def flip(tensor: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """Return a copy with dims in reverse."""
    axes = tuple(wrap_dim(dim, tensor.ndim) for dim in as_shape(dims))
    return _moved("flip", lambda values: np.flip(values, axes), tensor, tensor.shape)


def roll(tensor: Tensor, shifts: int, dims: int | None = None) -> Tensor:
    """Return a copy with the entries of a dim (or all) moved on, around its end."""
    return _moved("roll", lambda values: np.roll(values, shifts, dims), tensor, tensor.shape)


def tril(tensor: Tensor, diagonal: int = 0) -> Tensor:
    """Return a copy with zeros above a diagonal."""
    return _moved("tril", lambda values: np.tril(values, diagonal), tensor, tensor.shape)


def triu(tensor: Tensor, diagonal: int = 0) -> Tensor:
    """Return a copy with zeros below a diagonal."""
    return _moved("triu", lambda values: np.triu(values, diagonal), tensor, tensor.shape)


def _moved(
    name: str, function: Callable[[Array], Any], tensor: Tensor, shape: Sequence[int]
) -> Tensor:
    return arithmetic.produce(name, function, (tensor,), shape, tensor.dtype)


def clamp(tensor: Tensor, min: object = None, max: object = None) -> Tensor:  # noqa: A002
    """Return every element, but at least `min` and at most `max` (numbers or tensors)."""
    _check_bounds(min, max)
    result = tensor
    if min is not None:
        result = _bound("maximum", result, min)
    return result if max is None else _bound("minimum", result, max)


def _bound(name: str, tensor: Tensor, limit: object) -> Tensor:
    return arithmetic.binary(name, tensor, limit)


def clamp_(tensor: Tensor, min: object = None, max: object = None) -> Tensor:  # noqa: A002
    """Bound every element in place; see `clamp`."""
    _check_bounds(min, max)
    if min is not None:
        arithmetic.binary_("maximum", tensor, min)
    return tensor if max is None else arithmetic.binary_("minimum", tensor, max)


def _check_bounds(low: object, high: object) -> None:
    if low is None and high is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")


def lerp(tensor: Tensor, end: Tensor, weight: object) -> Tensor:
    """Return `tensor + weight * (end - tensor)`."""
    return _fused("lerp", lambda x, y, w: x + w * (y - x), (tensor, end, weight), None)


def addcmul(tensor: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """Return `tensor + value * tensor1 * tensor2`."""
    compute = _scaled(lambda x, y: x * y, value)
    return _fused("addcmul", compute, (tensor, tensor1, tensor2), None)


def addcdiv(tensor: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """Return `tensor + value * tensor1 / tensor2`."""
    compute = _scaled(lambda x, y: x / y, value)
    return _fused("addcdiv", compute, (tensor, tensor1, tensor2), None)


def lerp_(tensor: Tensor, end: Tensor, weight: object) -> Tensor:
    """Compute `lerp` into its tensor."""
    return _fused("lerp_", lambda x, y, w: x + w * (y - x), (tensor, end, weight), tensor)


def addcmul_(tensor: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """Compute `addcmul` into its tensor."""
    compute = _scaled(lambda x, y: x * y, value)
    return _fused("addcmul_", compute, (tensor, tensor1, tensor2), tensor)


def addcdiv_(tensor: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """Compute `addcdiv` into its tensor."""
    compute = _scaled(lambda x, y: x / y, value)
    return _fused("addcdiv_", compute, (tensor, tensor1, tensor2), tensor)


def _scaled(combine: Callable[[Any, Any], Any], value: float) -> Callable[..., Any]:
    return lambda base, first, second: base + base.dtype.type(value) * combine(first, second)


def _fused(
    name: str, compute: Callable[..., Any], operands: Sequence[Any], target: Tensor | None
) -> Tensor:
    """Return a function of tensors (the last may be a number), in one kernel."""
    tensors = [x for x in operands if hasattr(x, "storage")]
    numbers = [x for x in operands if not hasattr(x, "storage")]
    dtype: DType = reduce(promote, [tensor.dtype for tensor in tensors])
    for number in numbers:
        dtype = promote_scalar(dtype, number)
    shape = broadcast(*(tensor.shape for tensor in tensors))

    def function(*arrays: Array) -> Any:  # noqa: ANN401 - numpy's
        return compute(*arrays, *(arrays[0].dtype.type(number) for number in numbers))

    if target is None:
        return arithmetic.produce(name, function, tensors, shape, dtype)
    if shape != target.shape or dtype is not target.dtype:
        raise RuntimeError(
            f"{name}: the result of shape {list(shape)} and type {dtype.name} does not fit a "
            f"{target.dtype.name} tensor of shape {list(target.shape)}"
        )
    view, arrays = target.array, [tensor.array for tensor in tensors]

    def assign() -> None:
        view[...] = function(*[arithmetic.widen(values) for values in arrays])

    arithmetic.run(name, assign, tensors, (target,))
    return target


def isclose(tensor: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> Tensor:
    """Return per element whether |tensor - other| <= atol + rtol * |other|; deferred."""
    distance = (tensor - other).abs()
    return where(tensor == other, True, distance <= other.abs() * rtol + atol)  # type: ignore[no-any-return]


def where_self(tensor: Tensor, condition: Tensor, other: object) -> Tensor:
    """Return elements of this tensor where the condition holds, else of `other`."""
    return where(condition, tensor, other)  # type: ignore[no-any-return]
