"""Memory works beside units; dots and vector operations beside those of other programs."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simrank
from simrank.kernels.cost import overlap

TIMES_PS = st.integers(0, 1 << 40)


def test_the_longer_of_memory_and_units_counts():
    """Loads for what comes next are on their way meanwhile."""
    work = overlap.Work(1)
    work.memory_ps, work.tensor_ps = 100, 40
    assert work.taken_ps() == 100
    work.tensor_ps = 140
    assert work.taken_ps() == 140


@given(TIMES_PS, TIMES_PS)
def test_one_program_alone_does_one_after_the_other(tensor_ps, vector_ps):
    """Between the two dots of attention each step waits for the one before it."""
    assert overlap.together_ps(tensor_ps, vector_ps, 1) == tensor_ps + vector_ps


@given(TIMES_PS, TIMES_PS, st.integers(1, 32))
def test_more_programs_overlap_more_and_never_beyond_the_longer(tensor_ps, vector_ps, beside):
    """No unit does more than it can."""
    fewer, more = (overlap.together_ps(tensor_ps, vector_ps, n) for n in (beside, beside + 1))
    assert max(tensor_ps, vector_ps) <= more <= fewer + 1


@pytest.mark.parametrize("beside", range(1, 9))
def test_balanced_work_takes_what_queues_in_balance_take(beside):
    """A law of such networks: n customers at two equal stations get n / (n + 1) of one's rate."""
    assert overlap.together_ps(10**9, 10**9, beside) == pytest.approx(1e9 * (beside + 1) / beside)


@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_before_hopper_warps_do_dots_by_themselves(num_warps):
    """From then on four do one together, and a program's warps wait for each other."""
    found = {}
    for cluster in ("hgx_a100", "hgx_h100"):
        spec = simrank.Context(cluster).devices[0].spec
        found[cluster] = overlap.num_beside(spec, 2 * spec.num_sms, num_warps)
    assert found == {"hgx_a100": 2 * ceil(num_warps / 4), "hgx_h100": 2}
