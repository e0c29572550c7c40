"""Inspection of a program's objects without running the program's code.

A proxy answers `isinstance`, attribute access, `==` and `bool` for another object, or imports it
first: flags of absl, objects of werkzeug and celery, mocks, lazy modules. Code that walks globals,
`sys.modules` or frames compares real types and identities, with these functions.
"""

from __future__ import annotations

from types import GetSetDescriptorType, MappingProxyType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T")
_U = TypeVar("_U")
_V = TypeVar("_V")
_NATIVE = (GetSetDescriptorType, MemberDescriptorType)
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_names_of_class: Any = type.__dict__["__dict__"].__get__
_order_of_class: Any = type.__dict__["__mro__"].__get__


@overload
def is_real(value: object, kinds: type[_T]) -> TypeGuard[_T]: ...
@overload
def is_real(value: object, kinds: tuple[type[_T]]) -> TypeGuard[_T]: ...
@overload
def is_real(value: object, kinds: tuple[type[_T], type[_U]]) -> TypeGuard[_T | _U]: ...
@overload
def is_real(
    value: object, kinds: tuple[type[_T], type[_U], type[_V]]
) -> TypeGuard[_T | _U | _V]: ...
@overload
def is_real(value: object, kinds: tuple[type, ...]) -> bool: ...
def is_real(value: object, kinds: Any) -> bool:
    """Return whether the real type of a value, not its `__class__`, is one of some classes."""
    return issubclass(type(value), kinds)


def attributes_of(value: object) -> Mapping[str, Any]:
    """Return the own attributes of an object; empty where it has none or computes them."""
    if type(value) is ModuleType:
        return value.__dict__
    for kind in _order_of_class(type(value)):
        found = _names_of_class(kind).get("__dict__")
        if found is not None:
            native = type(found) in _NATIVE
            names: Mapping[str, Any] | None = found.__get__(value) if native else None
            return _NOTHING if names is None else names
    return _NOTHING


def module_text(module: object, name: str) -> str | None:
    """Return a text attribute of a module, such as its file; None for other objects."""
    value = attributes_of(module).get(name) if is_real(module, ModuleType) else None
    return value if type(value) is str else None
