"""Detection of loops that wait for other programs, in a kernel's source (rule K1).

A loop waits if its exit depends on a load or atomic whose address the loop does not change.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.kernels.machine import Effects

READS = {
    "load", "atomic_load", "atomic_cas", "atomic_add", "atomic_xchg", "atomic_or", "atomic_and",
    "atomic_xor", "atomic_max", "atomic_min", "inline_asm_elementwise",
}  # fmt: skip
_LOOKS = {"load", "atomic_load"}
_NEUTRAL_ZERO = {"atomic_add", "atomic_or", "atomic_xor"}  # With operand 0 these change nothing.


def name_of(node: ast.Call) -> str:
    """Return the last component of a called name."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def is_wait(loop: ast.While, callee: Callable[[ast.expr], Effects | None]) -> bool:
    """Return whether a loop's exit depends on a read whose address the loop does not change."""
    assigned = set(_stored_names(loop))

    def is_fixed_read(node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        called = callee(node.func)
        reads = called.reads if called is not None else name_of(node) in READS
        return reads and not (_read_names(node) & assigned)

    tainted: set[str] = set()
    before = -1
    while before != len(tainted):
        before = len(tainted)
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign) and _depends(node.value, tainted, is_fixed_read):
                tainted.update(_stored_names(node))
    if _depends(loop.test, tainted, is_fixed_read):
        return True
    return any(
        isinstance(node, ast.If) and _leaves(node) and _depends(node.test, tainted, is_fixed_read)
        for node in ast.walk(loop)
    )


def _depends(node: ast.AST, tainted: set[str], is_read: Callable[[ast.AST], bool]) -> bool:
    return any(
        is_read(part) or (isinstance(part, ast.Name) and part.id in tainted)
        for part in ast.walk(node)
    )


def _leaves(node: ast.If) -> bool:
    return any(isinstance(part, ast.Break | ast.Return) for part in ast.walk(node))


def _stored_names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id


def _read_names(node: ast.AST) -> set[str]:
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    }


def is_pure_spin(loop: ast.While) -> bool:
    """Return whether equal reads give equal iterations: no counter, no backoff.

    Nothing in the loop may depend on an earlier iteration.
    """
    assigned = set(_stored_names(loop))
    seen: set[str] = set()
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.AugAssign):
                return False
            if isinstance(node, ast.Assign):
                if (_read_names(node.value) & assigned) - seen:
                    return False
                seen.update(_stored_names(node))
    return True


def kind_of_look(loop: ast.While) -> str:
    """Return the kind of read that a loop's test compares with a loop-invariant bound.

    Returns:
        "look" for a read, "change" for an atomic that may modify memory; "" for other tests, and
        for loops that do more than read.
    """
    test = loop.test
    if not isinstance(test, ast.Compare) or not is_pure_spin(loop):
        return ""
    assigned, reads = set(_stored_names(loop)), [n for n in ast.walk(loop) if _is_read(n)]
    bound = test.comparators[0]
    is_fixed = not any(isinstance(part, ast.Call) for part in ast.walk(bound))
    if len(reads) != 1 or not is_fixed or _read_names(bound) & assigned:
        return ""
    read, found = reads[0], test.left
    if isinstance(found, ast.Name):  # The result of a read in the body.
        values = [
            node.value
            for node in ast.walk(loop)
            if isinstance(node, ast.Assign) and found.id in set(_stored_names(node))
        ]
        found = values[0] if len(values) == 1 else found
    if found is not read:
        return ""
    return "look" if _changes_nothing(read) else "change"


def _changes_nothing(read: ast.Call) -> bool:
    """Return whether a read leaves memory unchanged, given its literal arguments."""
    operands = [ast.dump(argument) for argument in read.args[1:]]
    if name_of(read) == "atomic_cas":
        return len(operands) == 2 and operands[0] == operands[1]
    adds_nothing = name_of(read) in _NEUTRAL_ZERO and operands == [ast.dump(ast.Constant(0))]
    return name_of(read) in _LOOKS or adds_nothing


def _is_read(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and name_of(node) in READS


def is_for_value(test: ast.expr) -> bool:
    """Return whether a loop with this test ends at one value, not beyond a bound."""
    compared = [
        (comparison, node)
        for node in ast.walk(test)
        if isinstance(node, ast.Compare)
        for comparison in node.ops
    ]
    negated = {
        id(part)
        for node in ast.walk(test)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        for part in ast.walk(node.operand)
    }
    return bool(compared) and all(
        isinstance(comparison, ast.Eq if id(node) in negated else ast.NotEq)
        for comparison, node in compared
    )
