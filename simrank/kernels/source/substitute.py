"""Replacements of a kernel's globals in the emulation: functions, classes, modules."""

from __future__ import annotations

import builtins
import types as python_types
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, ref

import triton
from triton.language import core

from simrank.errors import UnsupportedError
from simrank.kernels.language import access, control, elementwise
from simrank.kernels.running import threads
from simrank.kernels.running.batches import guarded
from simrank.kernels.shmem import libraries
from simrank.kernels.source.names import BY_MODULE
from simrank.kernels.source.scopes import (
    JITFunction,
    as_jit,
    bound_dispatcher,
    emulated,
    is_aggregate,
    is_dispatcher,
    is_empty,
    is_of_library,
    without_compiler,
)
from simrank.kernels.values.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.protocols import Jit

_ConstexprFunction: Any = getattr(triton.runtime.jit, "ConstexprFunction", ())
BUILTINS: dict[str, Any] = {
    "range": control.Range,
    "max": elementwise.builtin_max,
    "min": elementwise.builtin_min,
    "print": control.device_print,
    "int": elementwise.builtin_number(int),
    "float": elementwise.builtin_number(float),
}
_GUARDS = {"threads": threads.guarded, "programs": guarded}


class Bound(Protocol):
    """A device function bound to the emulation; see `bind`."""

    @property
    def function(self) -> Callable[..., Any]:
        """Function that runs it."""

    def is_stale(self, seen: set[int]) -> bool:
        """Return whether a captured name has been rebound."""


class Binder(NamedTuple):
    """Binds device functions.

    Attributes:
        bind: Binds one function, given the divergence of its callers.
        callees: Collects the bound functions; None to collect nothing.
    """

    bind: Callable[[Jit, str], Bound]
    callees: list[Bound] | None = None

    def function_of(self, jit: Jit, forks: str) -> Callable[..., Any]:
        """Return the function that runs a device function."""
        bound = self.bind(jit, forks)
        if self.callees is not None:
            self.callees.append(bound)
        return bound.function

    def for_all(self) -> Binder:
        """Return a binder for values that several kernels share, which collects nothing."""
        return Binder(self.bind)


def substitute(  # noqa: PLR0911 - a case each
    value: Any, binder: Binder, *, forks: str = ""
) -> Any:
    """Return the replacement of a value from a kernel's globals.

    Args:
        value: The value.
        binder: Binds device functions.
        forks: Divergence of the kernel: "threads", "programs" in lockstep, or "".
    """
    if isinstance(value, JITFunction):
        return _of_jit(value, binder, forks=forks)
    if isinstance(value, core.constexpr):
        return substitute(value.value, binder, forks=forks)
    if isinstance(value, tuple) and value:
        parts = [substitute(part, binder, forks=forks) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, _ConstexprFunction):
        own = BY_MODULE.get(value.fn.__module__, {}).get(value.fn.__name__)
        return _constexpr_function(value) if own is None else own
    if isinstance(value, python_types.ModuleType):
        return _proxy(value, binder, forks=forks)
    if is_aggregate(value):
        return emulated(
            value, lambda method: substitute(method, binder.for_all(), forks=forks), forks=forks
        )
    if isinstance(value, type):
        return libraries.substitute(value) or _CLASSES.get(value, value)
    if isinstance(value, python_types.FunctionType):
        return _of_function(value, binder, forks=forks)
    if isinstance(value, python_types.BuiltinFunctionType):
        return BUILTINS.get(value.__name__, value) if value.__module__ == "builtins" else value
    return value


def _native(function: Any) -> Callable[..., Any] | None:
    """Return the emulation of a function by its name; None if there is no emulation."""
    module, name = (getattr(function, n, None) for n in ("__module__", "__name__"))
    own = BY_MODULE.get(module or "", {}).get(name or "")
    return own or libraries.substitute(function)


def _of_jit(jit: Jit, binder: Binder, *, forks: str) -> Callable[..., Any]:
    native = _native(jit.fn)
    if native is None and is_empty(jit):
        return _refusal(
            f"{jit.fn.__module__}.{jit.__name__} has no body, so it would do nothing: it is not "
            "supported\n  to fix: write `return` into it if it is to do nothing"
        )
    return native or binder.function_of(jit, forks)


def _of_function(function: Any, binder: Binder, *, forks: str) -> Callable[..., Any]:
    """Return the emulation of a Triton function; other functions are returned as they are."""
    module, name = function.__module__, function.__name__
    native = _native(function)
    if native is not None:
        guard = _GUARDS.get(forks)
        is_core = native is BY_MODULE["triton.language.core"].get(name)
        return guard(name, native) if guard is not None and is_core else native
    own = as_jit(function)
    if own is not None:
        return _of_jit(own, binder, forks=forks)
    if is_of_library(function) and is_dispatcher(function):
        return _of_dispatcher(function, binder.for_all(), forks=forks)
    is_stub = module.startswith("triton.language.extra.")  # The compiler provides its body.
    if not is_stub and not getattr(function, core.TRITON_BUILTIN, False):
        plain: Callable[..., Any] = function
        return plain
    return _refusal(f"{module.replace('triton.language', 'tl')}.{name} is not supported")


def _refusal(text: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(text)

    return refuse


def _of_dispatcher(function: Any, binder: Binder, *, forks: str) -> Callable[..., Any]:
    """Return the emulation of a dispatcher."""

    def called(chosen: Any) -> Callable[..., Any]:
        if is_device_function(chosen) or chosen is core.constexpr:
            return without_compiler(substitute(chosen, binder, forks=forks))
        plain: Callable[..., Any] = chosen
        return plain

    return bound_dispatcher(function, called)


def is_device_function(value: Any) -> bool:
    """Return whether only kernels can call a value, which the compiler must know."""
    is_builtin = bool(getattr(value, core.TRITON_BUILTIN, False))
    return is_builtin or isinstance(value, JITFunction) or _native(value) is not None


def _constexpr_function(function: Any) -> Callable[..., Any]:
    """Return a compile-time function that takes and returns plain values."""
    original = function.fn

    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        return result.value if isinstance(result, core.constexpr) else result

    return call


# ---- Modules ----


class ModuleProxy:
    """A module as seen by a kernel: attributes are replaced on first access.

    It holds the module weakly; the kernels that name the module keep it alive.
    """

    def __init__(self, module: python_types.ModuleType, binder: Binder, *, forks: str) -> None:
        self.__dict__["_module"] = ref(module)
        self.__dict__["_binder"] = binder
        self.__dict__["_forks"] = forks

    def __getattr__(self, name: str) -> Any:
        """Return and cache the replacement of a module's attribute."""
        module = self._module()
        gone = BY_MODULE.get(module.__name__, {}).get(name)
        known = getattr(module, name) if hasattr(module, name) or not gone else gone
        stands_for = substitute(known, self._binder, forks=self._forks)
        self.__dict__[name] = stands_for
        return stands_for


_proxies: WeakKeyDictionary[python_types.ModuleType, dict[str, ModuleProxy]] = WeakKeyDictionary()


def _proxy(module: python_types.ModuleType, binder: Binder, *, forks: str) -> ModuleProxy:
    by_forks = _proxies.setdefault(module, {})
    if forks not in by_forks:
        by_forks[forks] = ModuleProxy(module, binder.for_all(), forks=forks)
    return by_forks[forks]


# ---- Classes ----


def _constexpr(value: Any) -> Any:
    """Return the value itself: values other than blocks are compile-time constants."""
    return value


def isinstance_(value: Any, kinds: Any) -> bool:
    """Return Triton's answer: values other than blocks are constexprs."""
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if _constexpr in kinds:
        return type(value) is not Block
    return isinstance(value, tuple(kind for kind in kinds if isinstance(kind, type)))


_CLASSES: dict[Any, Any] = {
    core.constexpr: _constexpr,
    core.tensor: Block,
    core.range: control.Range,
    core.static_range: control.static_range,
    core.tuple: tuple,
    core.tensor_descriptor: access.Descriptor,
    core.tensor_descriptor_base: access.Descriptor,
    builtins.range: control.Range,
}
