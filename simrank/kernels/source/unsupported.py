"""Constructs in a kernel's source that Triton's compiler rejects, rejected when reached.

The compiler reads both sides of an `if` on a value of the program, and one side of an `if` on a
compile-time constant. So a construct is rejected where it stands, and before an `if` of the first
kind that contains it.
"""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING, Any

from triton import knobs
from triton.compiler.code_generator import CodeGenerator
from triton.compiler.errors import UnsupportedLanguageConstruct

from simrank.kernels.values.block import Block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.kernels.machine.protocols import Jit

_REFUSE, _STATIC, _OUTSIDE = "__refuse", "__static", "__outside"
_DATA = (bool, int, float, complex, str, bytes, list, dict, set, tuple)
_PARTS = (ast.Starred, ast.FormattedValue)  # Handled by their parent nodes.
_OF_EMULATION = ("locals", "breakpoint", "__import__", "super")
_NAMES = (*CodeGenerator.builtin_namespace, *_OF_EMULATION)


def builtin_names() -> dict[str, Any]:
    """Return the builtins that kernel sources can use: those of the compiler."""
    return {name: getattr(builtins, name) for name in _NAMES if hasattr(builtins, name)}


class Refusals:
    """Constructs of one kernel that the compiler rejects.

    Args:
        jit: The kernel.
        scope: Values of the names around it.
    """

    def __init__(self, jit: Jit, scope: dict[str, Any]) -> None:
        self._source = jit.src
        self._scope = scope
        self._found: list[tuple[ast.AST, str]] = []

    def apply(self, definition: ast.FunctionDef) -> None:
        """Insert raising calls where the compiler would reject the source; lines stay."""
        definition.body = self._block(definition.body, in_loop=False)
        if not knobs.compilation.allow_non_constexpr_globals:
            names = _variables_outside(definition, self._scope)
            if names:
                _Outside(names).visit(definition)

    def helpers(self) -> dict[str, Any]:
        """Return the helpers that the rewritten source calls."""
        return {_REFUSE: self._refuse, _STATIC: self._static, _OUTSIDE: _refuse_variable}

    def _refuse(self, number: int) -> None:
        node, message = self._found[number]
        raise UnsupportedLanguageConstruct(self._source, node, message)

    def _static(self, condition: Any, number: int) -> Any:
        """Return a compile-time condition; reject a value of the program."""
        if type(condition) is Block:
            self._refuse(number)
        return condition

    def _block(self, body: list[ast.stmt], *, in_loop: bool) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in body:
            found = next(_outside_of_ifs(statement, in_loop=in_loop), None)
            if found is not None:
                result.append(ast.copy_location(ast.Expr(self._call(_REFUSE, *found)), statement))
            elif isinstance(statement, ast.If):
                self._of_if(statement, in_loop=in_loop)
            elif isinstance(statement, ast.For | ast.While | ast.With):
                is_loop = in_loop or _is_loop(statement)
                statement.body = self._block(statement.body, in_loop=is_loop)
            result.append(statement)
        return result

    def _of_if(self, node: ast.If, *, in_loop: bool) -> None:
        sides = [*node.body, *node.orelse]
        found = next((hit for part in sides for hit in _anywhere(part, in_loop=in_loop)), None)
        if found is not None:
            call = self._call(_STATIC, *found, condition=node.test)
            node.test = ast.copy_location(call, node.test)
        node.body = self._block(node.body, in_loop=in_loop)
        node.orelse = self._block(node.orelse, in_loop=in_loop)

    def _call(
        self, name: str, node: ast.AST, message: str, condition: ast.expr | None = None
    ) -> ast.Call:
        self._found.append((node, message))
        number = ast.Constant(len(self._found) - 1)
        arguments: list[ast.expr] = [number] if condition is None else [condition, number]
        return ast.Call(ast.Name(name, ast.Load()), arguments, [])


_Hit = tuple[ast.AST, str]


def is_unrolled(node: ast.For) -> bool | None:
    """Return whether the compiler unrolls a loop; None if its source does not say it."""
    function = node.iter.func if isinstance(node.iter, ast.Call) else None
    name = getattr(function, "attr", getattr(function, "id", ""))
    return name == "static_range" if name in ("range", "static_range") else None


def _is_loop(node: ast.AST) -> bool:
    """Return whether a node is a loop that the compiler does not unroll."""
    if isinstance(node, ast.For):
        return is_unrolled(node) is False
    return isinstance(node, ast.While)


def _outside_of_ifs(node: ast.AST, *, in_loop: bool) -> Iterator[_Hit]:
    """Yield the rejected nodes of a statement, except those inside sides of an `if`."""
    yield from _of_node(node, in_loop=in_loop)
    if isinstance(node, ast.If):
        children: list[ast.AST] = [node.test]
    elif isinstance(node, ast.IfExp):
        children = [node.test]
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _outside_of_ifs(child, in_loop=in_loop or _is_loop(node))


def _anywhere(node: ast.AST, *, in_loop: bool) -> Iterator[_Hit]:
    """Yield the rejected nodes of a statement, including sides of an `if`."""
    yield from _of_node(node, in_loop=in_loop)
    for child in ast.iter_child_nodes(node):
        yield from _anywhere(child, in_loop=in_loop or _is_loop(node))


def _of_node(node: ast.AST, *, in_loop: bool) -> Iterator[_Hit]:
    """Yield the reasons to reject a single node."""
    if isinstance(node, ast.FunctionDef):
        yield node, "nested function definitions are not allowed inside a @triton.jit kernel"
    elif _is_unknown(node):
        yield node, f"unsupported AST node type: {type(node).__name__}"
    if isinstance(node, ast.Return) and in_loop:
        yield node, "Cannot have `return` statements inside `while` or `for` statements in triton"
    if isinstance(node, ast.For) and not isinstance(node.iter, ast.Call):
        yield node, "Only `range` and `static_range` iterators are currently supported"
    if isinstance(node, ast.Assign):
        yield from _of_targets(node)
    if isinstance(node, ast.Compare):
        for operator in node.ops:
            if isinstance(operator, ast.In | ast.NotIn):
                name = type(operator).__name__
                yield node, f"AST comparison operator '{name}' is not (currently) implemented."


def _is_unknown(node: ast.AST) -> bool:
    """Return whether the compiler does not support a kind of node."""
    is_own = isinstance(node, ast.stmt | ast.expr) and not isinstance(node, _PARTS)
    return is_own and not hasattr(CodeGenerator, f"visit_{type(node).__name__}")


def _of_targets(node: ast.Assign) -> Iterator[_Hit]:
    if len(node.targets) > 1:
        yield node, "Simultaneous multiple assignment is not supported."
    for target in node.targets:
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else []
        if any(isinstance(part, ast.Starred) for part in parts):
            yield node, "starred assignment targets are not supported"


# ---- Variables around a kernel ----


class _Outside(ast.NodeTransformer):
    """Rejects variables around a kernel where they are read."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace a read of a variable by a raising call."""
        if node.id not in self._names or not isinstance(node.ctx, ast.Load):
            return node
        call = ast.Call(ast.Name(_OUTSIDE, ast.Load()), [ast.Constant(node.id)], [])
        return ast.copy_location(call, node)


def _variables_outside(definition: ast.FunctionDef, scope: dict[str, Any]) -> set[str]:
    """Return the variables around a kernel that it reads and that hold plain data."""
    nodes = [node for node in ast.walk(definition) if isinstance(node, ast.Name)]
    own = {node.id for node in nodes if not isinstance(node.ctx, ast.Load)}
    own |= {argument.arg for argument in ast.walk(definition) if isinstance(argument, ast.arg)}
    return {node.id for node in nodes if node.id not in own and type(scope.get(node.id)) in _DATA}


def _refuse_variable(name: str) -> None:
    raise NameError(
        f"Cannot access global variable {name} from within @jit'ed function. Triton kernels can "
        "only access global variables that are instanstiated as constexpr "
        f"(`x = triton.language.constexpr(42)`)\n  to fix: {name} = tl.constexpr(...), or pass it"
    )
