"""What of the source Python would run otherwise."""

import ast

import numpy as np
import pytest
import triton
import triton.language as tl

from simrank.kernels.source.rewrite import (
    TYPE_HELPERS,
    ThreadRewriter,
    assigned_in,
    checked_branch,
    checked_loop,
)
from simrank.kernels.values import types
from simrank.kernels.values.block import Block, constant

from ..assembly import launch

N = 256


@triton.jit
def values_of_constants(out, N: tl.constexpr):
    x = tl.zeros((N,), tl.float32)
    tl.static_assert(x.shape[0].value == N.value)
    tl.static_assert(tl.constexpr(3).value == 3)
    bottom = tl.topk(tl.arange(0, 8), 2, descending=False)
    tl.store(out + tl.arange(0, 2), bottom + x.numel.value)


def test_constants_have_a_value(on_rank):
    """Kernels that ask for it get the constant itself."""

    def body(ctx):
        assert launch(ctx, values_of_constants, [], np.zeros(2, "i4"), N=N).tolist() == [N, N + 1]

    on_rank(body)


# ---- types of what loops and branches assign, compared by the rewritten source ----


def run(text, **names):
    """Run statements of which the first loop or branch is rewritten; return the names."""
    tree = ast.parse(text)
    place, node = next((i, n) for i, n in enumerate(tree.body) if hasattr(n, "body"))
    if isinstance(node, ast.If):
        sides = [assigned_in(side) for side in (node.body, node.orelse)]
        parts = checked_branch(node, sides, "__x")
        before, after = parts[:2], parts[2:]
    else:
        before, after = checked_loop(node, assigned_in(node.body), "__x")
    tree.body[place : place + 1] = [*before, node, *after]
    function = ast.parse("def f(): pass\n")
    function.body[0].body = [*tree.body, ast.parse("found = dict(locals())").body[0]]
    function.body[0].body.append(ast.Return(ast.Name("found", ast.Load())))
    scope = {**names, **TYPE_HELPERS}
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


# ---- what `if`, `for` and `while` become where threads may go different ways ----


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


@triton.jit
def first_round_assigns(x, out, K: tl.constexpr, N: tl.constexpr, HOW: tl.constexpr):
    at = tl.arange(0, N)
    for k in (tl.static_range if HOW else tl.range)(0, K):
        value = tl.load(x + k * N + at)
        if k == 0:  # noqa: SIM108 - what the test is about
            y = value
        else:
            y = y + value
    tl.store(out + at, y)


@triton.jit
def first_round_assigns_by_a_name(x, out, K: tl.constexpr, N: tl.constexpr, HOW: tl.constexpr):
    at = tl.arange(0, N)
    for k in HOW(0, K):
        value = tl.load(x + k * N + at)
        if k == 0:  # noqa: SIM108 - what the test is about
            y = value
        else:
            y = y + value
    tl.store(out + at, y)


@pytest.mark.parametrize(
    ("kernel", "unrolled", "dynamic"),
    [
        (first_round_assigns, True, False),
        (first_round_assigns_by_a_name, tl.static_range, tl.range),
    ],
)
def test_a_loop_that_a_constant_chooses_is_unrolled_or_not(on_rank, kernel, unrolled, dynamic):
    """The first round of an unrolled one assigns; of another, what it assigns is local to it."""

    def body(ctx, how):
        x, out = ctx.ones(4 * 16), ctx.zeros(16)
        kernel[(1,)](x, out, K=4, N=16, HOW=how)
        assert out.tolist() == [4.0] * 16

    on_rank(lambda ctx: body(ctx, unrolled))
    with pytest.raises(NameError, match="local variable 'y' where it is not"):
        on_rank(lambda ctx: body(ctx, dynamic))
