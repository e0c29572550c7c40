"""Types of what loops and branches assign, compared by the rewritten source."""

import ast

import numpy as np
import pytest

from simrank.kernels.source import loop_types
from simrank.kernels.values import types
from simrank.kernels.values.block import Block, constant


def run(text, **names):
    """Run statements of which the first loop or branch is rewritten; return the names."""
    tree = ast.parse(text)
    place, node = next((i, n) for i, n in enumerate(tree.body) if hasattr(n, "body"))
    if isinstance(node, ast.If):
        sides = [loop_types.assigned_in(side) for side in (node.body, node.orelse)]
        before, behind = slice(0, 2), loop_types.branch(node, sides, "__x")
    else:
        before, behind = (
            slice(0, 2),
            loop_types.loop(node, loop_types.assigned_in(node.body), "__x"),
        )
    tree.body[place : place + 1] = [*behind[before], node, *behind[2:]]
    function = ast.parse("def f(): pass\n")
    function.body[0].body = [*tree.body, ast.parse("found = dict(locals())").body[0]]
    function.body[0].body.append(ast.Return(ast.Name("found", ast.Load())))
    scope = {**names, **loop_types.HELPERS}
    code = compile(ast.fix_missing_locations(function), "<test>", "exec")
    exec(code, scope)  # noqa: S102 - a program of this file
    return scope["f"]()


ONE, HALF = constant(1), constant(0.5)
WIDE = Block(np.zeros((1, 4), np.int32), types.int32)


@pytest.mark.parametrize(
    ("name", "kind"), [("HALF", "fp32"), ("WIDE", r"\[4\]"), ("7", "constexpr")]
)
def test_a_loop_carries_one_type(name, kind):
    """Another element type, another shape, and a compile-time constant are refused."""
    with pytest.raises(AssertionError, match=f"x has initial type .* to {kind}|{kind}"):
        run(f"x = ONE\nfor _ in range(2):\n    x = {name}", ONE=ONE, HALF=HALF, WIDE=WIDE)


def test_a_loop_that_keeps_its_types_goes_on():
    """However often; a loop without rounds compares nothing."""
    assert run("x = ONE\nfor _ in range(3):\n    x = x + ONE", ONE=ONE)["x"].values == 4
    assert run("x = ONE\nfor _ in range(0):\n    x = HALF", ONE=ONE, HALF=HALF)["x"] is ONE


def test_what_a_loop_defines_is_gone_behind_it():
    """What was there before stays."""
    found = run("x = ONE\nfor _ in range(2):\n    y = ONE\n    x = y", ONE=ONE)
    assert "y" not in found
    assert found["x"] is ONE


def test_a_branch_on_a_value_keeps_types():
    """A branch on a compile-time constant need not: one side of it is compiled."""
    text = "x = ONE\nif {}:\n    x = HALF"
    with pytest.raises(AssertionError, match="initial value for `x` is of type i"):
        run(text.format("ONE"), ONE=ONE, HALF=HALF)
    assert run(text.format("True"), ONE=ONE, HALF=HALF)["x"] is HALF


def test_what_one_side_of_a_branch_defines_is_gone_behind_it():
    """Unless both sides define it, or the condition is a constant."""
    text = "if {}:\n    x = ONE\nelse:\n    y = ONE"
    assert not {"x", "y"} & set(run(text.format("ONE"), ONE=ONE))
    assert "x" in run(text.format("1"), ONE=ONE)
    assert "x" in run("if ONE:\n    x = ONE\nelse:\n    x = ONE", ONE=ONE)
