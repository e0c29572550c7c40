"""Text of tensors in reports, without waits; other libraries register their readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device.tensors.tensor import Tensor

# Each returns how an object of another library is shown, or None if it is not its own.
READERS: list[Callable[[object], str | None]] = []
# Each returns where the first element of an object of another library is, or None.
ADDRESSES: list[Callable[[object], int | None]] = []


def tensor_text(tensor: Tensor) -> str:
    """Return the value of a tensor of one element that is there, or the shape."""
    storage = tensor.storage
    if (
        tensor.numel() != 1
        or not storage.knows(tensor.array)
        or storage.pending_writes(tensor.array)
    ):
        return f"tensor of shape {tuple(tensor.shape)}"
    value = tensor.array.reshape(-1)[0].item()
    return repr(float(f"{value:.6g}")) if isinstance(value, float) else repr(value)


def address_of(value: object) -> int | None:
    """Return the address of a tensor's first element in this process; None for other values."""
    if type(value).__module__.startswith("simrank.") and hasattr(type(value), "cuda_device"):
        tensor: Any = value
        if not tensor.storage.has_values or not tensor.array.size:
            return None
        found: int = tensor.array.__array_interface__["data"][0]
        return found
    reported = (read(value) for read in ADDRESSES)
    return next((address for address in reported if address is not None), None)
