"""Where torch was built for CUDA, "cuda" means real GPUs unless simulated ones are asked for."""

import shutil

import pytest
import torch

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import torch.distributed as dist

import simrank
from simrank.errors import UnsupportedError
from simrank.torch.devices import activation


@pytest.fixture
def cuda_build(monkeypatch):
    """A torch that was built for CUDA; returns who says whether it sees GPUs."""
    seen = []
    monkeypatch.setattr(activation, "_OF_BUILD", "real")
    monkeypatch.setattr(activation, "has_real_devices", lambda: bool(seen))
    return seen


def test_a_cuda_build_without_gpus_says_how_to_simulate_them(cuda_build):
    """A warning as a program asks what there is, an error as it uses one; gloo works."""

    def program(rank):
        with pytest.warns(UserWarning, match="this torch was built for CUDA"):
            assert not torch.cuda.is_available()
        with pytest.raises(UnsupportedError, match="simrank run --devices simulated"):
            torch.cuda.set_device(rank)
        assert dist.is_nccl_available()
        x = torch.ones(1)
        dist.init_process_group("gloo")
        dist.all_reduce(x)
        assert x == dist.get_world_size()

    with simrank.Context(cuda_devices=None) as context:
        context.cuda_devices = None  # Whatever the project says.
        context.multiprocessing.spawn(program, nprocs=1)


def test_a_cuda_build_simulates_devices_that_are_asked_for(cuda_build):
    """With real ones too, which are hidden meanwhile."""

    def program(rank):
        torch.cuda.set_device(rank)
        assert torch.ones(1, device="cuda").get_device() == rank

    for real in ((), (1,)):
        cuda_build[:] = real
        with simrank.Context(cuda_devices="simulated") as context:
            context.multiprocessing.spawn(program, nprocs=2)


def test_real_gpus_stay_torchs_own(cuda_build):
    """Every stand-in hands on what a rank asks."""
    cuda_build.append(1)
    done = []

    def program(rank):
        torch.cuda.device_count()
        torch.manual_seed(rank)
        with torch.no_grad():
            torch.optim.SGD([torch.ones(1, requires_grad=True)]).step()
        assert not activation.is_enabled()
        done.append(rank)

    with simrank.Context() as context:
        context.cuda_devices = None
        context.multiprocessing.spawn(program, nprocs=2)
    assert done == [0, 1]
