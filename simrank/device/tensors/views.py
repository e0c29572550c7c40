"""Views of tensors: the same bytes under another shape. No values, no barrier, no cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.dtypes import DTYPES, DType
from simrank.device.tensors.allocation import result_of
from simrank.device.tensors.arithmetic import Tensor_like as like
from simrank.device.tensors.shapes import as_shape, resolve, wrap_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device.tensors.tensor import Tensor


def view(tensor: Tensor, *shape: int | Sequence[int] | DType) -> Tensor:
    """Return a view of the bytes with another shape or another dtype.

    Raises:
        RuntimeError: The tensor is not contiguous in the way that needs.
    """
    if len(shape) == 1 and isinstance(shape[0], DType):
        return _as_type(tensor, shape[0])
    new_shape = resolve(as_shape(shape), tensor.numel())
    try:
        return like(tensor, np.reshape(tensor.array, new_shape, copy=False))
    except ValueError:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride "
            "(at least one dimension spans across two contiguous subspaces). "
            "Use .reshape(...) instead."
        ) from None


def _as_type(tensor: Tensor, dtype: DType) -> Tensor:
    """Return a view of the bytes with another dtype; the last dim's size changes."""
    try:
        seen = tensor.array.view(dtype.numpy)
    except ValueError as error:
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} and stride {tuple(tensor.stride())} cannot "
            f"be viewed as {dtype.name} without a copy: {error}"
        ) from None
    result = result_of(tensor)(tensor.storage, dtype, seen)
    result.cuda_device = tensor.cuda_device
    return result


def view_as(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a view of the bytes with the shape of another tensor."""
    return view(tensor, other.shape)


def reshape(tensor: Tensor, *shape: int | Sequence[int]) -> Tensor:
    """Return the tensor with another shape, as a view if possible."""
    new_shape = resolve(as_shape(shape), tensor.numel())
    try:
        return view(tensor, new_shape)
    except RuntimeError:
        return view(tensor.contiguous(), new_shape)


def flatten(tensor: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return the tensor with dims `start_dim` to `end_dim` merged."""
    first, last = wrap_dim(start_dim, tensor.ndim), wrap_dim(end_dim, tensor.ndim)
    if first > last:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    size = int(np.prod(tensor.shape[first : last + 1], dtype=np.int64))
    return reshape(tensor, (*tensor.shape[:first], size, *tensor.shape[last + 1 :]))


def unflatten(tensor: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Return the tensor with one dim split into several."""
    dim = wrap_dim(dim, tensor.ndim)
    inner = resolve(tuple(sizes), tensor.shape[dim])
    return view(tensor, (*tensor.shape[:dim], *inner, *tensor.shape[dim + 1 :]))


def transpose(tensor: Tensor, dim0: int, dim1: int) -> Tensor:
    """Return a view with two dims swapped."""
    dims = wrap_dim(dim0, tensor.ndim), wrap_dim(dim1, tensor.ndim)
    return like(tensor, tensor.array.swapaxes(*dims)) if tensor.ndim else like(tensor, tensor.array)


def t(tensor: Tensor) -> Tensor:
    """Return the transposed matrix, a view."""
    if tensor.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {tensor.ndim}D")
    return like(tensor, tensor.array.T)


def permute(tensor: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """Return a view with the dims in another order."""
    order = [wrap_dim(dim, tensor.ndim) for dim in as_shape(dims)]
    if sorted(order) != list(range(tensor.ndim)):
        raise RuntimeError(f"permute() of {tensor.ndim} dims needs each dim once, got {order}")
    return like(tensor, tensor.array.transpose(order))


def movedim(tensor: Tensor, source: int, destination: int) -> Tensor:
    """Return a view with one dim moved."""
    dims = wrap_dim(source, tensor.ndim), wrap_dim(destination, tensor.ndim)
    return like(tensor, np.moveaxis(tensor.array, *dims))


def unsqueeze(tensor: Tensor, dim: int) -> Tensor:
    """Return a view with a dim of size 1 inserted."""
    return like(tensor, np.expand_dims(tensor.array, wrap_dim(dim, tensor.ndim + 1)))


def squeeze(tensor: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Return a view without dims of size 1: all of them, or those that are named."""
    asked = range(tensor.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = {wrap_dim(d, tensor.ndim) for d in asked} if tensor.ndim else set()
    return like(tensor, np.squeeze(tensor.array, tuple(d for d in dims if tensor.shape[d] == 1)))


def expand(tensor: Tensor, *sizes: int | Sequence[int]) -> Tensor:
    """Return a view in which dims of size 1 repeat; -1 leaves a dim as it is.

    Raises:
        RuntimeError: A dim of another size would have to change.
    """
    asked = as_shape(sizes)
    padded = (None,) * (len(asked) - tensor.ndim) + tensor.shape
    shape = tuple(
        have if size == -1 and have is not None else size
        for size, have in zip(asked, padded, strict=False)
    )
    for position, (size, have) in enumerate(zip(shape, padded, strict=False)):
        if have not in (None, 1, size):
            raise RuntimeError(
                f"The expanded size of the tensor ({size}) must match the existing size ({have}) "
                f"at non-singleton dimension {position}.  Target sizes: {list(asked)}.  "
                f"Tensor sizes: {list(tensor.shape)}"
            )
    if len(asked) < tensor.ndim:
        raise RuntimeError(
            f"expand: the number of sizes provided ({len(asked)}) must be greater or equal to the "
            f"number of dimensions in the tensor ({tensor.ndim})"
        )
    return like(tensor, np.broadcast_to(tensor.array, shape))


def expand_as(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a view expanded to the shape of another tensor."""
    return expand(tensor, other.shape)


def narrow(tensor: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return a view of `length` entries of one dim.

    Raises:
        RuntimeError: They reach beyond its end.
    """
    dim = wrap_dim(dim, tensor.ndim)
    size = tensor.shape[dim]
    first = start + size if start < 0 else start
    if not 0 <= first <= first + length <= size:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    index: list[Any] = [slice(None)] * tensor.ndim
    index[dim] = slice(first, first + length)
    return like(tensor, tensor.array[tuple(index)])


def select(tensor: Tensor, dim: int, index: int) -> Tensor:
    """Return a view of one entry of a dim, without that dim."""
    dim = wrap_dim(dim, tensor.ndim)
    size = tensor.shape[dim]
    if not -size <= index < size:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(tensor.shape)} "
            f"at dimension {dim}"
        )
    index %= size
    inner = tensor.array[(slice(None),) * dim + (slice(index, index + 1),)]
    return like(tensor, np.squeeze(inner, dim))


def split(tensor: Tensor, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of consecutive pieces of one dim.

    Raises:
        RuntimeError: Sizes that do not add up to the dim.
    """
    total = tensor.shape[wrap_dim(dim, tensor.ndim)]
    if isinstance(split_size, int):
        if split_size <= 0:
            raise RuntimeError(f"split expects split_size be non-negative, got {split_size}")
        sizes = [min(split_size, total - start) for start in range(0, total, split_size)] or [0]
    else:
        sizes = list(split_size)
        if sum(sizes) != total:
            raise RuntimeError(
                f"split_with_sizes expects split_sizes to sum exactly to {total} "
                f"(input tensor's size at dimension {dim}), but got split_sizes={sizes}"
            )
    offsets = np.cumsum([0, *sizes])
    return tuple(narrow(tensor, dim, int(o), n) for o, n in zip(offsets, sizes, strict=False))


def chunk(tensor: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of at most `chunks` pieces of one dim, the last one shorter."""
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    size = tensor.shape[wrap_dim(dim, tensor.ndim)]
    return split(tensor, max(-(-size // chunks), 1), dim)


def tensor_split(
    tensor: Tensor, indices_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Return views of a dim in so many pieces, sizes apart by at most 1, or cut at the indices."""
    dim = wrap_dim(dim, tensor.ndim)
    parts = np.array_split(tensor.array, indices_or_sections, axis=dim)
    return tuple(like(tensor, part) for part in parts)


def unbind(tensor: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return a view per entry of one dim."""
    return tuple(select(tensor, dim, i) for i in range(tensor.shape[wrap_dim(dim, tensor.ndim)]))


def diagonal(tensor: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return a view of a diagonal."""
    dims = wrap_dim(dim1, tensor.ndim), wrap_dim(dim2, tensor.ndim)
    return like(tensor, np.diagonal(tensor.array, offset, *dims))


def detach(tensor: Tensor) -> Tensor:
    """Return another tensor on the same storage: simrank tensors have no autograd."""
    return like(tensor, tensor.array)


_BYTE = DTYPES["uint8"]


def deep_copy(tensor: Tensor, memo: dict[Any, Any]) -> Tensor:
    """Return a view of a copy of the tensor's whole storage, which `memo` keeps for other views.

    As torch: what shared memory shares it in the copy, too.
    """
    storage = tensor.storage
    key = ("storage", id(storage))
    if key not in memo:
        whole = result_of(tensor)(storage, _BYTE, storage.array(_BYTE.numpy))
        whole.cuda_device = tensor.cuda_device
        memo[key] = whole.clone()
    copied: Tensor = memo[key]
    held, array = copied.storage.array(_BYTE.numpy), tensor.array
    start = storage.bounds(array)[0]
    seen: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, held, start, array.strides)
    result = result_of(tensor)(copied.storage, tensor.dtype, seen)
    result.cuda_device = copied.cuda_device
    return result
