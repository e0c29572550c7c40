"""What tensors compute: tables of numpy functions, run in stream order at roofline cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device import current
from simrank.device.dtypes import DType, as_dtype, bool_, float32, int64, promote, promote_scalar
from simrank.device.memory import guarded
from simrank.device.races import Accesses
from simrank.device.transfer import copy_between
from simrank.errors import SimrankError, UnsupportedError
from simrank.ranks import require_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device.device import Device
    from simrank.device.tensor import Tensor

Array = np.ndarray[Any, Any]

BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
    "pow": np.power, "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip
COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
UNARY: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "tanh": np.tanh, "relu": lambda x: np.maximum(x, np.zeros((), x.dtype)),
}  # fmt: skip
_FLOAT_ONLY = {"exp", "log", "sqrt", "tanh"}


def common_device(tensors: Sequence[Tensor]) -> Device | None:
    """Return the device of all of them, None for the host.

    Raises:
        RuntimeError: They are on different devices; torch's words.
    """
    device = tensors[0].storage.device
    for tensor in tensors[1:]:
        if tensor.storage.device is not device:
            names = sorted({str(_name(t.storage.device)) for t in tensors})
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                + " and ".join(names)
                + "!"
            )
    return device


def _name(device: Device | None) -> str:
    return "cpu" if device is None else f"cuda:{device.index}"


def run(
    name: str,
    compute: Callable[[], None],
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    *,
    flops: int | None = None,
) -> None:
    """Run `compute` on values: at once on the host, in stream order on a device.

    Simulated cost: on a device a kernel of roofline time: bytes read and written, and `flops`
    (default: one per element written). On the host nothing.
    """
    device = common_device([*writes, *reads])
    if device is None:
        for tensor in (*reads, *writes):
            tensor.wait_values()
        compute()
        return
    operation = device.launch(
        current.stream_on(device),
        name,
        guarded(compute, reads, writes),
        Accesses(reads, writes),
        num_elements=writes[0].numel(),
        bytes_moved=sum(tensor.nbytes for tensor in (*reads, *writes)),
        flops=writes[0].numel() if flops is None else flops,
        dtype=writes[0].dtype.name,
    )
    for tensor in writes:
        tensor.storage.note_write(operation, tensor.array)


def copy(target: Tensor, src: Tensor, *, non_blocking: bool) -> None:
    """Copy values between any two places, in stream order of the current stream.

    A copy into host memory waits for its end unless `non_blocking`; one from host memory has
    read its source when this returns.

    Simulated cost: bytes over the route between devices, or over the host link.
    """
    if target.shape != src.shape:
        np.broadcast_shapes(target.shape, src.shape)  # numpy's error names both shapes.
        src = Tensor_like(src, np.broadcast_to(src.array, target.shape))
    into, source = target.storage.device, src.storage.device
    if into is source:
        view, values = target.array, src.array
        run("copy_", lambda: _assign(view, values), (src,), (target,))
        return
    operation = copy_between(target, src)
    target.storage.note_write(operation, target.array)
    if into is None and not non_blocking:
        target.wait_values()


def Tensor_like(tensor: Tensor, view: Array) -> Tensor:  # noqa: N802 - stands for the class
    """Return a tensor of the same storage with another view."""
    return type(tensor)(tensor.storage, tensor.dtype, view)


def _assign(view: Array, values: Array) -> None:
    view[...] = values.astype(view.dtype) if values.dtype != view.dtype else values


def parse_target(tensor: Tensor, target: Any) -> tuple[Device | None, DType]:  # noqa: ANN401
    """Return device and dtype that `Tensor.to(target)` asks for."""
    device = tensor.storage.device
    if isinstance(target, DType):
        return device, target
    if hasattr(target, "storage"):
        return target.storage.device, target.dtype
    if isinstance(target, str) and target.partition(":")[0] not in ("cpu", "cuda"):
        return device, as_dtype(target)
    return parse_device(target), tensor.dtype


def parse_device(device: Any) -> Device | None:  # noqa: ANN401 - torch's spellings
    """Return the device named by None (the current one), "cpu", "cuda", "cuda:3", 3 or itself.

    Raises:
        SimrankError: There is no such device.
    """
    if device == "cpu":
        return None
    program = require_program("a tensor factory")
    if device is None or device == "cuda":
        return current.current_device(program)
    if isinstance(device, str) and device.startswith("cuda:") and device[5:].isdigit():
        device = int(device[5:])
    if isinstance(device, int):
        devices = program.context.devices
        if not 0 <= device < len(devices):
            raise SimrankError(f"device {device} does not exist: the cluster has {len(devices)}")
        found: Device = devices[device]
        return found
    if hasattr(device, "memory"):
        given: Device = device
        return given
    raise UnsupportedError(f"device {device!r}: expected 'cpu', 'cuda', 'cuda:N' or N")


def _empty(shape: Sequence[int], dtype: DType, like: Tensor) -> Tensor:
    from simrank.device.tensor import empty  # noqa: PLC0415 - tensors are made of this module

    return empty(shape, dtype, like.storage.device, fresh=False)


def _operand(value: Any, like: Tensor) -> tuple[Any, DType, tuple[Tensor, ...]]:  # noqa: ANN401
    """Return an operand's numpy value, the type it promotes `like` to, and what it reads."""
    if hasattr(value, "storage"):
        other: Tensor = value
        dtype = promote(like.dtype, other.dtype)
        if other.dtype.kind == like.dtype.kind and (other.ndim == 0) != (like.ndim == 0):
            dtype = like.dtype if other.ndim == 0 else other.dtype  # A scalar does not widen.
        return other.array, dtype, (other,)
    return value, promote_scalar(like.dtype, value), ()


def binary(name: str, tensor: Tensor, other: Any, *, swap: bool = False) -> Tensor:  # noqa: ANN401
    """Return `tensor op other`, promoted and broadcast as torch does."""
    function = BINARY.get(name) or COMPARE[name]
    value, dtype, extra = _operand(other, tensor)
    if name == "div" and dtype.kind != "float":
        dtype = float32
    compute_dtype = dtype
    if name in COMPARE:
        dtype = bool_
    shape = np.broadcast_shapes(tensor.shape, np.shape(value))
    result = _empty(shape, dtype, tensor)
    first, target = tensor.array, result.array

    def compute() -> None:
        left = first.astype(compute_dtype.numpy, copy=False)
        right = np.asarray(value).astype(compute_dtype.numpy, copy=False)
        target[...] = function(right, left) if swap else function(left, right)

    run(name, compute, (tensor, *extra), (result,))
    return result


def binary_(name: str, tensor: Tensor, other: Any, alpha: float = 1) -> Tensor:  # noqa: ANN401
    """Compute `tensor op= other` in place.

    Raises:
        RuntimeError: The result's type does not fit the tensor's; torch's words.
    """
    value, dtype, extra = _operand(other, tensor)
    if dtype.kind == "float" and tensor.dtype.kind != "float":
        raise RuntimeError(
            f"result type {dtype.name} can't be cast to the desired output type {tensor.dtype.name}"
        )
    if np.broadcast_shapes(tensor.shape, np.shape(value)) != tensor.shape:
        raise RuntimeError(
            f"output with shape {list(tensor.shape)} doesn't match the broadcast shape "
            f"{list(np.broadcast_shapes(tensor.shape, np.shape(value)))}"
        )
    if isinstance(alpha, float) and tensor.dtype.kind != "float" and alpha != int(alpha):
        raise RuntimeError(
            "For integral input tensors, argument alpha must not be a floating point number."
        )
    function, view = BINARY[name], tensor.array

    def compute() -> None:
        right = np.asarray(value).astype(view.dtype, copy=False)
        view[...] = function(view, right if alpha == 1 else right * np.asarray(alpha, view.dtype))

    run(f"{name}_", compute, (tensor, *extra), (tensor,))
    return tensor


def unary(name: str, tensor: Tensor) -> Tensor:
    """Return a function of every element."""
    dtype = float32 if name in _FLOAT_ONLY and tensor.dtype.kind != "float" else tensor.dtype
    result = _empty(tensor.shape, dtype, tensor)
    function, values, target = UNARY[name], tensor.array, result.array

    def compute() -> None:
        target[...] = function(values.astype(target.dtype, copy=False))

    run(name, compute, (tensor,), (result,))
    return result


def reduce(name: str, tensor: Tensor, dim: int | None, *, keepdim: bool) -> Tensor:
    """Return sum, mean, max or min over one dim or all; narrow floats accumulate in float32."""
    dtype = tensor.dtype
    if name == "sum" and dtype.kind != "float":
        dtype = int64
    elif name == "mean" and dtype.kind != "float":
        raise RuntimeError(
            f"mean(): could not infer output dtype. Input dtype must be a floating point dtype. "
            f"Got: {dtype.name}"
        )
    shape = _reduced_shape(tensor.shape, dim, keepdim=keepdim)
    result = _empty(shape, dtype, tensor)
    wide = np.float32 if dtype.itemsize < 4 and dtype.kind == "float" else dtype.numpy
    values, target = tensor.array, result.array

    def compute() -> None:
        target[...] = getattr(values.astype(wide, copy=False), name)(axis=dim, keepdims=keepdim)

    run(name, compute, (tensor,), (result,), flops=tensor.numel())
    return result


def _reduced_shape(shape: tuple[int, ...], dim: int | None, *, keepdim: bool) -> tuple[int, ...]:
    dims = range(len(shape)) if dim is None else (range(len(shape))[dim],)
    if keepdim:
        return tuple(1 if index in dims else size for index, size in enumerate(shape))
    return tuple(size for index, size in enumerate(shape) if index not in dims)


def matmul(first: Tensor, second: Tensor) -> Tensor:
    """Return the matrix product; 16-bit types accumulate in float32, the result is rounded once."""
    dtype = promote(first.dtype, second.dtype)
    if first.shape[-1:] != second.shape[-2:][:1]:
        raise RuntimeError(
            "mat1 and mat2 shapes cannot be multiplied "
            f"({'x'.join(map(str, first.shape))} and {'x'.join(map(str, second.shape))})"
        )
    batch = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    shape = (*batch, *first.shape[-2:-1], *second.shape[-1:][: second.ndim - 1])
    result = _empty(shape, dtype, first)
    wide = np.float32 if dtype.itemsize < 4 and dtype.kind == "float" else dtype.numpy
    left, right, target = first.array, second.array, result.array

    def compute() -> None:
        target[...] = np.matmul(left.astype(wide, copy=False), right.astype(wide, copy=False))

    flops = 2 * result.numel() * first.shape[-1]
    run("matmul", compute, (first, second), (result,), flops=flops)
    return result


BinaryMethod = Callable[["Tensor", Any], "Tensor"]


def binary_method(name: str, *, swap: bool = False) -> BinaryMethod:
    """Return a method of the tensor class from the tables above."""

    def method(self: Tensor, other: Any) -> Tensor:  # noqa: ANN401 - a tensor or a number
        return binary(name, self, other, swap=swap)

    method.__name__ = name
    method.__doc__ = f"Return `{name}` of both, promoted and broadcast as torch does."
    return method


def inplace_method(name: str) -> Callable[..., Tensor]:
    """Return a method that computes into its tensor; `alpha` scales the operand, as in torch."""

    def method(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:  # noqa: ANN401
        return binary_(name, self, other, alpha)

    method.__name__ = f"{name}_"
    method.__doc__ = f"Compute `{name}` into this tensor."
    return method


def unary_method(name: str) -> Callable[[Tensor], Tensor]:
    """Return a method of the tensor class from the tables above."""

    def method(self: Tensor) -> Tensor:
        return unary(name, self)

    method.__name__ = name
    method.__doc__ = f"Return `{name}` of every element."
    return method
