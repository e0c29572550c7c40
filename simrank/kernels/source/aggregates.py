"""Aggregates: Triton's classes of several values with device functions as methods.

A kernel sees a replacement class for each: the same fields, constants as plain values, and methods
bound like other device functions.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import triton
from triton.language import core

from simrank.kernels.machine.jit import kept

if TYPE_CHECKING:
    from collections.abc import Callable

_JITFunction: Any = triton.runtime.jit.JITFunction
_ConstexprFunction: Any = getattr(triton.runtime.jit, "ConstexprFunction", ())


class _Aggregate:
    """Base class of the replacement classes."""

    __triton_aggregate__ = True
    __aggregate_fields__: tuple[str, ...] = ()
    _is_made = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field, in the constructor only.

        Raises:
            AttributeError: The field does not exist, or the constructor has returned.
        """
        kind = type(self).__name__
        if name not in self.__aggregate_fields__:
            raise AttributeError(f"{kind} has no attribute '{name}'")
        if self._is_made:
            raise AttributeError(f"cannot assign to field '{name}' on immutable aggregate {kind}")
        object.__setattr__(self, name, value.value if isinstance(value, core.constexpr) else value)


def is_aggregate(value: Any) -> bool:
    """Return whether a value is one of Triton's aggregate classes."""
    return isinstance(value, type) and bool(getattr(value, "__triton_aggregate__", False))


def methods(original: Any) -> dict[str, Any]:
    """Return the functions of an aggregate class that kernels call, by name."""
    known = {id(function) for function in original.hash_attrs[1:]}
    return {name: value for name, value in vars(original).items() if id(value) in known}


def emulated(original: Any, substitute: Callable[[Any], Any], *, forks: str) -> type:
    """Return the replacement of an aggregate class.

    Args:
        original: Triton's class.
        substitute: Returns the replacement of a device function.
        forks: Divergence of the kernel; see `substitute`.
    """
    facts, key = kept(original), ("emulated", forks)
    if key in facts:
        known: type = facts[key]
        return known
    fields = {
        "__aggregate_fields__": original.__aggregate_fields__,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
    }
    result = type(original.__name__, (_Aggregate,), fields)
    facts[key] = result  # Before its methods, which may name it.
    own = original.hash_attrs[0]
    if own.__module__ == core.__name__:
        init = _assign_fields(original)
    else:
        init = substitute(own) if isinstance(own, _JITFunction) else _constructor(own)
    setattr(result, "__init__", _checked_constructor(init, original))  # noqa: B010 - mypy rejects an assignment
    for name, method in methods(original).items():
        setattr(result, name, substitute(method))
    return result


def _checked_constructor(init: Callable[..., Any], original: Any) -> Callable[..., None]:
    """Return a constructor that requires all fields and makes them immutable."""

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        for name in original.__aggregate_fields__:
            if not hasattr(self, name):
                raise AttributeError(
                    f"constructor for {original.__name__} did not initialize attribute '{name}'"
                )
        object.__setattr__(self, "_is_made", True)

    return make


def _constructor(own: Any) -> Callable[..., Any]:
    """Return a plain Python constructor."""
    function = own.fn if isinstance(own, _ConstexprFunction) else own
    names = inspect.signature(function).parameters
    hidden = {name: None for name in ("_semantic", "_generator") if name in names}

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs, **hidden)

    return init


def _assign_fields(original: Any) -> Callable[..., None]:
    """Return the default constructor of an aggregate, like that of a dataclass."""
    fields, defaults = original.__aggregate_fields__, original.__aggregate_defaults__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(fields, args, strict=False))
        twice = given.keys() & kwargs.keys()
        if len(args) > len(fields) or twice:
            problem = f"'{min(twice)}' twice" if twice else f"{len(args)} values"
            raise TypeError(f"{original.__name__}() got {problem} for its {len(fields)} fields")
        for name, value in {**defaults, **given, **kwargs}.items():
            setattr(self, name, value)

    return init
