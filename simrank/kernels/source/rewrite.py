"""Rewriting of kernel sources where Python and Triton differ; lines stay.

`and`, `or` and `not` become Triton's logical operators, which stop early at plain numbers only.
Chained comparisons compare pairs. A number that is assigned to a name becomes a scalar of the
program, unless the name is annotated as `tl.constexpr`. An assert is a device assert. A loop that
may wait for other programs asks before each round.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple

from triton.language import core

from simrank.kernels.language.control import device_assert
from simrank.kernels.running.spins import spin, waiting
from simrank.kernels.source import loop_types
from simrank.kernels.source.unsupported import is_unrolled
from simrank.kernels.source.waits import is_for_value, is_pure_spin, kind_of_look
from simrank.kernels.values.block import Block, as_logical, constant

if TYPE_CHECKING:
    from collections.abc import Callable

_ATOMICS = (
    "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor",
    "atomic_xchg",
)  # fmt: skip
OF_COMPILER = ("_semantic", "_builder", "_generator")


class Rewriter(ast.NodeTransformer):
    """Rewriter of one function; the result calls `HELPERS`.

    Args:
        is_wait: Whether a loop may wait for other programs.
        is_language: Whether an expression names Triton's own module.
        checks_types: Whether loops and branches compare the types of what they assign.
    """

    def __init__(
        self,
        is_wait: Callable[[ast.While], bool],
        is_language: Callable[[ast.expr], bool],
        *,
        checks_types: bool = False,
    ) -> None:
        self._num_names = 0
        self.is_wait = is_wait
        self._is_language = is_language
        self._checks_types = checks_types
        self._used: set[str] = set()  # Names that the function looks at.

    def fresh(self) -> str:
        """Return a name that no kernel has."""
        self._num_names += 1
        return f"__kept_{self._num_names}"

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Drop decorators and annotations, which belong to the original."""
        node.decorator_list = []
        node.returns = None
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in arguments:
            argument.annotation = None
        names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
        self._used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        self.generic_visit(node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Combine from the left; a plain number that decides ends it."""
        self.generic_visit(node)
        is_and = isinstance(node.op, ast.And)
        result = node.values[0]
        for value in node.values[1:]:
            result = self._combined(result, value, is_and=is_and)
        return ast.copy_location(result, node)

    def _combined(self, left: ast.expr, right: ast.expr, *, is_and: bool) -> ast.expr:
        name = self.fresh()
        keep = ast.NamedExpr(ast.Name(name, ast.Store()), left)
        kept = ast.Name(name, ast.Load())
        decides = ast.Call(
            ast.Name(f"__decides_{'and' if is_and else 'or'}", ast.Load()), [keep], []
        )
        combine = ast.Call(
            ast.Name(f"__{'and' if is_and else 'or'}", ast.Load()), [kept, right], []
        )
        return ast.IfExp(decides, ast.Name(name, ast.Load()), combine)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Rewrite `not` for blocks."""
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(ast.Call(ast.Name("__not", ast.Load()), [node.operand], []), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Split a chained comparison into pairs; middle operands are evaluated once."""
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        pairs: list[ast.expr] = []
        left = node.left
        for number, (operator, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            ours = right
            if number < len(node.ops) - 1:
                name = self.fresh()
                ours = ast.NamedExpr(ast.Name(name, ast.Store()), right)
                pairs.append(ast.Compare(left, [operator], [ours]))
                left = ast.Name(name, ast.Load())
            else:
                pairs.append(ast.Compare(left, [operator], [ours]))
        result = pairs[0]
        for pair in pairs[1:]:
            result = self._combined(result, pair, is_and=True)
        return ast.copy_location(result, node)

    def visit_List(self, node: ast.List) -> ast.AST:
        """Make a list a tuple, which Triton takes it for: the two are joined and compared."""
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(ast.Tuple(node.elts, node.ctx), node)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        """Likewise."""
        self.generic_visit(node)
        call = ast.Call(ast.Name("__tuple", ast.Load()), [node], [])
        return ast.copy_location(call, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Rewrite `.value` and `.type` of constants, which are plain values here."""
        self.generic_visit(node)
        if node.attr not in ("value", "type") or not isinstance(node.ctx, ast.Load):
            return node
        helper = ast.Name(f"__{node.attr}", ast.Load())
        return ast.copy_location(ast.Call(helper, [node.value], []), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Drop the compiler's own arguments between library functions.

        Static assertions and prints that get it are calls of Python, and do nothing.
        """
        self.generic_visit(node)
        passes_on = any(word.arg in OF_COMPILER for word in node.keywords)
        if passes_on and getattr(node.func, "attr", "") in ("static_assert", "static_print"):
            return ast.copy_location(ast.Constant(value=None), node)
        node.keywords = [word for word in node.keywords if word.arg not in OF_COMPILER]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Make a scalar of a number that is assigned."""
        self.generic_visit(node)
        (target, *_), value = node.targets, node.value
        if isinstance(target, ast.Name) and target.id not in self._used:
            self._without_result(value)
        node.value = ast.copy_location(
            ast.Call(ast.Name("__assigned", ast.Load()), [node.value], []), node.value
        )
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Keep a number that is annotated as a compile-time constant."""
        self.generic_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        is_constant = "constexpr" in ast.dump(node.annotation)
        value = node.value
        if not is_constant:
            value = ast.Call(ast.Name("__assigned", ast.Load()), [value], [])
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_While(self, node: ast.While) -> Any:
        """Insert a guard before each round of a loop that may wait."""
        waits, traits = self.is_wait(node), spin_traits(node)
        names = loop_types.assigned_in(node.body)
        self.generic_visit(node)
        around = self._around_loop(node, names)
        loop = self.spinning(node, traits) if waits else [node]
        return [*around[:2], *loop, *around[2:]]

    def visit_For(self, node: ast.For) -> Any:
        """Insert a check of carried types, unless the compiler unrolls the loop."""
        names, unrolls = loop_types.assigned_in(node.body), is_unrolled(node)
        self.generic_visit(node)
        around = () if unrolls else self._around_loop(node, names)
        return [*around[:2], node, *around[2:]]

    def _around_loop(self, node: ast.For | ast.While, names: list[str]) -> tuple[ast.stmt, ...]:
        if not names or not self._checks_types:
            return ()
        parts = loop_types.loop(node, names, self.fresh())
        return tuple(ast.copy_location(part, node) for part in parts)

    def visit_If(self, node: ast.If) -> Any:
        """Insert a check of the types that both sides assign."""
        sides = [loop_types.assigned_in(side) for side in (node.body, node.orelse)]
        self.generic_visit(node)
        if not any(sides) or not self._checks_types:
            return node
        keep, note, *forget = loop_types.branch(node, sides, self.fresh())
        return [ast.copy_location(part, node) for part in (keep, note, node, *forget)]

    def spinning(self, node: ast.While, traits: Traits) -> list[ast.stmt]:
        """Return a loop with a guard before each round."""
        node.test = _reported(node.test, traits.look)
        name = self.fresh()
        guard = ast.Call(ast.Name("__spin", ast.Load()), traits.guard, [])
        make = ast.Assign([ast.Name(name, ast.Store())], guard)
        again, over = method_of(name, "again"), method_of(name, "over")
        ast.copy_location(again, node.test)
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [node.test, again]), node.test)
        guarded = ast.Try([node], [], [], [ast.Expr(over)])
        return [ast.copy_location(make, node), ast.copy_location(guarded, node)]

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Check in every lane."""
        self.generic_visit(node)
        arguments = [node.test] if node.msg is None else [node.test, node.msg]
        call = ast.Call(ast.Name("__assert", ast.Load()), arguments, [])
        return ast.copy_location(ast.Expr(call), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Mark an atomic whose result is unused."""
        self.generic_visit(node)
        self._without_result(node.value)
        return node

    def _without_result(self, call: ast.expr) -> None:
        """Mark an atomic whose result is unused."""
        if isinstance(call, ast.Call) and self._is_atomic(call):
            call.keywords.append(ast.keyword("wants_old", ast.Constant(value=False)))

    def _is_atomic(self, call: ast.Call) -> bool:
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in _ATOMICS:
            return False
        return self._is_language(function.value)


def _reported(test: ast.expr, look: str) -> ast.expr:
    """Return a waiting loop's test as a call that records its comparison."""
    if not isinstance(test, ast.Compare) or len(test.ops) > 1:
        return test
    name = ast.Constant(type(test.ops[0]).__name__)
    if name.value not in ("Lt", "LtE", "Gt", "GtE", "NotEq", "Eq"):
        return test
    arguments = [name, test.left, *test.comparators, ast.Constant(look)]
    call = ast.Call(ast.Name("__waiting", ast.Load()), arguments, [])
    return ast.copy_location(call, test)


def _call(function: ast.expr) -> ast.Call:
    return ast.Call(function, [], [])


class Traits(NamedTuple):
    """Facts of a loop that may wait, from its source.

    Attributes:
        guard: What its guard gets.
        look: What its test compares; see `kind_of_look`.
    """

    guard: list[ast.expr]
    look: str


def spin_traits(loop: ast.While) -> Traits:
    """Return the facts of a loop that may wait, before it is rewritten."""
    guard: list[ast.expr] = [
        ast.Constant(is_pure_spin(loop)),
        ast.Constant(is_for_value(loop.test)),
    ]
    return Traits(guard, kind_of_look(loop))


def method_of(name: str, method: str, *arguments: ast.expr) -> ast.Call:
    """Return a call of a method of a name's value."""
    function = ast.Attribute(ast.Name(name, ast.Load()), method, ast.Load())
    return ast.Call(function, list(arguments), [])


def _assigned(value: Any) -> Any:
    kind = type(value)
    if kind is Block:
        return value
    if kind is int or kind is float or kind is bool:
        return constant(value)
    if kind is tuple:
        return tuple(_assigned(part) for part in value)
    return value


def _value(owner: Any) -> Any:
    return owner.value if hasattr(owner, "value") else owner


def _type(owner: Any) -> Any:
    """Return Triton's type of a value; for non-blocks, of a compile-time constant."""
    if hasattr(owner, "type"):
        return owner.type
    if isinstance(owner, tuple):
        return core.tuple_type([_type(part) for part in owner], getattr(owner, "_fields", None))
    return core.constexpr_type(owner)


def _and(left: Any, right: Any) -> Any:
    if type(left) is Block and type(right) is Block:
        return as_logical(left) & as_logical(right)
    if type(left) is Block:  # A plain number: false decides, true changes nothing.
        return left if right else right
    return right


def _or(left: Any, right: Any) -> Any:
    if type(left) is Block and type(right) is Block:
        return as_logical(left) | as_logical(right)
    if type(left) is Block:
        return right or left
    return right


def _not(value: Any) -> Any:
    return ~as_logical(value) if type(value) is Block else not value


HELPERS = {
    **loop_types.HELPERS,
    "__assigned": _assigned,
    "__value": _value,
    "__type": _type,
    "__and": _and,
    "__or": _or,
    "__not": _not,
    "__decides_and": lambda left: type(left) is not Block and not left,
    "__decides_or": lambda left: type(left) is not Block and bool(left),
    "__assert": device_assert,
    "__spin": spin,
    "__waiting": waiting,
    "__tuple": tuple,
}
