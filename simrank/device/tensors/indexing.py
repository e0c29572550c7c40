"""Indices that depend on values: masks, index tensors, gather and scatter.

Only the *shape* of `x[mask]` and `nonzero` depends on values: they read the mask on the host, a
barrier on the mask alone (rule D4). Everything else is deferred.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.dtypes import WIDE_UNSIGNED, DType, as_dtype, bool_, int64, promote, uint8
from simrank.device.tensors import arithmetic
from simrank.device.tensors.arithmetic import Tensor_like as like
from simrank.device.tensors.shapes import broadcast, wrap_dim
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from simrank.device.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


def _parts(tensor: Tensor, index: Any) -> list[Any]:  # noqa: ANN401 - any value
    """Return one entry per dim (and None for new ones), lists as arrays, without an ellipsis."""
    given = list(index) if isinstance(index, tuple) else [index]
    parts = [np.asarray(p) if isinstance(p, list | range) else p for p in given]
    used = 0
    for part in parts:
        if isinstance(part, bool | np.bool_):
            raise UnsupportedError("indexing with a Python bool is not supported")
        if part is not None and part is not Ellipsis:
            used += part.ndim if not isinstance(part, int | slice) and _is_mask(part) else 1
    num_dims = tensor.array.ndim
    if used > num_dims:
        raise IndexError(f"too many indices for tensor of dimension {num_dims}")
    positions = [position for position, part in enumerate(parts) if part is Ellipsis]
    fill = [slice(None)] * (num_dims - used)
    if positions:
        return parts[: positions[0]] + fill + parts[positions[0] + 1 :]
    return parts + fill


def basic(tensor: Tensor, index: object) -> tuple[Tensor, list[Any]]:
    """Apply ints, slices and None; return that view, and per dim of it an index tensor or None.

    As torch does, and unlike numpy, ints are applied before index tensors are.
    """
    advanced: list[Any] = []
    key: list[Any] = []
    dim = 0
    for part in _parts(tensor, index):
        if part is None:
            key.append(None)
            advanced.append(None)
            continue
        size = tensor.array.shape[dim]
        if isinstance(part, slice):
            if part.step is not None and part.step <= 0:
                raise ValueError("step must be greater than zero")
            key.append(
                slice(*(None if x is None else int(x) for x in (part.start, part.stop, part.step)))
            )
            advanced.append(None)
        elif isinstance(part, int) or (getattr(part, "ndim", 0) == 0 and not _is_mask(part)):
            number = part.__index__()  # Of a tensor: a host read of that index.
            if not -size <= number < size:
                raise IndexError(
                    f"index {number} is out of bounds for dimension {dim} with size {size}"
                )
            key.append(number)
        else:
            num_dims = part.ndim if _is_mask(part) else 1
            key += [slice(None)] * num_dims
            advanced += [part] + [...] * (num_dims - 1)
            dim += num_dims - 1
        dim += 1
    view = tensor.array[tuple(key)] if key else tensor.array
    if not isinstance(view, np.ndarray):  # One element: numpy would return a scalar.
        view = tensor.array[(*key, np.newaxis)].reshape(())
    return like(tensor, view), advanced


def _is_mask(part: object) -> bool:
    return getattr(part, "dtype", None) in (bool_, np.bool_)


def _mask_array(view: Tensor, part: Any, dim: int) -> Any:  # noqa: ANN401
    shape = view.shape[dim : dim + part.ndim]
    if tuple(part.shape) != shape:
        raise IndexError(
            f"The shape of the mask {list(part.shape)} at index 0 does not match the shape of "
            f"the indexed tensor {list(view.shape)} at index {dim}"
        )
    return part


def _as_index(part: Any) -> tuple[Any, tuple[Tensor, ...]]:  # noqa: ANN401 - a tensor or an array
    """Return an index array, and the tensor whose values it will have, if on a device."""
    if part.dtype is uint8:
        raise UnsupportedError(
            "indexing with a uint8 tensor is a mask in torch, and deprecated\n"
            "  to fix: index with mask.bool() or indices.long()"
        )
    kind = part.dtype.kind
    if kind not in ("bool", "int", "b", "i", "u") or part.dtype in WIDE_UNSIGNED:
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    if not hasattr(part, "storage"):
        return part.copy(), ()
    if part.cuda_device is None:
        part.wait_values()
        return part.array.copy(), ()
    return part.array, (part,)


def take(tensor: Tensor, index: object) -> Tensor:
    """Return `tensor[index]`: a view for ints and slices, else a copy.

    A mask is read on the host, as its count is the result's shape; index tensors are not.

    Simulated cost: nothing for a view; else a kernel that reads and writes what is selected.
    """
    view, advanced = basic(tensor, index)
    arrays: list[Any] = []
    reads: list[Tensor] = []
    for dim, part in enumerate(advanced):
        if part is ... or part is None:
            if part is None:
                arrays.append(None)
            continue
        if _is_mask(part):
            mask = _mask_array(view, part, dim)
            values = mask.numpy() if hasattr(mask, "storage") else mask
            arrays += np.nonzero(values)
        else:
            array, more = _as_index(part)
            arrays.append(array)
            reads += more
    if all(array is None for array in arrays):
        return view
    shape = _taken_shape(view.shape, arrays)
    keys = tuple(slice(None) if array is None else array for array in arrays)
    return arithmetic.produce(
        "index",
        lambda values, *_: values[keys],
        (view, *reads),
        shape,
        view.dtype,
        bytes_moved=2 * prod(shape) * view.element_size() + sum_bytes(reads),
    )


def sum_bytes(tensors: list[Tensor]) -> int:
    """Return the bytes of all of them."""
    return sum(tensor.nbytes for tensor in tensors)


def _taken_shape(shape: tuple[int, ...], arrays: list[Any]) -> tuple[int, ...]:
    """Return the shape of an index: the indices' own, where they stand side by side, or first."""
    positions = [position for position, array in enumerate(arrays) if array is not None]
    try:
        inner = broadcast(*(arrays[position].shape for position in positions))
    except RuntimeError:
        shapes = ", ".join(str(list(arrays[position].shape)) for position in positions)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None
    rest = [(position, size) for position, size in enumerate(shape) if position not in positions]
    if positions[-1] - positions[0] + 1 != len(positions):
        return (*inner, *(size for _, size in rest))
    before = [size for position, size in rest if position < positions[0]]
    return (*before, *inner, *(size for position, size in rest if position > positions[0]))


def put(tensor: Tensor, index: object, value: Any) -> None:  # noqa: ANN401 - any value
    """Write `tensor[index] = value` in stream order; no barrier, also with a mask.

    Raises:
        RuntimeError: The value has another dtype, and the index is a mask or a tensor.

    Simulated cost: a kernel that writes what is selected (with a mask: reads and writes all).
    """
    view, advanced = basic(tensor, index)
    parts = [part for part in advanced if part is not ...]
    is_tensor = hasattr(value, "storage")
    if all(part is None for part in parts):
        view.copy_(value) if is_tensor else view.fill_(value)
        return
    if is_tensor and value.ndim and value.dtype is not view.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{view.dtype.name} for the destination and {value.dtype.name} for the source."
        )
    keys: list[Any] = []
    reads: list[Tensor] = []
    for dim, part in enumerate(advanced):
        if part is None:
            keys.append(slice(None))
        elif part is not ...:
            array, more = _as_index(_mask_array(view, part, dim) if _is_mask(part) else part)
            keys.append(array)
            reads += more
    values, extra = _value(value, view)
    target = view.array

    def compute() -> None:
        try:
            target[tuple(keys)] = np.asarray(values).astype(target.dtype, copy=False)
        except ValueError:
            raise RuntimeError(
                f"shape mismatch: value tensor of shape {list(np.shape(values))} cannot be "
                f"broadcast to indexing result of shape {list(target[tuple(keys)].shape)}"
            ) from None

    arithmetic.run("index_put_", compute, (*reads, *extra), (view,))


def _value(value: Any, view: Tensor) -> tuple[Any, tuple[Tensor, ...]]:  # noqa: ANN401
    """Return the values to write, and their tensor if it is on a device."""
    if not hasattr(value, "storage"):
        return value, ()
    if value.cuda_device is None and value.ndim == 0:
        return arithmetic.operand(value, view).value, ()
    return value.array, (value,)


def nonzero(tensor: Tensor, *, as_tuple: bool = False) -> Any:  # noqa: ANN401 - a tensor or a tuple
    """Return the indices of what is not zero: one row each, or per dim; a barrier (D4)."""
    tensor.wait_values()
    indices = np.nonzero(tensor.array)
    count = len(indices[0]) if tensor.ndim else int(bool(tensor.array))
    columns = indices if tensor.ndim else ()
    if as_tuple:
        return tuple(_known("nonzero", tensor, column) for column in columns)
    rows = np.stack(columns, 1) if columns else np.zeros((count, 0), np.int64)
    return _known("nonzero", tensor, rows)


def _known(name: str, tensor: Tensor, values: Array) -> Tensor:
    """Return known values as the result of a kernel that read `tensor`."""
    return arithmetic.produce(name, lambda _: values, (tensor,), values.shape, int64)


def masked_select(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return the elements where a mask is true; a barrier on the mask (D4)."""
    shape = broadcast(tensor.shape, mask.shape)
    return take(tensor.expand(shape), mask.expand(shape))


def where(condition: Tensor, tensor: object = None, other: object = None) -> Any:  # noqa: ANN401
    """Return elements of `tensor` where the condition holds, else of `other`.

    With the condition alone: `nonzero(as_tuple=True)`, a barrier.
    """
    if tensor is None and other is None:
        return nonzero(condition, as_tuple=True)
    dtype = _joint_type(tensor, other, condition)
    first, reads = _value(tensor, condition)
    second, more = _value(other, condition)
    shape = broadcast(condition.shape, np.shape(first), np.shape(second))

    def compute(test: Array, *_: Array) -> Any:  # noqa: ANN401 - numpy's
        left, right = np.asarray(first).astype(dtype.numpy), np.asarray(second).astype(dtype.numpy)
        return np.where(test, left, right)

    return arithmetic.produce("where", compute, (condition, *reads, *more), shape, dtype)


def _joint_type(first: Any, second: Any, like_tensor: Tensor) -> DType:  # noqa: ANN401
    if hasattr(first, "storage"):
        return arithmetic.operand(second, first).dtype
    if hasattr(second, "storage"):
        return arithmetic.operand(first, second).dtype
    del like_tensor
    return promote(as_dtype(type(first)), as_dtype(type(second)))


def masked_fill_(tensor: Tensor, mask: Tensor, value: object) -> Tensor:
    """Set the elements where a mask is true, in stream order."""
    if mask.dtype is not bool_:
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype.name}"
        )
    values, extra = _value(value, tensor)
    if np.shape(values):
        raise RuntimeError("masked_fill_ only supports a 0-dimensional value tensor")
    test, target = mask.expand(tensor.shape).array, tensor.array

    def compute() -> None:
        target[test] = np.asarray(values).astype(target.dtype)

    arithmetic.run("masked_fill_", compute, (mask, *extra), (tensor,))
    return tensor


def masked_fill(tensor: Tensor, mask: Tensor, value: object) -> Tensor:
    """Return a copy with the elements set where a mask is true."""
    shape = broadcast(tensor.shape, mask.shape)
    return masked_fill_(tensor.expand(shape).clone(), mask, value)


def gather(tensor: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return per position of `index` the element that it names along a dim."""
    axis = wrap_dim(dim, tensor.ndim)
    region = _region(tensor, axis, index)
    return arithmetic.produce(
        "gather",
        lambda values, positions: np.take_along_axis(values[region], positions, axis),
        (tensor, index),
        index.shape,
        tensor.dtype,
        bytes_moved=2 * index.numel() * tensor.element_size() + index.nbytes,
    )


def _region(tensor: Tensor, axis: int, index: Tensor) -> tuple[slice, ...]:
    """Return the part of a tensor that an index for gather or scatter is over."""
    if index.dtype is not int64:
        raise RuntimeError("gather(): Expected dtype int64 for index")
    if index.ndim != tensor.ndim:
        raise RuntimeError("Index tensor must have the same number of dimensions as input tensor")
    for position, (size, have) in enumerate(zip(index.shape, tensor.shape, strict=True)):
        if position != axis and size > have:
            raise RuntimeError(
                f"Size does not match at dimension {position} expected index "
                f"{list(index.shape)} to be no larger than self {list(tensor.shape)} "
                f"apart from dimension {axis}"
            )
    return tuple(
        slice(None) if position == axis else slice(size)
        for position, size in enumerate(index.shape)
    )


def _scatter(name: str, *, adds: bool) -> Any:  # noqa: ANN401 - a method
    def method(tensor: Tensor, dim: int, index: Tensor, src: object) -> Tensor:
        axis = wrap_dim(dim, tensor.ndim)
        region = _region(tensor, axis, index)
        values, extra = _value(src, tensor)
        target, positions = tensor.array, index.array

        def compute() -> None:
            grid: list[Any] = list(np.indices(positions.shape, sparse=True))
            grid[axis] = positions
            given = np.asarray(values).astype(target.dtype)
            given = given[tuple(map(slice, positions.shape))] if given.ndim else given
            (_add_at if adds else _assign)(target[region], tuple(grid), given)

        arithmetic.run(name, compute, (index, *extra), (tensor,))
        return tensor

    method.__name__ = name
    method.__doc__ = f"{'Add' if adds else 'Write'} values where `index` says along a dim."
    return method


def _add_at(target: Array, key: Any, values: Array) -> None:  # noqa: ANN401
    np.add.at(target, key, values)


def _assign(target: Array, key: Any, values: Array) -> None:  # noqa: ANN401
    target[key] = values


scatter_, scatter_add_ = _scatter("scatter_", adds=False), _scatter("scatter_add_", adds=True)


def index_select(tensor: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the entries of a dim that `index` names."""
    axis = wrap_dim(dim, tensor.ndim)
    return take(tensor, (slice(None),) * axis + (index,))


def index_add_(
    tensor: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """Add slices of `source` at the entries of a dim that `index` names."""
    axis = wrap_dim(dim, tensor.ndim)
    target, positions, values = tensor.array, index.array, source.array

    def compute() -> None:
        key = (slice(None),) * axis + (positions,)
        _add_at(target, key, (values * np.asarray(alpha, values.dtype)).astype(target.dtype))

    arithmetic.run("index_add_", compute, (index, source), (tensor,))
    return tensor
