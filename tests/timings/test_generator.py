"""Random programs: their text, and their outcomes in simulated runs."""

import ast

import pytest

pytest.importorskip("torch")

from tests.timings.generator import by_seeds, is_safe, outcome, program

SAFE = next(seed for seed in range(100) if is_safe(program(seed)))


@pytest.mark.parametrize("cuda", [False, True])
def test_programs_are_python_and_follow_from_their_seeds(cuda: bool) -> None:
    """Each seed gives one text, which Python can read."""
    for seed in range(50):
        text = program(seed, cuda=cuda)

        ast.parse(text)
        assert text == program(seed, cuda=cuda)


def test_outcomes_keep_the_order_of_lines_within_a_rank_only() -> None:
    """Two texts with another order among ranks are one outcome."""
    one = outcome("r1: a\nr0: b\nr1: c\n", "returned")
    other = outcome("r0: b\nr1: a\nr1: c\n", "returned")

    assert one == other != outcome("r0: b\nr1: c\nr1: a\n", "returned")


def test_outcomes_of_failures_have_lines_of_the_failed_rank_only() -> None:
    """How far other ranks came before a failure is no part of the outcome."""
    assert outcome("r1: a\nr0: b\n", "ValueError on rank 1")[0] == ("r1: a",)


@pytest.mark.slow
def test_a_safe_program_has_one_outcome() -> None:
    """Neither delays nor sleeps change the lines of a program that orders its ranks."""
    [(_, end)] = by_seeds(program(SAFE), range(3))

    assert end == "returned"
