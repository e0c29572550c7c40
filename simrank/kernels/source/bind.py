"""Linking: a kernel's own source, with `triton.language` replaced by the emulation (rule K1).

A linked kernel is a Python function with globals of its own; nothing in triton is changed, and file
and line numbers stay, so that tracebacks and breakpoints point at the user's source.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import types as python_types
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from triton.language import core

from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.language import control, elementwise, windows
from simrank.kernels.machine import Effects
from simrank.kernels.running import masked, threads
from simrank.kernels.shmem import libraries
from simrank.kernels.source import aggregates
from simrank.kernels.source.effects import effects_of
from simrank.kernels.source.names import BY_MODULE
from simrank.kernels.source.rewrite import HELPERS, Rewriter
from simrank.kernels.source.thread_rewrite import ThreadRewriter
from simrank.kernels.source.waits import is_wait
from simrank.kernels.source.writes import written_parameters
from simrank.kernels.values.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable

_JITFunction: Any = triton.runtime.jit.JITFunction
_ConstexprFunction: Any = getattr(triton.runtime.jit, "ConstexprFunction", ())
_BUILTINS: dict[str, Any] = {
    "range": control.Range,
    "max": elementwise.builtin_max,
    "min": elementwise.builtin_min,
    "print": control.device_print,
}


class LinkedKernel:
    """A kernel that the emulation runs.

    Attributes:
        function: What to call, with blocks and constants as arguments.
        jit: Triton's object.
        tree: Its rewritten source.
        effects: How it behaves towards other programs.
        forks: What may go different ways: "threads", "programs" that are in lockstep, or "".
    """

    def __init__(
        self,
        jit: Any,
        function: Callable[..., Any],
        tree: ast.FunctionDef,
        effects: Effects,
        *,
        forks: str,
    ) -> None:
        self.forks = forks
        self.jit = jit
        self.function = function
        self.tree = tree
        self.effects = effects
        self.callees: list[LinkedKernel] = []
        self.captured: list[tuple[dict[str, Any], str, Any]] = []

    def is_stale(self, seen: set[int]) -> bool:
        """Whether a global that it, or what it calls, captured is bound to something else now."""
        if id(self) in seen:
            return False
        seen.add(id(self))
        if any(names.get(name) is not value for names, name, value in self.captured):
            return True
        return any(callee.is_stale(seen) for callee in self.callees)


_linked: dict[tuple[int, str], LinkedKernel] = {}
_proxies: dict[tuple[int, str], ModuleProxy] = {}


def link(jit: Any, *, forks: str = "") -> LinkedKernel:
    """Return a kernel, or a device function, linked with the emulation.

    Args:
        jit: Triton's object.
        forks: What may go different ways where it is called: "threads", "programs", or "".
    """
    if effects_of_jit(jit).threads:
        forks = "threads"
    found = _linked.get((id(jit), forks))
    if found is None or found.jit is not jit or found.is_stale(set()):
        found = _link(jit, forks=forks)
    return found


def _link(jit: Any, *, forks: str) -> LinkedKernel:
    function = jit.fn
    effects = effects_of_jit(jit)
    tree, code = _compiled(jit, ThreadRewriter if forks else Rewriter)
    names: dict[str, Any] = {
        "__builtins__": builtins,
        "__name__": function.__module__,
        **HELPERS,
        **threads.HELPERS,
    }
    own = python_types.FunctionType(code, names, function.__name__, function.__defaults__, None)
    own.__kwdefaults__ = function.__kwdefaults__
    own.__defaults__ = tuple(substitute(value) for value in function.__defaults__ or ()) or None
    found = LinkedKernel(jit, own, tree, effects, forks=forks)
    _linked[id(jit), forks] = found
    _capture(found, function, names)
    return found


def _compiled(jit: Any, rewriter: type[Rewriter]) -> tuple[ast.FunctionDef, python_types.CodeType]:
    """Return a kernel's rewritten source as a tree and as code, with the lines of its file."""
    function = jit.fn
    tree = ast.parse(jit.src)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef), "a kernel is a function"
    definition.args.defaults = [ast.Constant(value=None) for _ in definition.args.defaults]
    definition.args.kw_defaults = [
        None if default is None else ast.Constant(value=None)
        for default in definition.args.kw_defaults
    ]
    scope = _scope(function)
    rewriter(
        lambda loop: is_wait(loop, lambda name: _callee(name, scope)),
        lambda name: _is_language(_value(name, scope)),
    ).visit(tree)
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, _first_line(jit) - 1)
    module = compile(tree, function.__code__.co_filename, "exec")
    code = next(c for c in module.co_consts if isinstance(c, python_types.CodeType))
    return definition, code


def _scope(function: Any) -> dict[str, Any]:
    """Return what names mean in a function's source: globals, and variables around it."""
    around = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    return {**function.__globals__, **around}


def _value(name: ast.expr, scope: dict[str, Any]) -> Any:
    """Return what a name, or an attribute of a module, is bound to; None where that is unknown.

    An attribute of what is unknown is the method of an aggregate, if one has a method of that name.
    """
    if isinstance(name, ast.Name):
        return scope.get(name.id)
    if isinstance(name, ast.Attribute):
        owner = _value(name.value, scope)
        if isinstance(owner, python_types.ModuleType) or aggregates.is_aggregate(owner):
            return getattr(owner, name.attr, None)
        if owner is None:
            return next(filter(None, (_method_of(k, name.attr) for k in scope.values())), None)
    return None


def _method_of(kind: Any, name: str) -> Any:
    return aggregates.methods(kind).get(name) if aggregates.is_aggregate(kind) else None


def _text(expression: ast.expr, scope: dict[str, Any]) -> str | None:
    """Return the string that an expression is: written there, or bound to a name."""
    found: Any = _value(expression, scope)
    if isinstance(expression, ast.Constant):
        found = expression.value
    found = found.value if isinstance(found, core.constexpr) else found
    return found if isinstance(found, str) else None


def _is_language(value: Any) -> bool:
    return isinstance(value, python_types.ModuleType) and value.__name__.startswith("triton.")


_effects: dict[int, tuple[Any, Effects]] = {}


def effects_of_jit(jit: Any) -> Effects:
    """Return how a device function, and what it calls, behaves towards other programs."""
    found = _effects.get(id(jit))
    if found is not None and found[0] is jit:
        return found[1]
    _effects[id(jit)] = (jit, Effects())  # For functions that call themselves.
    tree = ast.parse(jit.src).body[0]
    assert isinstance(tree, ast.FunctionDef), "a kernel is a function"
    scope = _scope(jit.fn)
    effects = effects_of(tree, lambda name: _callee(name, scope), lambda name: _text(name, scope))
    _effects[id(jit)] = (jit, effects)
    return effects


_written: dict[int, tuple[Any, frozenset[str]]] = {}


def written_by_jit(jit: Any) -> frozenset[str]:
    """Return the parameters through which a device function, or what it calls, may write."""
    found = _written.get(id(jit))
    if found is not None and found[0] is jit:
        return found[1]
    _written[id(jit)] = (jit, frozenset())  # For functions that call themselves.
    tree = ast.parse(jit.src).body[0]
    assert isinstance(tree, ast.FunctionDef), "a kernel is a function"
    scope = _scope(jit.fn)

    def callee(name: ast.expr) -> tuple[Any, frozenset[str]] | None:
        value = _value(name, scope)
        if not isinstance(value, _JITFunction):
            return None
        is_method = isinstance(name, ast.Attribute) and _value(name.value, scope) is None
        return value.arg_names[is_method:], written_by_jit(value)

    constants = {parameter.name for parameter in jit.params if parameter.is_constexpr}
    written = written_parameters(tree, callee) - constants
    _written[id(jit)] = (jit, written)
    return written


def _callee(name: ast.expr, scope: dict[str, Any]) -> Effects | None:
    value = _value(name, scope)
    own = libraries.effects(getattr(value, "fn", value))
    if own is not None:
        return own
    jit = _as_jit(value)
    return None if jit is None else effects_of_jit(jit)


_of_libraries: dict[int, tuple[Any, Any]] = {}


def _as_jit(value: Any) -> Any:
    """Return a device function as Triton's object; None where it is none whose source runs.

    Libraries write their own with `core.extern` or `core.builtin` around Triton's functions: they
    are as good as `triton.jit`, once `_semantic` is left out.
    """
    if isinstance(value, _JITFunction):
        return value
    if not isinstance(value, python_types.FunctionType) or not _is_of_library(value):
        return None
    found = _of_libraries.get(id(value))
    if found is None or found[0] is not value:
        try:
            jit = _JITFunction(inspect.unwrap(value))
        except (OSError, ValueError):  # Its source is not there.
            return None
        found = _of_libraries[id(value)] = value, jit
    return found[1]


def _is_of_library(function: Any) -> bool:
    module = function.__module__
    if not getattr(function, core.TRITON_BUILTIN, False) or module in BY_MODULE:
        return False
    return not module.startswith("triton.") or module.startswith("triton.language.extra.")


def _first_line(jit: Any) -> int:
    """Return the line of the file in which the `def` of a kernel stands."""
    for offset, line in enumerate(jit.raw_src):
        if line.lstrip().startswith(("def ", "def\t")):
            return int(jit.starting_line_number) + offset
    return int(jit.starting_line_number)


def _capture(linked: LinkedKernel, function: Any, names: dict[str, Any]) -> None:
    """Give a linked function what its source names: globals, and variables around it."""
    own_globals: dict[str, Any] = function.__globals__
    around = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    used = {node.id for node in ast.walk(linked.tree) if isinstance(node, ast.Name)}
    for name in sorted(used):
        if name in around:
            names[name] = substitute(around[name], linked, forks=linked.forks)
        elif name in own_globals:
            linked.captured.append((own_globals, name, own_globals[name]))
            names[name] = substitute(own_globals[name], linked, forks=linked.forks)
        elif name in _BUILTINS:
            names[name] = _BUILTINS[name]
    if names.get("isinstance") is None:
        names["isinstance"] = _isinstance


def substitute(  # noqa: PLR0911 - a case each
    value: Any, user: LinkedKernel | None = None, *, forks: str = ""
) -> Any:
    """Return what stands for a value of a kernel's globals in the emulation.

    Args:
        value: The value.
        user: Who names it, if it shall know what it calls.
        forks: What of who names it may go different ways.
    """
    if isinstance(value, _JITFunction):
        return _of_jit(value, user, forks=forks)
    if isinstance(value, core.constexpr):
        return value.value
    if isinstance(value, _ConstexprFunction):
        own = BY_MODULE.get(value.fn.__module__, {}).get(value.fn.__name__)
        return _constexpr_function(value) if own is None else own
    if isinstance(value, python_types.ModuleType):
        return _proxy(value, forks=forks)
    if aggregates.is_aggregate(value):
        return aggregates.emulated(
            value, lambda method: substitute(method, user, forks=forks), forks=forks
        )
    if isinstance(value, type):
        return libraries.substitute(value) or _CLASSES.get(value, value)
    if isinstance(value, python_types.FunctionType):
        return _of_function(value, user, forks=forks)
    if isinstance(value, python_types.BuiltinFunctionType):
        return _BUILTINS.get(value.__name__, value) if value.__module__ == "builtins" else value
    return value


def _of_jit(jit: Any, user: LinkedKernel | None, *, forks: str) -> Any:
    native = BY_MODULE.get(jit.fn.__module__, {}).get(jit.fn.__name__) or libraries.substitute(
        jit.fn
    )
    if native is not None:
        return native
    linked = link(jit, forks=forks)
    if user is not None:
        user.callees.append(linked)
    return linked.function


def _of_function(function: Any, user: LinkedKernel | None, *, forks: str) -> Any:
    """Return the emulation of one of Triton's functions; others are what they are."""
    module, name = function.__module__, function.__name__
    native = BY_MODULE.get(module, {}).get(name) or libraries.substitute(function)
    if native is not None:
        guard = _GUARDS.get(forks)
        is_core = native is BY_MODULE["triton.language.core"].get(name)
        return guard(name, native) if guard is not None and is_core else native
    own = _as_jit(function)
    if own is not None:
        return _of_jit(own, user, forks=forks)
    is_stub = module.startswith("triton.language.extra.")  # Which the compiler fills in.
    if not is_stub and not getattr(function, core.TRITON_BUILTIN, False):
        return function

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(f"{module.replace('triton.language', 'tl')}.{name} is not supported")

    return refuse


_GUARDS = {"threads": threads.guarded, "programs": masked.guarded}


def _constexpr_function(function: Any) -> Callable[..., Any]:
    """Return a compile-time function that takes and gives plain values."""
    original = function.fn

    def call(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return found.value if isinstance(found, core.constexpr) else found

    return call


class ModuleProxy:
    """A module as a kernel sees it: each name replaced when it is asked for."""

    def __init__(self, module: python_types.ModuleType, *, forks: str) -> None:
        self.__dict__["_module"] = module
        self.__dict__["_forks"] = forks

    def __getattr__(self, name: str) -> Any:
        """Return what stands for the module's attribute, and keep it."""
        module = self._module
        gone = BY_MODULE.get(module.__name__, {}).get(name)
        known = getattr(module, name) if hasattr(module, name) or not gone else gone
        found = substitute(known, forks=self._forks)
        self.__dict__[name] = found
        return found


def _proxy(module: python_types.ModuleType, *, forks: str) -> ModuleProxy:
    found = _proxies.get((id(module), forks))
    if found is None:
        found = _proxies[id(module), forks] = ModuleProxy(module, forks=forks)
    return found


def _constexpr(value: Any) -> Any:
    """Return the plain value: everything that is no block is known at compile time."""
    return value


def _isinstance(value: Any, kinds: Any) -> bool:
    """Answer as Triton would: what is no block is a constexpr."""
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
    core.tensor_descriptor: windows.Descriptor,
    core.tensor_descriptor_base: windows.Descriptor,
    builtins.range: control.Range,
}


def _attach_methods() -> None:
    """Give blocks the functions that Triton's tensors have as methods."""
    for name, value in vars(core.tensor).items():
        if name.startswith("_") or hasattr(Block, name):
            continue
        function = getattr(tl, name, None) or getattr(core, name, None)
        if callable(value) and function is not None:
            setattr(Block, name, _method(name, function))


def _method(name: str, function: Any) -> Callable[..., Any]:
    """Return a method that is linked when it is first called."""
    found: dict[str, Callable[..., Any]] = {}

    def method(self: Block, *args: Any, **kwargs: Any) -> Any:
        forks = ""
        if threads.num_threads():
            forks = "threads" if name in threads.OF_MEMORY else ""
        elif machine.now().active is not None:
            forks = "programs"
        if forks not in found:
            found[forks] = substitute(function, forks=forks)
        return found[forks](self, *args, **kwargs)

    return method


_attach_methods()
