"""Parts of torch that are not simulated are refused by name."""

import shutil

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

needs_devices = pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")


def fakes(rank, ctx):
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    dist.barrier()
    before = (ctx.now_ps, torch.cuda.memory_allocated())
    with FakeTensorMode():
        made = torch.empty(8, 8, device="cuda")
        product = made @ made
        assert (product.shape, product.device.index) == ((8, 8), rank)
        assert type(dist.all_reduce(product, async_op=True)).__name__ == "FakeWork"
    assert (ctx.now_ps, torch.cuda.memory_allocated()) == before


@needs_devices
@pytest.mark.filterwarnings("ignore")
def test_fake_cuda_tensors_take_no_time_and_no_memory(ctx):
    """As on a GPU: nothing is launched, reduced or allocated."""
    ctx.multiprocessing.spawn(fakes, (ctx,), 2)
