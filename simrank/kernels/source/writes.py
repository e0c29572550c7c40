"""Which arguments a kernel may write to: read off its source, what it calls included.

Host reads wait for kernels that may write the tensor, and race checks need to know who writes. What
is found errs on the side of writing; what a kernel computes does not depend on it.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from simrank.kernels.source.effects import ASM_WRITES
from simrank.kernels.source.waits import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

WRITERS = {
    "store", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or",
    "atomic_store", "atomic_xchg", "atomic_xor", "store_tensor_descriptor", "scatter",
}  # fmt: skip
# What these return is no pointer into their arguments.
_READERS = {"load", "atomic_load", "atomic_poll", "dot", "load_tensor_descriptor", "gather"}
LOADERS = {"load", "load_tensor_descriptor", "gather"}
_OPAQUE = {"inline_asm_elementwise", "extern_elementwise"}


class Callee(NamedTuple):
    """A device function that is called: its parameters, and those that it may write through."""

    parameters: Sequence[str]
    written: frozenset[str]


def written_parameters(
    tree: ast.FunctionDef,
    callee: Callable[[ast.expr], Callee | None],
    names: AbstractSet[str] = WRITERS,
) -> frozenset[str]:
    """Return the parameters through which a function may write to memory.

    Args:
        tree: Its source.
        callee: Returns parameters and written ones of the device function that an expression
            names, or None.
        names: What writes; with those of loads it is what may be loaded that is returned.
    """
    arguments = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    reach = {argument.arg: {argument.arg} for argument in arguments}
    size = -1
    while size != sum(map(len, reach.values())):  # Until names reach no further parameters.
        size = sum(map(len, reach.values()))
        for node in ast.walk(tree):
            for target, value in _bindings(node):
                result = _reached(value, reach)
                for name in _names(target):
                    reach.setdefault(name, set()).update(result)
    written: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            written |= _written_by(node, reach, callee(node.func), names)
    return frozenset(written)


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a statement binds to which value."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, ast.AugAssign | ast.NamedExpr | ast.AnnAssign):
        if node.value is not None:
            yield node.target, node.value
    elif isinstance(node, ast.For):
        yield node.target, node.iter


def _names(target: ast.expr) -> Iterator[str]:
    for part in ast.walk(target):
        if isinstance(part, ast.Name):
            yield part.id


def _reached(value: ast.expr, reach: dict[str, set[str]]) -> set[str]:
    """Return the parameters that a value may point into."""
    if isinstance(value, ast.Call) and name_of(value) in _READERS:
        return set()
    if isinstance(value, ast.Compare):
        return set()
    if isinstance(value, ast.Name):
        return reach.get(value.id, set())
    result: set[str] = set()
    for child in ast.iter_child_nodes(value):
        if isinstance(child, ast.expr):
            result |= _reached(child, reach)
        elif isinstance(child, ast.keyword):
            result |= _reached(child.value, reach)
    return result


def _written_by(
    call: ast.Call, reach: dict[str, set[str]], called: Callee | None, names: AbstractSet[str]
) -> set[str]:
    """Return the parameters that one call may write through."""
    if called is not None:
        return _written_by_callee(call, reach, called)
    name = name_of(call)
    if name in _OPAQUE:
        return set() if names is WRITERS and _only_reads(call) else _reached(call, reach)
    if name not in names:
        return set()
    pointers = call.args[:1] + [k.value for k in call.keywords if k.arg in ("pointer", "desc")]
    if isinstance(call.func, ast.Attribute):  # A method: of a pointer or descriptor, or tl's.
        pointers.append(call.func.value)
    written: set[str] = set()
    for pointer in pointers:
        written |= _reached(pointer, reach)
    return written


def _only_reads(call: ast.Call) -> bool:
    """Whether inline assembly, as far as it is written there, has nothing that writes memory."""
    texts = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "asm")]
    if name_of(call) != "inline_asm_elementwise" or not texts:
        return False
    if isinstance(texts[0], ast.JoinedStr):
        pieces = [p for p in texts[0].values if not isinstance(p, ast.FormattedValue)]
    else:
        pieces = texts[:1]
    words = [p.value for p in pieces if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    return len(words) == len(pieces) and not any(m in " ".join(words) for m in ASM_WRITES)


def _written_by_callee(call: ast.Call, reach: dict[str, set[str]], called: Callee) -> set[str]:
    written: set[str] = set()
    for position, value in enumerate(call.args):
        is_starred = isinstance(value, ast.Starred)
        own = called.parameters[position] if position < len(called.parameters) else None
        if is_starred or own is None or own in called.written:
            written |= _reached(value, reach)
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in called.written:
            written |= _reached(keyword.value, reach)
    return written
