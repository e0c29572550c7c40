"""Library builtins that choose their backend function at call time.

Libraries build them with `core.builtin` around a wrapper of `functools.wraps(stub)`: the stub has a
signature and no body, and the wrapper calls the backend's function. The compiler runs the wrapper
as plain Python. So does the emulation, but it replaces each device function that the wrapper calls.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types as python_types
from typing import TYPE_CHECKING, Any

from triton.language import core

from simrank.errors import UnsupportedError
from simrank.kernels.machine.jit import kept
from simrank.kernels.source.rewrite import OF_COMPILER

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLED = "__called"
_WRAPPER = core.builtin(lambda _semantic: None).__code__
_VARYING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def body_of(builtin: python_types.FunctionType) -> Any:
    """Return the function inside `core.builtin`, which the compiler runs."""
    return builtin.__wrapped__ if builtin.__code__ is _WRAPPER else builtin  # type: ignore[attr-defined]


def is_dispatcher(builtin: python_types.FunctionType) -> bool:
    """Return whether a builtin wraps another function, or takes arbitrary arguments."""
    body = body_of(builtin)
    if hasattr(body, "__wrapped__"):
        return True
    return any(p.kind in _VARYING for p in inspect.signature(body).parameters.values())


def bound(
    builtin: python_types.FunctionType, called: Callable[[Any], Callable[..., Any]]
) -> Callable[..., Any]:
    """Return a dispatcher's body with each called function replaced.

    Args:
        builtin: The dispatcher.
        called: Returns the replacement of a function.

    Raises:
        UnsupportedError: The source is missing.
    """
    body = body_of(builtin)
    code, cells = (
        _code(body),
        dict(zip(body.__code__.co_freevars, body.__closure__ or (), strict=True)),
    )
    cells[_CALLED] = python_types.CellType(called)
    closure = tuple(cells[name] for name in code.co_freevars)
    own = python_types.FunctionType(
        code, body.__globals__, body.__name__, body.__defaults__, closure
    )
    own.__kwdefaults__ = body.__kwdefaults__
    return own


def _code(body: Any) -> python_types.CodeType:
    """Return a function's code with rewritten calls and the original line numbers."""
    facts = kept(body)
    if "code" not in facts:
        code = body.__code__
        definition = _definition(body)
        _Calls().visit(definition)
        free = _parameters((*code.co_freevars, _CALLED))
        tree = ast.Module([ast.FunctionDef("factory", free, [definition], [])], [])
        ast.increment_lineno(ast.fix_missing_locations(tree), code.co_firstlineno - 1)
        around = _inner(compile(tree, code.co_filename, "exec"))
        facts["code"] = _inner(around)
    result: python_types.CodeType = facts["code"]
    return result


def _inner(code: python_types.CodeType) -> python_types.CodeType:
    return next(c for c in code.co_consts if isinstance(c, python_types.CodeType))


def _parameters(names: tuple[str, ...]) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def _definition(body: Any) -> ast.FunctionDef:
    try:
        lines, _ = inspect.getsourcelines(body.__code__)
    except OSError:
        raise UnsupportedError(
            f"the builtin {body.__module__}.{body.__qualname__} chooses what it calls, and its "
            "source is not there: it is not supported"
        ) from None
    definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise UnsupportedError(
            f"the builtin {body.__module__}.{body.__qualname__} is no function with a name of its "
            "own: it is not supported"
        )
    definition.decorator_list = []
    return definition


class _Calls(ast.NodeTransformer):
    """Wraps the function of each call in `__called`, and drops compiler arguments."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Drop annotations and defaults; the original keeps them."""
        node.returns = None
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            argument.annotation = None
        # The result uses the original's defaults.
        node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
        node.args.kw_defaults = [d and ast.Constant(None) for d in node.args.kw_defaults]
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Wrap the called function in `__called(...)`."""
        self.generic_visit(node)
        node.keywords = [word for word in node.keywords if word.arg not in OF_COMPILER]
        node.func = ast.Call(ast.Name(_CALLED, ast.Load()), [node.func], [])
        return ast.copy_location(node, node.func.args[0])


def without_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ignores arguments which only the compiler passes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{n: v for n, v in kwargs.items() if n not in OF_COMPILER})

    return call


# ---- Targets of dispatchers, before a call ----


class _Unknown:
    """An argument or result that is unknown before the kernel runs."""

    def __getattr__(self, name: str) -> _Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __bool__(self) -> bool:
        raise _DependsError

    def _with(self, other: object) -> _Unknown:
        del other
        return self

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _with  # type: ignore[assignment]
    __add__ = __sub__ = __mul__ = __floordiv__ = __mod__ = _with
    __hash__ = object.__hash__

    def __call__(self, *_: Any, **__: Any) -> _Unknown:
        return self


class _DependsError(Exception):
    """The target of a builtin depends on its arguments."""


def targets(
    builtin: python_types.FunctionType, is_device: Callable[[Any], bool]
) -> list[Any] | None:
    """Return the device functions that a dispatcher calls; None if that depends on arguments.

    Args:
        builtin: The dispatcher; its body is run with unknown arguments.
        is_device: Returns whether a function is a device function.
    """
    found: list[Any] = []

    def called(function: Any) -> Callable[..., Any]:
        if not is_device(function):
            result: Callable[..., Any] = function
            return result
        found.append(function)
        return lambda *_, **__: _Unknown()

    parameters = inspect.signature(builtin).parameters.values()
    given = [p for p in parameters if p.kind not in _VARYING and p.name not in OF_COMPILER]
    try:
        bound(builtin, called)(*(_Unknown() for _ in given))
    except UnsupportedError:
        raise
    except Exception:  # noqa: BLE001 - unknown values may raise any error
        return None
    return found
