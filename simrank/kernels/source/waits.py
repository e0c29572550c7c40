"""Loops that wait for other programs: read off a kernel's source (rule K1).

A loop waits if its end depends on a load or atomic whose address the loop does not change.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.kernels.machine import Effects

READS = {
    "load", "atomic_load", "atomic_cas", "atomic_add", "atomic_xchg", "atomic_or", "atomic_and",
    "atomic_xor", "atomic_max", "atomic_min", "inline_asm_elementwise",
}  # fmt: skip


def name_of(node: ast.Call) -> str:
    """Return the last name of what a call calls."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def is_wait(loop: ast.While, callee: Callable[[ast.expr], Effects | None]) -> bool:
    """Whether a loop's end depends on a read whose address the loop does not change."""
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
    """Whether a round that saw nothing new would go on seeing the same: no counter, no backoff.

    Nothing in the loop may depend on the round before.
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


def is_for_value(test: ast.expr) -> bool:
    """Whether a loop with this test ends when something has a value, not when it is past one."""
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
