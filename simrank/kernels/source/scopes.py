"""Names of a kernel's source, and device functions among them."""

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
    """Return a device function's source as a tree of its own."""
    definition = ast.parse(jit.src).body[0]
    assert isinstance(definition, ast.FunctionDef), "a kernel is a function"
    return definition


def first_line(jit: Jit) -> int:
    """Return the line of the file in which the `def` of a kernel stands."""
    for offset, line in enumerate(jit.raw_src):
        if line.lstrip().startswith(("def ", "def\t")):
            return int(jit.starting_line_number) + offset
    return int(jit.starting_line_number)


def around(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the variables around a function that its source names."""
    return dict(inspect.getclosurevars(function).nonlocals) if function.__closure__ else {}


def scope_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the scope of a function: globals, and enclosing variables."""
    return {**function.__globals__, **around(function)}


def value_of(name: ast.expr, scope: dict[str, Any]) -> Any:
    """Return the value of a name or a module's attribute; None if unknown.

    An attribute of what is unknown is the method of an aggregate, if one has a method of that name.
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
    """Return the string that an expression is: written there, or bound to a name."""
    value: Any = value_of(expression, scope)
    if isinstance(expression, ast.Constant):
        value = expression.value
    value = value.value if isinstance(value, core.constexpr) else value
    return value if isinstance(value, str) else None


def is_language(value: object) -> bool:
    """Return whether a value is one of Triton's own modules."""
    return isinstance(value, python_types.ModuleType) and value.__name__.startswith("triton.")


def as_jit(value: Any) -> Jit | None:
    """Return Triton's object of a device function; None for other values.

    Libraries write their own with `core.extern` or `core.builtin` around Triton's functions: they
    are as good as `triton.jit`, once `_semantic` is left out. Those that choose what they call are
    not: see `dispatch`.
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
        except (OSError, ValueError):  # Its source is not there.
            return None
    own: Jit = facts["jit"]
    return own


def is_of_python(jit: Jit) -> bool:
    """Whether a device function is a builtin of a library: Python runs it, not the compiler."""
    return bool(kept(jit).get("is_of_python", False))


def is_of_library(function: Any) -> bool:
    """Return whether a function is a builtin of another library."""
    if not isinstance(function, python_types.FunctionType):
        return False
    module = function.__module__
    if not getattr(function, core.TRITON_BUILTIN, False) or module in BY_MODULE:
        return False
    return not module.startswith("triton.") or module.startswith("triton.language.extra.")


def is_empty(jit: Jit) -> bool:
    """Whether a function has nothing but `...`, `pass` or a docstring: a stub for something."""
    return jit.__name__ != "__init__" and all(
        isinstance(line, ast.Pass)
        or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in definition_of(jit).body
    )
