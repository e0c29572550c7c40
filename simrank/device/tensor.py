"""Tensors: shape and dtype at once, numbers in stream order, host reads as barriers (D4, D6).

`HOST_READS` is the closed list of what waits for a tensor's values; nothing else does.
"""

from __future__ import annotations

from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from simrank.device import arithmetic
from simrank.device.current import stream_on
from simrank.device.dtypes import DType, as_dtype
from simrank.device.memory import Storage
from simrank.device.shapes import as_shape, resolve
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.device.device import Device

_M = TypeVar("_M", bound="Callable[..., Any]")
_registered: list[str] = []

Array = np.ndarray[Any, Any]
Scalar = bool | int | float


def host_read(method: _M) -> _M:
    """Register a method whose result depends on values: it waits for what still writes them."""
    _registered.append(method.__name__)

    @wraps(method)
    def barrier(self: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the method's
        self.wait_values()
        return method(self, *args, **kwargs)

    return cast("_M", barrier)


class Tensor:
    """An array on a device or on the host; views share storage.

    Attributes:
        storage: The bytes it views.
        dtype: Element type.
        shape: As in torch.
    """

    __slots__ = ("_view", "dtype", "storage")
    __array_priority__ = 1000  # numpy's operators leave mixed expressions to this class.

    def __init__(self, storage: Storage, dtype: DType, view: Array) -> None:
        self.storage = storage
        self.dtype = dtype
        self._view = view

    # ---- what is known without values ----

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the size of each dim."""
        shape: tuple[int, ...] = self._view.shape
        return shape

    @property
    def ndim(self) -> int:
        """Return the number of dims."""
        return int(self._view.ndim)

    @property
    def device(self) -> Device | str:
        """Return the device, or "cpu"."""
        return "cpu" if self.storage.device is None else self.storage.device

    @property
    def is_cuda(self) -> bool:
        """Return whether it lives on a device."""
        return self.storage.device is not None

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""
        return int(self._view.nbytes)

    @property
    def array(self) -> Array:
        """Return the numpy view of its values, for operations that run in stream order."""
        return self._view

    def size(self, dim: int | None = None) -> tuple[int, ...] | int:
        """Return the shape, or the size of one dim."""
        return self.shape if dim is None else int(self.shape[dim])

    def dim(self) -> int:
        """Return the number of dims."""
        return self.ndim

    def numel(self) -> int:
        """Return the number of elements."""
        return int(self._view.size)

    def element_size(self) -> int:
        """Return bytes per element."""
        return self.dtype.itemsize

    def stride(self) -> tuple[int, ...]:
        """Return strides in elements."""
        return tuple(step // self.dtype.itemsize for step in self._view.strides)

    def data_ptr(self) -> int:
        """Return the simulated address of the first element; 0 on the host."""
        if self.storage.device is None:
            return 0
        start = self.storage.array(np.dtype(np.uint8)).__array_interface__["data"][0]
        here = self._view.__array_interface__["data"][0]
        return self.storage.address + int(here - start)

    def is_contiguous(self) -> bool:
        """Return whether elements lie in C order without gaps."""
        return self._view.flags.c_contiguous

    def __len__(self) -> int:
        """Return the size of dim 0."""
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    # ---- views: no values, no barrier ----

    def _like(self, view: Array) -> Tensor:
        return Tensor(self.storage, self.dtype, view)

    def view(self, *shape: int | Sequence[int]) -> Tensor:
        """Return the same bytes under another shape.

        Raises:
            RuntimeError: The tensor is not contiguous in the way that needs.
        """
        new_shape = as_shape(shape)
        if not self.is_contiguous():
            raise RuntimeError(
                "view size is not compatible with input tensor's size and stride "
                "(at least one dimension spans across two contiguous subspaces). "
                "Use .reshape(...) instead."
            )
        return self._like(self._view.reshape(resolve(new_shape, self.numel())))

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """Return it under another shape; a copy only if a view cannot do."""
        new_shape = resolve(as_shape(shape), self.numel())
        return (self if self.is_contiguous() else self.contiguous()).view(new_shape)

    def flatten(self) -> Tensor:
        """Return it with one dim."""
        return self.reshape(-1)

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Return a view with two dims swapped."""
        return self._like(self._view.swapaxes(dim0, dim1))

    def t(self) -> Tensor:
        """Return the transposed matrix, a view."""
        return self._like(self._view.T)

    def unsqueeze(self, dim: int) -> Tensor:
        """Return a view with a dim of size 1 inserted."""
        return self._like(np.expand_dims(self._view, dim))

    def squeeze(self, dim: int | None = None) -> Tensor:
        """Return a view without dims of size 1."""
        if dim is not None and self.shape[dim] != 1:
            return self
        return self._like(np.squeeze(self._view, dim))

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """Return a view of `length` entries of one dim."""
        index = [slice(None)] * self.ndim
        index[dim] = slice(start, start + length)
        return self._like(self._view[tuple(index)])

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Return views of consecutive pieces of one dim."""
        total = self.shape[dim]
        if isinstance(split_size, int):
            starts = range(0, total, split_size)
            sizes = [min(split_size, total - start) for start in starts]
        else:
            sizes = list(split_size)
            if sum(sizes) != total:
                raise RuntimeError(
                    f"split_with_sizes expects split_sizes to sum exactly to {total} "
                    f"(input tensor's size at dimension {dim}), but got split_sizes={sizes}"
                )
        offsets = np.cumsum([0, *sizes])
        return tuple(
            self.narrow(dim, int(o), size) for o, size in zip(offsets, sizes, strict=False)
        )

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """Return views of `chunks` pieces of one dim, the last one shorter."""
        return self.split(max(-(-self.shape[dim] // chunks), 1), dim)

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """Return a view per entry of one dim."""
        return tuple(self._like(v) for v in np.moveaxis(self._view, dim, 0))

    def __getitem__(self, index: Any) -> Tensor:  # noqa: ANN401 - whatever numpy takes
        """Return a view; a boolean mask or an index tensor is refused by name."""
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, Tensor | np.ndarray | list) for part in parts):
            raise UnsupportedError("indexing with a tensor, mask or list is not supported yet")
        view = self._view[index]
        if not isinstance(view, np.ndarray):  # One element: numpy would return a scalar.
            view = self._view[(*parts, np.newaxis)].reshape(())
        return self._like(view)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield a view per entry of dim 0."""
        return iter(self.unbind(0))

    def detach(self) -> Tensor:
        """Return itself: simrank tensors have no autograd."""
        return self

    # ---- in stream order ----

    def __setitem__(self, index: Any, value: Tensor | Scalar) -> None:  # noqa: ANN401
        """Write a slice, in stream order."""
        target = self[index]
        if isinstance(value, Tensor):
            target.copy_(value)
        else:
            target.fill_(value)

    def fill_(self, value: Scalar) -> Tensor:
        """Set every element. Simulated cost: a kernel that writes it."""
        view = self._view
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

    def clone(self) -> Tensor:
        """Return a copy on the same device."""
        result = empty_like(self, fresh=False)
        return result.copy_(self, non_blocking=True)

    def contiguous(self) -> Tensor:
        """Return itself, or a copy in C order."""
        return self if self.is_contiguous() else self.clone()

    def to(
        self,
        target: DType | Device | str | Tensor,
        *,
        dtype: DType | str | None = None,
        non_blocking: bool = False,
    ) -> Tensor:
        """Return it on another device or with another dtype; itself if nothing changes."""
        device, new_dtype = arithmetic.parse_target(self, target)
        if dtype is not None:
            new_dtype = as_dtype(dtype)
        if device is self.storage.device and new_dtype is self.dtype:
            return self
        result = empty(self.shape, new_dtype, device, fresh=False)
        return result.copy_(self, non_blocking=non_blocking)

    def cpu(self) -> Tensor:
        """Return a copy on the host, once what writes this tensor has ended."""
        return self.to("cpu")

    def cuda(self, device: int | None = None) -> Tensor:
        """Return it on a device (default: the current one)."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def float(self) -> Tensor:
        """Return it as float32."""
        return self.to(as_dtype("float32"))

    def sum(self, dim: int | None = None, *, keepdim: bool = False) -> Tensor:
        """Return sums over one dim or all; integers as int64, accumulated in at least float32."""
        return arithmetic.reduce("sum", self, dim, keepdim=keepdim)

    def mean(self, dim: int | None = None, *, keepdim: bool = False) -> Tensor:
        """Return means over one dim or all."""
        return arithmetic.reduce("mean", self, dim, keepdim=keepdim)

    def max(self, dim: int | None = None, *, keepdim: bool = False) -> Tensor:
        """Return the largest values (not their indices) over one dim or all."""
        return arithmetic.reduce("max", self, dim, keepdim=keepdim)

    def min(self, dim: int | None = None, *, keepdim: bool = False) -> Tensor:
        """Return the smallest values (not their indices) over one dim or all."""
        return arithmetic.reduce("min", self, dim, keepdim=keepdim)

    def matmul(self, other: Tensor) -> Tensor:
        """Return the matrix product; 16-bit types accumulate in float32."""
        return arithmetic.matmul(self, other)

    add = __add__ = __radd__ = arithmetic.binary_method("add")
    sub = __sub__ = arithmetic.binary_method("sub")
    __rsub__ = arithmetic.binary_method("sub", swap=True)
    mul = __mul__ = __rmul__ = arithmetic.binary_method("mul")
    div = __truediv__ = arithmetic.binary_method("div")
    __rtruediv__ = arithmetic.binary_method("div", swap=True)
    pow = __pow__ = arithmetic.binary_method("pow")
    maximum = arithmetic.binary_method("maximum")
    minimum = arithmetic.binary_method("minimum")
    eq = __eq__ = arithmetic.binary_method("eq")  # type: ignore[assignment]  # torch's, per element
    ne = __ne__ = arithmetic.binary_method("ne")  # type: ignore[assignment]
    lt = __lt__ = arithmetic.binary_method("lt")
    le = __le__ = arithmetic.binary_method("le")
    gt = __gt__ = arithmetic.binary_method("gt")
    ge = __ge__ = arithmetic.binary_method("ge")
    add_ = __iadd__ = arithmetic.inplace_method("add")
    sub_ = __isub__ = arithmetic.inplace_method("sub")
    mul_ = __imul__ = arithmetic.inplace_method("mul")
    div_ = __itruediv__ = arithmetic.inplace_method("div")
    neg = __neg__ = arithmetic.unary_method("neg")
    abs = __abs__ = arithmetic.unary_method("abs")
    exp = arithmetic.unary_method("exp")
    log = arithmetic.unary_method("log")
    sqrt = arithmetic.unary_method("sqrt")
    tanh = arithmetic.unary_method("tanh")
    relu = arithmetic.unary_method("relu")
    __matmul__ = matmul

    # ---- host reads: barriers ----

    def wait_values(self) -> None:
        """Wait for the operations that still write this tensor, whoever issued them (D4).

        Raises:
            UninitializedValueError: A shape-only run does not have the values.
        """
        storage = self.storage
        device = storage.device
        if device is not None and device.races is not None:
            device.races.host_reads(self, stream_on(device))
        for operation in storage.pending_writes(self._view):
            operation.stream.device.engine.wait(operation)
        storage.check_values(f"a {self.dtype.name} tensor of shape {list(self.shape)}")

    @host_read
    def numpy(self) -> Array:
        """Return the values: of a device tensor a copy, of a host tensor the memory itself."""
        return self._view if self.storage.device is None else self._view.copy()

    @host_read
    def item(self) -> Scalar:
        """Return the only element as a Python number."""
        if self.numel() != 1:
            raise RuntimeError(
                f"a Tensor with {self.numel()} elements cannot be converted to Scalar"
            )
        value: Scalar = self._view.reshape(-1)[0].item()
        return value

    @host_read
    def tolist(self) -> Any:  # noqa: ANN401 - nested lists of numbers
        """Return the values as nested lists."""
        return self._view.tolist()

    @host_read
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # noqa: ANN401
        """Return the values for numpy."""
        values = self._view if copy is False else self._view.copy()
        return values if dtype is None else values.astype(dtype)

    @host_read
    def __bool__(self) -> bool:
        """Return the truth of the only element."""
        if self.numel() != 1:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
        return bool(self._view.reshape(-1)[0])

    def __int__(self) -> int:
        """Return the only element as an int."""
        return int(self.item())

    def __float__(self) -> builtin_float:
        """Return the only element as a float."""
        return builtin_float(self.item())

    def __index__(self) -> int:
        """Return the only element as an index."""
        if self.dtype.kind == "float":
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    @host_read
    def __repr__(self) -> str:
        """Show values as torch does."""
        values = np.array2string(self._view.astype(np.float64), separator=", ")
        if self.dtype.kind != "float":
            values = np.array2string(self._view, separator=", ")
        where = (
            "" if self.storage.device is None else f", device='cuda:{self.storage.device.index}'"
        )
        return f"tensor({values}, dtype={self.dtype!r}{where})"

    @host_read
    def __format__(self, spec: str) -> str:
        """Format the only element as a number; anything else as torch prints it."""
        return format(self.item(), spec) if self.ndim == 0 else format(repr(self), spec)

    def __copy__(self) -> Tensor:
        """Return another tensor on the same storage."""
        return self._like(self._view)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Return a copy on the same device, in stream order."""
        copied = memo[id(self)] = self.clone()
        return copied

    @host_read
    def equal(self, other: Tensor) -> bool:
        """Return whether both have the same shape and values."""
        other.wait_values()
        return bool(np.array_equal(self._view, other._view))

    @host_read
    def allclose(
        self, other: Tensor, rtol: builtin_float = 1e-5, atol: builtin_float = 1e-8
    ) -> bool:
        """Return whether all values are close, as numpy defines it."""
        other.wait_values()
        first, second = self._view.astype(np.float64), other._view.astype(np.float64)
        return bool(np.allclose(first, second, rtol, atol))

    @host_read
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle values and dtype; the copy lives on the host."""
        return (from_numpy, (np.array(self._view),))

    __hash__ = object.__hash__


builtin_float = float

HOST_READS: tuple[str, ...] = (
    "numpy", "item", "tolist", "__array__", "__bool__", "__int__", "__float__", "__index__",
    "__repr__", "__format__", "equal", "allclose", "__reduce__", "cpu", "to", "copy_",
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
    num_elements = prod(shape)
    storage = Storage(device, num_elements * dtype.itemsize, fresh=fresh)
    return Tensor(storage, dtype, storage.array(dtype.numpy).reshape(tuple(shape)))


def empty_like(tensor: Tensor, dtype: DType | None = None, *, fresh: bool = True) -> Tensor:
    """Return a garbage tensor of the same shape and device."""
    return empty(tensor.shape, dtype or tensor.dtype, tensor.storage.device, fresh=fresh)


def from_numpy(values: Array) -> Tensor:
    """Return a host tensor with a copy of the values."""
    values = np.ascontiguousarray(values) if values.ndim else values
    tensor = empty(values.shape, as_dtype(values.dtype), None, fresh=False)
    tensor.array[...] = values
    return tensor
