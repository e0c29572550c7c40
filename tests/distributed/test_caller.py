"""A rank's place in a group is looked up once, and is never an old one."""

import pytest

import simrank.distributed as dist
from simrank.distributed.group import caller_of, membership
from simrank.ranks import current_program


def test_a_group_that_was_destroyed_is_refused_though_it_was_called_before(run):
    """What a rank remembers of its place ends with the group."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        group, x = dist.new_group([0, 1]), ctx.ones(4)
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        with pytest.raises(ValueError, match="has destroyed"):
            dist.all_reduce(x, group=group)
        dist.all_reduce(x)

    run(program, 2)


def test_a_rank_that_initialises_again_calls_on_its_new_default_group(run):
    """The group that None means may be another one at the next call."""
    found = {}

    def program(rank, ctx):
        x = ctx.ones(4)
        for _ in range(2):
            dist.init_process_group("nccl")
            dist.all_reduce(x)
            found.setdefault(rank, []).append(dist.group.WORLD.num_calls(rank))
            dist.destroy_process_group()
            with pytest.raises(ValueError, match="not been initialized"):
                dist.all_reduce(x)
        found[rank].append(x.tolist()[0])

    run(program, 2)
    assert found == {0: [1, 1, 4.0], 1: [1, 1, 4.0]}


def test_tensors_of_host_and_device_go_to_their_own_backends_in_turns(run):
    """One group may have a backend for each; what is remembered of one serves not the other."""

    def program(rank, ctx):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        ours, hosts = ctx.ones(4), ctx.ones(4, device="cpu")
        for expected in (2.0, 4.0, 8.0):
            dist.all_reduce(ours)
            dist.all_reduce(hosts)
            assert (ours.tolist()[0], hosts.tolist()[0]) == (expected, expected)
        places = membership(current_program()).callers.values()
        assert sorted(caller.backend for caller in places) == ["gloo", "nccl"]

    run(program, 2)


def test_a_caller_knows_its_rank_among_all_and_among_those_that_take_part(run):
    """Group ranks count the members; the global rank is what reports show."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        odd, last = dist.new_group([1, 3]), dist.new_group([3])
        if rank == 3:
            caller = caller_of(current_program(), odd, "nccl")
            assert (caller.group_rank, caller.rank) == (1, 3)
            narrowed = caller.narrowed(last)
            assert (narrowed.group, narrowed.group_rank, narrowed.rank) == (last, 0, 3)

    run(program, 4)


def test_an_unhashable_group_is_refused_by_name(run):
    """A list of ranks is no group, and no key of a table either."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        with pytest.raises(TypeError, match="expected a ProcessGroup"):
            dist.all_reduce(ctx.ones(4), group=[0, 1])

    run(program, 2)
