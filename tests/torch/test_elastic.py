"""torch programs whose ranks sit out: options, the tensor of active ranks, every collective."""

import pytest
import torch
import torch.distributed as dist

from simrank.distributed import (
    ElasticOptions,
    active_ranks,
    deactivate_rank,
    set_active_ranks,
    shrink_group,
)
from simrank.errors import SpawnException, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # New names of collectives.


def test_a_program_with_a_tensor_of_active_ranks_goes_on_without_a_dead_one(spawn):
    """The options are torch's own `pg_options`; the sum is that of the active ranks."""
    seen = {}

    def program(rank):
        mask = torch.zeros(4, dtype=torch.int32)
        dist.init_process_group("gloo", pg_options=ElasticOptions(mask))
        x = torch.tensor([float(1 << rank)])
        dist.all_reduce(x)
        assert x.item() == 15.0
        if rank == 1:
            raise ValueError("broken")
        x = torch.tensor([float(1 << rank)])
        dist.all_reduce(x)
        seen[rank] = (x.item(), mask.tolist(), active_ranks())

    with pytest.raises(SpawnException) as failure:
        spawn(program, 4, on_failure="continue")
    assert list(failure.value.errors) == [1]
    assert failure.value.consequences == {}
    assert seen == dict.fromkeys((0, 2, 3), (13.0, [1, 0, 1, 1], [0, 2, 3]))


def test_collectives_of_torch_skip_a_rank_and_keep_the_places_of_the_others(spawn):
    """Lists and single tensors; everyone is back later."""
    seen = {}

    def gathered(rank):
        out = [torch.full((2,), -1.0) for _ in range(3)]
        dist.all_gather(out, torch.tensor([rank, rank + 0.5]))
        whole = torch.full((6,), -1.0)
        dist.all_gather_into_tensor(whole, torch.tensor([rank, rank + 0.5]))
        assert whole.tolist() == torch.cat(out).tolist()
        part = torch.full((1,), -1.0)
        dist.reduce_scatter(part, [torch.tensor([float(rank + k)]) for k in range(3)])
        mixed = torch.full((3,), -1.0)
        dist.all_to_all_single(mixed, torch.arange(3.0) + 10 * rank)
        dist.barrier()
        return whole.tolist(), part.item(), mixed.tolist()

    def program(rank):
        dist.init_process_group("gloo")
        set_active_ranks([0, 2], dist.group.WORLD)
        narrow = gathered(rank)
        set_active_ranks([0, 1, 2])
        seen[rank] = (narrow, gathered(rank)[1])

    spawn(program, 3)
    assert seen[0] == (([0.0, 0.5, -1.0, -1.0, 2.0, 2.5], 2.0, [0.0, -1.0, 20.0]), 3.0)
    assert seen[1] == (([-1.0] * 6, -1.0, [-1.0] * 3), 6.0)
    assert seen[2] == (([0.0, 0.5, -1.0, -1.0, 2.0, 2.5], 6.0, [2.0, -1.0, 22.0]), 9.0)


def test_a_spin_on_a_work_ends_when_the_missing_rank_is_declared_broken(spawn):
    """As polling skips inactive ranks; it hung for ever where the peer had died."""
    seen = {}

    def program(rank):
        dist.init_process_group("gloo")
        x = torch.ones(4)
        if rank == 2:
            return
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            deactivate_rank(2, dist.group.WORLD)
        while not work.is_completed():
            pass
        work.wait()
        seen[rank] = x.tolist()

    spawn(program, 3)
    assert seen == {0: [2.0] * 4, 1: [2.0] * 4}


def test_what_is_not_defined_over_some_ranks_is_refused(spawn):
    """By name; and options that do not fit."""

    def program(rank):
        dist.init_process_group("gloo")
        set_active_ranks([0, 1])
        x = torch.ones(2, dtype=torch.float16)
        if rank < 2:
            with pytest.raises(UnsupportedError, match="all_reduce of float16 with inactive ranks"):
                dist.all_reduce(x)
        with pytest.raises(ValueError, match="an int32 for each of 3 ranks"):
            dist.new_group([0, 1, 2], pg_options=ElasticOptions(torch.ones(2)))

    spawn(program, 3)


def test_torchs_own_shrink_group_is_refused_in_its_words(spawn):
    """And simrank's takes no group of torch: it would return one that torch does not know."""

    def program(rank):
        dist.init_process_group("gloo")
        group = dist.new_group([0, 1])
        with pytest.raises(TypeError, match="does not support shrinking operations"):
            dist.shrink_group([1], group)
        with pytest.raises(TypeError, match="expected a ProcessGroup"):
            shrink_group([1], group)

    spawn(program, 2)
