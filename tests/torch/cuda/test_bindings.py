"""The small functions of torch.cuda."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.cuda import comm
from torch.nn import functional as F  # noqa: N812 - torch's custom.

from simrank.errors import UnsupportedError
from simrank.torch import cuda as simulated
from tests.torch.cuda.check import same


def test_ranges_of_nvtx_nest(cuda):
    """Push and pop give depths; ranges and marks pass."""
    assert torch.cuda.nvtx.range_push("outer") == 0
    assert torch.cuda.nvtx.range_push("inner") == 1
    assert torch.cuda.nvtx.range_pop() == 1
    assert torch.cuda.nvtx.range_pop() == 0
    torch.cuda.nvtx.mark("here")
    with torch.cuda.nvtx.range("all"):
        pass


def test_settings_and_versions(cuda):
    """What programs set and ask at their start."""
    torch.cuda.init()
    assert torch.cuda.is_initialized()
    torch.cuda.ipc_collect()
    assert torch.cuda.can_device_access_peer(0, 1)
    assert "sm_90" in torch.cuda.get_arch_list()
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    torch.set_float32_matmul_precision(before)
    for backend in ("mkldnn", "cuda"):  # As they were: "highest" makes them "ieee".
        torch._C._set_fp32_precision_setter(backend, "matmul", "none")
    torch.backends.cuda.enable_flash_sdp(True)
    assert torch.backends.cuda.flash_sdp_enabled()


def test_deterministic_algorithms(cuda):
    """Operators with a deterministic kernel run under the switch."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.ones(4, 4, device="cuda").cumsum(0)[3, 0].item() == 4
    finally:
        torch.use_deterministic_algorithms(False)


def test_sleep_is_told():
    """`torch.cuda._sleep` names its cycles and its stream."""
    heard = []
    callbacks = simulated.Callbacks(on_stream_call=lambda *call: heard.append(call))
    with simulated.standalone(1, callbacks=callbacks):
        torch.cuda._sleep(1000)
    assert heard == [(simulated.StreamCall.SLEEP, 0, 0, 0, 1000)]


def test_what_is_not_supported_is_refused_by_name(cuda):
    """Rather than accepted and not done."""
    with pytest.raises(UnsupportedError, match=r"torch\.cuda\.\w+ on simulated CUDA devices"):
        torch.cuda.set_sync_debug_mode("error")


# ---- torch.cuda.comm and DataParallel, over the devices of one rank ----


def test_broadcasts(cuda):
    """To every device, into tensors, and many at once."""
    x = torch.arange(4.0, device="cuda")
    copies = comm.broadcast(x, [0, 1])
    assert [each.device.index for each in copies] == [0, 1]
    assert copies[0] is x
    same(copies[1], x)
    out = [torch.empty(4, device=f"cuda:{index}") for index in range(2)]
    comm.broadcast(x, out=out)
    same(out[1], x)
    both = comm.broadcast_coalesced([x, x * 2], [0, 2])
    assert both[1][1].device.index == 2
    same(both[1][1], x * 2)


def test_scatter_and_gather(cuda):
    """Chunks of equal or given sizes, on streams of their own, and back."""
    x = torch.arange(8.0)
    chunks = comm.scatter(x, [0, 1], streams=[torch.cuda.Stream(0), torch.cuda.Stream(1)])
    assert [chunk.tolist() for chunk in chunks] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    uneven = comm.scatter(x, [0, 1], chunk_sizes=[1, 7])
    assert [len(chunk) for chunk in uneven] == [1, 7]
    same(comm.gather(uneven, destination=3), x)
    assert comm.gather(uneven, destination="cpu").device.type == "cpu"
    out = [torch.empty(size, device=f"cuda:{index}") for index, size in enumerate((3, 5))]
    comm.scatter(x, out=out)
    whole = torch.empty(8, device="cuda")
    same(comm.gather(out, out=whole), x)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_data_parallel_equals_the_plain_module(cuda):
    """Replicas on two devices, in threads of Python's, and gradients added."""
    plain = nn.Linear(4, 4).cuda()
    wrapped = nn.DataParallel(copy.deepcopy(plain), device_ids=[0, 1])
    x = torch.randn(6, 4, device="cuda")
    for model in (plain, wrapped):
        model(x).square().sum().backward()
    same(wrapped(x), plain(x))
    same(wrapped.module.weight.grad, plain.weight.grad, 1e-4)


# ---- generators of devices, and numbers that are CUDA's own ----

# What CUDA builds of torch print, as quoted in public issues and tutorials.
PUBLISHED = {
    (0, torch.rand): [0.3990, 0.5167, 0.0249, 0.9401],
    (42, torch.rand): [0.6130, 0.0101, 0.3984, 0.0403],
    (0, torch.randn): [-0.9247, -0.4253, -2.6438, 0.1452],
    (42, torch.randn): [0.1940, 2.1614, -0.1721, 0.8491],
}


@pytest.mark.parametrize(("seed", "factory"), PUBLISHED)
def test_numbers_are_those_that_gpus_draw(cuda, seed, factory):
    """The first numbers of a seed are those that everybody's GPU shows."""
    torch.manual_seed(seed)
    same(factory(4, device="cuda"), torch.tensor(PUBLISHED[seed, factory]), 1e-4)


def test_one_seed_for_all_devices_and_the_host(cuda):
    """manual_seed seeds both, and neither draws from the other."""
    torch.manual_seed(1)
    a, c = torch.randn(4, device="cuda"), torch.randn(4)
    torch.manual_seed(1)
    c2, b = torch.randn(4), torch.randn(4, device="cuda")
    assert torch.equal(a, b)
    assert torch.equal(c, c2)
    before = torch.get_rng_state()
    F.dropout(torch.rand(9, device="cuda"))
    torch.randperm(10, device="cuda")
    torch.poisson(torch.ones(3, device="cuda"))
    assert torch.equal(before, torch.get_rng_state())


def test_explicit_generators(cuda):
    """A generator is of its device, and one of the host is refused."""
    generator = torch.Generator(device="cuda")
    generator.manual_seed(3)
    a = torch.randn(3, device="cuda", generator=generator)
    generator.manual_seed(3)
    assert torch.equal(a, torch.randn(3, device="cuda", generator=generator))
    assert generator.device.type == "cuda"
    text = "Expected a 'cuda' device type for generator but found 'cpu'"
    with pytest.raises(RuntimeError, match=text):
        torch.empty(3, device="cuda").normal_(generator=torch.Generator())


def test_states(cuda):
    """16 bytes of seed and offset, got and set, per device and all together, and forked."""
    state = torch.cuda.get_rng_state()
    assert state.numel() == 16
    a = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(a, torch.rand(3, device="cuda"))
    assert len(torch.cuda.get_rng_state_all()) == 4
    torch.cuda.manual_seed_all(7)
    a = torch.rand(3, device="cuda:2")
    torch.cuda.manual_seed_all(7)
    torch.rand(3, device="cuda:1")
    assert torch.equal(a, torch.rand(3, device="cuda:2"))
    assert torch.cuda.initial_seed() == 7
    with torch.random.fork_rng(devices=[0]):
        a = torch.rand(2, device="cuda")
    assert torch.equal(a, torch.rand(2, device="cuda"))


def test_graph_safe_states_are_shared(cuda):
    """graphsafe_get_state shares the state, clone_state copies it, a graph may register it."""
    generator = torch.cuda.default_generators[0]
    shared, copied = generator.graphsafe_get_state(), generator.clone_state()
    torch.rand(3, device="cuda")
    assert shared.get_offset() == generator.get_offset() == 4
    assert copied.get_offset() == 0
    generator.graphsafe_set_state(copied)
    assert generator.get_offset() == 0
    torch.rand(3, device="cuda")
    assert copied.get_offset() == 4
    torch.cuda.CUDAGraph().register_generator_state(generator)


def test_offsets_advance_as_cudas(cuda):
    """Four words per thread and call, for as many calls as the grid of an H100 needs."""
    generator = torch.cuda.default_generators[0]
    threads = 132 * 8 * 256

    def advance(draw):
        generator.set_offset(0)
        draw()
        return generator.get_offset()

    assert advance(lambda: torch.rand(1, device="cuda")) == 4
    assert advance(lambda: torch.rand(4 * threads, device="cuda")) == 4
    assert advance(lambda: torch.rand(4 * threads + 1, device="cuda")) == 8
    assert advance(lambda: torch.randn(2 * threads + 1, device="cuda", dtype=torch.double)) == 8
    assert advance(lambda: torch.randint(0, 9, (5,), device="cuda")) == 4
    assert advance(lambda: torch.bernoulli(torch.rand(3, device="cpu").cuda())) == 12
    assert advance(lambda: F.dropout(torch.ones(8, device="cuda"))) == 4
    assert advance(lambda: torch.randperm(10, device="cuda")) == 4 + 12
    assert advance(lambda: torch.multinomial(torch.ones(4, device="cuda"), 2)) == 4


def test_large_tensors_are_drawn_in_grid_strides(cuda):
    """Element t + threads * i is the i-th number of thread t: a small draw is a prefix."""
    threads = 132 * 8 * 256
    torch.cuda.manual_seed(5)
    small = torch.rand(1000, device="cuda")
    torch.cuda.manual_seed(5)
    large = torch.rand(threads + 1000, device="cuda")
    assert torch.equal(large[:1000], small)
    assert not torch.equal(large[threads:], small)


DISTRIBUTIONS = {
    "uniform": (lambda t: t.uniform_(-1, 3), 1.0, 4 / 3),
    "normal": (lambda t: t.normal_(2, 3), 2.0, 9.0),
    "exponential": (lambda t: t.exponential_(2), 0.5, 0.25),
    "log_normal": (lambda t: t.log_normal_(0, 0.5), 1.1331, 0.3647),
    "geometric": (lambda t: t.geometric_(0.5), 2.0, 2.0),
    "bernoulli": (lambda t: t.bernoulli_(0.3), 0.3, 0.21),
    "random": (lambda t: t.random_(0, 5), 2.0, 2.0),
    "poisson": (lambda t: torch.poisson(t.fill_(3)), 3.0, 3.0),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distributions_have_their_moments(cuda, name, dtype):
    """Mean and variance over 40,000 numbers."""
    draw, mean, variance = DISTRIBUTIONS[name]
    numbers = draw(torch.empty(200, 200, device="cuda", dtype=dtype).t())
    assert numbers.mean().item() == pytest.approx(mean, abs=0.05 + 0.02 * abs(mean))
    assert numbers.var().item() == pytest.approx(variance, rel=0.06)


def test_permutations_and_samples(cuda):
    """`randperm` permutes, multinomial without replacement takes nothing twice."""
    for count in (1, 2, 100, 5000):
        drawn = torch.randperm(count, device="cuda")
        assert torch.equal(drawn.sort().values.cpu(), torch.arange(count))
    taken = torch.multinomial(torch.ones(50, device="cuda"), 50)
    assert torch.equal(taken.sort().values.cpu(), torch.arange(50))
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        torch.multinomial(torch.tensor([1.0, -1.0], device="cuda"), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout(cuda, dtype):
    """About p of the numbers become zero, the rest grows; the gradient has the same mask."""
    x = torch.ones(100, 100, device="cuda", dtype=dtype, requires_grad=True)
    y = F.dropout(x, 0.25)
    zeros = (y == 0).float().mean().item()
    assert zeros == pytest.approx(0.25, abs=0.03)
    assert torch.all((y == 0) | (y == torch.tensor(1 / 0.75, dtype=dtype)))
    y.sum().backward()
    assert torch.equal(x.grad, y)
