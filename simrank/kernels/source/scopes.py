"""Name resolution in kernel sources: device functions, aggregates, dispatching builtins."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types as python_types
from typing import TYPE_CHECKING, Any

import triton
from triton.language import core

from simrank.errors import UnsupportedError
from simrank.kernels.machine.protocols import kept
from simrank.kernels.source.names import BY_MODULE
from simrank.kernels.source.rewrite import OF_COMPILER

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.protocols import Jit


# ---- aggregates: Triton's classes of several values with device functions as methods ----
# A kernel sees a replacement class for each: the same fields, constants as plain values, and
# methods bound like other device functions.

_JITFunction: Any = triton.runtime.jit.JITFunction
_JITCallable: Any = triton.runtime.jit.JITCallable
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
    if hasattr(original, "hash_attrs"):
        called = original.hash_attrs[1:]
    else:  # Triton 3.5 copies them from the class it decorates, and keeps no list.
        members = inspect.getmembers(_decorated(original), _is_function)
        called = [function for name, function in members if name != "__init__"]
    known = {id(function) for function in called}
    return {name: value for name, value in vars(original).items() if id(value) in known}


def fields_of(original: Any) -> tuple[str, ...]:
    """Return the names of an aggregate's fields, in their order."""
    known = getattr(original, "__aggregate_fields__", None)
    if known is None:  # Before Triton 3.8 they are the annotations of the class it decorates.
        known = getattr(_decorated(original), "__annotations__", {})
    return tuple(known)


def _is_function(member: object) -> bool:
    return isinstance(member, (python_types.FunctionType, _JITCallable))


def _decorated(original: Any) -> Any:
    """Return the class that an aggregate was made of."""
    return inspect.getclosurevars(original.__new__).nonlocals["cls"]


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
        "__aggregate_fields__": fields_of(original),
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
    }
    result = type(original.__name__, (_Aggregate,), fields)
    facts[key] = result  # Before its methods, which may name it.
    own = original.hash_attrs[0] if hasattr(original, "hash_attrs") else _oldest_init(original)
    if own is object.__init__:  # Triton before 3.8 makes none: fields stay unset, and are missed.
        init = _assign_nothing
    elif own.__module__ == core.__name__:
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
        for name in fields_of(original):
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


def _assign_nothing(*_: Any, **__: Any) -> None:
    """Set no field, as the constructor of `object` does."""


def _oldest_init(original: Any) -> Any:
    """Return the constructor of an aggregate of Triton 3.5, which takes Python's only."""
    own = _decorated(original).__init__
    if not isinstance(own, _JITCallable):
        return own

    def refuse(self: Any, *_: Any, **__: Any) -> None:
        del self
        name = original.__name__
        raise ValueError(f"{name}.__init__ cannot be a @triton.jit function")  # Its own words.

    return refuse


def _assign_fields(original: Any) -> Callable[..., None]:
    """Return the default constructor of an aggregate, like that of a dataclass."""
    fields, defaults = fields_of(original), original.__aggregate_defaults__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(fields, args, strict=False))
        twice = given.keys() & kwargs.keys()
        if len(args) > len(fields) or twice:
            problem = f"'{min(twice)}' twice" if twice else f"{len(args)} values"
            raise TypeError(f"{original.__name__}() got {problem} for its {len(fields)} fields")
        for name, value in {**defaults, **given, **kwargs}.items():
            setattr(self, name, value)

    return init


# ---- library builtins that choose their backend function at call time ----
# Libraries build them with `core.builtin` around a wrapper of `functools.wraps(stub)`: the stub
# has a signature and no body, and the wrapper calls the backend's function. The compiler runs the
# wrapper as plain Python. So does the emulation, but it replaces each device function that the
# wrapper calls.

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


def bound_dispatcher(
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
        bound_dispatcher(builtin, called)(*(_Unknown() for _ in given))
    except UnsupportedError:
        raise
    except Exception:  # noqa: BLE001 - unknown values may raise any error
        return None
    return found


# ---- names, and detection of device functions ----

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
        if isinstance(owner, python_types.ModuleType) or is_aggregate(owner):
            return getattr(owner, name.attr, None)
        if owner is None:
            return next(filter(None, (_method_of(k, name.attr) for k in scope.values())), None)
    return None


def _method_of(kind: Any, name: str) -> Any:
    return methods(kind).get(name) if is_aggregate(kind) else None


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
    run like `triton.jit` functions, without `_semantic`. Dispatchers are not: see `is_dispatcher`.
    """
    if isinstance(value, JITFunction):
        jit: Jit = value
        return jit
    if not is_of_library(value) or is_dispatcher(value):
        return None
    facts = kept(value)
    if "jit" not in facts:
        try:
            facts["jit"] = JITFunction(body_of(value))
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
