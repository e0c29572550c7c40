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

from simrank.kernels.language.control import Range, device_assert
from simrank.kernels.running.programs import spin, waiting
from simrank.kernels.source.unsupported import is_unrolled
from simrank.kernels.source.waits import is_for_value, is_pure_spin, kind_of_look
from simrank.kernels.values.block import Block, as_logical, constant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


# ---- type checks of variables that loops and branches assign, as the compiler's ----
# A loop-carried variable keeps its type in all iterations. A variable defined in a loop, or on
# one side of a branch, is undefined afterwards. The rewritten source records types before, and
# compares.

_TYPES, _CARRIED, _BRANCH = "__types", "__carried", "__branch_types"
_Types = dict[str, Any]


def assigned_in(body: Iterable[ast.stmt]) -> list[str]:
    """Return the names that statements assign, in source order."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    result = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return [name for name in dict.fromkeys(result) if not name.startswith("__")]


# ---- Rewriting ----


def checked_loop(
    node: ast.For | ast.While, names: Sequence[str], fresh: str
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Add type checks to a loop; return the statements before it and those after it.

    Args:
        node: The loop; it is modified. A `for` whose iterable is a plain `range`, that of
            `tl.static_range`, is unrolled by the compiler, and not checked.
        names: Names that its body assigns.
        fresh: Prefix of names that the kernel does not use.
    """
    before, left, over = f"{fresh}_before", f"{fresh}_left", f"{fresh}_over"
    compare = _assign(left, _type_call(_CARRIED, _load(left), _locals()))
    node.body.append(ast.If(_load(left), [compare], []))
    start = _assign(left, _load(before))
    forget = _forget(before, names)
    if isinstance(node, ast.While) or is_unrolled(node) is False:
        return [_assign(before, _type_call(_TYPES, _names(names))), start], forget
    keep = _assign(over, node.iter)
    node.iter = ast.copy_location(_load(over), node.iter)
    note = _assign(before, _type_call(_TYPES, _names(names), _load(over)))
    return [keep, note, start], [_if_dynamic(before, forget)]


def _if_dynamic(before: str, then: list[ast.stmt]) -> ast.stmt:
    return ast.If(ast.Compare(_load(before), [ast.IsNot()], [ast.Constant(None)]), then, [])


def checked_branch(
    node: ast.If, sides: Sequence[Sequence[str]], fresh: str
) -> tuple[ast.stmt, ...]:
    """Add type checks to a branch; return two statements before it and those after it.

    Args:
        node: The branch; it is modified.
        sides: Names that each side assigns.
        fresh: Prefix of names that the kernel does not use.
    """
    before, test = f"{fresh}_before", f"{fresh}_test"
    names = list(dict.fromkeys([*sides[0], *sides[1]]))
    keep = _assign(test, node.test)
    node.test = _load(test)
    note = _assign(before, _type_call(_TYPES, _names(names), _load(test)))
    for body, side in ((node.body, "then"), (node.orelse, "else")):
        if body:
            compare = ast.Expr(_type_call(_BRANCH, _load(before), _locals(), ast.Constant(side)))
            body.append(ast.If(_load(before), [compare], []))
    leaves = any(isinstance(part, ast.Return) for part in ast.walk(node))
    alone = [] if leaves else [name for name in names if not all(name in side for side in sides)]
    forget = [_if_dynamic(before, _forget(before, alone))] if alone else []
    return keep, note, *forget


def _forget(before: str, names: Sequence[str]) -> list[ast.stmt]:
    """Return statements that delete names which were undefined before."""
    result: list[ast.stmt] = []
    for name in names:
        is_new = ast.Compare(ast.Constant(name), [ast.NotIn()], [_load(before)])
        # The name may be undefined here; `del` needs it defined.
        define = _assign(name, ast.Constant(None))
        result.append(ast.If(is_new, [define, ast.Delete([ast.Name(name, ast.Del())])], []))
    return result


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _type_call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(_load(name), [*arguments, *([_locals()] if name == _TYPES else [])], [])


def _names(names: Sequence[str]) -> ast.expr:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())


# ---- Helpers that the rewritten source calls ----


def _types(names: Sequence[str], *given: Any) -> _Types | None:
    """Return the types of defined names.

    None before a branch on a compile-time constant, and before a loop that is unrolled.
    """
    *test, scope = given
    if test and type(test[0]) not in (Block, Range):
        return None
    return {name: _type_of(scope[name]) for name in names if name in scope}


def _type_of(value: Any) -> Any:
    """Return the element type and shape of a block; None for other values."""
    return (value.element, tuple(value.shape)) if type(value) is Block else None


def _shown(kind: Any) -> str:
    return "constexpr" if kind is None else f"{kind[0]}{list(kind[1])}"


def _changed(before: _Types, scope: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the names whose types have changed, with old and new type."""
    for name, kind in before.items():
        now = _type_of(scope[name])
        if kind != now:
            yield name, _shown(kind), _shown(now)


def _carried(before: _Types, scope: dict[str, Any]) -> None:
    """Check the types of loop-carried variables against those before the loop.

    Raises:
        AssertionError: A type differs.
    """
    for name, kind, now in _changed(before, scope):
        raise AssertionError(
            f"Loop-carried variable {name} has initial type {kind} but is re-assigned to {now} in "
            "loop! Please make sure that the type stays consistent."
        )


def _branch_types(before: _Types, scope: dict[str, Any], side: str) -> None:
    """Check the types that a side of a branch assigns against those before it.

    Raises:
        AssertionError: A type differs.
    """
    for name, kind, now in _changed(before, scope):
        raise AssertionError(
            f"initial value for `{name}` is of type {kind}, but the {side} block redefines it as "
            f"{now}"
        )


TYPE_HELPERS = {_TYPES: _types, _CARRIED: _carried, _BRANCH: _branch_types}


# ---- the rewriter ----
# `and`, `or` and `not` become Triton's logical operators, which short-circuit at plain numbers
# only. Chained comparisons become pairs. A number assigned to a name becomes a scalar of the
# program, unless the name is annotated as `tl.constexpr`. An assert becomes a device assert. A
# loop that may wait for other programs calls a guard before each iteration.

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
        names = assigned_in(node.body)
        self.generic_visit(node)
        before, after = self._around_loop(node, names)
        loop = self.spinning(node, traits) if waits else [node]
        return [*before, *loop, *after]

    def visit_For(self, node: ast.For) -> Any:
        """Check the types of loop-carried variables, unless the compiler unrolls the loop."""
        names, unrolls = assigned_in(node.body), is_unrolled(node)
        self.generic_visit(node)
        before, after = ([], []) if unrolls else self._around_loop(node, names)
        return [*before, node, *after]

    def _around_loop(
        self, node: ast.For | ast.While, names: list[str]
    ) -> tuple[list[ast.stmt], list[ast.stmt]]:
        if not names or not self._checks_types:
            return [], []
        before, after = checked_loop(node, names, self.fresh())
        for part in (*before, *after):
            ast.copy_location(part, node)
        return before, after

    def visit_If(self, node: ast.If) -> Any:
        """Check the types of variables that the sides assign."""
        sides = [assigned_in(side) for side in (node.body, node.orelse)]
        self.generic_visit(node)
        if not any(sides) or not self._checks_types:
            return node
        keep, note, *forget = checked_branch(node, sides, self.fresh())
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


def _apply(function: ast.expr) -> ast.Call:
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
    **TYPE_HELPERS,
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


# ---- rewriting of `if`, `for` and `while` in kernels whose threads may diverge ----
# A statement asks which threads are active, and runs once for all of them; variables of inactive
# threads keep their values. Without divergence nothing changes.

_CAME = "__threads_that_came"


class ThreadRewriter(Rewriter):
    """Rewrites one function; the result also calls `threads.HELPERS`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Record the threads that enter the function."""
        super().visit_FunctionDef(node)
        came = ast.Assign([ast.Name(_CAME, ast.Store())], _call("__came"))
        node.body.insert(0, ast.copy_location(came, node.body[0]))
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """Return only if all threads that entered the function are active."""
        self.generic_visit(node)
        value = node.value or ast.Constant(value=None)
        node.value = ast.copy_location(
            _call("__returned", value, ast.Name(_CAME, ast.Load())), node
        )
        return node

    def visit_If(self, node: ast.If) -> Any:
        """Run each side for the threads that take it."""
        names, leaves = assigned_in(node.body + node.orelse), _leaves(node)
        self.generic_visit(node)
        if leaves:  # All threads must take the same side.
            return node
        name, side = self.fresh(), self.fresh()
        make = _make(name, "__branch", node.test, names)
        node.test = ast.copy_location(ast.Name(side, ast.Load()), node.test)
        loop = ast.For(
            ast.Name(side, ast.Store()),
            ast.Name(name, ast.Load()),
            [_start(name), node, _left(name, names)],
            [],
        )
        return [ast.copy_location(make, node), ast.copy_location(loop, node)]

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Give each thread the value of its side."""
        self.generic_visit(node)
        nothing = ast.arguments([], [], None, [], [], None, [])
        sides: list[ast.expr] = [ast.Lambda(nothing, node.body), ast.Lambda(nothing, node.orelse)]
        call = ast.Call(ast.Name("__choose", ast.Load()), [node.test, *sides], [])
        return ast.copy_location(call, node)

    def visit_For(self, node: ast.For) -> Any:
        """Run the iterations that any thread needs."""
        names = assigned_in(node.body)
        self.generic_visit(node)
        name = self.fresh()
        make = _make(name, "__rounds", node.iter, names)
        node.iter = ast.copy_location(ast.Name(name, ast.Load()), node.iter)
        node.body = [_start(name), *node.body, _left(name, names)]
        check = ast.Expr(method_of(name, "check"))
        return [ast.copy_location(part, node) for part in (make, node, check)]

    def visit_While(self, node: ast.While) -> Any:
        """Loop while any thread does, with a spin guard if the loop may wait."""
        names = assigned_in(node.body)
        waits, traits = self.is_wait(node), spin_traits(node)
        self.generic_visit(node)
        name = self.fresh()
        make = _make(name, "__looping", None, names)
        node.test = ast.copy_location(method_of(name, "goes", node.test), node.test)
        node.body = [_start(name), *node.body, _left(name, names)]
        loop: list[ast.stmt] = self.spinning(node, traits) if waits else [node]
        whole = ast.Try(loop, [], [], [ast.Expr(method_of(name, "over"))])
        check = ast.Expr(method_of(name, "check"))
        return [ast.copy_location(part, node) for part in (make, whole, check)]


def _make(name: str, helper: str, value: ast.expr | None, names: list[str]) -> ast.Assign:
    kept = ast.Tuple([ast.Constant(n) for n in names], ast.Load())
    arguments: list[ast.expr] = [kept] if value is None else [value, kept]
    call = ast.Call(ast.Name(helper, ast.Load()), arguments, [])
    return ast.Assign([ast.Name(name, ast.Store())], call)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(_load(name), list(arguments), [])


def _locals() -> ast.expr:
    return _call("locals")


def _varies(name: str) -> ast.expr:
    return ast.Attribute(_load(name), "varies", ast.Load())


def _start(name: str) -> ast.stmt:
    return ast.If(_varies(name), [ast.Expr(method_of(name, "start", _locals()))], [])


def _left(name: str, names: list[str]) -> ast.stmt:
    call = method_of(name, "left", _locals())
    if not names:
        return ast.If(_varies(name), [ast.Expr(call)], [])
    targets = ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())
    return ast.If(_varies(name), [ast.Assign([targets], call)], [])


def _leaves(node: ast.If) -> bool:
    """Return whether a side may leave the function or the enclosing loop."""
    return any(_leaves_at(part, in_loop=False) for part in node.body + node.orelse)


def _leaves_at(node: ast.stmt, *, in_loop: bool) -> bool:
    if isinstance(node, ast.Return):
        return True
    if isinstance(node, ast.Break | ast.Continue):
        return not in_loop
    inside = in_loop or isinstance(node, ast.For | ast.While)
    parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt)]
    return any(_leaves_at(part, in_loop=inside) for part in parts)
