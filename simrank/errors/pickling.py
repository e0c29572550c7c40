"""Pickling of errors for other processes, with all their attributes.

An exception that pickles but does not unpickle makes `multiprocessing.Pool` wait forever, so an
error is rebuilt from its text and attributes, not by calling its constructor, and what a
program's own exceptions cannot do is replaced by what can be told of them.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any, Self, TypeVar

_Error = TypeVar("_Error", bound=BaseException)


class Travels(BaseException):
    """An exception that can be pickled and copied, with its attributes and notes."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text and what of the attributes can be pickled; the rest as its text."""
        attributes = {name: _travelling(value) for name, value in vars(self).items()}
        return _remade, (type(self), self.args, attributes)

    def __copy__(self) -> Self:
        """Return an equal error that shares the attributes."""
        return _remade(type(self), self.args, vars(self))


def _remade(kind: type[_Error], args: tuple[object, ...], held: dict[str, Any]) -> _Error:
    error = kind.__new__(kind, *args)
    error.args = args
    if isinstance(error, SystemExit):  # Which only its constructor takes from the arguments.
        SystemExit.__init__(error, *args)
    vars(error).update(held)
    return error


def remade(error: BaseException) -> bytes | None:
    """Return an exception pickled so that its constructor is not called; None if that fails too."""
    attributes = {name: _travelling(value) for name, value in vars(error).items()}
    try:
        data = pickle.dumps((type(error), tuple(map(_travelling, error.args)), attributes))
        made_again(data)
    except Exception:  # noqa: BLE001 - a program's own classes may raise anything
        return None
    return data


def made_again(data: bytes) -> BaseException:
    """Return the exception that `remade` has pickled."""
    kind, args, attributes = pickle.loads(data)
    error: BaseException = _remade(kind, args, attributes)
    return error


def _travelling(value: object) -> object:
    """Return the value, or what stands for it in another process."""
    if isinstance(value, dict):
        return {key: _travelling(held) for key, held in value.items()}
    if isinstance(value, list | tuple) and any(isinstance(held, BaseException) for held in value):
        return type(value)(_travelling(held) for held in value)
    if isinstance(value, Travels) or _survives(value):
        return value
    if isinstance(value, BaseException):
        return RuntimeError(f"{type(value).__name__}: {text_of(value)}")
    return text_of(value)


def _survives(value: object) -> bool:
    try:
        return type(pickle.loads(pickle.dumps(value))) is type(value)
    except Exception:  # noqa: BLE001 - a program's own classes may raise anything
        return False


def add_note(error: BaseException, note: str) -> None:
    """Add a note once, where the error takes one: a program's own class may refuse."""
    with suppress(Exception):  # Reports name rank and time all the same.
        if note not in getattr(error, "__notes__", ()):
            BaseException.add_note(error, note)


def text_of(value: object) -> str:
    """Return the text of a program's object, whose `__str__` may raise."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a program's own `__str__`
        return f"<its text failed with {type(error).__name__}>"
