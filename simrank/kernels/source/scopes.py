"""Name resolution in kernel sources, and detection of device functions."""

from __future__ import annotations

import ast
import inspect
import types as python_types
from typing import TYPE_CHECKING, Any

import triton
from triton.language import core

from simrank.kernels.machine.jit import kept
from simrank.kernels.source import aggregates, dispatch
from simrank.kernels.source.names import BY_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.jit import Jit

JITFunction: Any = triton.runtime.jit.JITFunction


def definition_of(jit: Jit) -> ast.FunctionDef:
    """Return a new syntax tree of a device function."""
    definition = ast.parse(jit.src).body[0]
    assert isinstance(definition, ast.FunctionDef), "a kernel is a function"
    return definition


def first_line(jit: Jit) -> int:
    """Return the line number of a kernel's `def` in its file."""
    for offset, line in enumerate(jit.raw_src):
        if line.lstrip().startswith(("def ", "def\t")):
            return int(jit.starting_line_number) + offset
    return int(jit.starting_line_number)


def closure_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the closure variables that a function's source names."""
    return dict(inspect.getclosurevars(function).nonlocals) if function.__closure__ else {}


def scope_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the scope of a function's source: globals and closure variables."""
    return {**function.__globals__, **closure_of(function)}


def value_of(name: ast.expr, scope: dict[str, Any]) -> Any:
    """Return the value of a name, or of an attribute of a module; None if unknown.

    An attribute of an unknown value is resolved as a method of an aggregate in scope.
    """
    if isinstance(name, ast.Name):
        return scope.get(name.id)
    if isinstance(name, ast.Attribute):
        owner = value_of(name.value, scope)
        if isinstance(owner, python_types.ModuleType) or aggregates.is_aggregate(owner):
            return getattr(owner, name.attr, None)
        if owner is None:
            return next(filter(None, (_method_of(k, name.attr) for k in scope.values())), None)
    return None


def _method_of(kind: Any, name: str) -> Any:
    return aggregates.methods(kind).get(name) if aggregates.is_aggregate(kind) else None


def text_of(expression: ast.expr, scope: dict[str, Any]) -> str | None:
    """Return the string value of a literal or name; None for other expressions."""
    value: Any = value_of(expression, scope)
    if isinstance(expression, ast.Constant):
        value = expression.value
    value = value.value if isinstance(value, core.constexpr) else value
    return value if isinstance(value, str) else None


def is_language(value: object) -> bool:
    """Return whether a value is one of Triton's own modules."""
    return isinstance(value, python_types.ModuleType) and value.__name__.startswith("triton.")


def as_jit(value: Any) -> Jit | None:
    """Return a device function as Triton's `JITFunction`; None if its source is not run.

    Functions that libraries build with `core.extern` or `core.builtin` on Triton's functions are
    run like `triton.jit` functions, without `_semantic`. Dispatchers are not: see `dispatch`.
    """
    if isinstance(value, JITFunction):
        jit: Jit = value
        return jit
    if not is_of_library(value) or dispatch.is_dispatcher(value):
        return None
    facts = kept(value)
    if "jit" not in facts:
        try:
            facts["jit"] = JITFunction(dispatch.body_of(value))
            kept(facts["jit"])["is_of_python"] = True
        except (OSError, ValueError):  # The source is missing.
            return None
    own: Jit = facts["jit"]
    return own


def is_of_python(jit: Jit) -> bool:
    """Return whether a device function is a library builtin, which Python runs at compile time."""
    return bool(kept(jit).get("is_of_python", False))


def is_of_library(function: Any) -> bool:
    """Return whether a function is a builtin that a library added to Triton's."""
    if not isinstance(function, python_types.FunctionType):
        return False
    module = function.__module__
    if not getattr(function, core.TRITON_BUILTIN, False) or module in BY_MODULE:
        return False
    return not module.startswith("triton.") or module.startswith("triton.language.extra.")


def is_empty(jit: Jit) -> bool:
    """Return whether a function is a stub: its body is `...`, `pass` or a docstring."""
    return jit.__name__ != "__init__" and all(
        isinstance(line, ast.Pass)
        or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in definition_of(jit).body
    )
