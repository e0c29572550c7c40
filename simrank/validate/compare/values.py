"""Returned values as plain data, compared without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from simrank.device import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

# Types that numpy has not itself, and what carries their bytes out of torch.
_WIDE = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("int8", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("int8", ml_dtypes.float8_e5m2),
}
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """A tensor or an array.

    Attributes:
        kind: Its class, for example Tensor or DTensor, of which it is this rank's part.
        dtype: As torch names it.
        values: On the host.
    """

    kind: str
    dtype: str
    values: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """A container.

    Attributes:
        kind: Its class.
        parts: How each part is reached (`['w']`, `[0]`, `.loss`), and what it is.
    """

    kind: str
    parts: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object of another class: the class and its repr.

    Attributes:
        kind: Its class.
        text: Its repr, without addresses.
    """

    kind: str
    text: str


def captured(value: Any) -> Any:  # noqa: ANN401 - any value
    """Return a value as plain data; tensors are waited for and copied to the host."""
    if type(value) in _PLAIN:
        return value
    for is_one, captures in _KINDS:
        if is_one(value):
            return captures(value)
    parts = _parts(value)
    if parts is not None:
        kind = type(value).__name__
        return Node(kind, tuple((name, captured(part)) for name, part in parts))
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return Opaque(kind, _ADDRESS.sub("", repr(value)))


def _of_numpy(value: Any) -> Array | Node:  # noqa: ANN401 - numpy's
    if value.dtype.kind not in "biufcV" or value.dtype.names:  # Texts, objects, records.
        return Node(type(value).__name__, (("", captured(value.tolist())),))
    return Array(type(value).__name__, value.dtype.name, np.array(value))


def _is_of_torch(value: object) -> bool:
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(value).__mro__)


def _of_torch(tensor: Any) -> Array:  # noqa: ANN401 - torch's
    kind = type(tensor).__name__
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):  # A DTensor: this rank's part of it.
        tensor = tensor.to_local()
    if tensor.layout != _torch().strided:
        kind = f"{kind} ({str(tensor.layout).removeprefix('torch.')})"
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg()
    return Array(kind, str(tensor.dtype).removeprefix("torch."), np.array(of_array(tensor)))


def of_array(tensor: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - torch's
    """Return a dense tensor of torch as an array, also of types that numpy lacks."""
    tensor = tensor.cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _WIDE:
        values: np.ndarray[Any, Any] = tensor.numpy()
        return values
    carrier, dtype = _WIDE[name]
    carried: np.ndarray[Any, Any] = tensor.view(getattr(_torch(), carrier)).numpy()
    return carried.view(dtype)


def torch_tensor(array: np.ndarray[Any, Any]) -> Any:  # noqa: ANN401 - torch's
    """Return a copy of an array as a tensor of torch, on the host; the reverse of `of_array`."""
    torch = _torch()
    given = np.array(array, order="C")
    if array.dtype.name not in _WIDE:
        return torch.from_numpy(given)
    carrier, _ = _WIDE[array.dtype.name]
    carried = torch.from_numpy(given.view(carrier))
    return carried.view(getattr(torch, array.dtype.name))


def _torch() -> Any:  # noqa: ANN401 - a module
    import torch  # noqa: PLC0415 - optional; a tensor of it is there

    return torch


def _of_simrank(tensor: Tensor) -> Array:
    return Array("Tensor", tensor.dtype.name, np.array(tensor.numpy()))


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
    (lambda value: _is_of_torch(value) and hasattr(value, "untyped_storage"), _of_torch),
    (lambda value: isinstance(value, Tensor), _of_simrank),
    (lambda value: isinstance(value, np.ndarray | np.generic), _of_numpy),
)


def _parts(value: Any) -> list[tuple[str, Any]] | None:  # noqa: ANN401 - as above
    """Return the parts of a container; None for other values."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return [(f".{name}", getattr(value, name)) for name in names]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [(f"[{index}]", part) for index, part in enumerate(sorted(value, key=repr))]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in fields(value)]
    return None
