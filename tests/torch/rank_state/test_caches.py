"""Caches and trackers of torch's libraries: each rank has its own."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    _random,
    distribute_tensor,
    rand,
)


def test_a_rank_has_fake_tensors_on_its_own_current_device(spawn):
    """In modes that torch itself enters, as DTensor does; a program's are refused."""
    fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
    names = {"__name__": "torch.caller", "mode": fake_tensor.FakeTensorMode}
    exec("def within_mode(body):\n    with mode():\n        body()\n", names)  # noqa: S102

    def program(rank):
        torch.cuda.set_device(rank)

        def body():
            assert torch.empty(3, device="cuda").device.index == rank
            dist.init_process_group("nccl")
            assert torch.empty(3, device="cuda").neg().device.index == rank

        names["within_mode"](body)

    spawn(program, 2)


def test_profilers_of_fsdp_know_ranks_apart(spawn):
    """One may be entered on every rank at a time, and on a rank once."""
    profiler = pytest.importorskip("torch.distributed.fsdp._debug_utils").SimpleProfiler

    def program(rank):
        dist.init_process_group("gloo")
        with profiler.profile(profiler.Type.ALL):
            dist.barrier()
            with (
                pytest.raises(AssertionError, match="already being profiled"),
                profiler.profile(profiler.Type.ALL),
            ):
                pass

    spawn(program)
    assert not profiler.profiling


def test_random_dtensors_are_equal_on_all_ranks_where_they_are_replicated(spawn):
    """Every rank takes part as they agree on a state, though each has seeded by itself."""
    drawn = {}

    def program(rank):
        torch.cuda.set_device(rank)
        mesh = init_device_mesh("cuda", (4,))
        torch.manual_seed(rank)
        tensor = rand(2, 3, device_mesh=mesh, placements=[Replicate()])
        drawn[rank] = tensor.to_local().tolist(), id(_random._rng_tracker)

    spawn(program, 4)
    assert len({str(values) for values, _ in drawn.values()}) == 1
    assert len({tracker for _, tracker in drawn.values()}) == 4
    assert _random._rng_tracker is None


def test_uneven_shards_of_a_mesh_of_two_dimensions_are_gathered_whole(spawn):
    """What a rank sends depends on its place in the mesh."""

    def program(rank):
        mesh = init_device_mesh("cpu", (2, 2))
        given = torch.arange(5.0)
        tensor: DTensor = distribute_tensor(given, mesh, [Shard(0), Shard(0)])
        assert tensor.redistribute(mesh, [Replicate(), Replicate()]).to_local().equal(given)

    spawn(program, 4)


def test_a_tensor_of_the_main_program_is_planned_as_ever():
    """Outside ranks everything is torch's own."""
    assert not dist.is_initialized()
