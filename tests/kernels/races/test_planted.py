"""Mistakes planted in kernels that are right: each is found in the first run, and nothing else."""

import random

import pytest

from ..planted import MISTAKES, PROGRAMS, body

SEED = 12


def races(run, program, size, bug, num_ranks, seed=0):
    return run(body, num_ranks, program, size, bug, races="report", seed=seed).races


def least(program):
    return PROGRAMS[program][1]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs_that_are_right_have_no_findings(run, program):
    """And leave the right numbers."""
    assert races(run, program, 16, None, max(least(program), 2)) == []


@pytest.mark.parametrize(
    ("program", "bug"), MISTAKES, ids=[f"{p.__name__}: {bug}" for p, bug in MISTAKES]
)
def test_a_planted_mistake_is_found_in_the_first_run(run, program, bug):
    """Whoever happens to be early."""
    assert races(run, program, 16, bug, max(least(program), 2))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_random_programs_are_right_or_their_mistake_is_found(run, part):
    """Of other sizes, on other numbers of ranks, with other orders of what happens at one time."""
    choose = random.Random(f"{SEED}:{part}")
    for _ in range(150):
        program = choose.choice(list(PROGRAMS))
        bug = choose.choice([None, *PROGRAMS[program][0]])
        size = choose.choice([1, 2, 8, 32, 128])
        num_ranks = choose.randint(least(program), 6)
        seed = choose.randrange(100)
        found = races(run, program, size, bug, num_ranks, seed)
        assert bool(found) is (bug is not None), (program.__name__, bug, size, num_ranks, seed)
