"""Each rank has a registry of groups of its own; what is outside ranks stays torch's."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - makes it known

from simrank.errors import CollectiveMismatchError, SpawnException
from simrank.torch.releases import INSTALLED


def test_groups_come_and_go_with_the_rank(spawn):
    """Initialised twice in turn, under the same names; nothing is left in the process."""
    world = c10d._world

    def program(rank):
        for _ in range(2):
            dist.init_process_group("gloo")
            group = dist.new_group([0, 1])
            assert (dist.get_rank(group), dist.get_world_size()) == (rank, 2)
            assert c10d._world is world
            dist.destroy_process_group()
            assert not dist.is_initialized()
        with pytest.raises(ValueError, match="Default process group has not been initialized"):
            dist.all_reduce(torch.ones(1))

    spawn(program)
    assert not dist.is_initialized()
    assert type(c10d._world).__name__ == "_World"


def test_initialising_twice_is_torchs_error(spawn):
    """In its words."""

    def program(rank):
        dist.init_process_group("gloo")
        with pytest.raises(ValueError, match="initialize the default process group twice"):
            dist.init_process_group("gloo")

    spawn(program)


def test_disjoint_groups_may_have_one_name(spawn):
    """Members make theirs only; each reduces its own."""
    sums = {}

    def program(rank):
        dist.init_process_group("gloo")
        group = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        sums[rank] = tensor.item()

    spawn(program, 4)
    assert sums == {0: 1.0, 1: 1.0, 2: 5.0, 3: 5.0}


def test_a_group_of_a_bound_device_splits(spawn):
    """`split_group`, also of a part, and a mesh, which splits where the device is bound."""
    seen = {}

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", rank))
        half = dist.split_group(split_ranks=[[1, 0], [3, 2]])
        kept = {"backend": "cuda:nccl"} if INSTALLED >= (2, 13) else {}  # A new parameter.
        one = dist.split_group(half, [[1]], group_desc="last", **kept)
        mesh = dist.init_device_mesh("cuda", (2, 2), mesh_dim_names=("a", "b"))
        sums = []
        for group in (half, mesh.get_group("a"), mesh.get_group("b")):
            x = torch.full((1,), float(rank), device="cuda")
            dist.all_reduce(x, group=group)
            sums.append(x.item())
        members = [rank // 2 * 2, rank // 2 * 2 + 1]
        if INSTALLED >= (2, 14):
            members.reverse()  # As they are given; before, torch sorts them.
        assert dist.get_process_group_ranks(half) == members
        assert half.rank() == dist.get_group_rank(half, rank) == members.index(rank)
        gathered = [torch.zeros(1, device="cuda") for _ in members]
        dist.all_gather(gathered, torch.full((1,), float(rank), device="cuda"), group=half)
        assert gathered == members
        assert (half.group_desc, half.bound_device_id.index) == ("default_pg:split:0", rank)
        assert isinstance(one, dist.ProcessGroup) == (half.rank() == 1)
        if half.rank() == 1:
            devices = [torch.device(each) for each in (["cuda"] if kept else ["cpu", "cuda"])]
            assert (one.group_desc, one._device_types) == ("last", devices)
            dist.all_reduce(torch.ones(1, device="cuda"), group=one)
        seen[rank] = sums, half.group_name
        dist.destroy_process_group()

    spawn(program, 4)
    assert [seen[rank][0] for rank in range(4)] == [[1, 2, 1], [1, 4, 1], [5, 2, 5], [5, 4, 5]]
    assert seen[0][1] == seen[1][1] != seen[2][1] == seen[3][1]


def test_a_group_without_a_bound_device_does_not_split(spawn):
    """In torch's words."""

    def program(rank):
        dist.init_process_group("nccl")
        with pytest.raises(RuntimeError, match="No device associated with the default pg"):
            dist.split_group(split_ranks=[[0, 1]])

    spawn(program)


def test_groups_of_fake_move_nothing(spawn):
    """They are torch's own; meshes make them for dimensions that a program does not use."""

    def program(rank):
        dist.init_process_group("gloo")
        group = dist.new_group([0, 1], backend="fake")
        tensor = torch.full((2,), float(rank))
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [float(rank)] * 2
        assert dist.get_backend(group) == "fake"
        assert dist.get_rank(group) == rank
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1.0] * 2
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("world",))
        parts = mesh._unflatten(0, (1, 2), ("unused", "used"), {"unused": "fake"})
        dist.all_reduce(tensor, group=parts["used"].get_group())
        assert tensor.tolist() == [2.0] * 2
        assert dist.get_backend(parts["unused"].get_group()) == "fake"
        dist.destroy_process_group()
        dist.init_process_group("fake", rank=rank, world_size=64, store=dist.HashStore())
        assert dist.get_world_size() == 64
        dist.all_reduce(tensor)
        dist.destroy_process_group()

    spawn(program)


def test_groups_made_in_another_order_are_a_mismatch(spawn):
    """The n-th `new_group` of every rank has to be the same."""

    def program(rank):
        dist.init_process_group("gloo")
        orders = [[0, 1], [0, 1, 2]] if rank == 0 else [[0, 1, 2], [0, 1]]
        groups = [dist.new_group(ranks) for ranks in orders]
        if rank < 2:
            dist.all_reduce(torch.ones(1), group=groups[0])

    with pytest.raises(SpawnException) as failure:
        spawn(program, 3)
    assert isinstance(next(iter(failure.value.errors.values())), CollectiveMismatchError)


def test_a_program_may_use_the_first_few_of_its_ranks(spawn):
    """Who asks for a world of two makes it with the first two; the others may leave."""

    def program(rank):
        if rank >= 2:
            return
        store = dist.FileStore("unused", 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert (tensor.item(), dist.get_world_size()) == (2.0, 2)

    spawn(program, 4)


def test_a_group_that_some_of_its_members_never_made_is_told(spawn):
    """Real ones wait for them as they make it; a program that has what it needs goes on here."""

    def program(rank):
        dist.init_process_group("gloo")
        dist.new_group([0, 1])
        if rank == 2:
            dist.new_group([0, 2])

    context = spawn(program, 3)
    (found,) = context.findings
    assert "rank 0: never called new_group for 'group_2', as rank 2 did at test_reg" in found


def test_groups_of_one_member_need_no_meeting(spawn):
    """Ranks may make them under the same number of torch's, as halves of a group do."""

    def program(rank):
        dist.init_process_group("gloo")
        own, halves = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        single, singles = dist.new_subgroups(group_size=1, group=own)
        assert (single.size(), len(singles), len(halves)) == (1, 2, 2)
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=single)
        assert tensor.item() == 1.0

    spawn(program, 4)
