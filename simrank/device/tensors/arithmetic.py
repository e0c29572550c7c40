"""Arithmetic of tensors: tables of numpy functions, run in stream order at roofline cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.device.copies import copy_between
from simrank.device.dtypes import DType, as_dtype, bool_, float32, int64, promote, promote_scalar
from simrank.device.host_reads import touch_host
from simrank.device.memory import Accesses, guarded
from simrank.device.stream import parse_device, stream_on
from simrank.device.tensors.allocation import allocate_beside, result_of
from simrank.device.tensors.elementwise import BINARY, COMPARE, UNARY, not_of_unsigned, wrong_kind
from simrank.device.tensors.shapes import broadcast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device.device import Device
    from simrank.device.tensors.tensor import Tensor
    from simrank.hardware.spec import Product

Array = np.ndarray[Any, Any]


def common_device(tensors: Sequence[Tensor]) -> Device | None:
    """Return the device of all of them, None for the host.

    Raises:
        RuntimeError: They are on different devices; torch's words.
    """
    device = tensors[0].cuda_device
    for tensor in tensors[1:]:
        if tensor.cuda_device is not device:
            names = sorted({str(_name(t.cuda_device)) for t in tensors})
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                + " and ".join(names)
                + "!"
            )
    return device


def _name(device: Device | None) -> str:
    return "cpu" if device is None else f"cuda:{device.index}"


def run(  # noqa: PLR0913 - an operation's facts
    name: str,
    compute: Callable[[], None],
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    *,
    flops: int | None = None,
    bytes_moved: int | None = None,
    product: Product | None = None,
) -> None:
    """Run `compute` on values: at once on the host, in stream order on a device.

    Simulated cost: on a device a kernel of roofline time: `bytes_moved` (default: what it reads
    and writes), and `flops` (default: one per element written). On the host nothing.

    Raises:
        RuntimeError: Tensors on different devices, or several elements of a tensor that is
            written lie in the same bytes (`expand`); torch's words.
    """
    device = common_device([*writes, *reads])
    for tensor in writes:
        if 0 in tensor.array.strides and _overlaps_itself(tensor.array):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to "
                "a single memory location. Please clone() the tensor before performing the "
                "operation."
            )
    if device is None:
        for tensor in reads:
            tensor.wait_values()
        for tensor in writes:
            touch_host(tensor, is_write=True)
            if not any(tensor is read for read in reads):
                tensor.wait_writers()
        with np.errstate(all="ignore"):  # As on a device: inf and NaN.
            compute()
        return
    if bytes_moved is None:
        bytes_moved = sum(
            tensor.array.nbytes
            if tensor.storage.device is device
            else _bytes_of_peer(tensor, device)
            for tensor in (*reads, *writes)
        )
    operation = device.launch(
        stream_on(device),
        name,
        guarded(compute, reads, writes),
        Accesses(reads, writes),
        num_elements=writes[0].numel(),
        bytes_moved=bytes_moved,
        flops=writes[0].numel() if flops is None else flops,
        dtype=writes[0].dtype.name,
        product=product,
    )
    for tensor in writes:
        tensor.storage.note_write(operation, tensor.array)


def _bytes_of_peer(tensor: Tensor, device: Device) -> int:
    """Return the bytes that a device's own memory moves in the time of a peer's tensor."""
    assert tensor.storage.device is not None, "host tensors are not operands of a device"
    rate = device.network.route_bandwidth_bytes_per_s(tensor.storage.device.index, device.index)
    return round(tensor.nbytes * device.spec.memory_bandwidth_bytes_per_s / rate)


def _overlaps_itself(view: Array) -> bool:
    return any(step == 0 and size > 1 for step, size in zip(view.strides, view.shape, strict=True))


def copy(target: Tensor, src: Tensor, *, non_blocking: bool) -> None:
    """Copy values between any two devices, in stream order of the current stream.

    A copy into host memory waits for its end unless `non_blocking`; one from host memory has
    read its source when this returns.

    Simulated cost: bytes over the route between devices, or over the host link.
    """
    if target.shape != src.shape:
        if broadcast(target.shape, src.shape) != target.shape:
            raise RuntimeError(
                f"output with shape {list(target.shape)} doesn't match the broadcast shape "
                f"{list(broadcast(target.shape, src.shape))}"
            )
        src = Tensor_like(src, np.broadcast_to(src.array, target.shape))
    into = target.cuda_device
    if into is src.cuda_device and target.storage.device is src.storage.device:
        view, values = target.array, src.array
        run("copy_", lambda: _assign(view, values), (src,), (target,))
        return
    operation = copy_between(target, src)
    target.storage.note_write(operation, target.array)
    if into is None and not non_blocking:
        operation.stream.device.engine.wait(operation)
        operation.host_ordered()
        target.wait_values()


def Tensor_like(tensor: Tensor, view: Array) -> Tensor:  # noqa: N802 - stands for the class
    """Return a tensor of the same storage with another view."""
    result = result_of(tensor)(tensor.storage, tensor.dtype, view)
    result.cuda_device = tensor.cuda_device
    return result


def _assign(view: Array, values: Array) -> None:
    view[...] = values.astype(view.dtype) if values.dtype != view.dtype else values


def split_target(target: Sequence[Any]) -> tuple[list[Any], list[bool]]:
    """Return devices and dtypes, then flags, of the positional arguments of `Tensor.to`."""
    named = [given for given in target if not isinstance(given, bool) and given is not None]
    return named, [given for given in target if isinstance(given, bool)]


def parse_target(tensor: Tensor, target: Any) -> tuple[Device | None, DType]:  # noqa: ANN401
    """Return device and dtype that `Tensor.to(target)` asks for."""
    device = tensor.cuda_device
    if isinstance(target, DType):
        return device, target
    if hasattr(target, "storage"):
        return target.cuda_device, target.dtype
    if isinstance(target, str) and target.partition(":")[0] not in ("cpu", "cuda"):
        return device, as_dtype(target)
    return parse_device(target), tensor.dtype


def widen(values: Array) -> Array:
    """Return narrow floats as float32, in which devices compute them; the rest as it is."""
    narrow = values.dtype.itemsize < 4 and values.dtype.kind in "fV"
    return values.astype(np.float32) if narrow else values


def produce(  # noqa: PLR0913 - an operation's facts
    name: str,
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    shape: Sequence[int],
    dtype: DType,
    *,
    flops: int | None = None,
    bytes_moved: int | None = None,
    product: Product | None = None,
) -> Tensor:
    """Return a new tensor of `function(*arrays)`, computed in stream order; see `run`.

    Args:
        name: For timelines.
        function: Of the arrays; narrow floats come in as float32, the result is rounded once.
        tensors: What it reads; the first says on which device.
        shape: Of the result.
        dtype: Of the result.
        flops: Default: one per element of the result.
        bytes_moved: Default: all that is read and written.
        product: Its shape as a library's matrix product, if it is one.
    """
    result = allocate_beside(tensors[0], shape, dtype)
    arrays, target = [tensor.array for tensor in tensors], result.array

    def compute() -> None:
        target[...] = function(*[widen(values) for values in arrays])

    run(name, compute, tensors, (result,), flops=flops, bytes_moved=bytes_moved, product=product)
    return result


class NumpyOperand(NamedTuple):
    """An operand's numpy value, the type it promotes another one to, and what it reads."""

    value: Any
    dtype: DType
    reads: tuple[Tensor, ...]


def operand(value: Any, like: Tensor) -> NumpyOperand:  # noqa: ANN401 - a tensor or a number
    """Return a tensor or a number as an operand beside `like`."""
    if not hasattr(value, "storage"):
        if not isinstance(value, bool | int | float | complex | np.generic):
            raise TypeError(f"expected a Tensor or a number, got {type(value).__name__}")
        return NumpyOperand(value, promote_scalar(like.dtype, value), ())
    other: Tensor = value
    if other.dtype.kind == like.dtype.kind and (other.ndim == 0) != (like.ndim == 0):
        dtype = like.dtype if other.ndim == 0 else other.dtype  # A scalar does not widen.
    else:
        dtype = promote(like.dtype, other.dtype)
    if other.ndim == 0 and other.cuda_device is None and like.cuda_device is not None:
        other.wait_values()  # As in torch: a host scalar goes with tensors of any device.
        return NumpyOperand(other.array.copy(), dtype, ())
    return NumpyOperand(other.array, dtype, (other,))


def binary(
    name: str,
    tensor: Tensor,
    other: object,
    *,
    swap: bool = False,
    alpha: float = 1,
) -> Tensor:
    """Return `tensor op alpha * other`, promoted and broadcast as torch does.

    Raises:
        RuntimeError: The shapes do not fit, or the operation is not defined for the type.
    """
    function = BINARY[name]
    value, dtype, extra = operand(other, tensor)
    if name == "div" and dtype.kind != "float":
        dtype = float32
    _refuse(name, dtype, tensor, other)
    compute_dtype = dtype.numpy
    if name in COMPARE:
        dtype = bool_
    shape = broadcast(tensor.shape, np.shape(value))
    result = allocate_beside(tensor, shape, dtype)
    first, target = tensor.array, result.array

    def compute() -> None:
        left = first.astype(compute_dtype, copy=False)
        right = np.asarray(value).astype(compute_dtype, copy=False)
        if alpha != 1:
            right = right * np.asarray(alpha, compute_dtype)
        target[...] = function(right, left) if swap else function(left, right)

    run(name, compute, (tensor, *extra), (result,))
    return result


def _refuse(name: str, dtype: DType, tensor: Tensor, other: object) -> None:
    """Raise torch's error where a function is not defined for its operands."""
    kind = as_dtype(type(other)).kind if not hasattr(other, "dtype") else as_dtype(other.dtype).kind
    problem = wrong_kind(name, dtype.name, (tensor.dtype.kind, kind))
    problem = problem or not_of_unsigned(name, dtype)
    if problem is not None:
        raise problem
    if name == "pow" and dtype.kind == "int" and isinstance(other, int) and other < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")


def binary_(name: str, tensor: Tensor, other: object, alpha: float = 1) -> Tensor:
    """Compute `tensor op= other` in place.

    Raises:
        RuntimeError: The result's type does not fit the tensor's; torch's words.
    """
    value, dtype, extra = operand(other, tensor)
    if name == "div" and dtype.kind != "float":
        dtype = float32
    if dtype.kind == "float" and tensor.dtype.kind != "float":
        raise RuntimeError(
            f"result type {dtype.name} can't be cast to the desired output type {tensor.dtype.name}"
        )
    _refuse(name, dtype, tensor, other)
    if broadcast(tensor.shape, np.shape(value)) != tensor.shape:
        raise RuntimeError(
            f"output with shape {list(tensor.shape)} doesn't match the broadcast shape "
            f"{list(broadcast(tensor.shape, np.shape(value)))}"
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


def unary_type(name: str, dtype: DType) -> DType:
    """Return the type of a function of every element.

    Raises:
        NotImplementedError: torch has it not for this type; as torch says.
    """
    _, rule, kinds = UNARY[name]
    if name == "neg" and dtype is bool_:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead."
        )
    problem = not_of_unsigned(name, dtype)
    if problem is not None:
        raise problem
    if dtype.kind not in kinds:
        raise NotImplementedError(f"\"{name}_cpu\" not implemented for '{dtype.name}'")
    if rule == "bool":
        return bool_
    if rule == "number" and dtype is bool_:
        return int64
    return float32 if rule == "float" and dtype.kind != "float" else dtype


def unary(name: str, tensor: Tensor) -> Tensor:
    """Return a function of every element."""
    dtype, function = unary_type(name, tensor.dtype), UNARY[name].function
    converts = dtype is not bool_ and dtype.kind != tensor.dtype.kind
    wide = dtype.numpy if converts else None

    def compute(values: Array) -> Any:  # noqa: ANN401 - numpy's
        return function(values if wide is None else values.astype(wide))

    return produce(name, compute, (tensor,), tensor.shape, dtype)


def unary_(name: str, tensor: Tensor) -> Tensor:
    """Compute a function of every element into its tensor."""
    dtype = unary_type(name, tensor.dtype)
    if dtype is not tensor.dtype:
        raise RuntimeError(
            f"result type {dtype.name} can't be cast to the desired output type {tensor.dtype.name}"
        )
    view, function = tensor.array, UNARY[name].function

    def compute() -> None:
        view[...] = function(widen(view))

    run(f"{name}_", compute, (tensor,), (tensor,))
    return tensor
