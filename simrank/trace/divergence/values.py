"""What names stand for at a line, without running any code of the program's or waiting."""

from __future__ import annotations

from inspect import getattr_static
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_MAX_TEXT = 40
_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_SIZED = (list, tuple, dict, set, frozenset)
_NOWHERE = object()

# Each returns how an object of another library is shown, or None if it is not its own.
READERS: list[Callable[[object], str | None]] = []


def values_of(frame: FrameType, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the names that stand for data in a frame, with a short text of each."""
    own, shared = frame.f_locals, frame.f_globals
    told = []
    for name in names:
        value = _looked_up(name, own, shared)
        if value is not _NOWHERE and not callable(value) and not isinstance(value, ModuleType):
            told.append((name, short(value)))
    return tuple(told)


def _looked_up(name: str, own: Any, shared: dict[str, Any]) -> object:  # noqa: ANN401 - a frame's
    first, *attributes = name.split(".")
    value = own.get(first, shared.get(first, _NOWHERE))
    for attribute in attributes:
        if value is _NOWHERE:
            break
        if isinstance(value, ModuleType):
            value = vars(value).get(attribute, _NOWHERE)
        else:
            value = getattr_static(value, attribute, _NOWHERE)
            if hasattr(type(value), "__get__"):  # A property would run the program's code.
                value = _NOWHERE
    return value


def short(value: object) -> str:
    """Return a short text of a value; nothing is computed, read from a device or waited for."""
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(value)
    if kind in _PLAIN or kind is range:
        text = repr(value)
        return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 4]} ..."
    if kind in _SIZED:
        return f"{kind.__name__} of {len(value)}"  # type: ignore[arg-type]
    told = (reader(value) for reader in (_own_text, *READERS))
    return next((text for text in told if text is not None), f"<{kind.__name__}>")


def _own_text(value: object) -> str | None:
    if isinstance(value, Tensor):
        return tensor_text(value)
    return f"array of shape {value.shape}" if isinstance(value, np.ndarray) else None


def tensor_text(tensor: Tensor) -> str:
    """Return the value of a tensor of one element that is there, or the shape."""
    storage = tensor.storage
    if tensor.numel() != 1 or not storage.has_values or storage.pending_writes(tensor.array):
        return f"tensor of shape {tuple(tensor.shape)}"
    value = tensor.array.reshape(-1)[0].item()
    return repr(float(f"{value:.6g}")) if isinstance(value, float) else repr(value)
