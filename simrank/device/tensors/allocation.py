"""Allocation of tensors: memory, and a view of all of it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, TypeVar

from simrank.device.memory import Storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device.device import Device
    from simrank.device.dtypes import DType
    from simrank.device.tensors.tensor import Tensor

_T = TypeVar("_T", bound="Tensor")


def allocate(
    kind: type[_T],
    shape: Sequence[int],
    dtype: DType,
    device: Device | None,
    *,
    fresh: bool = True,
) -> _T:
    """Return a tensor with garbage in it (NaN in floating types).

    Args:
        kind: Its class.
        shape: Size of each dim.
        dtype: Element type.
        device: Whose memory; None is the host's.
        fresh: False if every byte is written before it can be read: the garbage is left out.
    """
    storage = Storage(device, prod(shape) * dtype.itemsize, fresh=fresh)
    return kind(storage, dtype, storage.array(dtype.numpy).reshape(tuple(shape)))


def result_of(tensor: Tensor) -> type[Tensor]:
    """Return the class of what operations on a tensor return: its own, unless that says another."""
    kind: type[Tensor] = getattr(tensor, "RESULT", type(tensor))
    return kind


def allocate_beside(tensor: Tensor, shape: Sequence[int], dtype: DType) -> Tensor:
    """Return a tensor on the device of another, every byte of which is written next."""
    return allocate(result_of(tensor), shape, dtype, tensor.cuda_device, fresh=False)
