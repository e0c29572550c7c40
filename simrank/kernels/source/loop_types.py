"""Types of variables in loops and branches, which the compiler requires to be constant.

A variable that a loop carries has one type in all rounds; what a loop or one side of a branch
defines is gone behind it. So the rewritten source notes the types before, and compares.
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
    """Return the names that statements assign, in the source's order."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    result = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return [name for name in dict.fromkeys(result) if not name.startswith("__")]


# ---- what the rewritten source says ----


def loop(node: ast.For | ast.While, names: Sequence[str], fresh: str) -> tuple[ast.stmt, ...]:
    """Return the statements before and after a loop that compare types.

    Args:
        node: The loop, which is changed.
        names: What its body assigns.
        fresh: A name that the kernel does not have.
    """
    before, left = f"{fresh}_before", f"{fresh}_left"
    note = _assign(before, _call(_TYPES, _names(names)))
    start = _assign(left, _load(before))
    compare = _assign(left, _call(_CARRIED, _load(left), _locals()))
    node.body.append(ast.If(_load(left), [compare], []))
    return note, start, *_forget(before, names)


def branch(node: ast.If, sides: Sequence[Sequence[str]], fresh: str) -> tuple[ast.stmt, ...]:
    """Return the statements before and after a branch that compare types.

    Args:
        node: The branch, which is changed.
        sides: What each side assigns.
        fresh: A name that the kernel does not have.
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
    """Return statements that delete names which were not there before."""
    result: list[ast.stmt] = []
    for name in names:
        is_new = ast.Compare(ast.Constant(name), [ast.NotIn()], [_load(before)])
        define = _assign(name, ast.Constant(None))  # Whether it is there or not.
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


# ---- what it calls ----


def _types(names: Sequence[str], *given: Any) -> _Types | None:
    """Return the types of names that are there; None before a branch that is decided already."""
    *test, scope = given
    if test and type(test[0]) is not Block:
        return None
    return {name: _type_of(scope[name]) for name in names if name in scope}


def _type_of(value: Any) -> Any:
    """Return the element type and shape of a value; None if it has none."""
    return (value.element, tuple(value.shape)) if type(value) is Block else None


def _shown(kind: Any) -> str:
    return "constexpr" if kind is None else f"{kind[0]}{list(kind[1])}"


def _changed(before: _Types, scope: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the names with changed types, and both types."""
    for name, kind in before.items():
        now = _type_of(scope[name])
        if kind != now:
            yield name, _shown(kind), _shown(now)


def _carried(before: _Types, scope: dict[str, Any]) -> None:
    """Compare a loop's carried values with the values before its first round.

    Raises:
        AssertionError: A type differs.
    """
    for name, kind, now in _changed(before, scope):
        raise AssertionError(
            f"Loop-carried variable {name} has initial type {kind} but is re-assigned to {now} in "
            "loop! Please make sure that the type stays consistent."
        )


def _branch_types(before: _Types, scope: dict[str, Any], side: str) -> None:
    """Compare a branch side's assigned values with the values before.

    Raises:
        AssertionError: A type differs.
    """
    for name, kind, now in _changed(before, scope):
        raise AssertionError(
            f"initial value for `{name}` is of type {kind}, but the {side} block redefines it as "
            f"{now}"
        )


HELPERS = {_TYPES: _types, _CARRIED: _carried, _BRANCH: _branch_types}
