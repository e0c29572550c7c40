"""Parts of torch that are not simulated are refused by name."""

import shutil

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.cpp_extension import load, load_inline

from simrank.errors import UnsupportedError

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


def extensions(rank, sources):
    with pytest.raises(UnsupportedError, match=r"'scale' .*scale\.cu\).*\n  to fix: choose"):
        load("scale", [*sources, "scale.cu"])
    with pytest.raises(UnsupportedError, match=r"'inline' has kernels in CUDA C\+\+"):
        load_inline("inline", cpp_sources="", cuda_sources="__global__ void scale() {}")
    with pytest.raises(FileNotFoundError):  # torch's own, as it looks for what it is to build.
        load("host", sources)


def test_kernels_in_cuda_cpp_are_refused_and_sources_for_the_host_are_not(
    spawn, tmp_path, monkeypatch
):
    """Whether they are in files or given as text."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    spawn(extensions, 1, [str(tmp_path / "absent.cpp")])
