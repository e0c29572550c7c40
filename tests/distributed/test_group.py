"""Groups made by all ranks in the same order."""

import pytest

import simrank.distributed as dist
from simrank.errors import SimrankError, SpawnException


def test_new_group_called_differently_is_an_error_that_shows_both(run):
    """The n-th new_group of every rank must name the same ranks."""

    def program(rank, ctx):
        dist.init_process_group()
        dist.new_group([0, 1] if rank == 0 else [0, 2])

    with pytest.raises(SpawnException) as caught:
        run(program, 3)
    error = next(iter(caught.value.errors.values()))
    assert isinstance(error, SimrankError)
    assert "[0, 2]" in str(error)
    assert "[0, 1]" in str(error)


def test_group_ranks_translate_both_ways(run):
    """A group's ranks are sorted global ranks; group_rank inverts them."""

    def program(rank, ctx):
        dist.init_process_group()
        group = dist.new_group([3, 1])
        if rank % 2 == 0:
            return
        assert tuple(group.ranks) == (1, 3)
        assert [group.group_rank(r) for r in range(4)] == [-1, 0, -1, 1]
        assert group.size() == 2
        assert "2 ranks" in repr(group)

    run(program, 4)
