"""Generators of devices, and numbers that are CUDA's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's custom.

from tests.torch.cuda.check import same

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
