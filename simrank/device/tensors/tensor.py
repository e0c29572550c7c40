"""Tensors: shape and dtype at once, values in stream order, host reads as barriers (D4, D6).

`HOST_READS` is the closed list of what waits for a tensor's values; nothing else does.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from simrank.device.copies import upload
from simrank.device.device import HOST
from simrank.device.dtypes import DType, as_dtype, as_values
from simrank.device.host_reads import wait_values
from simrank.device.stream import parse_device
from simrank.device.tensors import arithmetic, indexing, interop, views
from simrank.device.tensors.allocation import allocate
from simrank.device.tensors.methods import TensorMethods
from simrank.device.tensors.shapes import as_shape, wrap_dim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.device.device import Device
    from simrank.device.memory import Storage
    from simrank.device.stream import Stream

_M = TypeVar("_M", bound="Callable[..., Any]")
_registered: list[str] = []

Array = np.ndarray[Any, Any]
Scalar = bool | int | float
_TYPE_NAMES = {
    "float64": "DoubleTensor", "float32": "FloatTensor", "float16": "HalfTensor",
    "bfloat16": "BFloat16Tensor", "int64": "LongTensor", "int32": "IntTensor",
    "int16": "ShortTensor", "int8": "CharTensor", "uint8": "ByteTensor", "bool": "BoolTensor",
    "uint16": "UInt16Tensor", "uint32": "UInt32Tensor", "uint64": "UInt64Tensor",
}  # fmt: skip


def host_read(method: _M) -> _M:
    """Register a method whose result depends on values: it waits for what still writes them."""
    _registered.append(method.__name__)

    @wraps(method)
    def barrier(self: Tensor, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - the method's
        wait_values(self)
        return method(self, *args, **kwargs)

    return cast("_M", barrier)


class Tensor(TensorMethods):
    """An array on a device or on the host; views share storage.

    Attributes:
        storage: The bytes it views.
        dtype: Element type.
        cuda_device: The device that it counts as being on, whose streams work on it; None for the
            host. Not the storage's own where a peer's memory is mapped.
        array: The numpy view of its values, for operations that run in stream order.
        shape: As in torch.
    """

    __slots__ = ("array", "cuda_device", "dtype", "storage")
    __array_priority__ = 1000  # numpy's operators leave mixed expressions to this class.

    def __init__(self, storage: Storage, dtype: DType, view: Array) -> None:
        self.storage = storage
        self.dtype = dtype
        self.cuda_device = storage.device
        self.array = view

    # ---- what is known without values ----

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the size of each dim."""
        shape: tuple[int, ...] = self.array.shape
        return shape

    @property
    def ndim(self) -> int:
        """Return the number of dims."""
        return int(self.array.ndim)

    @property
    def device(self) -> Device | str:
        """Return the device, or "cpu"."""
        return HOST if self.cuda_device is None else self.cuda_device

    @property
    def is_cuda(self) -> bool:
        """Return whether it lives on a device."""
        return self.cuda_device is not None

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""
        return int(self.array.nbytes)

    @property
    def itemsize(self) -> int:
        """Return bytes per element."""
        return self.dtype.itemsize

    @property
    def requires_grad(self) -> bool:
        """Return False: simrank's tensors have no autograd."""
        return False

    @property
    def grad(self) -> None:
        """Return None: simrank's tensors have no autograd."""
        return

    @property
    def data(self) -> Tensor:
        """Return another tensor on the same storage."""
        return self._like(self.array)

    @property
    def T(self) -> Tensor:  # noqa: N802 - torch's name
        """Return a view with all dims in reverse."""
        return self._like(self.array.T)

    @property
    def mT(self) -> Tensor:  # noqa: N802 - torch's name
        """Return a view with the last two dims swapped."""
        return self.transpose(-2, -1)

    def size(self, dim: int | None = None) -> tuple[int, ...] | int:
        """Return the shape, or the size of one dim."""
        return self.shape if dim is None else int(self.shape[wrap_dim(dim, self.ndim)])

    def dim(self) -> int:
        """Return the number of dims."""
        return self.ndim

    def is_floating_point(self) -> bool:
        """Return whether its dtype is a floating one."""
        return self.dtype.is_floating_point

    def get_device(self) -> int:
        """Return the index of its device, -1 for the host."""
        return -1 if self.cuda_device is None else self.cuda_device.index

    def record_stream(self, stream: Stream) -> None:
        """Record the use by a stream: the memory stays until the stream's work has ended.

        Here it does so for every operation, recorded or not.
        """
        if self.cuda_device is None:
            raise RuntimeError("record_stream is for tensors on a device")
        if stream.device is not self.cuda_device:
            raise RuntimeError(f"record_stream: the tensor is on {self.cuda_device}")

    def numel(self) -> int:
        """Return the number of elements."""
        return int(self.array.size)

    def element_size(self) -> int:
        """Return bytes per element."""
        return self.dtype.itemsize

    nelement, ndimension = numel, dim

    def stride(self, dim: int | None = None) -> Any:  # noqa: ANN401 - one or all
        """Return strides in elements, or the stride of one dim."""
        strides = tuple(step // self.dtype.itemsize for step in self.array.strides)
        return strides if dim is None else strides[wrap_dim(dim, self.ndim)]

    def storage_offset(self) -> int:
        """Return the offset of the first element in the storage, in elements."""
        return self._offset_bytes() // self.dtype.itemsize

    def data_ptr(self) -> int:
        """Return the simulated address of the first element; 0 on the host."""
        return 0 if self.storage.device is None else self.storage.address + self._offset_bytes()

    def _offset_bytes(self) -> int:
        start = self.storage.array(np.dtype(np.uint8)).__array_interface__["data"][0]
        return int(self.array.__array_interface__["data"][0] - start)

    def is_contiguous(self) -> bool:
        """Return whether elements lie in C order without gaps."""
        return self.array.flags.c_contiguous

    def __len__(self) -> int:
        """Return the size of dim 0."""
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    # ---- in stream order ----

    def _like(self, view: Array) -> Tensor:
        return arithmetic.Tensor_like(self, view)

    def __getitem__(self, index: object) -> Tensor:
        """Return `self[index]`: a view, a deferred copy, or with a mask a barrier on the mask."""
        return indexing.take(self, index)

    def __setitem__(self, index: object, value: Tensor | Scalar) -> None:
        """Write `self[index]`, in stream order; no barrier."""
        indexing.put(self, index, value)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield a view per entry of dim 0."""
        return iter(self.unbind(0))

    def fill_(self, value: Scalar | Tensor) -> Tensor:
        """Set every element. Simulated cost: a kernel that writes it."""
        if isinstance(value, Tensor):
            return self.copy_(value.to(self.device))
        view = self.array
        arithmetic.run("fill_", lambda: view.fill(value), reads=(), writes=(self,))
        return self

    def zero_(self) -> Tensor:
        """Set every element to zero."""
        return self.fill_(0)

    def copy_(self, src: Tensor, non_blocking: bool = False) -> Tensor:
        """Copy `src` into this tensor, converting its dtype; see `arithmetic.copy`.

        The target is never waited for: a barrier there would drain work of other ranks.
        """
        arithmetic.copy(self, src, non_blocking=non_blocking)
        return self

    def clone(self, *, memory_format: object = None) -> Tensor:
        """Return a copy on the same device."""
        del memory_format
        result = empty_like(self, fresh=False)
        return result.copy_(self, non_blocking=True)

    def contiguous(self, *, memory_format: object = None) -> Tensor:
        """Return itself, or a copy in C order."""
        del memory_format
        return self if self.is_contiguous() else self.clone()

    # ---- other devices and types ----

    def to(
        self,
        *target: object,
        device: object = None,
        dtype: object = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> Tensor:
        """Return the tensor on another device or with another dtype; itself if nothing changes.

        Args:
            target: A device, a dtype, both in this order, or a tensor that has both; then
                `non_blocking` and `copy`, as in torch.
            device: Where; default: unchanged.
            dtype: Of what type; default: unchanged.
            non_blocking: Whether a copy to the host is not waited for.
            copy: Whether it is a copy even if nothing changes.
        """
        named, flags = arithmetic.split_target(target)
        non_blocking, copy = (*flags, *(non_blocking, copy)[len(flags) :])
        cuda_device, new_dtype = self.cuda_device, self.dtype
        for given in (*named, *(x for x in (device, dtype) if x is not None)):
            where, kind = arithmetic.parse_target(self, given)
            cuda_device = cuda_device if where is self.cuda_device else where
            new_dtype = new_dtype if kind is self.dtype else kind
        if cuda_device is self.cuda_device and new_dtype is self.dtype and not copy:
            return self
        result = empty(self.shape, new_dtype, cuda_device, fresh=False)
        return result.copy_(self, non_blocking=non_blocking)

    def cpu(self) -> Tensor:
        """Return a copy on the host, once what writes this tensor has ended."""
        return self.to("cpu")

    def cuda(self, device: object = None, non_blocking: bool = False) -> Tensor:
        """Return the tensor on a device (default: the current one)."""
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)

    def type(self, dtype: object = None) -> Any:  # noqa: ANN401 - a name or a tensor
        """Return the tensor with another dtype; without one, torch's name of its type."""
        if dtype is not None:
            return self.to(dtype=as_dtype(dtype))
        return f"torch.{'cuda.' if self.is_cuda else ''}{_TYPE_NAMES.get(self.dtype.name, '?')}"

    def type_as(self, other: Tensor) -> Tensor:
        """Return the tensor with the dtype and on the device of another tensor."""
        return self.to(other)

    # ---- new tensors beside this one ----

    def new_empty(self, *size: object, dtype: object = None, device: object = None) -> Tensor:
        """Return a tensor of garbage of the same dtype and device, unless told otherwise."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        cuda_device = self.cuda_device if device is None else parse_device(device)
        return empty(as_shape(size), kind, cuda_device)

    def new_full(
        self,
        size: Sequence[int],
        fill_value: Scalar,
        *,
        dtype: object = None,
        device: object = None,
    ) -> Tensor:
        """Return a tensor full of a value; see `new_empty`."""
        return self.new_empty(size, dtype=dtype, device=device).fill_(fill_value)

    def new_zeros(self, *size: object, dtype: object = None, device: object = None) -> Tensor:
        """Return a tensor of zeros; see `new_empty`."""
        return self.new_full(as_shape(size), 0, dtype=dtype, device=device)

    def new_ones(self, *size: object, dtype: object = None, device: object = None) -> Tensor:
        """Return a tensor of ones; see `new_empty`."""
        return self.new_full(as_shape(size), 1, dtype=dtype, device=device)

    def new_tensor(self, data: object, *, dtype: object = None, device: object = None) -> Tensor:
        """Return a tensor with these values; see `new_empty`."""
        target = self.device if device is None else device
        return with_values(as_values(data, dtype or self.dtype), parse_device(target))

    # ---- host reads: barriers ----

    def wait_values(self) -> None:
        """Wait for the operations of all ranks that still write this tensor (D4).

        Raises:
            UninitializedValueError: A shape-only run does not have the values.
        """
        wait_values(self)

    def wait_writers(self) -> None:
        """Wait for the operations that still write this host tensor, which is written over next."""
        for operation in self.storage.pending_writes(self.array):
            if not operation.complete:
                operation.stream.device.engine.wait(operation)
        self.storage.write_over(self.array)

    @host_read
    def numpy(self) -> Array:
        """Return the values: of a device tensor a copy, of a host tensor the memory itself."""
        return self.array if self.cuda_device is None else self.array.copy()

    @host_read
    def item(self) -> Scalar:
        """Return the only element as a Python number."""
        if self.numel() != 1:
            raise RuntimeError(
                f"a Tensor with {self.numel()} elements cannot be converted to Scalar"
            )
        value: Scalar = self.array.reshape(-1)[0].item()
        return value

    @host_read
    def tolist(self) -> Any:  # noqa: ANN401 - nested lists of numbers
        """Return the values as nested lists."""
        return self.array.tolist()

    @host_read
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # noqa: ANN401
        """Return the values for numpy."""
        values = self.array if copy is False else self.array.copy()
        return values if dtype is None else values.astype(dtype)

    __dlpack__, __dlpack_device__ = interop.dlpack, interop.dlpack_device
    __array_interface__ = property(interop.array_interface)

    @host_read
    def __bool__(self) -> bool:
        """Return the truth of the only element."""
        if self.numel() != 1:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
        return bool(self.array.reshape(-1)[0])

    def __int__(self) -> int:
        """Return the only element as an int."""
        return int(self.item())

    def __float__(self) -> float:
        """Return the only element as a float."""
        return float(self.item())

    def __index__(self) -> int:
        """Return the only element as an index."""
        if self.dtype.kind == "float":
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    @host_read
    def __repr__(self) -> str:
        """Show values as torch does."""
        values = np.array2string(self.array.astype(np.float64), separator=", ")
        if self.dtype.kind != "float":
            values = np.array2string(self.array, separator=", ")
        where = "" if self.cuda_device is None else f", device='cuda:{self.cuda_device.index}'"
        return f"tensor({values}, dtype={self.dtype!r}{where})"

    @host_read
    def __format__(self, spec: str) -> str:
        """Format the only element as a number; anything else as torch prints it."""
        return format(self.item(), spec) if self.ndim == 0 else format(repr(self), spec)

    def __copy__(self) -> Tensor:
        """Return another tensor on the same storage."""
        return self._like(self.array)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Return a copy on the same device, in stream order; views of one storage stay together."""
        copied = memo[id(self)] = views.deep_copy(self, memo)
        return copied

    @host_read
    def equal(self, other: Tensor) -> bool:
        """Return whether both have the same shape and values."""
        other.wait_values()
        return bool(np.array_equal(self.array, other.array))

    @host_read
    def allclose(
        self, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> bool:
        """Return whether all values are within atol + rtol * |other|.

        Raises:
            RuntimeError: The dtypes differ; as torch.
        """
        if self.dtype is not other.dtype:
            raise RuntimeError(f"{self.dtype.name} did not match {other.dtype.name}")
        other.wait_values()
        first, second = self.array.astype(np.float64), other.array.astype(np.float64)
        return bool(np.allclose(first, second, rtol, atol, equal_nan))

    @host_read
    def nonzero(self, *, as_tuple: bool = False) -> Any:  # noqa: ANN401 - a tensor or a tuple
        """Return the indices of what is not zero: one row each, or a tensor per dim."""
        return indexing.nonzero(self, as_tuple=as_tuple)

    @host_read
    def masked_select(self, mask: Tensor) -> Tensor:
        """Return the elements where a mask is true."""
        return indexing.masked_select(self, mask)

    @host_read
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle values and dtype; the copy lives on the host."""
        return (from_numpy, (np.array(self.array),))

    __hash__ = object.__hash__


HOST_READS: tuple[str, ...] = (
    "numpy", "item", "tolist", "__array__", "__array_interface__", "__dlpack__",
    "__bool__", "__int__", "__float__", "__index__", "__repr__",
    "__format__", "equal", "allclose", "__reduce__", "cpu", "to", "copy_",
    "nonzero", "masked_select", "__getitem__",  # The last with a mask, which it waits for.
)  # fmt: skip


def empty(
    shape: Sequence[int], dtype: DType, device: Device | None, *, fresh: bool = True
) -> Tensor:
    """Return a tensor with garbage in it (NaN in floating types).

    Args:
        shape: Size of each dim.
        dtype: Element type.
        device: Whose memory; None is the host's.
        fresh: False if every byte is written before it can be read: the garbage is left out.
    """
    return allocate(Tensor, shape, dtype, device, fresh=fresh)


def empty_like(tensor: Tensor, dtype: DType | None = None, *, fresh: bool = True) -> Tensor:
    """Return a garbage tensor of the same shape and device."""
    return empty(tensor.shape, dtype or tensor.dtype, tensor.cuda_device, fresh=fresh)


def from_numpy(values: Array) -> Tensor:
    """Return a host tensor with a copy of the values."""
    values = np.ascontiguousarray(values) if values.ndim else values
    tensor = empty(values.shape, as_dtype(values.dtype), None, fresh=False)
    tensor.array[...] = values
    return tensor


def with_values(values: Array, device: Device | None) -> Tensor:
    """Return the values as a tensor; onto a device they are copied in stream order."""
    if device is None:
        return from_numpy(values)
    tensor = empty(values.shape, as_dtype(values.dtype), device, fresh=False)
    upload(tensor, values, device)
    return tensor
