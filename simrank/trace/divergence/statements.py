"""Statements by line: the names that a condition reads, and its body."""

from __future__ import annotations

import ast
import linecache
import tokenize
from dataclasses import dataclass
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
        last: Its last line, without the body.
        names: Dotted names that decide which way it goes; of a simple one all that it reads.
        decides: Whether it can go several ways, apart from raising.
        body: First and last line of the body; (0, 0) where it has none below the head.
    """

    kind: str
    line: int
    last: int
    names: tuple[str, ...]
    decides: bool
    body: tuple[int, int]

    def has_in_body(self, line: int) -> bool:
        """Return whether a line is one of the body's."""
        return self.body[0] <= line <= self.body[1]


def statements_of(file: str) -> dict[int, Statement]:
    """Return the innermost statement of each line of a file; nothing where it cannot be read."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[int, Statement] = {}
    for node in ast.walk(tree):  # Outer ones first.
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            statement = _statement(node)
            last = node.end_lineno if isinstance(node, ast.Match) else statement.last
            for line in range(node.lineno, (last or 0) + 1):
                if line not in found or found[line].line != line:  # `if x: f()` is a branch.
                    found[line] = statement
    return found


def text_of(file: str, statement: Statement) -> str:
    """Return a statement's source on one line, without its body and comments."""
    lines, comments = linecache.getlines(file), _comments_of(file)
    code = [
        lines[n - 1][: comments.get(n)].strip() for n in range(statement.line, statement.last + 1)
    ]
    text = " ".join(part for part in code if part and not part.startswith("@"))
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 4]} ..."


def _comments_of(file: str) -> dict[int, int]:
    """Return the column at which a line's comment begins, by line."""
    tokens = tokenize.generate_tokens(iter(linecache.getlines(file)).__next__)
    return dict(token.start for token in tokens if token.type == tokenize.COMMENT)


def _statement(node: ast.stmt | ast.ExceptHandler) -> Statement:
    body: list[ast.stmt] = getattr(node, "body", None) or []
    is_below = bool(body) and body[0].lineno > node.lineno
    span = (body[0].lineno, body[-1].end_lineno or 0) if is_below else (0, 0)
    last = node.end_lineno or node.lineno
    if isinstance(node, ast.Match):
        last = node.cases[0].pattern.lineno - 1
    elif is_below:
        last = span[0] - 1
    kind = "other"
    if is_below and isinstance(node, ast.If):
        kind = "if"
    elif is_below and isinstance(node, ast.For | ast.AsyncFor | ast.While):
        kind = "loop"
    deciding = _deciding(node)
    parts = deciding if deciding or body else [node]
    names = tuple(dict.fromkeys(name for part in parts for name in _names(part)))
    return Statement(kind, node.lineno, last, names[:_MAX_NAMES], bool(deciding), span)


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
