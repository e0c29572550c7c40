"""The SM that has the most work ends last; programs start in their order, where least is left."""

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

import simrank
from simrank.kernels.cost import busiest_share
from simrank.kernels.machine.statistics import Load


def loads_of(works):
    return [Load(np.array([number]), work) for number, work in enumerate(works)]


@given(st.integers(1, 400), st.integers(1, 132))
def test_equal_programs_end_with_the_sm_that_has_one_more(total, num_sms):
    """As many as there are, over the SMs, rounded up."""
    loads = [Load(np.arange(total), 7.0)]
    assert busiest_share(loads, (total, 1, 1), num_sms) == -(-total // num_sms) * num_sms / total


@given(st.lists(st.integers(1, 100), min_size=2, max_size=200), st.integers(1, 16))
def test_it_is_within_the_bounds_of_list_scheduling(works, num_sms):
    """Graham's: at least the mean and the largest, at most the mean of the rest and the largest."""
    most = busiest_share(loads_of(works), (len(works), 1, 1), num_sms) * sum(works) / num_sms
    assert most >= max(*works, sum(works) / num_sms) - 1e-6
    assert most <= sum(works) / num_sms + max(works) + 1e-6


def test_long_programs_first_end_earlier_than_long_programs_last():
    """Then short ones fill what is left."""
    works = list(range(1, 41))
    rising, falling = (
        busiest_share(loads_of(each), (40, 1, 1), 8) for each in (works, works[::-1])
    )
    assert falling < rising


def test_between_programs_of_a_sample_work_goes_evenly():
    """As it does below a diagonal."""
    sample = [Load(np.array([0, 40]), 1.0), Load(np.array([39, 79]), 40.0)]
    every = loads_of(list(range(1, 41)) * 2)
    for num_sms in (3, 8, 40):
        found = busiest_share(sample, (40, 2, 1), num_sms)
        assert found == pytest.approx(busiest_share(every, (40, 2, 1), num_sms))


def test_so_many_programs_that_the_last_one_is_not_seen_are_not_looked_at():
    """It costs time for what does not show."""
    assert busiest_share(loads_of([1.0, 2.0] * 5000), (10_000, 1, 1), 8) == 1.0


@triton.jit
def below_diagonal(a, b, out, FALLS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    if FALLS:
        block = N - 1 - block
    at = (block * BLOCK + tl.arange(0, BLOCK))[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(block + 1):
        right = tl.load(b + step * BLOCK * BLOCK + at - block * BLOCK * BLOCK)
        acc = tl.dot(tl.load(a + at), right, acc)
    tl.store(out + at, acc)


@pytest.mark.parametrize("has_data", [True, False])
def test_an_author_sees_that_long_programs_are_better_started_first(has_data):
    """With values and without: then some of the programs say what the others do."""
    times, blocks = [], 150

    def body(rank, ctx):
        a, b = (ctx.empty(blocks * 16, 16, dtype=ctx.float16) for _ in range(2))
        out = ctx.empty(blocks * 16, 16)
        for falls in (False, True):
            done = below_diagonal[(blocks,)](a, b, out, falls, blocks, 16)
            ctx.synchronize()
            times.append(done.cost.tensor_ps)

    with simrank.Context("hgx_h100", data=has_data) as ctx:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=1)
    assert times[1] < 0.9 * times[0]
