"""Python's garbage collector while a simulation runs."""

import gc

import pytest

from simrank.engine.collector import calm_collector


def test_the_collector_is_calm_within_a_run_and_restored_after():
    """Also after an error; a collector that is off stays off."""
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), calm_collector():
        assert gc.get_threshold()[0] >= 100_000
        raise ZeroDivisionError

    assert gc.get_threshold() == before
