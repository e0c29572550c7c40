"""Several groups at once, and what can be asked of a group."""

import pytest

import simrank.distributed as dist


def test_subgroups_are_runs_of_equal_length(run):
    """The own one and all; others are NON_GROUP_MEMBER."""

    def program(rank, ctx):
        dist.init_process_group()
        own, groups = dist.new_subgroups(2)
        assert dist.get_process_group_ranks(own) == [rank // 2 * 2, rank // 2 * 2 + 1]
        assert groups[rank // 2] is own
        assert groups[1 - rank // 2] == dist.GroupMember.NON_GROUP_MEMBER
        x = ctx.full((1,), float(rank))
        dist.all_reduce(x, group=own)
        assert x.item() == [1, 5][rank // 2]
        own, _ = dist.new_subgroups_by_enumeration([[0, 3], [1]])
        assert (own is None) == (rank == 2)
        with pytest.raises(ValueError, match="cannot be empty"):
            dist.new_subgroups_by_enumeration([])
        for size, text in ((0, "must be positive"), (9, "must not exceed"), (3, "divisible")):
            with pytest.raises(ValueError, match=text):
                dist.new_subgroups(size)

    run(program, 4)


def test_the_default_size_of_a_subgroup_is_a_node(run):
    """Sixteen ranks on two nodes."""

    def program(rank, ctx):
        dist.init_process_group()
        own, groups = dist.new_subgroups()
        assert len(groups) == 2
        assert own.size() == 8

    run(program, 16, cluster={"name": "h100_ib", "nodes": 2})


def test_a_split_gives_each_member_its_part(run):
    """Lists of group ranks; a parent of its own; ranks in no list get None."""

    def program(rank, ctx):
        dist.init_process_group()
        part = dist.split_group(split_ranks=[[0, 1], [2, 3]])
        assert dist.get_process_group_ranks(part) == [rank // 2 * 2, rank // 2 * 2 + 1]
        odd = dist.new_group([1, 3])
        if rank % 2:
            alone = dist.split_group(odd, [[1]])
            assert alone is None if rank == 1 else dist.get_process_group_ranks(alone) == [3]
        whole = dist.split_group(split_ranks=[[3, 2, 1, 0]])
        x = ctx.ones(1)
        dist.all_reduce(x, group=whole)
        assert x.item() == 4
        with pytest.raises(ValueError, match="cannot be None or empty"):
            dist.split_group()
        with pytest.raises(ValueError, match="duplicate"):
            dist.split_group(split_ranks=[[0, 0]])

    run(program, 4)


def test_ranks_translate_both_ways(run):
    """As torch, also for the default group; errors name rank and group."""

    def program(rank, ctx):
        dist.init_process_group()
        group = dist.new_group([3, 1], sort_ranks=False)
        if rank not in (1, 3):
            return
        assert dist.get_process_group_ranks(group) == [3, 1]
        assert [dist.get_group_rank(group, r) for r in (3, 1)] == [0, 1]
        assert [dist.get_global_rank(group, r) for r in (0, 1)] == [3, 1]
        assert dist.get_global_rank(dist.group.WORLD, 2) == 2
        assert dist.GroupMember.WORLD is dist.group.WORLD
        assert dist.get_backend(group) == dist.Backend.UNDEFINED
        assert (group.group_name, group.group_desc) == ("group_1", "group_1")
        with pytest.raises(ValueError, match="Global rank 0 is not part of group"):
            dist.get_group_rank(group, 0)
        with pytest.raises(ValueError, match="Group rank 2 is not part of group"):
            dist.get_global_rank(group, 2)
        dist.destroy_process_group(group)
        with pytest.raises(ValueError, match="is not registered"):
            dist.get_rank(group)
        with pytest.raises(ValueError, match="Invalid process group specified"):
            dist.destroy_process_group(group)

    run(program, 4)


def test_only_members_make_a_group_with_local_synchronization(run):
    """Others get None, and need not call at all."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 2:
            assert dist.new_group([0, 1], use_local_synchronization=True) is None
        if rank < 2:
            group = dist.new_group([0, 1], use_local_synchronization=True)
            x = ctx.ones(1)
            dist.all_reduce(x, group=group)
            assert x.item() == 2
        dist.barrier()

    run(program, 4)
