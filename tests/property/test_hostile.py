"""Random correct programs raise no alarm; a mistake planted in one is found, in the first run.

The short forms run always, the long ones (marked slow) for some minutes; a seed repeats a case:
`hostile.run(plan := hostile.random_plan(seed), hostile.random_mistake(plan, seed))`.
"""

import functools
import pickle

import numpy as np
import pytest

import simrank
from simrank.errors import (
    CollectiveMismatchError,
    DeadlockError,
    RaceError,
    SimrankError,
    SpawnException,
)

from . import hostile

NUM_FAST = 5  # Programs in each of the short forms.
NUM_SLOW_RIGHT = 5_000
NUM_SLOW_WRONG = 3_000
NUM_SLOW_DYING = 800
PARTS = range(10)  # Of each of the long forms.
FIRST_SLOW = 1_000_000  # Seeds of the long forms begin here.
FOUND_AS = {  # What each mistake may be found as.
    "skips": (DeadlockError, CollectiveMismatchError),
    "calls twice": (DeadlockError, CollectiveMismatchError),
    "takes another group": (DeadlockError, CollectiveMismatchError),
    "returns early": (DeadlockError,),
    "raises": (KeyError,),
    "passes less": (CollectiveMismatchError,),
    "passes another type": (CollectiveMismatchError,),
    "reduces otherwise": (CollectiveMismatchError,),
    "takes another root": (CollectiveMismatchError,),
    "takes another tag": (DeadlockError,),
    "splits otherwise": (CollectiveMismatchError,),
    "takes another peer": (DeadlockError, CollectiveMismatchError),
    "turns the order around": (DeadlockError,),
    "sends once more": (DeadlockError, CollectiveMismatchError),
    "reads before the wait": (RaceError,),
    "never waits": (RaceError, SimrankError),
    "forgets the result": (SimrankError,),
    "does not wait for the stream": (RaceError,),
    "does not wait for the result": (RaceError,),
}


def check_right(number, **options):
    """Run a correct program, and compare every number; nothing is found."""
    plan = hostile.random_plan(number)
    outputs, findings = hostile.run(plan, **options)
    assert outputs == [row.tolist() for row in hostile.expected(plan)], number
    assert findings == [], number


def check_wrong(seed):
    """Run a program with a mistake; it is found for what it is, and the rank is named."""
    plan = hostile.random_plan(seed)
    mistake = hostile.random_mistake(plan, seed)
    if mistake is None:
        return
    with pytest.raises(SimrankError) as caught:
        hostile.run(plan, mistake)
    error = caught.value
    if isinstance(error, SpawnException):
        kinds = [type(each) for each in error.errors.values()]
        assert any(issubclass(kind, FOUND_AS[mistake.kind]) for kind in kinds), (seed, kinds)
        if not issubclass(kinds[0], CollectiveMismatchError | DeadlockError):
            assert mistake.rank in error.errors, seed
    else:
        assert isinstance(error, FOUND_AS[mistake.kind]), (seed, error)
    if isinstance(error, DeadlockError):
        reported = {rank for state in error.waits for rank in state.ranks}
        assert mistake.rank in reported, seed


def check_aftermath(number, on_failure, carrier="greenlet"):
    """Let a rank of one program die, leave or skip a step; the next program is right."""
    plan, following = hostile.random_plan(number), hostile.random_plan(number + FIRST_SLOW)
    rng = np.random.default_rng([number, 7])
    step = int(rng.integers(len(plan.steps)))
    rank = int(rng.choice(plan.groups[plan.steps[step].group]))
    mistake = hostile.Mistake(str(rng.choice(["raises", "returns early", "skips"])), rank, step)
    outputs = [None] * following.world_size
    with simrank.Context(on_failure=on_failure, carrier=carrier, checks="off") as ctx:
        spawn = functools.partial(ctx.multiprocessing.spawn, hostile.on_rank, share_args=True)
        error = None
        try:
            spawn((ctx, plan, mistake, [None] * plan.world_size), nprocs=plan.world_size)
        except SimrankError as raised:
            error = raised
        if isinstance(error, SpawnException):
            kinds = {type(each) for each in error.errors.values()}
            # Who skips a step may take another object's bytes for those it expects.
            known = {KeyError, CollectiveMismatchError, pickle.UnpicklingError}
            assert kinds <= known, (number, kinds)
        elif error is not None:
            assert isinstance(error, DeadlockError), number
            assert rank in {each for state in error.waits for each in state.ranks}, number
        spawn((ctx, following, None, outputs), nprocs=following.world_size)
    assert outputs == [row.tolist() for row in hostile.expected(following)], number


@pytest.mark.parametrize("on_failure", ["abort", "continue"])
@pytest.mark.parametrize("seed", range(NUM_FAST))
def test_a_program_that_dies_leaves_nothing_behind(seed, on_failure):
    """The next spawn in the same Context is right, and its end raises nothing again."""
    check_aftermath(seed, on_failure)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_programs_that_die_leave_nothing_behind(part):
    """Hundreds, on both carriers."""
    num_programs = NUM_SLOW_DYING // len(PARTS)
    first = FIRST_SLOW + part * num_programs
    for seed in range(first, first + num_programs):
        carrier = "thread" if seed % 5 == 0 else "greenlet"
        check_aftermath(seed, ("abort", "continue")[seed % 2], carrier)


@pytest.mark.parametrize("seed", range(NUM_FAST))
def test_a_correct_program_raises_no_alarm(seed):
    """With races as errors and under strict; its numbers are numpy's."""
    check_right(seed, seed=seed)


@pytest.mark.parametrize("seed", range(NUM_FAST))
def test_a_planted_mistake_is_found(seed):
    """In the first run, as the right error."""
    check_wrong(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_correct_programs_raise_no_alarm(carrier, part):
    """Thousands of them, whatever holds the ranks' stacks."""
    num_programs = NUM_SLOW_RIGHT // len(PARTS) // (1 if carrier == "greenlet" else 10)
    first = FIRST_SLOW + part * num_programs
    for seed in range(first, first + num_programs):
        check_right(seed, seed=seed, carrier=carrier)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_planted_mistakes_are_found(part):
    """Thousands of them: none is missed."""
    num_programs = NUM_SLOW_WRONG // len(PARTS)
    first = FIRST_SLOW + part * num_programs
    for seed in range(first, first + num_programs):
        check_wrong(seed)


def test_every_mistake_occurs_and_every_step():
    """The drawing leaves none out."""
    plans = [hostile.random_plan(seed) for seed in range(2_000)]
    kinds = {step.kind for plan in plans for step in plan.steps}
    assert kinds == set(hostile.KINDS)
    drawn = {m.kind for i, plan in enumerate(plans) if (m := hostile.random_mistake(plan, i))}
    assert drawn == set(FOUND_AS)
