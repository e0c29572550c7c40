"""Memory shared with other libraries: DLPack and numpy's array interface, both ways.

Host memory is shared: neither side copies, and the importer has waited for operations that still
wrote it. What lies on a device leaves it as a copy only, by a host read (rule D4); a simulated
address is memory of no other library.

Source: the array API standard 2024.12, `array.__dlpack__` and `from_dlpack`; DLPack 1.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.dtypes import as_dtype
from simrank.device.host_reads import wait_values
from simrank.device.memory import Storage
from simrank.device.stream import parse_device
from simrank.device.tensors.arithmetic import Tensor_like
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from simrank.device.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]
_CPU, _SIMULATED = 1, 12  # kDLCPU and kDLExtDev: no library may take it for CUDA memory


def dlpack_device(tensor: Tensor) -> tuple[int, int]:
    """Return DLPack's type and number of the device: a simulated one is an extension's."""
    return (_CPU, 0) if tensor.cuda_device is None else (_SIMULATED, tensor.cuda_device.index)


def dlpack(
    tensor: Tensor,
    *,
    stream: object = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:  # noqa: ANN401 - a capsule
    """Return a DLPack capsule of a tensor's values, which it waits for (D4).

    Args:
        tensor: On the host, unless `dl_device` asks for a copy there.
        stream: None or -1: of the consumer; on the host there is none.
        max_version: The newest DLPack that the consumer takes.
        dl_device: Where the consumer wants it; None: where it is.
        copy: True: always a copy; False: never; None: only if it must be one.

    Raises:
        BufferError: It lies on a simulated device and `dl_device` does not name the host, or a copy
            is needed and forbidden, or DLPack of numpy has no such type.
    """
    device_type = dlpack_device(tensor)[0] if dl_device is None else int(dl_device[0])
    if device_type != _CPU:
        raise BufferError(
            f"a tensor of simulated device {tensor.device} has no memory for another library\n"
            "  to fix: export tensor.cpu(), or ask for it on the host: "
            "`from_dlpack(tensor, device='cpu')`"
        )
    if tensor.cuda_device is not None and copy is False:
        raise BufferError(f"a tensor of device {tensor.device} reaches the host as a copy only")
    if stream not in (None, -1):
        raise BufferError(f"stream {stream!r}: tensors on the host have no stream")
    if not _is_numpys(tensor):
        raise BufferError(
            f"numpy has no DLPack type for {tensor.dtype.name}\n"
            f"  to fix: export its bits, `tensor.view(simrank.uint{8 * tensor.itemsize})`"
        )
    values = tensor.numpy()
    if copy and tensor.cuda_device is None:
        values = values.copy()
    return values.__dlpack__(max_version=max_version)


def _is_numpys(tensor: Tensor) -> bool:
    return int(tensor.array.dtype.isbuiltin) == 1  # bfloat16 and fp8 are another library's.


def array_interface(tensor: Tensor) -> dict[str, Any]:
    """Return numpy's description of the memory of a tensor on the host, whose values are there.

    Raises:
        AttributeError: It lies on a device, or numpy has no name for its type: `numpy.asarray`
            then makes a copy by `__array__`.
    """
    if tensor.cuda_device is not None or not _is_numpys(tensor):
        raise AttributeError(
            f"a tensor of {tensor.dtype.name} on {tensor.device} has no array interface"
        )
    wait_values(tensor)
    described: dict[str, Any] = tensor.array.__array_interface__
    return described


def adopted(result: type[Tensor], source: Any, device: object, copy: bool | None) -> Tensor:  # noqa: ANN401
    """Return memory that another library exports by DLPack, as a tensor of class `result`.

    Raises:
        BufferError: A copy is needed and forbidden.
        UnsupportedError: It is neither on the host nor simrank's own, or of a type that numpy's
            DLPack does not take.
    """
    if isinstance(source, result):
        return _of_own(source, device, copy)
    if source.__dlpack_device__()[0] != _CPU:
        raise UnsupportedError(
            f"from_dlpack: a {type(source).__module__}.{type(source).__qualname__} on device "
            f"{source.__dlpack_device__()} is not simrank's memory\n  to fix: move it to the host"
        )
    try:
        values = np.from_dlpack(source)
    except (BufferError, RuntimeError) as error:
        raise UnsupportedError(
            f"from_dlpack: {error}\n  to fix: export the bits as integers, and view them here"
        ) from error
    target = None if device is None else parse_device(device)
    if target is not None or copy or not _may_share(values):
        if copy is False:
            raise BufferError("from_dlpack(copy=False): what is read-only, strided or meant for a "
                              "device is copied")  # fmt: skip
        copied = result(*_on_host(values.copy()))
        return copied if target is None else copied.to(target)
    return result(*_on_host(values))


def _may_share(values: Array) -> bool:
    return values.flags.c_contiguous and values.flags.writeable


def _on_host(values: Array) -> tuple[Storage, Any, Array]:
    """Return the storage, type and view of a tensor over an array's own memory."""
    dtype = as_dtype(values.dtype)
    storage = Storage.adopt(np.ascontiguousarray(values), None)
    return storage, dtype, storage.array(dtype.numpy).reshape(values.shape)


def _of_own(source: Tensor, device: object, copy: bool | None) -> Tensor:
    """Return a simrank tensor itself in another object, or its copy, in stream order."""
    target = source.cuda_device if device is None else parse_device(device)
    if target is not source.cuda_device or copy:
        if copy is False:
            raise BufferError(f"from_dlpack(copy=False): from {source.device} it is a copy")
        return source.to("cpu" if target is None else target, copy=True)
    return Tensor_like(source, source.array)
