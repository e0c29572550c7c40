"""Analysis of a device function's source: observable effects, and parameters it writes.

The result decides how a kernel runs and which host reads wait for it, never what it computes.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.kernels.machine import Effects
from simrank.kernels.machine.protocols import kept
from simrank.kernels.shmem import libraries
from simrank.kernels.shmem.api import WAITS
from simrank.kernels.shmem.libraries import by_symbol
from simrank.kernels.source.scopes import (
    as_jit,
    definition_of,
    is_dispatcher,
    is_of_library,
    scope_of,
    targets,
    text_of,
    value_of,
)
from simrank.kernels.source.substitute import is_device_function
from simrank.kernels.source.waits import READS, is_wait, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from simrank.kernels.machine.protocols import Jit


def effects_of_jit(jit: Jit) -> Effects:
    """Return the observable effects of a device function and its callees."""
    facts = kept(jit)
    if "effects" not in facts:
        facts["effects"] = Effects()  # Ends the recursion of functions that call themselves.
        scope = scope_of(jit.fn)
        facts["effects"] = effects_of(
            definition_of(jit),
            lambda name: effects_of_callee(name, scope),
            lambda name: text_of(name, scope),
        )
    effects: Effects = facts["effects"]
    return effects


def effects_of_callee(name: ast.expr, scope: dict[str, Any]) -> Effects | None:
    """Return the effects of the device function that an expression names, or None."""
    return effects_of_value(value_of(name, scope))


def effects_of_value(value: Any) -> Effects | None:
    """Return the effects of a device function; None for other values and Triton's functions."""
    of_library = libraries.effects(getattr(value, "fn", value))
    if of_library is not None:
        return of_library
    jit = as_jit(value)
    if jit is not None:
        return effects_of_jit(jit)
    if getattr(value, "__name__", "") in _CLOCKS:
        return Effects(times=True)
    return _effects_of_dispatcher(value) if _is_dispatcher(value) else None


def effects_with(own: Effects, constants: Iterable[Any]) -> Effects:
    """Return a kernel's effects and those of functions among its compile-time constants."""
    functions = [value for value in constants if callable(value)]
    if not functions:
        return own
    result = Effects()
    for effects in (own, *map(effects_of_value, functions)):
        if effects is not None:
            result.add(effects)
    result.threads = own.threads  # Decides how the kernel was rewritten.
    return result


def _is_dispatcher(value: Any) -> bool:
    return is_of_library(value) and is_dispatcher(value)


def _effects_of_dispatcher(value: Any) -> Effects:
    """Return the effects of a dispatcher's targets; all effects if these depend on arguments."""
    chosen = targets(value, is_device_function)
    if chosen is None:
        return Effects(waits=True, publishes=True, reads=True)
    result = Effects()
    for function in chosen:
        effects = effects_of_value(function)
        if effects is not None:
            result.add(effects)
        result.reads |= getattr(function, "__name__", "") in READS
    return result


def written_by_jit(jit: Jit) -> frozenset[str]:
    """Return the parameters that a device function or its callees may write through."""
    return _touched_by_jit(jit, "written")


def loaded_by_jit(jit: Jit) -> frozenset[str]:
    """Return the parameters that a device function or its callees may load through."""
    return _touched_by_jit(jit, "loaded")


def _touched_by_jit(jit: Jit, how: str) -> frozenset[str]:
    facts = kept(jit)
    if how not in facts:
        facts[how] = frozenset()  # Ends the recursion of functions that call themselves.
        scope = scope_of(jit.fn)
        constants = {parameter.name for parameter in jit.params if parameter.is_constexpr}
        touched = written_parameters(
            definition_of(jit),
            lambda name: _callee(name, scope, how),
            WRITERS if how == "written" else LOADERS,
        )
        facts[how] = touched - constants
    result: frozenset[str] = facts[how]
    return result


def _callee(name: ast.expr, scope: dict[str, Any], how: str) -> Callee | None:
    value = value_of(name, scope)
    jit = as_jit(value)
    if jit is None and _is_dispatcher(value):
        chosen = targets(value, is_device_function) or []
        jit = as_jit(chosen[0]) if len(chosen) == 1 else None
        if jit is None:  # Unknown targets may write through any argument.
            return Callee((), frozenset())
    if jit is None:
        return None
    is_method = isinstance(name, ast.Attribute) and value_of(name.value, scope) is None
    return Callee(jit.arg_names[is_method:], _touched_by_jit(jit, how))


# ---- Parameters that a kernel may write through ----
# Host reads wait for kernels that may write the tensor, and race checks need the writers. The
# result may be too large, never too small; it does not affect what a kernel computes.

WRITERS = {
    "store", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or",
    "atomic_store", "atomic_xchg", "atomic_xor", "store_tensor_descriptor", "scatter",
}  # fmt: skip
# Their results do not point into their arguments.
_READERS = {"load", "atomic_load", "atomic_poll", "dot", "load_tensor_descriptor", "gather"}
LOADERS = {"load", "load_tensor_descriptor", "gather"}
_OPAQUE = {"inline_asm_elementwise", "extern_elementwise"}


class Callee(NamedTuple):
    """A called device function: its parameters, and those that it may write through."""

    parameters: Sequence[str]
    written: frozenset[str]


def written_parameters(
    tree: ast.FunctionDef,
    callee: Callable[[ast.expr], Callee | None],
    names: AbstractSet[str] = WRITERS,
) -> frozenset[str]:
    """Return the parameters that a function may write through.

    Args:
        tree: Source of the function.
        callee: Returns the callee that an expression names, or None.
        names: Names of writing functions; with names of loads, the result is the loaded parameters.
    """
    arguments = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    reach = {argument.arg: {argument.arg} for argument in arguments}
    size = -1
    while size != sum(map(len, reach.values())):  # Until a fixed point.
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
    """Yield targets and values of the assignments in a statement."""
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
    # A method of a pointer or descriptor, or a function of tl.
    if isinstance(call.func, ast.Attribute):
        pointers.append(call.func.value)
    written: set[str] = set()
    for pointer in pointers:
        written |= _reached(pointer, reach)
    return written


def _only_reads(call: ast.Call) -> bool:
    """Return whether the text of inline assembly is known and writes no memory."""
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


# ---- Effects of kernels on other programs, from their source (rule K1) ----
# What is found here decides how a kernel runs, never what it computes.

_WAITS = {"atomic_poll"}
_PUBLISHING_SEMS = {"release", "acq_rel"}
# Parts of inline assembly that write memory.
ASM_WRITES = ("st.", "atom", "red.", "multimem")
# What external functions are called, or begin with, that give the index of a thread.
_OF_THREAD = (".sreg.tid.", ".sreg.laneid", ".sreg.tid.x", ".sreg.tid.y", ".sreg.tid.z")
_OF_SHMEM = ("nvshmem", "rocshmem")
_THREAD_REGISTERS = ("%tid.x", "%laneid", "%warpid")
_CLOCKS = {"globaltimer", "memrealtime"}
_CLOCK_REGISTERS = ("%globaltimer", "%clock", "memrealtime", "memtime")


def effects_of(
    tree: ast.FunctionDef,
    callee: Callable[[ast.expr], Effects | None],
    text: Callable[[ast.expr], str | None],
) -> Effects:
    """Return the effects of a function.

    Args:
        tree: Its source.
        callee: Returns the effects of the device function that an expression names, or None.
        text: Returns the string that an expression is known to be, or None.
    """
    result = Effects()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            _add_call(result, node, callee(node.func), text)
        elif isinstance(node, ast.While) and is_wait(node, callee):
            result.waits = True
    return result


def _add_call(
    result: Effects,
    node: ast.Call,
    called: Effects | None,
    text: Callable[[ast.expr], str | None],
) -> None:
    if called is not None:
        result.add(called)
        return
    name = name_of(node)
    result.reads |= name in READS
    result.waits |= name in _WAITS
    result.times |= name in _CLOCKS
    result.atomics |= (name or "").startswith("atomic_")
    if name in ("extern_elementwise", "extern_call"):
        _add_extern(result, node)
    if name == "inline_asm_elementwise":
        _add_assembly(result, node, text)
    for keyword in node.keywords:
        value = getattr(keyword.value, "value", None)
        if keyword.arg == "scope" and value == "sys":
            result.publishes = True
        if keyword.arg == "sem" and value in _PUBLISHING_SEMS:
            result.publishes = True


def _add_extern(result: Effects, node: ast.Call) -> None:
    """Add the effects of an external function by its symbol; unknown ones may wait."""
    tables = [part for part in ast.walk(node) if isinstance(part, ast.Dict)]
    texts = [text for table in tables for text in _texts(table)]
    if any(text.endswith(_OF_THREAD) for text in texts):  # Each thread at its own time.
        result.threads = result.publishes = True
    for symbol in texts:
        if symbol.startswith(_OF_SHMEM):
            known = by_symbol(symbol)
            result.add(WAITS if known is None else known.effects)


def _texts(node: ast.AST) -> list[str]:
    """Return the strings that are written in an expression, also parts of formatted ones."""
    constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return [text for text in constants if isinstance(text, str)]


def _add_assembly(result: Effects, node: ast.Call, text: Callable[[ast.expr], str | None]) -> None:
    """Add the effects of inline assembly; unknown text may wait and publish.

    Of a formatted string the fixed parts are looked at: what is filled in are names.
    """
    texts = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "asm")]
    pieces = texts[0].values if texts and isinstance(texts[0], ast.JoinedStr) else texts[:1]
    known = [text(part) for part in pieces if not isinstance(part, ast.FormattedValue)]
    words = [word for word in known if word is not None]
    if not words or len(words) < len(known):
        result.waits = result.publishes = True
        return
    whole = " ".join(words)
    if any(register in whole for register in _THREAD_REGISTERS):
        result.threads = result.publishes = True
    result.times |= any(register in whole for register in _CLOCK_REGISTERS)
    publishes = any(mark in whole for mark in ASM_WRITES)
    result.publishes |= publishes
    result.waits |= "bra" in whole and (publishes or "ld." in whole)
