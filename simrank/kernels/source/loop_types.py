"""Type checks of variables that loops and branches assign, as the compiler's.

A loop-carried variable keeps its type in all iterations. A variable defined in a loop, or on one
side of a branch, is undefined afterwards. The rewritten source records types before, and compares.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from simrank.kernels.values.block import Block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_TYPES, _CARRIED, _BRANCH = "__types", "__carried", "__branch_types"
_Types = dict[str, Any]


def assigned_in(body: Iterable[ast.stmt]) -> list[str]:
    """Return the names that statements assign, in source order."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    result = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return [name for name in dict.fromkeys(result) if not name.startswith("__")]


# ---- Rewriting ----


def loop(node: ast.For | ast.While, names: Sequence[str], fresh: str) -> tuple[ast.stmt, ...]:
    """Add type checks to a loop; return two statements before it and those after it.

    Args:
        node: The loop; it is modified.
        names: Names that its body assigns.
        fresh: Prefix of names that the kernel does not use.
    """
    before, left = f"{fresh}_before", f"{fresh}_left"
    note = _assign(before, _call(_TYPES, _names(names)))
    start = _assign(left, _load(before))
    compare = _assign(left, _call(_CARRIED, _load(left), _locals()))
    node.body.append(ast.If(_load(left), [compare], []))
    return note, start, *_forget(before, names)


def branch(node: ast.If, sides: Sequence[Sequence[str]], fresh: str) -> tuple[ast.stmt, ...]:
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
    note = _assign(before, _call(_TYPES, _names(names), _load(test)))
    for body, side in ((node.body, "then"), (node.orelse, "else")):
        if body:
            compare = ast.Expr(_call(_BRANCH, _load(before), _locals(), ast.Constant(side)))
            body.append(ast.If(_load(before), [compare], []))
    leaves = any(isinstance(part, ast.Return) for part in ast.walk(node))
    alone = [] if leaves else [name for name in names if not all(name in side for side in sides)]
    is_dynamic = ast.Compare(_load(before), [ast.IsNot()], [ast.Constant(None)])
    forget = [ast.If(is_dynamic, _forget(before, alone), [])] if alone else []
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


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(_load(name), [*arguments, *([_locals()] if name == _TYPES else [])], [])


def _locals() -> ast.expr:
    return ast.Call(_load("locals"), [], [])


def _names(names: Sequence[str]) -> ast.expr:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())


# ---- Helpers that the rewritten source calls ----


def _types(names: Sequence[str], *given: Any) -> _Types | None:
    """Return the types of defined names; None before a branch on a compile-time constant."""
    *test, scope = given
    if test and type(test[0]) is not Block:
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


HELPERS = {_TYPES: _types, _CARRIED: _carried, _BRANCH: _branch_types}
