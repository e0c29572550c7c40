"""Filters of warnings: each rank's own, as each process would have them.

`warnings.catch_warnings`, and what is built on it (`pytest.warns`), replaces attributes of the
module; ranks that take turns within such blocks would take each other's. While a Context is
entered, the attributes are those of who runs. A rank starts with the program's.
"""

from __future__ import annotations

import functools
import warnings
from types import ModuleType
from typing import Any

from simrank.ranks.current import rank_program
from simrank.ranks.hooks import LiveModule

_NAMES = ("filters", "showwarning", "_showwarnmsg_impl")
_base: dict[str, Any] = {}


def _value(name: str) -> Any:  # noqa: ANN401 - a list or a function
    """Return what the running rank has, or the program."""
    program = rank_program()
    if program is None:
        return _base[name]
    key = f"warnings.{name}"
    if key not in program.local:
        program.local[key] = list(_base[name]) if name == "filters" else _base[name]
    return program.local[key]


def _attribute(name: str) -> Any:  # noqa: ANN401 - a property
    def put(_: ModuleType, value: object) -> None:
        program = rank_program()
        if program is None:
            _base[name] = value
        else:
            program.local[f"warnings.{name}"] = value

    return property(lambda _: _value(name), put)


class _Warnings(LiveModule):
    """The module `warnings` while a Context is entered."""

    filters, showwarning = _attribute("filters"), _attribute("showwarning")
    _showwarnmsg_impl = _attribute("_showwarnmsg_impl")


class _Filters(list[Any]):
    """What functions of the module find under the name `filters`: the list of who runs."""


def _method(name: str) -> Any:  # noqa: ANN401 - a method of lists
    original = getattr(list, name)

    @functools.wraps(original)
    def method(_: _Filters, *args: object) -> Any:  # noqa: ANN401 - the original's
        return original(_value("filters"), *args)

    return method


for _name in (
    "__getitem__", "__setitem__", "__delitem__", "__iter__", "__len__", "__contains__", "__eq__",
    "append", "insert", "remove", "clear", "copy", "index", "__repr__",
):  # fmt: skip
    setattr(_Filters, _name, _method(_name))


def _show(message: Any) -> None:  # noqa: ANN401 - a WarningMessage
    """Stand for `_showwarnmsg`: show a warning as who runs wants it."""
    show = _value("showwarning")
    if show is _originals["_showwarning_orig"]:
        _value("_showwarnmsg_impl")(message)
    else:
        show(
            message.message, message.category, message.filename, message.lineno, message.file,
            message.line,
        )  # fmt: skip


_originals: dict[str, Any] = {
    name: getattr(warnings, name) for name in ("_showwarnmsg", "_showwarning_orig")
}


def install() -> None:
    """Let the module's attributes be those of who runs."""
    names = vars(warnings)
    if type(names["filters"]) is _Filters:
        return
    _base.update({name: names[name] for name in _NAMES})
    names["filters"], names["_showwarnmsg"] = _Filters(), _show
    warnings.__class__ = _Warnings


def remove() -> None:
    """Give the program its own back."""
    warnings.__class__ = ModuleType
    names = vars(warnings)
    if type(names["filters"]) is _Filters:
        names.update(_base)
        names["_showwarnmsg"] = _originals["_showwarnmsg"]
    _base.clear()
