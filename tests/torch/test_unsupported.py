"""Parts of torch that are not simulated are refused by name."""

import shutil

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import simrank
from simrank.errors import SpawnException

needs_devices = pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")


def fakes(rank, device):
    with FakeTensorMode():
        made = torch.empty(8, 8, device=device)
        assert (made @ made).shape == (8, 8)


@needs_devices
@pytest.mark.filterwarnings("ignore")
def test_fake_cuda_tensors_of_a_program_are_refused(spawn):
    """Their operations would take no time."""
    with pytest.raises(SpawnException, match="FakeTensorMode with CUDA tensors is not simulated"):
        spawn(fakes, 2, "cuda")


def test_fake_tensors_of_the_host_are_not(spawn):
    """They take none anyway."""
    spawn(fakes, 2, "cpu")


def test_methods_of_fake_tensors_are_torchs_own_after_the_ranks():
    """A static method stays one: instances call it, too."""
    from torch._subclasses import fake_tensor

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda rank: torch.ones(1), nprocs=1)
    held = vars(fake_tensor.FakeTensor)["_normalize_fake_device"]
    assert type(held) is staticmethod
    assert fake_tensor.FakeTensor._normalize_fake_device(torch.device("cpu")).type == "cpu"
