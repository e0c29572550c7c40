"""torch tensors as simrank's buffers over the same bytes (D2).

No torch operation runs here, so the modes of a rank (dispatch, device, autocast) do not matter.
"""

from __future__ import annotations

from ctypes import c_uint8
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

import numpy as np
import torch

from simrank.device.dtypes import DTYPES, WIDE_UNSIGNED, DType
from simrank.device.memory import Storage
from simrank.device.stream import devices_of
from simrank.device.tensors.printing import tensor_text
from simrank.device.tensors.tensor import Tensor
from simrank.ranks import require_program
from simrank.torch import cuda
from simrank.torch.devices import activation, unknown_values
from simrank.torch.devices.allocations import SHOWN_BYTES
from simrank.torch.devices.rank_devices import View

if TYPE_CHECKING:
    from simrank.device import Device
    from simrank.torch.cuda import Block

    Views = dict[tuple[object, ...], ref[View]]

_DTYPES: dict[torch.dtype, DType] = {
    getattr(torch, name): dtype for name, dtype in DTYPES.items() if hasattr(torch, name)
}
_CARRIED = {key: dtype for key, dtype in _DTYPES.items() if dtype not in WIDE_UNSIGNED}
_SCALAR_NAMES = {
    torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64",
    torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip
_EMPTY = np.empty(0, np.uint8)
_MAX_VIEWS = 256  # Assumed: views of one storage that are in use; beyond, they are made again.


class TorchStorage(Storage):
    """A torch storage: the same bytes; nothing is allocated and nothing freed.

    Attributes:
        owner: The torch storage, kept alive; None while operations in flight alone use its memory,
            which the program may give back meanwhile.
        is_pinned: Whether it is pinned memory of the host, as kernels get it.
        views: The views that something uses, by address, type, shape and strides.
    """

    __slots__ = ("_start", "is_pinned", "owner", "views")

    def __init__(self, owner: torch.UntypedStorage, device: Device | None) -> None:
        self.views: Views = {}
        self.device = device
        self.size_bytes = owner.nbytes()
        self._start = start = owner.data_ptr()  # Of the host, too: it may lack values.
        self.address = 0 if device is None else start
        self.owner: torch.UntypedStorage | None = owner
        self.is_pinned = self.is_symmetric = False  # Peers reach it by tensors of their own.
        self.writes = None
        self._bytes = _bytes_at(start, self.size_bytes)

    @property
    def has_values(self) -> bool:  # type: ignore[override]
        """Return whether all bytes hold what the program would have there."""
        return unknown_values.are_known(self._start, self.size_bytes)

    @property
    def is_real(self) -> bool:  # type: ignore[override]
        """Return whether the bytes can hold values."""
        return self.device is None or unknown_values.fit(self.device, self.size_bytes, None)

    def lose_values(self) -> None:
        """Mark the bytes as unknown."""
        unknown_values.lose(self._start, self.size_bytes)

    def regain_values(self) -> bool:
        """Mark the bytes as known if they can hold values; return whether they can."""
        return self.is_real and unknown_values.regain(self._start, self.size_bytes)

    def knows(self, view: np.ndarray[Any, Any]) -> bool:
        """Return whether the bytes of `view` hold what the program would have there."""
        if not unknown_values.lacking:
            return True
        start, end = self._span(view)
        return unknown_values.are_known(start, end - start)

    def lose(self, view: np.ndarray[Any, Any]) -> None:
        """Mark the bytes of `view` as unknown, and what lies between them."""
        start, end = self._span(view)
        unknown_values.lose(start, end - start)

    def regain(self, view: np.ndarray[Any, Any]) -> bool:
        """Mark the bytes of `view`, all of which are written next, as known if they can be."""
        if self.knows(view):
            return True
        start, end = self._span(view)
        can = unknown_values.fit(self.device, self.size_bytes, view.dtype)
        if not can or not view.flags.c_contiguous:
            return False
        return unknown_values.regain(start, end - start)

    def unknown_elements(self, view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Return a flag per unknown element of `view`, or None if only the whole is tracked."""
        can = view.flags.c_contiguous and unknown_values.fit(self.device, self.size_bytes, None)
        return unknown_values.flags(self._span(view)[0], view) if can else None

    def lose_elements(self, view: np.ndarray[Any, Any], which: np.ndarray[Any, Any]) -> None:
        """Mark some elements of `view` as unknown, by their numbers in order."""
        start = self._span(view)[0]
        for number in np.flatnonzero(which).tolist():
            unknown_values.lose(start + number * view.itemsize, view.itemsize)

    def _span(self, view: np.ndarray[Any, Any]) -> tuple[int, int]:
        """Return the first address of a view and the one behind its last."""
        if not self._start or not view.nbytes:
            return 0, 0
        low, high = self.bounds(view)
        return self._start + low, self._start + high

    def is_current(self, owner: torch.UntypedStorage) -> bool:
        """Return whether a torch storage still has this memory."""
        if owner.nbytes() != self.size_bytes:
            return False
        return not self.size_bytes or self._start == owner.data_ptr()

    def leave(self) -> None:
        """Drop the torch storage: what operations in flight use, the allocator keeps for them."""
        if self.device is not None:
            self.owner = None

    @property
    def is_mapped(self) -> bool:
        """Return whether kernels reach the storage: device memory, or pinned host memory."""
        return self.device is not None or self.is_pinned

    @property
    def history_key(self) -> Storage:
        """Return the block; several storages may share one, one after another."""
        return self if self.device is None else activation.block_at(self.address) or self

    def __del__(self) -> None:
        """Do nothing: torch frees the block."""

    def site(self) -> None:
        """Return None: the call site of the allocation is unknown."""


def _device_of(tensor: torch.Tensor) -> Device | None:
    if not tensor.is_cuda:
        return None
    program, index = require_program("a tensor"), activation.global_index(tensor.data_ptr())
    if index is not None:
        return devices_of(program)[index]
    own = activation.devices_in_use()  # It has no bytes, and no address.
    return None if own is None else own.device(tensor.device.index)


@lru_cache(maxsize=_MAX_VIEWS)
def _bytes_at(address: int, size_bytes: int) -> np.ndarray[Any, Any]:
    if not size_bytes:
        return _EMPTY
    memory: Any = (c_uint8 * size_bytes).from_address(address)
    found: np.ndarray[Any, Any] = np.frombuffer(memory, np.uint8)
    return found


class BlockStorage(TorchStorage):
    """A block of torch's allocators, found by address and not by tensor.

    Args:
        block: It.
        device: Where it is; None for pinned memory of the host.
    """

    __slots__ = ()

    def __init__(self, block: Block, device: Device | None) -> None:
        self.views = {}
        self.device = device
        self.size_bytes = block.size_bytes
        self.address = self._start = block.address
        self.is_pinned = device is None
        self.writes = None
        self._bytes = _bytes_at(block.address, block.size_bytes)


# Of storages that an operation in flight or a wait uses; the key is the identity of the C++ object.
_known: WeakValueDictionary[int, TorchStorage] = WeakValueDictionary()
# The same by address: memory that is reached in several ways is one storage, whose changes show.
_by_address: WeakValueDictionary[int, TorchStorage] = WeakValueDictionary()
activation.cleared_with_devices(_known)
activation.cleared_with_devices(_by_address)


def storage_of(tensor: torch.Tensor) -> TorchStorage:
    """Return the storage of a tensor; one object while an operation in flight uses it.

    A tensor that views another one's block, as a peer's symmetric memory, has that block's.
    """
    owner = tensor.untyped_storage()
    key = owner._cdata  # noqa: SLF001 - the documented identity of a storage
    found = _known.get(key)
    if found is not None and found.is_current(owner):
        found.owner = owner
        return found
    block, address = None, owner.data_ptr() if tensor.is_cuda else 0
    if address:
        block = cuda.find_block(address)
        if block is not None and (block.address in _by_address or block.address != address):
            return _storage_in(block)
    if block is None:
        device = _device_of(tensor)
    else:
        device = devices_of(require_program("a tensor"))[block.device]
    found = _known[key] = TorchStorage(owner, device)
    if address:
        _by_address[address] = found
    return found


def storage_at(address: int) -> TorchStorage | None:
    """Return torch's storage at an address of a device or of pinned memory, or None."""
    is_of_device = activation.global_index(address) is not None
    block = cuda.find_block(address) if is_of_device else cuda.find_pinned(address)
    if block is None or address >= block.address + max(block.size_bytes, 1):
        return None
    return _storage_in(block)


def _storage_in(block: Block) -> TorchStorage:
    found = _by_address.get(block.address)
    if found is None or found.size_bytes != block.size_bytes:
        own = devices_of(require_program("an address"))
        device = None if block.device < 0 else own[block.device]
        found = _by_address[block.address] = BlockStorage(block, device)
    return found


def buffer_of(tensor: torch.Tensor) -> Tensor:
    """Return a view of a tensor as simrank's; complex numbers become pairs.

    Raises:
        RuntimeError: No collective carries the element type, in torch's words.
    """
    if tensor.is_cuda:
        activation.use_devices_of(tensor)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    dtype = _CARRIED.get(tensor.dtype)
    if dtype is None:
        name = _SCALAR_NAMES.get(tensor.dtype, str(tensor.dtype))
        raise RuntimeError(f"Invalid scalar type: {name}")
    return _view(tensor, dtype)


def exchanged(tensor: torch.Tensor) -> Tensor:
    """Return a view of a tensor that a collective or a message sends or receives.

    Raises:
        RuntimeError: No collective carries the element type, in torch's words.
    """
    buffer = buffer_of(tensor)
    is_shown = buffer.cuda_device is not None and buffer.storage.size_bytes >= SHOWN_BYTES
    if is_shown and tensor.numel():
        activation.exchanged(tensor.data_ptr())
    return buffer


def argument_of(tensor: torch.Tensor) -> Tensor:
    """Return a view of a tensor as an argument of kernels.

    Raises:
        TypeError: Kernels take no pointers to such elements.
    """
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise TypeError(f"kernels take no pointer to {tensor.dtype}")
    pinned = None if tensor.is_cuda else cuda.find_pinned(tensor.data_ptr())
    return _view(tensor, dtype, None if pinned is None else _storage_in(pinned))


def pointed_at(pointer: Any) -> Tensor | None:
    """Return the memory behind an object with `data_ptr()` and `dtype`, to the end of its block.

    Triton takes such objects for tensors; how far they reach is not known, so it is to the end of
    the block. None: not such an object, or no memory at its address.
    """
    dtype = _DTYPES.get(pointer.dtype) if hasattr(pointer, "dtype") else None
    if dtype is None or not callable(getattr(pointer, "data_ptr", None)):
        return None
    address = pointer.data_ptr()
    storage = storage_at(address)
    if storage is None:
        return None
    offset = address - storage.address
    size = (storage.size_bytes - offset) // dtype.itemsize
    return Tensor(storage, dtype, np.ndarray((size,), dtype.numpy, storage._bytes, offset))  # noqa: SLF001 - our own class


def _view(tensor: torch.Tensor, dtype: DType, storage: TorchStorage | None = None) -> View:
    """Return the view of a tensor; the same one while something uses it."""
    storage = storage or storage_of(tensor)
    shape = tensor.shape
    if not storage.size_bytes:
        return View(storage, dtype, np.empty(shape, dtype.numpy))
    key = tensor.data_ptr(), dtype, shape, tensor.stride()
    kept = storage.views.get(key)
    found = None if kept is None else kept()
    if found is not None:
        return found
    size = dtype.itemsize
    if storage.is_mapped and tensor.numel():
        offset = tensor.data_ptr() - storage.address
    else:
        offset = int(tensor.storage_offset()) * size
    strides = None
    if not tensor.is_contiguous():
        strides = [stride * size for stride in tensor.stride()]
    array = np.ndarray(shape, dtype.numpy, storage._bytes, offset, strides)  # noqa: SLF001 - our own class
    view = View(storage, dtype, array)
    if len(storage.views) >= _MAX_VIEWS:
        storage.views.clear()
    storage.views[key] = ref(view)
    return view


def text_of(value: object) -> str | None:
    """Return a tensor's text in reports: the value of a single known number, else the shape.

    None where it is no tensor of torch's own class: others would run code of theirs.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return None
    tensor: Any = value
    try:
        if tensor.numel() == 1 and not tensor.is_complex():
            return tensor_text(buffer_of(tensor))
    except (NotImplementedError, RuntimeError):  # It has no storage: it is sparse, or fake.
        pass
    return f"tensor of shape {tuple(tensor.shape)}"


def whole_text_of(value: object) -> str | None:
    """Return the values of a plain tensor on a device, as torch prints them, without waits.

    A tensor whose values are not there yet is shown by its shape. None: other values.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return None
    tensor: Any = value
    if tensor.layout != torch.strided or not tensor.is_cuda:
        return None
    try:
        view = argument_of(tensor)
    except TypeError:  # Complex numbers, for example.
        return text_of(value)
    storage, values = view.storage, view.array
    if not values.size or not storage.knows(values) or storage.pending_writes(values):
        return f"tensor of shape {tuple(tensor.shape)}"
    bits = torch.frombuffer(bytearray(values.tobytes()), dtype=tensor.dtype)
    numbers, comma, dtype = str(bits.view(tensor.shape))[:-1].partition(", dtype=")
    return f"{numbers}, device='{tensor.device}'{comma}{dtype})"


def address_of(value: object) -> int | None:
    """Return the address of a plain tensor's first element, or None."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return None
    tensor: Any = value
    try:
        return tensor.data_ptr() or None
    except (NotImplementedError, RuntimeError):  # It has no storage: it is sparse, or fake.
        return None


def all_exchanged(tensors: list[torch.Tensor]) -> list[Tensor]:
    """Return views of tensors that a collective sends or receives."""
    return [exchanged(tensor) for tensor in tensors]
