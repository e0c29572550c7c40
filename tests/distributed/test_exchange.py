"""Rendezvous of symmetric memory: everybody learns the same, at one point."""

import pytest

import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import CollectiveMismatchError, DeadlockError, SpawnException


def test_every_member_sees_the_same_addresses(run, met):
    """`buffer_ptrs` are those of the members' tensors, in group order."""
    seen = {}

    def body(rank, ctx):
        buffer, handle = met(ctx)
        seen[rank] = (handle.buffer_ptrs, handle.signal_pad_ptrs)
        assert handle.buffer_ptrs[rank] == buffer.data_ptr()
        assert (handle.rank, handle.world_size, handle.buffer_size) == (rank, 4, 64)
        assert handle.signal_pad_size == 32 * 72 * 4
        assert handle.multicast_ptr > 0
        assert ctx.distributed.symmetric_memory is symm_mem

    run(body, 4)
    assert seen[0] == seen[1] == seen[2] == seen[3]


def test_a_second_rendezvous_of_a_buffer_returns_at_once(run, met):
    """Only one rank asks again, and nobody else need come."""

    def body(rank, ctx):
        buffer, handle = met(ctx)
        if rank == 0:
            again = symm_mem.rendezvous(buffer[4:], "default_pg")
            assert again.buffer_ptrs == handle.buffer_ptrs
            assert again.offset == 16

    run(body, 2)


def test_groups_meet_by_object_and_by_name(run):
    """Each pair has addresses of its own two members."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        pairs = [dist.new_group([0, 1], group_desc="low"), dist.new_group([2, 3])]
        buffer = symm_mem.empty(8)
        handle = symm_mem.rendezvous(buffer, "low" if rank < 2 else pairs[1])
        assert handle.world_size == 2
        assert handle.rank == rank % 2
        assert handle.buffer_ptrs[rank % 2] == buffer.data_ptr()

    run(body, 4)


def test_buffers_of_different_sizes_are_a_mismatch(run, met):
    """The error says who came with which size."""

    def body(rank, ctx):
        met(ctx, 16 if rank else 8)

    with pytest.raises(SpawnException) as caught:
        run(body, 2)
    (error,) = caught.value.errors.values()
    assert isinstance(error, CollectiveMismatchError)
    assert error.differing == ("buffer bytes",)


def test_a_rank_that_does_not_come_is_a_deadlock_that_names_it(run, met):
    """And those that wait, with their line."""

    def body(rank, ctx):
        if rank != 2:
            met(ctx)

    with pytest.raises(DeadlockError) as caught:
        run(body, 3)
    assert "rendezvous #1 of symmetric memory on group 'default_pg'" in str(caught.value)
    assert "rank 2: returned" in str(caught.value)
