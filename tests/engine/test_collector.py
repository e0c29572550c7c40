"""Python's garbage collector while a simulation runs."""

import gc

import pytest

import simrank
from simrank.engine.collector import calm_collector


def test_the_collector_is_calm_within_a_run_and_restored_after():
    """Also after an error; a collector that is off stays off."""
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), calm_collector():
        assert gc.get_threshold()[0] >= 100_000
        raise ZeroDivisionError

    assert gc.get_threshold() == before


def test_ranks_on_threads_find_garbage_as_early_as_a_process_does():
    """What one of them holds in a cycle, others may have lost."""
    seen, before = [], gc.get_threshold()

    def program(rank):
        seen.append(gc.get_threshold())

    for carrier in ("thread", "greenlet"):
        with simrank.Context("hgx_h100", carrier=carrier) as ctx:
            ctx.multiprocessing.spawn(program, nprocs=1, share_args=True)
    assert seen[0][:2] == before[:2]
    assert seen[1][0] > before[0]
