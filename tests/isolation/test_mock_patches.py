"""Patches of `unittest.mock` that ranks hold while others run: each sees its own."""

import math
import sys
import time
from unittest import mock

import pytest

from simrank.errors import ProcessExitedException, SpawnException

HERE = sys.modules[__name__]
ORIGINAL = math.tau


class Model:
    """What ranks patch."""

    size = 1


def original():
    return "original"


def test_patches_that_overlap_are_their_ranks_own(run):
    """The same attribute in three ranks, in blocks that are not nested; nothing is left of them."""
    observers = []

    def program(rank, ctx):
        if rank == 3:
            for _ in range(8):
                time.sleep(0.3)
                assert (math.tau, original(), Model.size) == (ORIGINAL, "original", 1)
            return
        time.sleep(0.1 * rank)
        with mock.patch("math.tau", rank), mock.patch.object(HERE, "original") as fake:
            with mock.patch.multiple(Model, size=rank, extra=5 + rank, create=True):
                fake.return_value = rank
                time.sleep(1 - 0.2 * rank)
                assert (math.tau, HERE.original(), Model.size) == (rank, rank, rank)
                assert Model.extra == 5 + rank
            time.sleep(0.5)
            assert (math.tau, original(), Model.size) == (rank, rank, 1)
        assert (math.tau, original(), Model.size) == (ORIGINAL, "original", 1)
        observers.append(list(ctx.engine.observers))

    ctx = run(program, 4)
    assert (math.tau, original(), Model.size) == (ORIGINAL, "original", 1)
    assert not hasattr(Model, "extra")
    assert ctx.engine.observers == observers[-1] == []


@mock.patch("math.tau", 7)
@mock.patch.object(Model, "size")
def decorated(rank, size):
    time.sleep(1 + 0.1 * rank)
    assert math.tau == 7
    assert Model.size is size
    return size


def test_a_decorated_function_that_ranks_call_at_the_same_time_has_a_mock_for_each(run):
    """The decorator's one patcher is entered by all of them."""
    sizes = []
    run(lambda rank, ctx: sizes.append(decorated(rank)), 3)
    assert len({id(size) for size in sizes}) == 3
    assert (math.tau, Model.size) == (ORIGINAL, 1)


@pytest.mark.parametrize("end", ["returns", "raises", "is killed"])
def test_a_patch_that_a_rank_never_takes_back_ends_with_it(run, end):
    """As with its process; `start` without `stop`."""

    def program(rank, ctx):
        if rank == 1:
            time.sleep(1)
            assert math.tau == ORIGINAL
            return
        mock.patch("math.tau", 7).start()
        time.sleep(0.1)
        assert math.tau == 7
        if end == "raises":
            time.sleep(2)
            raise ValueError("bad batch")
        if end == "is killed":
            import os

            os._exit(1)

    if end == "returns":
        run(program, 2)
    else:
        with pytest.raises((SpawnException, ProcessExitedException)):
            run(program, 2)
    assert math.tau == ORIGINAL
    mock.patch.stopall()


def test_the_main_program_does_not_see_the_patches_of_ranks_that_run_on(ctx):
    """Nor do ranks take back the main program's."""

    def program(rank):
        assert Model.size == 2
        with mock.patch("math.tau", 7):
            time.sleep(10)
            assert math.tau == 7

    with mock.patch.object(Model, "size", 2):
        processes = ctx.multiprocessing.spawn(program, nprocs=1, join=False)
        assert not processes.join(timeout=1)
        assert math.tau == ORIGINAL
        processes.join()
    assert Model.size == 1
