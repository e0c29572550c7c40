"""Kernels as Python functions whose names are bound to the emulation (rule K1).

Each has its own globals; triton is not modified. File and line numbers stay, so tracebacks and
breakpoints point at the user's source.
"""

from __future__ import annotations

import ast
import builtins
import types as python_types
from typing import TYPE_CHECKING, Any, NamedTuple

import triton.language as tl
from triton.language import core

from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.machine.protocols import kept
from simrank.kernels.running import threads
from simrank.kernels.source.analyse import effects_of_callee, effects_of_jit
from simrank.kernels.source.rewrite import HELPERS, Rewriter, ThreadRewriter
from simrank.kernels.source.scopes import (
    closure_of,
    definition_of,
    first_line,
    is_language,
    is_of_python,
    scope_of,
    value_of,
)
from simrank.kernels.source.substitute import BUILTINS, Binder, isinstance_, substitute
from simrank.kernels.source.unsupported import Refusals, builtin_names
from simrank.kernels.source.waits import is_wait
from simrank.kernels.values.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.kernels.machine import Effects, LaunchOptions
    from simrank.kernels.machine.protocols import Jit
    from simrank.kernels.source.substitute import Bound


def attach(binder: Binder) -> None:
    """Add Triton's tensor methods to blocks, once."""
    for name, value in vars(core.tensor).items():
        if name.startswith("_") or hasattr(Block, name):
            continue
        function = getattr(tl, name, None) or getattr(core, name, None)
        if callable(value) and function is not None:
            setattr(Block, name, _method(name, function, binder))


def _method(name: str, function: Any, binder: Binder) -> Callable[..., Any]:
    """Return a method that is bound at its first call."""
    by_forks: dict[str, Callable[..., Any]] = {}

    def method(self: Block, *args: Any, **kwargs: Any) -> Any:
        forks = ""
        if threads.num_threads():
            forks = "threads" if name in threads.OF_MEMORY else ""
        elif machine.now().active is not None:
            forks = "programs"
        if forks not in by_forks:
            by_forks[forks] = substitute(function, binder, forks=forks)
        return by_forks[forks](self, *args, **kwargs)

    return method


# ---- The `_semantic` argument, which the compiler passes to functions of libraries ----


class _Builder:
    """Replacement of the compiler's builder for libraries."""

    create_barrier = staticmethod(threads.sync_threads)

    @property
    def options(self) -> LaunchOptions:
        """Options of the launch."""
        return machine.now().options

    def __getattr__(self, name: str) -> object:
        """Raise: other attributes are not supported."""
        raise UnsupportedError(
            f"a library's function that builds with the compiler's {name} is not supported"
        )


class Semantic:
    """Replacement of the compiler's semantic object: launch options and a thread barrier."""

    builder = _Builder()


SEMANTIC = Semantic()

# ---- Bound kernels ----


class _Captured(NamedTuple):
    """A global that a kernel captured: its namespace, name and value."""

    names: dict[str, Any]
    name: str
    value: Any


class BoundKernel:
    """A kernel bound to the emulation.

    Attributes:
        function: The Python function; its arguments are blocks and constants.
        jit: Triton's function object.
        tree: Rewritten source.
        effects: Observable effects.
        forks: Divergence: "threads", "programs" in lockstep, or "".
    """

    def __init__(
        self,
        jit: Jit,
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
        self._callees: list[Bound] = []
        self._captured: list[_Captured] = []

    def is_stale(self, seen: set[int]) -> bool:
        """Return whether a global captured by the kernel or its callees has been rebound."""
        if id(self) in seen:
            return False
        seen.add(id(self))
        if any(names.get(name) is not value for names, name, value in self._captured):
            return True
        return any(callee.is_stale(seen) for callee in self._callees)

    def capture(self, names: dict[str, Any]) -> None:
        """Fill in the names that its source uses: globals and closure variables."""
        own_globals: dict[str, Any] = self.jit.fn.__globals__
        closure, binder = closure_of(self.jit.fn), Binder(bind, self._callees)
        used = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        for name in sorted(used):
            if name in closure:
                names[name] = substitute(closure[name], binder, forks=self.forks)
            elif name in own_globals:
                value = own_globals[name]
                self._captured.append(_Captured(own_globals, name, value))
                names[name] = substitute(value, binder, forks=self.forks)
            elif name in BUILTINS:
                names[name] = BUILTINS[name]
        if names.get("isinstance") is None:
            names["isinstance"] = isinstance_


def bind(jit: Jit, forks: str = "") -> BoundKernel:
    """Return a kernel or device function bound to the emulation.

    Args:
        jit: Triton's function object.
        forks: Divergence of the caller: "threads", "programs", or "".
    """
    if effects_of_jit(jit).threads:
        forks = "threads"
    bound: BoundKernel | None = kept(jit).get(("bound", forks))
    if bound is None or bound.is_stale(set()):
        bound = _bind(jit, forks=forks)
    return bound


def _bind(jit: Jit, *, forks: str) -> BoundKernel:
    function = jit.fn
    refusals = None if is_of_python(jit) else Refusals(jit, scope_of(jit.fn))
    tree, code = _compiled(jit, ThreadRewriter if forks else Rewriter, refusals)
    names: dict[str, Any] = {
        "__builtins__": builtins if refusals is None else builtin_names(),
        "__name__": function.__module__,
        **HELPERS,
        **threads.HELPERS,
        **({} if refusals is None else refusals.helpers()),
    }
    own = python_types.FunctionType(code, names, function.__name__, function.__defaults__, None)
    own.__kwdefaults__ = function.__kwdefaults__
    own.__defaults__ = tuple(_defaults(function)) or None
    bound = BoundKernel(jit, own, tree, effects_of_jit(jit), forks=forks)
    kept(jit)["bound", forks] = bound  # Set before `capture`: a function may name itself.
    bound.capture(names)
    return bound


def _defaults(function: python_types.FunctionType) -> Iterator[Any]:
    """Yield the replacements of a function's defaults."""
    given = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    for name, value in zip(names[len(names) - len(given) :], given, strict=True):
        yield SEMANTIC if name == "_semantic" else in_kernel(value)


def _compiled(
    jit: Jit, rewriter: type[Rewriter], refusals: Refusals | None
) -> tuple[ast.FunctionDef, python_types.CodeType]:
    """Return a kernel's rewritten source as a tree and as code, with its file's line numbers."""
    definition, scope = definition_of(jit), scope_of(jit.fn)
    definition.args.defaults = [ast.Constant(value=None) for _ in definition.args.defaults]
    definition.args.kw_defaults = [
        None if default is None else ast.Constant(value=None)
        for default in definition.args.kw_defaults
    ]
    if refusals is not None:
        refusals.apply(definition)
    tree = ast.Module([definition], [])
    rewriter(
        lambda loop: is_wait(loop, lambda name: effects_of_callee(name, scope)),
        lambda name: is_language(value_of(name, scope)),
        checks_types=refusals is not None,
    ).visit(tree)
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, first_line(jit) - 1)
    module = compile(tree, jit.fn.__code__.co_filename, "exec")
    code = next(c for c in module.co_consts if isinstance(c, python_types.CodeType))
    return definition, code


_BINDER: Binder = Binder(bind)


def in_kernel(value: Any) -> Any:
    """Return the replacement of a kernel argument."""
    return substitute(value, _BINDER)


attach(_BINDER)
