"""What `if`, `for` and `while` become where threads may go different ways."""

import ast

import pytest

from simrank.kernels.source.thread_rewrite import ThreadRewriter


def rewritten(text):
    tree = ThreadRewriter(lambda _: False, lambda _: False).visit(ast.parse(text))
    return ast.unparse(ast.fix_missing_locations(tree))


def test_both_sides_of_an_if_keep_their_lines():
    """Tracebacks point at the user's source."""
    text = "def kernel(x):\n    if x:\n        y = 1\n    else:\n        y = 2\n"
    tree = ThreadRewriter(lambda _: False, lambda _: False).visit(ast.parse(text))
    ast.fix_missing_locations(tree)
    lines = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert {3, 5} <= lines


def test_a_side_that_leaves_is_taken_by_all_threads_together():
    """A `return` on one side cannot be done by some of them; a break of an inner loop can."""
    assert "__branch" not in rewritten("def kernel(x):\n    if x:\n        return 1\n")
    inner = "def kernel(x):\n    if x:\n        for i in x:\n            break\n"
    assert "__branch" in rewritten(inner)


@pytest.mark.parametrize(
    ("text", "helper"),
    [
        ("for i in x:\n        y = i", "__rounds"),
        ("while x:\n        x = f(x)", "__looping"),
        ("y = 1 if x else 2", "__choose"),
        ("return x", "__returned"),
    ],
)
def test_a_statement_asks_which_threads_take_part(text, helper):
    """Each by a helper of its own."""
    assert helper in rewritten(f"def kernel(x):\n    {text}\n")


def test_what_a_loop_assigns_is_kept_for_those_that_left_it():
    """The names are in the order of the source, each once."""
    text = rewritten(
        "def kernel(x):\n    for i in x:\n        b = i\n        a = b\n        b = a\n"
    )
    assert "('b', 'a')" in text
