"""Options that make a group elastic: who is active at first, and the tensor that says who is."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import UnsupportedError


def spawned(program, nprocs=3):
    """Run a program on ranks."""
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs)


def test_a_group_begins_with_some_and_grows():
    """The others join by an agreement; the tensor follows."""

    def program(rank, ctx):
        mask = ctx.zeros(3, dtype=simrank.int32, device="cpu")
        dist.init_process_group("nccl", pg_options=dist.ElasticOptions(mask, first=[0, 1]))
        assert mask.tolist() == [1, 1, 0]
        x = ctx.full((2,), float(1 << rank))
        dist.all_reduce(x)
        assert x[0].item() == (3.0 if rank < 2 else 4.0)
        dist.set_active_ranks([0, 1, 2])
        assert mask.tolist() == [1, 1, 1]
        x = ctx.full((2,), float(1 << rank))
        dist.all_reduce(x)
        assert x[0].item() == 7.0

    spawned(program)


def test_subgroups_have_a_roster_of_their_own():
    """Who sits out of one takes part in the others."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        group = dist.new_group([0, 2], pg_options=dist.ElasticOptions(first=[2]))
        assert dist.active_ranks(group) == [2]
        assert dist.active_ranks() == [0, 1, 2]
        x = ctx.ones(1)
        if rank != 1:
            dist.all_reduce(x, group=group)
            assert x.item() == 1.0
        dist.all_reduce(x)
        assert x.item() == 3.0

    spawned(lambda rank, ctx: program(rank, ctx) if rank != 1 else outsider(rank, ctx))


def outsider(rank, ctx):
    """Make the calls of the rank that is no member of the smaller group."""
    dist.init_process_group("nccl")
    dist.new_group([0, 2], pg_options=dist.ElasticOptions(first=[2]))
    dist.all_reduce(ctx.ones(1))


def test_a_tensor_that_does_not_fit_is_refused():
    """Its size, its type, and a device, on which nobody could write it at once."""

    def program(rank, ctx):
        for wrong in (ctx.zeros(2, dtype=simrank.int32, device="cpu"), ctx.zeros(3, device="cpu")):
            with pytest.raises(ValueError, match="an int32 for each of 3 ranks, not"):
                dist.init_process_group("nccl", pg_options=dist.ElasticOptions(wrong))
            dist.destroy_process_group()
        on_device = ctx.zeros(3, dtype=simrank.int32)
        with pytest.raises(UnsupportedError, match="active_ranks on cuda:"):
            dist.init_process_group("nccl", pg_options=dist.ElasticOptions(on_device))
        dist.destroy_process_group()
        with pytest.raises(ValueError, match=r"ranks \[0, 7\] are not members"):
            dist.init_process_group("nccl", pg_options=dist.ElasticOptions(first=[0, 7]))

    spawned(program)
