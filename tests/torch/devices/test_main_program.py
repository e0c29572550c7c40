"""The GPUs that the main program of a suite is told of."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("expecttest", reason="PyTorch's test classes need expecttest")

SUITE = """
import torch
import torch.distributed as dist
from torch.testing._internal.common_cuda import TEST_CUDA
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_distributed import MultiProcessTestCase, MultiThreadedTestCase

NUM_GPUS = torch.cuda.device_count()

def test_the_main_program_sees_them():
    assert TEST_CUDA and NUM_GPUS == 4 and torch.accelerator.device_count() == 4
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.accelerator.current_accelerator().type == "cuda"
    assert dist.is_nccl_available() and torch.cuda.nccl.version() > (2, 0)

class Processes(MultiProcessTestCase):
    world_size = NUM_GPUS

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_ranks_see_as_many(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("nccl", store=store, rank=self.rank, world_size=self.world_size)
        assert torch.cuda.device_count() == NUM_GPUS
        torch.cuda.set_device(self.rank)
        tensor = torch.ones(2, device="cuda")
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((2,), 4.0))

class OfDeviceTypes(Processes):
    def test_of_a_kind_of_device(self, device):
        assert device.startswith("cuda")

instantiate_device_type_tests(OfDeviceTypes, globals(), only_for="cuda")

class Threads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_threads_share_a_device(self):
        tensor = torch.ones(2, device="cuda:1")
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((2,), 2.0))
"""


@pytest.mark.slow
def test_a_suite_chooses_by_the_devices_that_the_main_program_sees(tmp_path, monkeypatch):
    """It computes on none; ranks see as many, and threads of one process may share one."""
    (tmp_path / "test_suite.py").write_text(textwrap.dedent(SUITE))
    line = "import simrank.torch.testing; simrank.torch.testing.simulate()\n"
    (tmp_path / "conftest.py").write_text(line)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path).stdout
    assert "5 passed" in out, out


def test_devices_of_a_test_of_its_own_are_those_it_has():
    """What the main program is told otherwise does not stand before them."""
    script = """
import torch
import simrank.torch.testing
from simrank.torch import cuda
simrank.torch.testing.simulate()
with cuda.standalone(2):
    torch.cuda.set_device(1)
    print(torch.cuda.device_count(), torch.cuda.current_device())
print(torch.cuda.device_count())
"""
    command = [sys.executable, "-c", script]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.split() == ["2", "1", "8"]


def test_the_main_program_is_told_of_peers_memory_and_idle_streams():
    """So that suites are collected as on GPUs, and plain tests can step an optimizer."""
    script = """
import simrank.torch.testing; simrank.torch.testing.simulate()
import torch
print(torch.cuda.can_device_access_peer(0, 1))
try:
    torch.cuda.can_device_access_peer(0, 8)
except AssertionError as error:
    print(error)
free, total = torch.cuda.mem_get_info("cuda:1")
print(free == total == torch.cuda.get_device_properties(1).total_memory)
stream = torch.accelerator.current_stream()
print(torch.accelerator.current_device_index(), stream.device, stream.is_capturing())
print(torch.get_device_module() is torch.cuda, torch.get_device_module("cpu") is torch.cpu)
parameter = torch.nn.Parameter(torch.ones(1))
parameter.grad = torch.ones(1)
torch.optim.Adam([parameter], lr=0.5).step()
print(round(parameter.item(), 3))
"""
    command = [sys.executable, "-c", script]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == [
        "True", "Invalid device id", "True", "0 cuda:0 False", "True True", "0.5",
    ]  # fmt: skip
