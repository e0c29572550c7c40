"""DTensors are known without an import of them."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.distributed as dist

import simrank
from simrank.equality.dtensors import is_dtensor, local_part, part_of


def test_nothing_is_imported_to_say_that_a_tensor_is_plain():
    """Neither by the question nor by the modules of `simrank equal`."""
    code = """
import sys, torch
import simrank.equality.judge
from simrank.equality.dtensors import is_dtensor, local_part
x = torch.ones(2)
assert not is_dtensor(x) and local_part(x) is x
assert "torch.distributed.tensor" not in sys.modules
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_rank_s_part_of_a_whole_is_that_of_its_shard():
    """Of sizes that do not divide, too: the last rank may have fewer or none."""

    def program(rank, num_rows):
        from torch.distributed.tensor import Shard, distribute_tensor

        dist.init_process_group("gloo")
        mesh = dist.device_mesh.init_device_mesh("cpu", (4,))
        whole = torch.arange(num_rows * 2.0).view(num_rows, 2)
        shard = distribute_tensor(whole, mesh, [Shard(0)])
        assert is_dtensor(shard)
        assert torch.equal(part_of(whole, shard), local_part(shard))
        assert rank < 4

    for num_rows in (8, 5, 2):
        simrank.multiprocessing.spawn(program, (num_rows,), 4, share_args=True)
