"""What stands at a line: its statement, the names that its condition reads, its body."""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_NAMES = 6  # assumed: more say nothing at a glance
_MAX_TEXT = 80


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, or the head of one that has a body.

    Attributes:
        kind: "if", "loop" or "other".
        line: Its first line.
        text: Its source on one line, without the body.
        names: Dotted names that decide which way it goes.
        body: First and last line of the body; (0, 0) where it has none below the head.
    """

    kind: str
    line: int
    text: str
    names: tuple[str, ...]
    body: tuple[int, int]

    def has_in_body(self, line: int) -> bool:
        """Whether a line is one of the body's."""
        return self.body[0] <= line <= self.body[1]


@lru_cache(maxsize=1024)
def statements_of(file: str) -> dict[int, Statement]:
    """Return the innermost statement of each line of a file; nothing where it cannot be read."""
    lines = linecache.getlines(file)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[int, Statement] = {}
    for node in ast.walk(tree):  # Outer ones first.
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            statement = _statement(node, lines)
            last = node.end_lineno or node.lineno
            if statement.body[0]:
                last = max(statement.body[0] - 1, node.lineno)
            found |= dict.fromkeys(range(node.lineno, last + 1), statement)
    return found


def _statement(node: ast.stmt | ast.ExceptHandler, lines: list[str]) -> Statement:
    body: list[ast.stmt] = getattr(node, "body", None) or []
    is_below = bool(body) and body[0].lineno > node.lineno
    span = (body[0].lineno, body[-1].end_lineno or 0) if is_below else (0, 0)
    last = node.end_lineno or node.lineno
    if is_below:
        last = span[0] - 1
    text = " ".join(line.strip() for line in lines[node.lineno - 1 : last] if _is_code(line))
    if len(text) > _MAX_TEXT:
        text = text[: _MAX_TEXT - 4] + " ..."
    kind = "other"
    if is_below and isinstance(node, ast.If):
        kind = "if"
    elif is_below and isinstance(node, ast.For | ast.AsyncFor | ast.While):
        kind = "loop"
    names = dict.fromkeys(name for part in _deciding(node) for name in _names(part))
    return Statement(kind, node.lineno, text, tuple(names)[:_MAX_NAMES], span)


def _is_code(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith(("#", "@"))


def _deciding(node: ast.stmt | ast.ExceptHandler) -> list[ast.expr]:
    """Return the expressions that decide which way a statement goes."""
    if isinstance(node, ast.If | ast.While | ast.Assert):
        return [node.test]
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.target, node.iter]
    if isinstance(node, ast.Match):
        return [node.subject]
    if hasattr(node, "body"):
        return []
    parts: list[ast.expr] = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.IfExp):
            parts.append(inner.test)
        elif isinstance(inner, ast.BoolOp):
            parts += inner.values[:-1]
        elif isinstance(inner, ast.comprehension):
            parts += [inner.iter, *inner.ifs]
    return parts


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that an expression reads, but for the functions that it calls."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield from _names(node.func.value)
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            yield from _names(argument)
    elif isinstance(node, ast.Attribute):
        dotted = _dotted(node)
        if dotted is None:
            yield from _names(node.value)
        else:
            yield dotted
    elif isinstance(node, ast.Name):
        yield node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _names(child)


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None
