"""What all sizes of a run share."""

import pytest

from simrank.bench.run_facts import Ran, collective_named, is_time
from simrank.errors import ConfigError


def test_bandwidths_follow_from_the_time():
    """The bus has nccl-tests' factor of the collective."""
    row = Ran("all_reduce", 4, (2, 2)).row("f", 1 << 20, "float32", 10.0)
    assert row.algbw_GBps == pytest.approx(104.8576)
    assert row.busbw_GBps == pytest.approx(104.8576 * 1.5)
    assert (row.source, row.ranks_per_host) == ("f", (2, 2))


def test_times_are_finite_and_above_zero():
    """What is beyond is a slip, and would make infinite bandwidths."""
    assert is_time(0.12)
    assert not any(is_time(each) for each in (0, -1, 1e-300, float("inf"), float("nan")))


def test_a_collective_has_a_name():
    """nccl-tests' or simrank's; none is said so, with its line."""
    assert collective_named("alltoall", "f") == "all_to_all"
    with pytest.raises(ConfigError, match=r"f:3: expected a collective: .* got none"):
        collective_named(None, "f", 3)
