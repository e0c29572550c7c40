"""Rewriting of kernel sources where Python and Triton semantics differ; lines stay.

`and`, `or` and `not` become Triton's logical operators, which short-circuit at plain numbers only.
Chained comparisons become pairs. A number assigned to a name becomes a scalar of the program,
unless the name is annotated as `tl.constexpr`. An assert becomes a device assert. A loop that may
wait for other programs calls a guard before each iteration.
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
    """Rewrites one function; the result calls `HELPERS`.

    Args:
        is_wait: Returns whether a loop may wait for other programs.
        is_language: Returns whether an expression names a module of Triton.
        checks_types: Whether loops and branches check the types of assigned variables.
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
        self._used: set[str] = set()  # Names that the function reads.

    def fresh(self) -> str:
        """Return a name that no kernel uses."""
        self._num_names += 1
        return f"__kept_{self._num_names}"

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Drop decorators and annotations; the original keeps them."""
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
        """Combine operands from the left; a plain number may short-circuit."""
        self.generic_visit(node)
        is_and = isinstance(node.op, ast.And)
        result = node.values[0]
        for value in node.values[1:]:
            result = self._combine(result, value, is_and=is_and)
        return ast.copy_location(result, node)

    def _combine(self, left: ast.expr, right: ast.expr, *, is_and: bool) -> ast.expr:
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
        """Apply `not` to blocks."""
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(ast.Call(ast.Name("__not", ast.Load()), [node.operand], []), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Split a chain into pairs; operands in the middle are evaluated once."""
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
            result = self._combine(result, pair, is_and=True)
        return ast.copy_location(result, node)

    def visit_List(self, node: ast.List) -> ast.AST:
        """Replace a list by a tuple, as Triton does: the two can be joined and compared."""
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(ast.Tuple(node.elts, node.ctx), node)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        """Convert the list to a tuple."""
        self.generic_visit(node)
        call = ast.Call(ast.Name("__tuple", ast.Load()), [node], [])
        return ast.copy_location(call, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Redirect `.value` and `.type`, which plain constants do not have."""
        self.generic_visit(node)
        if node.attr not in ("value", "type") or not isinstance(node.ctx, ast.Load):
            return node
        helper = ast.Name(f"__{node.attr}", ast.Load())
        return ast.copy_location(ast.Call(helper, [node.value], []), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Drop arguments that the compiler passes between functions of a library.

        Static assertions and prints with such arguments are Python calls, and are removed.
        """
        self.generic_visit(node)
        passes_on = any(word.arg in OF_COMPILER for word in node.keywords)
        if passes_on and getattr(node.func, "attr", "") in ("static_assert", "static_print"):
            return ast.copy_location(ast.Constant(value=None), node)
        node.keywords = [word for word in node.keywords if word.arg not in OF_COMPILER]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Make an assigned number a scalar of the program."""
        self.generic_visit(node)
        (target, *_), value = node.targets, node.value
        if isinstance(target, ast.Name) and target.id not in self._used:
            self._mark_unused_result(value)
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
        """Call the spin guard before each iteration of a loop that may wait."""
        waits, traits = self.is_wait(node), spin_traits(node)
        names = loop_types.assigned_in(node.body)
        self.generic_visit(node)
        around = self._around_loop(node, names)
        loop = self.spinning(node, traits) if waits else [node]
        return [*around[:2], *loop, *around[2:]]

    def visit_For(self, node: ast.For) -> Any:
        """Check the types of loop-carried variables, unless the compiler unrolls the loop."""
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
        """Check the types of variables that the sides assign."""
        sides = [loop_types.assigned_in(side) for side in (node.body, node.orelse)]
        self.generic_visit(node)
        if not any(sides) or not self._checks_types:
            return node
        keep, note, *forget = loop_types.branch(node, sides, self.fresh())
        return [ast.copy_location(part, node) for part in (keep, note, node, *forget)]

    def spinning(self, node: ast.While, traits: Traits) -> list[ast.stmt]:
        """Return a loop with a guard that may park the program before each iteration."""
        node.test = _waiting_test(node.test, traits.look)
        name = self.fresh()
        guard = ast.Call(ast.Name("__spin", ast.Load()), traits.guard, [])
        make = ast.Assign([ast.Name(name, ast.Store())], guard)
        again, over = method_of(name, "again"), method_of(name, "over")
        ast.copy_location(again, node.test)
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [node.test, again]), node.test)
        guarded = ast.Try([node], [], [], [ast.Expr(over)])
        return [ast.copy_location(make, node), ast.copy_location(guarded, node)]

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Make an assert check every lane."""
        self.generic_visit(node)
        arguments = [node.test] if node.msg is None else [node.test, node.msg]
        call = ast.Call(ast.Name("__assert", ast.Load()), arguments, [])
        return ast.copy_location(ast.Expr(call), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Mark an atomic statement: its result is unused."""
        self.generic_visit(node)
        self._mark_unused_result(node.value)
        return node

    def _mark_unused_result(self, call: ast.expr) -> None:
        """Mark a call of an atomic whose result is unused."""
        if isinstance(call, ast.Call) and self._is_atomic(call):
            call.keywords.append(ast.keyword("wants_old", ast.Constant(value=False)))

    def _is_atomic(self, call: ast.Call) -> bool:
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in _ATOMICS:
            return False
        return self._is_language(function.value)


def _waiting_test(test: ast.expr, look: str) -> ast.expr:
    """Return a waiting loop's test as a call that reports the compared values."""
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
    """Static properties of a loop that may wait.

    Attributes:
        guard: Arguments of its guard.
        look: Kind of read in its test; see `kind_of_look`.
    """

    guard: list[ast.expr]
    look: str


def spin_traits(loop: ast.While) -> Traits:
    """Return the static properties of a loop, before it is rewritten."""
    guard: list[ast.expr] = [
        ast.Constant(is_pure_spin(loop)),
        ast.Constant(is_for_value(loop.test)),
    ]
    return Traits(guard, kind_of_look(loop))


def method_of(name: str, method: str, *arguments: ast.expr) -> ast.Call:
    """Return a call of a method on the object with a name."""
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
    """Return Triton's type of a value; values other than blocks have constexpr types."""
    if hasattr(owner, "type"):
        return owner.type
    if isinstance(owner, tuple):
        return core.tuple_type([_type(part) for part in owner], getattr(owner, "_fields", None))
    return core.constexpr_type(owner)


def _and(left: Any, right: Any) -> Any:
    if type(left) is Block and type(right) is Block:
        return as_logical(left) & as_logical(right)
    if type(left) is Block:  # True is neutral, false decides.
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
