"""Each rank has a registry of groups of its own; what is outside ranks stays torch's."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
import torch.distributed.distributed_c10d as c10d  # noqa: E402
from torch.testing._internal.distributed import fake_pg  # noqa: E402, F401 - makes it known

from simrank.errors import CollectiveMismatchError, SpawnException  # noqa: E402


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
