"""Reductions, scans and orders along dims; narrow floats accumulate in float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.device.dtypes import DType, as_dtype, bool_, float32, int64, uint8
from simrank.device.tensors import arithmetic
from simrank.device.tensors.allocation import allocate_beside
from simrank.device.tensors.elementwise import not_of_unsigned
from simrank.device.tensors.shapes import wrap_dim, wrap_dims
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]
Dims = "int | Sequence[int] | None"


class ValuesIndices(NamedTuple):
    """The result of `max`, `min`, `sort` and `topk` with a dim.

    Attributes:
        values: The values.
        indices: Where they were, as int64.
    """

    values: Tensor
    indices: Tensor


def _shape(tensor: Tensor, dims: Sequence[int], *, keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple(1 if position in dims else size for position, size in enumerate(tensor.shape))
    return tuple(size for position, size in enumerate(tensor.shape) if position not in dims)


def _reduce(
    name: str,
    function: Callable[..., Any],
    tensor: Tensor,
    dim: int | Sequence[int] | None,
    dtype: DType,
    *,
    keepdim: bool,
) -> Tensor:
    """Return `function(array, axis=, keepdims=)` in stream order."""
    dims = wrap_dims(dim, tensor.ndim)
    shape = _shape(tensor, dims, keepdim=keepdim)

    def compute(values: Array) -> Any:  # noqa: ANN401 - numpy's
        return function(values, axis=dims, keepdims=keepdim)

    return arithmetic.produce(name, compute, (tensor,), shape, dtype, flops=tensor.numel())


def sum(  # noqa: A001 - torch's name
    tensor: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Tensor:
    """Return sums over dims or all; integers as int64, narrow floats accumulate in float32."""
    return _accumulate("sum", np.sum, tensor, dim, keepdim, dtype)


def prod(
    tensor: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Tensor:
    """Return products over one dim or all; integers as int64."""
    return _accumulate("prod", np.prod, tensor, dim, keepdim, dtype)


def _accumulate(
    name: str,
    function: Callable[..., Any],
    tensor: Tensor,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    dtype: object,
) -> Tensor:
    result = _result_type(tensor, dtype)
    wide = arithmetic.widen(np.empty(0, result.numpy)).dtype

    def compute(values: Array, **options: object) -> Any:  # noqa: ANN401 - numpy's
        return function(values.astype(wide, copy=False), **options)

    return _reduce(name, compute, tensor, dim, result, keepdim=keepdim)


def _result_type(tensor: Tensor, dtype: object) -> DType:
    if dtype is not None:
        return as_dtype(dtype)
    return tensor.dtype if tensor.dtype.kind == "float" else int64


def mean(
    tensor: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Tensor:
    """Return means over dims or all.

    Raises:
        RuntimeError: Of integers, without a floating `dtype`.
    """
    result = tensor.dtype if dtype is None else as_dtype(dtype)
    if result.kind != "float":
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be a floating point dtype. "
            f"Got: {result.name}"
        )
    return _accumulate("mean", np.mean, tensor, dim, keepdim, result)


def _moment(name: str, root: bool) -> Callable[..., Tensor]:
    def method(
        tensor: Tensor,
        dim: int | Sequence[int] | bool | None = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> Tensor:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if tensor.dtype.kind != "float":
            raise RuntimeError("std and var only support floating point and complex dtypes")
        if correction is None:
            correction = 0 if unbiased is False else 1
        ddof = correction

        def compute(values: Array, **options: Any) -> Any:  # noqa: ANN401 - numpy's
            size = math.prod(values.shape[axis] for axis in options["axis"])
            centre = values.mean(axis=options["axis"], keepdims=True, dtype=np.float64)
            squares = np.square(values - centre).sum(**options)
            return (np.sqrt if root else np.asarray)(squares / np.float64(max(size - ddof, 0)))

        return _reduce(name, compute, tensor, dim, tensor.dtype, keepdim=keepdim)

    method.__name__ = name
    what = "standard deviations" if root else "variances"
    method.__doc__ = f"Return {what} over dims or all, with `correction` (default 1)."
    return method


var, std = _moment("var", root=False), _moment("std", root=True)


def _test(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    def method(
        tensor: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> Tensor:
        dtype = uint8 if tensor.dtype is uint8 else bool_

        def compute(values: Array, **options: object) -> Any:  # noqa: ANN401 - numpy's
            return function(values.astype(np.bool_), **options)

        return _reduce(name, compute, tensor, dim, dtype, keepdim=keepdim)

    method.__name__ = name
    method.__doc__ = f"Return whether {name} of the elements are true, over dims or all."
    return method


any_, all_ = _test("any", np.any), _test("all", np.all)


def amax(tensor: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Return the largest values over dims or all."""
    return _extreme("max", tensor, dim, keepdim=keepdim)


def amin(tensor: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Return the smallest values over dims or all."""
    return _extreme("min", tensor, dim, keepdim=keepdim)


def _extreme(
    name: str, tensor: Tensor, dim: int | Sequence[int] | None, *, keepdim: bool
) -> Tensor:
    dims = wrap_dims(dim, tensor.ndim)
    if not math.prod(tensor.shape[d] for d in dims):
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument."
        )
    problem = not_of_unsigned(name, tensor.dtype)
    if problem is not None:
        raise problem
    function = np.max if name == "max" else np.min
    return _reduce(name, function, tensor, dim, tensor.dtype, keepdim=keepdim)


def _largest(name: str) -> Callable[..., Any]:
    index_of = np.argmax if name == "max" else np.argmin

    def method(
        tensor: Tensor, dim: int | Tensor | None = None, keepdim: bool = False
    ) -> Tensor | ValuesIndices:
        if dim is None:
            return _extreme(name, tensor, None, keepdim=False)
        if not isinstance(dim, int):
            return arithmetic.binary(f"{name}imum", tensor, dim)
        indices = _position(name, index_of, tensor, dim, keepdim)
        return ValuesIndices(_extreme(name, tensor, dim, keepdim=keepdim), indices)

    method.__name__ = name
    method.__doc__ = (
        f"Return the {name}imum of all; with a dim (values, indices); with a tensor per element."
    )
    return method


max_, min_ = _largest("max"), _largest("min")


def _position(
    name: str, function: Callable[..., Any], tensor: Tensor, dim: int | None, keepdim: bool
) -> Tensor:
    if dim is None:
        dims: tuple[int, ...] = tuple(range(tensor.ndim))
    else:
        dims = (wrap_dim(dim, tensor.ndim),) if tensor.ndim else ()
    axis = dims[0] if dim is not None and dims else None
    shape = _shape(tensor, dims, keepdim=keepdim)

    def compute(values: Array) -> Any:  # noqa: ANN401 - numpy's
        return np.asarray(function(values, axis=axis)).reshape(shape)

    flops = tensor.numel()
    return arithmetic.produce(f"arg{name}", compute, (tensor,), shape, int64, flops=flops)


def _refuse(name: str, tensor: Tensor) -> None:
    """Raise torch's error where an order is not defined for the type."""
    if tensor.dtype is bool_:
        raise RuntimeError(f"\"{name}_cpu\" not implemented for 'Bool'")
    problem = not_of_unsigned(name, tensor.dtype)
    if problem is not None:
        raise problem


def argmax(tensor: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the largest element, over one dim or in the flattened tensor."""
    _refuse("argmax", tensor)
    return _position("max", np.argmax, tensor, dim, keepdim)


def argmin(tensor: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the smallest element, over one dim or in the flattened tensor."""
    _refuse("argmin", tensor)
    return _position("min", np.argmin, tensor, dim, keepdim)


def _scan(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    def method(tensor: Tensor, dim: int, *, dtype: object = None) -> Tensor:
        axis, result = wrap_dim(dim, tensor.ndim), _result_type(tensor, dtype)
        wide = arithmetic.widen(np.empty(0, result.numpy)).dtype

        def compute(values: Array) -> Any:  # noqa: ANN401 - numpy's
            return function(values.astype(wide), axis=axis) if values.ndim else values

        return arithmetic.produce(name, compute, (tensor,), tensor.shape, result)

    method.__name__ = name
    method.__doc__ = f"Return the {name} along a dim; integers as int64."
    return method


cumsum, cumprod = _scan("cumsum", np.cumsum), _scan("cumprod", np.cumprod)


def norm(
    tensor: Tensor,
    p: float | str | None = "fro",
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: object = None,
) -> Tensor:
    """Return the p-norm of the elements over dims or all; "fro" and None are 2.

    Raises:
        UnsupportedError: A matrix norm other than "fro".
        RuntimeError: Of integers.
    """
    if isinstance(p, str) and p != "fro":
        raise UnsupportedError(f"norm(p={p!r}) is not supported; choices: 'fro' or a number")
    result = tensor.dtype if dtype is None else as_dtype(dtype)
    if result.kind != "float":
        raise RuntimeError(
            "linalg.vector_norm: Expected a floating point or complex tensor as input. "
            f"Got {result.name}"
        )
    order = 2.0 if p in ("fro", None) else float(p)

    def compute(values: Array, **options: Any) -> Any:  # noqa: ANN401 - numpy's
        size = np.abs(values.astype(np.float64))
        if math.isinf(order):
            return (np.max if order > 0 else np.min)(size, **options)
        if order == 0:
            return (size != 0).sum(**options)
        return (size**order).sum(**options) ** (1 / order)

    return _reduce("norm", compute, tensor, dim, result, keepdim=keepdim)


def _normalize(name: str, *, log: bool) -> Callable[..., Tensor]:
    def method(tensor: Tensor, dim: int, *, dtype: object = None) -> Tensor:
        result = tensor.dtype if dtype is None else as_dtype(dtype)
        if result.kind != "float":
            raise NotImplementedError(
                f"\"softmax_kernel_impl\" not implemented for '{result.name}'"
            )
        axis = wrap_dim(dim, tensor.ndim)
        wide = arithmetic.widen(np.empty(0, result.numpy)).dtype

        def compute(values: Array) -> Any:  # noqa: ANN401 - numpy's
            flat = values.reshape(values.shape or (1,)).astype(wide, copy=False)
            shifted = flat - flat.max(axis=axis, keepdims=True)
            powers = np.exp(shifted)
            total = powers.sum(axis=axis, keepdims=True)
            return (shifted - np.log(total) if log else powers / total).reshape(values.shape)

        flops = 4 * tensor.numel()  # assumed: maximum, exp, sum and quotient of each element
        return arithmetic.produce(name, compute, (tensor,), tensor.shape, result, flops=flops)

    method.__name__ = name
    method.__doc__ = f"Return the {name} along a dim."
    return method


softmax, log_softmax = _normalize("softmax", log=False), _normalize("log_softmax", log=True)


def logsumexp(tensor: Tensor, dim: int | Sequence[int], keepdim: bool = False) -> Tensor:
    """Return log(sum(exp)) over dims, without overflow."""

    def compute(values: Array, *, axis: tuple[int, ...], keepdims: bool) -> Any:  # noqa: ANN401
        values = values if values.dtype.kind == "f" else values.astype(np.float32)
        top = values.max(axis=axis, keepdims=True)
        top = np.where(np.isfinite(top), top, 0)
        total = np.log(np.exp(values - top).sum(axis=axis, keepdims=True)) + top
        return total if keepdims else np.squeeze(total, axis)

    dtype = tensor.dtype if tensor.dtype.kind == "float" else float32
    return _reduce("logsumexp", compute, tensor, dim, dtype, keepdim=keepdim)


def _order(values: Array, axis: int, *, descending: bool) -> Array:
    """Return a stable order along an axis."""
    if not descending:
        return np.argsort(values, axis=axis, kind="stable")
    flipped = np.argsort(np.flip(values, axis), axis=axis, kind="stable")  # Ties stay in order.
    return np.flip(values.shape[axis] - 1 - flipped, axis)


def sort(
    tensor: Tensor, dim: int = -1, descending: bool = False, stable: bool = True
) -> ValuesIndices:
    """Return the values of a dim in order, and where they were; always stable."""
    del stable
    return _sorted("sort", tensor, dim, tensor.shape[dim] if tensor.ndim else 1, descending)


def argsort(tensor: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the indices that sort the values of a dim."""
    return sort(tensor, dim, descending, stable).indices


def topk(
    tensor: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # noqa: A002
) -> ValuesIndices:
    """Return the k largest (or smallest) values of a dim in order, and where they were.

    Raises:
        RuntimeError: The dim has fewer than k entries.
    """
    del sorted
    if not 0 <= k <= (tensor.shape[wrap_dim(dim, tensor.ndim)] if tensor.ndim else 1):
        raise RuntimeError("selected index k out of range")
    _refuse("topk", tensor)
    return _sorted("topk", tensor, dim, k, largest)


def _sorted(name: str, tensor: Tensor, dim: int, k: int, descending: bool) -> ValuesIndices:
    axis = wrap_dim(dim, tensor.ndim)
    shape = tuple(k if position == axis else size for position, size in enumerate(tensor.shape))
    indices = allocate_beside(tensor, shape, int64)
    values = allocate_beside(tensor, shape, tensor.dtype)
    source, chosen, positions = tensor.array, values.array, indices.array

    def compute() -> None:
        flat = source.reshape(source.shape or (1,))
        order = _order(arithmetic.widen(flat), axis, descending=descending)
        order = np.take(order, range(k), axis=axis)
        positions[...] = order.reshape(positions.shape)
        chosen[...] = np.take_along_axis(flat, order, axis).reshape(chosen.shape)

    size = max(tensor.shape[axis] if tensor.ndim else 1, 2)
    flops = tensor.numel() * math.ceil(math.log2(size))  # A comparison sort's.
    arithmetic.run(name, compute, (tensor,), (values, indices), flops=flops)
    return ValuesIndices(values, indices)
