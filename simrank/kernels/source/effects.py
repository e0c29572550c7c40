"""Effects of kernels on other programs, from their source (rule K1).

What is found here decides how a kernel runs, never what it computes.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from simrank.kernels.machine import Effects
from simrank.kernels.shmem.functions import by_symbol
from simrank.kernels.shmem.table import WAITS
from simrank.kernels.source.waits import READS, is_wait, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

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
