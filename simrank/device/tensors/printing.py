"""Text of tensors in reports, without waits; other libraries register their readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device.tensors.tensor import Tensor

# Each returns how an object of another library is shown, or None if it is not its own.
READERS: list[Callable[[object], str | None]] = []
# Each returns the whole text of an object of another library on a device, or None.
WHOLE_READERS: list[Callable[[object], str | None]] = []
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


class Text(str):
    """A text in place of an object, which shows as that did."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the text itself."""
        return str(self)


def keep_texts(error: BaseException) -> None:
    """Put texts in place of the device tensors in an exception: later none may be there to read.

    A tensor whose values are not there yet keeps its shape alone: this waits for nothing.
    """
    seen, open_errors = set[int](), [error]
    while open_errors:
        each = open_errors.pop()
        if id(each) not in seen:
            seen.add(id(each))
            texts = tuple(map(_kept, each.args))
            if any(text is not value for text, value in zip(texts, each.args, strict=True)):
                each.args = texts
            open_errors += filter(None, (each.__cause__, each.__context__))


def _kept(value: object) -> object:
    if is_simranks_tensor(value):
        tensor: Any = value
        is_pending = tensor.storage.pending_writes(tensor.array)
        is_there = tensor.storage.knows(tensor.array) and not is_pending
        return Text(repr(tensor) if is_there else tensor_text(tensor))
    texts = (read(value) for read in WHOLE_READERS)
    found = next((text for text in texts if text is not None), None)
    return value if found is None else Text(found)


def is_simranks_tensor(value: object) -> bool:
    """Return whether a value is a tensor of simrank itself."""
    return type(value).__module__.startswith("simrank.") and hasattr(type(value), "cuda_device")


def address_of(value: object) -> int | None:
    """Return the address of a tensor's first element in this process; None for other values."""
    if is_simranks_tensor(value):
        tensor: Any = value
        if not tensor.storage.has_values or not tensor.array.size:
            return None
        found: int = tensor.array.__array_interface__["data"][0]
        return found
    reported = (read(value) for read in ADDRESSES)
    return next((address for address in reported if address is not None), None)
