"""Which kernels wait for other programs or publish to them: read off their source (rule K1).

A loop waits if its end depends on a load or atomic whose address the loop does not change. What is
found here decides how a kernel runs, never what it computes.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READS = {
    "load", "atomic_load", "atomic_cas", "atomic_add", "atomic_xchg", "atomic_or", "atomic_and",
    "atomic_xor", "atomic_max", "atomic_min", "inline_asm_elementwise",
}  # fmt: skip
_WAITS = {"atomic_poll"}
_PUBLISHING_SEMS = {"release", "acq_rel"}
# Parts of inline assembly that write memory.
_ASM_WRITES = ("st.", "atom", "red.", "multimem")
# What external functions are called, or begin with, that give the index of a thread.
_OF_THREAD = (".sreg.tid.", ".sreg.laneid", ".sreg.tid.x", ".sreg.tid.y", ".sreg.tid.z")
_THREAD_REGISTERS = ("%tid.x", "%laneid", "%warpid")
_OF_SHMEM = ("nvshmem", "rocshmem")
_WAITING = ("wait", "barrier", "sync", "broadcast", "collect", "alltoall", "reduce")


class Conduct:
    """How a kernel behaves towards other programs, what it calls included.

    Attributes:
        waits: It may wait for another program.
        publishes: It may show something to another program while it runs.
        reads: It reads memory: a loop that calls it may wait.
        threads: It asks which of its program's threads it is.
    """

    __slots__ = ("publishes", "reads", "threads", "waits")

    def __init__(self) -> None:
        self.waits = self.publishes = self.reads = self.threads = False

    def add(self, other: Conduct) -> None:
        """Behave as another function as well."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) or getattr(other, name))


def conduct_of(
    tree: ast.FunctionDef,
    callee: Callable[[ast.expr], Conduct | None],
    text: Callable[[ast.expr], str | None],
) -> Conduct:
    """Return how a function behaves.

    Args:
        tree: Its source.
        callee: Returns the conduct of the device function that an expression names, or None.
        text: Returns the string that an expression is known to be, or None.
    """
    found = Conduct()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            _add_call(found, node, callee(node.func), text)
        elif isinstance(node, ast.While) and is_wait(node, callee):
            found.waits = True
    return found


def _add_call(
    found: Conduct,
    node: ast.Call,
    called: Conduct | None,
    text: Callable[[ast.expr], str | None],
) -> None:
    if called is not None:
        found.add(called)
        return
    name = name_of(node)
    found.reads |= name in READS
    found.waits |= name in _WAITS
    if name in ("extern_elementwise", "extern_call"):
        _add_extern(found, node)
    if name == "inline_asm_elementwise":
        _add_assembly(found, node, text)
    for keyword in node.keywords:
        value = getattr(keyword.value, "value", None)
        if keyword.arg == "scope" and value == "sys":
            found.publishes = True
        if keyword.arg == "sem" and value in _PUBLISHING_SEMS:
            found.publishes = True


def _add_extern(found: Conduct, node: ast.Call) -> None:
    """Note what an external function does, as far as its symbol says."""
    constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    texts = [text for text in constants if isinstance(text, str)]
    if any(text.endswith(_OF_THREAD) for text in texts):  # Each thread at its own time.
        found.threads = found.publishes = True
    if any(text.startswith(_OF_SHMEM) for text in texts):
        found.publishes = True
        found.waits |= any(part in text for text in texts for part in _WAITING)


def _add_assembly(found: Conduct, node: ast.Call, text: Callable[[ast.expr], str | None]) -> None:
    """Note what inline assembly does; unknown text may wait and publish.

    Of a formatted string the fixed parts are looked at: what is filled in are names.
    """
    texts = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "asm")]
    pieces = texts[0].values if texts and isinstance(texts[0], ast.JoinedStr) else texts[:1]
    known = [text(part) for part in pieces if not isinstance(part, ast.FormattedValue)]
    words = [word for word in known if word is not None]
    if not words or len(words) < len(known):
        found.waits = found.publishes = True
        return
    whole = " ".join(words)
    if any(register in whole for register in _THREAD_REGISTERS):
        found.threads = found.publishes = True
    publishes = any(mark in whole for mark in _ASM_WRITES)
    found.publishes |= publishes
    found.waits |= "bra" in whole and (publishes or "ld." in whole)


def name_of(node: ast.Call) -> str:
    """Return the last name of what a call calls."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def is_wait(loop: ast.While, callee: Callable[[ast.expr], Conduct | None]) -> bool:
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
