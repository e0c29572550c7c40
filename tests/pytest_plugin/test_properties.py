"""Hypothesis under the marker `ranks`: every example runs on the ranks, in a Context of its own."""

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

import simrank.distributed as dist

pytest_plugins = ["pytester"]

HEADER = """
import pytest
from hypothesis import given, settings, strategies as st
import simrank.distributed as dist

settings.register_profile("fixed", derandomize=True, database=None)
settings.load_profile("fixed")
"""


def outcome(pytester, body):
    """Run a test file in a process of its own, so that no module is there twice."""
    pytester.makepyfile(HEADER + body)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider")


@pytest.mark.ranks(4)
@settings(max_examples=10)
@given(n=st.integers(1, 9))
def test_every_example_runs_on_every_rank(rank, world_size, ctx, n):
    """With the fixtures of the plugin, and a clock that begins at zero."""
    assert ctx.now_ps == 0
    dist.init_process_group("nccl")
    assert world_size == dist.get_world_size() == 4
    x = ctx.full((n,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [6.0] * n


@given(n=st.integers(1, 9))
@settings(max_examples=10)
@pytest.mark.ranks(2)
def test_the_order_of_the_decorators_does_not_matter(rank, n):
    """The marker stands above or below `given`."""
    assert dist.is_available()
    assert isinstance(rank, int)
    assert 1 <= n <= 9


class TestMethods:
    """Properties of a class."""

    @pytest.mark.ranks(2)
    @settings(max_examples=10)
    @given(n=st.integers(1, 9))
    def test_methods_are_properties_too(self, rank, n):
        """With their self."""
        assert isinstance(self, TestMethods)
        assert rank in (0, 1)
        assert n > 0


@pytest.mark.ranks(2)
@settings(max_examples=10, suppress_health_check=[HealthCheck.filter_too_much])
@given(n=st.integers(0, 50), data=st.data())
def test_ranks_may_assume_note_and_draw(rank, n, data):
    """What Hypothesis offers inside an example; each rank draws for itself."""
    assume(n % 2 == 0)
    note(f"rank {rank} has {n}")
    assert n % 2 == 0
    assert data.draw(st.integers(3, 5)) in (3, 4, 5)


@pytest.mark.slow
def test_a_failing_example_shrinks_and_is_told_with_its_arguments(pytester):
    """The smallest one, and the ranks that fail with it."""
    result = outcome(
        pytester,
        """
@pytest.mark.ranks(4)
@given(n=st.integers(0, 500))
def test_it(rank, n):
    assert n < 37 or rank != 2
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["1 rank(s) failed at t=*: rank 2: AssertionError: *", "on rank 2:", "*test_it(*", "*n=37,"]
    )


@pytest.mark.slow
def test_a_deadlock_of_one_example_is_told_with_its_arguments(pytester):
    """And examples before and after it do not meet what it left."""
    result = outcome(
        pytester,
        """
@pytest.mark.ranks(2)
@given(n=st.integers(0, 50))
def test_it(rank, n):
    dist.init_process_group("nccl")
    if n > 20 and rank:
        return
    dist.barrier()
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*deadlock (proved) at t=*", "*n=21,*"])


@pytest.mark.slow
def test_a_property_of_a_test_case_runs_on_the_ranks(pytester):
    """Unittest's methods are run another way; async bodies, too."""
    result = outcome(
        pytester,
        """
import unittest

class TestIt(unittest.TestCase):
    @pytest.mark.ranks(3)
    @given(n=st.integers(0, 50))
    def test_it(self, n):
        dist.init_process_group("nccl")
        assert dist.get_world_size() == 3
        assert n < 20

@pytest.mark.ranks(2)
@given(n=st.integers(0, 50))
async def test_async(rank, n):
    assert n < 33 or rank == 0
""",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*n=20,"])
    result.stdout.fnmatch_lines(["*n=33,"])


@pytest.mark.slow
def test_a_shared_fixture_of_the_users_is_still_hypothesis_complaint(pytester):
    """By its name; one that is asked for is taken."""
    result = outcome(
        pytester,
        """
from hypothesis import HealthCheck

@pytest.fixture
def own():
    return [1]

@pytest.mark.ranks(2)
@given(n=st.integers())
def test_it(rank, own, n):
    pass

@pytest.mark.ranks(2)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers())
def test_asked_for(rank, own, n):
    assert own == [1]
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*FailedHealthCheck: *uses a function-scoped fixture 'own'*"])
