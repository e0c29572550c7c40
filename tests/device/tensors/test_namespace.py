"""torch's names on a Context: a program that takes `torch` as a parameter can be handed one."""

import pytest

import simrank
from simrank.errors import SimrankError


def layer(torch, x, weight):
    with torch.no_grad():
        h = torch.matmul(x, weight.t())
        return torch.cat([torch.relu(h), torch.softmax(h, dim=-1)], dim=1)


def test_a_program_that_takes_torch_as_a_parameter_can_be_handed_a_context(run):
    """Functions, dtypes, devices, seeds, distributed and multiprocessing under torch's names."""

    def program(rank, torch):
        dist = torch.distributed
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        dist.init_process_group("nccl")
        x = torch.randn(4, 8, device=torch.device("cuda", rank))
        y = layer(torch, x, torch.eye(8, dtype=torch.float))
        dist.all_reduce(y)
        assert isinstance(y, torch.Tensor)
        assert y.shape == (4, 16)
        assert y.device.type == "cuda"
        assert y.device == torch.device(f"cuda:{rank}")
        assert torch.allclose(y[:, 8:].sum(1), torch.full((4,), 2.0))
        assert torch.equal(torch.where(x > 0, x, 0), x.relu())
        assert torch.multiprocessing.get_context is simrank.multiprocessing.get_context

    run(program, 2)


def test_torch_cuda_is_there(run):
    """Devices, streams, events and memory."""

    def program(rank, torch):
        cuda = torch.cuda
        assert cuda.is_available()
        assert cuda.device_count() == 8
        assert cuda.current_device() == rank
        stream = cuda.Stream()
        with cuda.stream(stream):
            assert cuda.current_stream() is stream
        assert cuda.current_stream() is cuda.default_stream()
        x = torch.empty(1024, device="cuda")
        assert cuda.memory_allocated() == x.nbytes
        assert cuda.mem_get_info()[0] == cuda.mem_get_info()[1] - x.nbytes
        del x
        assert cuda.memory_allocated() == 0
        assert cuda.max_memory_allocated() == 4096
        with cuda.device(3):
            assert torch.ones(1).device.index == 3
        assert cuda.current_device() == rank
        cuda.set_device("cuda:2")
        assert torch.ones(1).device.index == 2
        assert cuda.current_stream().device.index == 2
        cuda.synchronize()
        cuda.empty_cache()
        assert not hasattr(cuda, "graphs")
        properties = cuda.get_device_properties("cuda")
        assert properties.multi_processor_count == torch.cluster.device.num_sms == 132
        assert properties.total_memory == cuda.mem_get_info()[1]
        assert properties.name == cuda.get_device_name()

    run(program, 2)


def test_a_device_that_is_none_is_an_error_with_both_numbers(ctx):
    """set_device checks before it changes anything."""
    with pytest.raises(SimrankError, match="device 9 does not exist: the cluster has 8"):
        ctx.cuda.set_device(9)
    assert ctx.cuda.current_device() == 0
    assert ctx.device("cpu") == "cpu"
    assert ctx.device("cpu").type == "cpu"


def test_a_name_of_the_module_is_looked_up_once_unless_it_depends_on_who_runs():
    """Programs write `simrank.empty` in their loops; `simrank.cuda` is whoever's runs."""
    for name in ("empty", "float32", "cat", "long"):
        assert getattr(simrank, name) is getattr(simrank, name)
        assert name in vars(simrank)
    for name in ("cuda", "current_stream", "synchronize"):
        getattr(simrank, name)
        assert name not in vars(simrank)
