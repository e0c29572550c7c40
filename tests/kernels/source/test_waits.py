"""Loops that may wait, read off their source."""

import ast

import pytest

from simrank.kernels.machine import Effects
from simrank.kernels.source.waits import (
    is_for_value,
    is_pure_spin,
    is_wait,
    kind_of_look,
)


def loop(text):
    (statement,) = ast.parse(text).body
    return statement


def callee(name):
    """`look` is a function that reads memory; nothing is known of others."""
    return Effects(reads=True) if getattr(name, "id", "") == "look" else None


@pytest.mark.parametrize(
    "text",
    [
        "while tl.load(flag) != 1:\n    pass",
        "while seen < 3:\n    seen = tl.atomic_add(flag, 0)",
        "while True:\n    if tl.load(flag) == 1:\n        break",
        "while look(flag):\n    pass",
        "while n < 3:\n    x = tl.load(flag)\n    n = x + 1",
    ],
)
def test_a_loop_that_ends_by_what_memory_holds_waits(text):
    """Directly, through names, by a break or in a function."""
    assert is_wait(loop(text), callee)


@pytest.mark.parametrize(
    "text",
    [
        "while n < 3:\n    n += 1",
        "while tl.load(x + n) != 0:\n    n += 1",
        "while n < 3:\n    s += tl.load(x)\n    n += 1",
    ],
)
def test_a_loop_that_ends_by_itself_does_not_wait(text):
    """It counts, or goes on to another address each round."""
    assert not is_wait(loop(text), callee)


@pytest.mark.parametrize(
    ("text", "is_pure"),
    [
        ("while f(flag) != 1:\n    pass", True),
        ("while seen != 1:\n    seen = f(flag)", True),
        ("while f(flag) != 1:\n    n += 1", False),
        ("while f(flag) != 1:\n    back = back * 2", False),
    ],
)
def test_a_round_that_depends_on_the_one_before_is_no_pure_look(text, is_pure):
    """Counters and backoff go on by themselves."""
    assert is_pure_spin(loop(text)) == is_pure


@pytest.mark.parametrize(
    ("test", "wanted"),
    [("x != 1", True), ("not x == 1", True), ("x < 1", False), ("not x != 1", False), ("x", False)],
)
def test_a_wait_for_a_value_ends_where_it_is_equal(test, wanted):
    """One for no less than a value is none, as it is no signal that is taken."""
    assert is_for_value(ast.parse(test, mode="eval").body) == wanted


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("while tl.load(flag, volatile=True) != n:\n    pass", "look"),
        ("while tl.atomic_add(flag, 0) < n + 1:\n    pass", "look"),
        ("while tl.atomic_cas(flag, 1, 1) != 1:\n    pass", "look"),
        ("while tl.atomic_cas(flag, 0, 1) == 1:\n    pass", "change"),
        ("while x == 1:\n    x = tl.atomic_xchg(flag, 1)", "change"),
        ("while tl.load(flag) + 1 < n:\n    pass", ""),
        ("while tl.load(flag) != tl.load(other):\n    pass", ""),
        ("while tl.load(flag) != x:\n    x = 3", ""),
        ("while x == 1:\n    x = tl.load(flag) & 1", ""),
        ("while tl.load(flag) != 1:\n    n += 1", ""),
        ("while tl.load(flag):\n    pass", ""),
    ],
)
def test_what_a_test_compares_is_read_off_it(text, kind):
    """Only where one read is compared with what stays the same is it known what ends the loop."""
    assert kind_of_look(loop(text)) == kind
