"""Values of names at a line, read without running code of the program and without waits."""

from __future__ import annotations

from inspect import getattr_static
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from simrank.device import Tensor
from simrank.device.tensors.printing import READERS, tensor_text
from simrank.engine.callsite import attributes_of, is_real

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_MAX_TEXT = 40
_SHORT = frozenset((int, float, complex, bool, type(None), range))
_LONG = frozenset((str, bytes))
_SIZED = frozenset((list, tuple, dict, set, frozenset))
_NOWHERE = object()

Values = tuple[tuple[str, object], ...]


class Path(NamedTuple):
    """A dotted name, in parts."""

    name: str
    first: str
    attributes: tuple[str, ...]


class Shown(str):
    """The text of a value that is not kept."""

    __slots__ = ()


def paths_of(names: Sequence[str]) -> tuple[Path, ...]:
    """Return dotted names in parts."""
    parts = [(name, *name.split(".")) for name in names]
    return tuple(Path(name, first, tuple(attributes)) for name, first, *attributes in parts)


def values_of(frame: FrameType, paths: tuple[Path, ...]) -> Values:
    """Return the data names of a frame with their values; large values as text."""
    own, shared = frame.f_locals, frame.f_globals
    reported: list[tuple[str, object]] = []
    for name, first, attributes in paths:
        value = own[first] if first in own else shared.get(first, _NOWHERE)
        if attributes and value is not _NOWHERE:
            value = _attribute(value, attributes)
        if type(value) in _SHORT:
            reported.append((name, value))
        elif value is not _NOWHERE and not callable(value) and not is_real(value, ModuleType):
            reported.append((name, Shown(short(value))))
    return tuple(reported)


def _attribute(value: object, attributes: tuple[str, ...]) -> object:
    for attribute in attributes:
        if is_real(value, ModuleType):
            value = attributes_of(value).get(attribute, _NOWHERE)
        else:
            value = getattr_static(value, attribute, _NOWHERE)
            if hasattr(type(value), "__get__"):  # A property would run the program's code.
                value = _NOWHERE
        if value is _NOWHERE:
            break
    return value


def short(value: object) -> str:
    """Return a short text of a value; nothing is computed, read from a device or waited for."""
    if issubclass(type(value), np.generic):
        value = cast("np.generic", value).item()
    kind = type(value)
    if kind is Shown:
        return str(value)
    if kind in _SHORT or kind in _LONG:
        text = repr(value)
        return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 4]} ..."
    if kind in _SIZED:
        return f"{kind.__name__} of {len(value)}"  # type: ignore[arg-type]
    reported = (reader(value) for reader in (_own_text, *READERS))
    return next((text for text in reported if text is not None), f"<{kind.__name__}>")


def _own_text(value: object) -> str | None:
    if is_real(value, Tensor):
        return tensor_text(value)
    return f"array of shape {value.shape}" if is_real(value, np.ndarray) else None
