"""Hypothesis inside and outside ranks: properties of several ranks at once, no false alarms."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank
import simrank.distributed as dist
from simrank.errors import SpawnException

few = settings(max_examples=6, database=None)


@few
@given(num_ranks=st.integers(1, 4), values=st.lists(st.integers(0, 5), max_size=4))
def test_a_property_may_open_a_context_and_spawn(num_ranks, values):
    """Each example is a run of its own."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(4) * rank
        dist.all_reduce(x)
        assert x[0].item() == sum(range(num_ranks))
        time.sleep(sum(values))

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=num_ranks)


@few
@given(number=st.integers(0, 100))
def decorated(number):
    time.sleep(0.001)
    assert number <= 100


def test_ranks_check_properties_at_the_same_time(run):
    """One function for all of them, waits in each example; none is nested in another's."""
    run(lambda rank, ctx: decorated(), 3)


def test_ranks_meet_within_their_examples(run):
    """They draw the same ones: the seed is fixed."""

    def program(rank, ctx):
        dist.init_process_group("nccl")

        @few
        @given(number=st.integers(0, 100))
        def check(number):
            x = ctx.ones(1) * number
            dist.all_reduce(x)
            assert x.item() == 2 * number

        check()

    run(program, 2)


def test_a_property_that_fails_in_a_rank_shows_its_example(run):
    """Shrunk, as ever."""

    def program(rank, ctx):
        @settings(max_examples=100, database=None)
        @given(number=st.integers(0, 1000))
        def check(number):
            time.sleep(0.001)
            assert number < 50

        check()

    with pytest.raises(SpawnException) as caught:
        run(program, 2)
    assert set(caught.value.errors) <= {0, 1}
    assert any("number=50" in note for note in caught.value.errors[0].__notes__)


def test_the_main_programs_property_goes_on_after_a_spawn_within_it(run):
    """What Hypothesis knows of this thread is what it was."""
    seen = []

    @few
    @given(data=st.data())
    def check(data):
        with simrank.Context("hgx_h100") as ctx:
            ctx.multiprocessing.spawn(lambda rank: decorated(), nprocs=2)
        seen.append(data.draw(st.integers(0, 5)))

    check()
    assert len(seen) >= 3
