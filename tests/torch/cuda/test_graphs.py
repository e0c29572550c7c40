"""CUDA graphs: captured once, computed again on the same memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's custom.

from tests.torch.cuda.check import same


def test_a_graph_is_replayed_on_new_numbers(cuda):
    """What lies in the captured memory at the time of the replay is computed with."""
    graph = torch.cuda.CUDAGraph()
    x, w = torch.ones(4, device="cuda"), torch.full((4,), 2.0, device="cuda")
    with torch.cuda.graph(graph):
        y = (x * w + 1).relu()
        assert torch.cuda.is_current_stream_capturing()
    assert not torch.cuda.is_current_stream_capturing()
    x.fill_(5)
    graph.replay()
    same(y, torch.full((4,), 11.0))
    x.fill_(-5)
    graph.replay()
    same(y, torch.zeros(4))


def test_a_replay_is_recorded_again(recorded):
    """Each replay is its operations once more, on the current stream."""
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(4, device="cuda")
    with torch.cuda.graph(graph):
        x * 2 + 1
    recorded()
    graph.replay()
    operations = recorded()
    assert [op.name for op in operations] == ["mul.Tensor", "add.Tensor"]
    assert all(op.flags == 4 and op.stream == 0 for op in operations)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_graphed_callables(cuda):
    """make_graphed_callables captures forward and backward."""
    model = nn.Linear(4, 4).cuda()
    graphed = torch.cuda.make_graphed_callables(model, (torch.ones(2, 4, device="cuda"),))
    x = torch.randn(2, 4, device="cuda")
    same(graphed(x), F.linear(x, model.weight, model.bias))
    graphed(x).sum().backward()
    same(model.bias.grad, torch.full((4,), 2.0))


@pytest.mark.parametrize(
    "read", [lambda x: x.sum().item(), lambda x: x.cpu(), lambda x: x.nonzero()]
)
def test_a_host_read_inside_a_capture_is_refused(cuda, read):
    """As CUDA refuses it."""
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"),
        torch.cuda.graph(graph),
    ):
        read(x * 2)
    assert not torch.cuda.is_current_stream_capturing()


def test_replays_draw_anew(cuda):
    """Random numbers inside a graph continue the generator's sequence."""
    graph = torch.cuda.CUDAGraph()
    x = torch.empty(4, device="cuda")
    with torch.cuda.graph(graph):
        x.uniform_()
    torch.cuda.manual_seed(3)
    expected = [torch.rand(4, device="cuda") for _ in range(2)]
    torch.cuda.manual_seed(3)
    for numbers in expected:
        graph.replay()
        assert torch.equal(x, numbers)


def test_a_graph_that_nobody_has_gives_its_memory_back(cuda):
    """What was captured keeps memory as long as the graph lives."""
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x * 2
    assert torch.cuda.memory_allocated() == 1024
    del graph
    assert torch.cuda.memory_allocated() == 512


def test_a_graph_keeps_memory_that_a_storage_lets_go(cuda):
    """A storage that is resized within a capture, as FSDP's are, or after it, has other memory."""
    x = torch.ones(4, device="cuda")
    gathered, other = torch.empty(4, device="cuda"), torch.full((4,), 3.0, device="cuda")
    gathered.untyped_storage().resize_(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gathered.untyped_storage().resize_(16)
        torch._foreach_copy_([gathered], [x])
        y = gathered * 2 + other
        gathered.untyped_storage().resize_(0)
    other.untyped_storage().resize_(0)
    filled = [torch.full((4,), 9.0, device="cuda") for _ in range(4)]
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        same(y, torch.full((4,), 2 * value + 3))
    assert all(each.tolist() == [9.0] * 4 for each in filled), "nobody else's memory"
    del graph, filled
    assert torch.cuda.memory_allocated() == 1024, "x and y"


def test_a_capture_changes_nothing(cuda):
    """CUDA only records: what is written in place has its old numbers, and so has the generator."""
    x, total = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    weight = torch.ones(4, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.manual_seed(3)
    with torch.cuda.graph(graph):
        total += x
        total[:2].mul_(2)
        drawn = torch.rand(4, device="cuda")
        (weight * x).sum().backward()
        optimizer.step()
    same(total, torch.zeros(4))
    same(weight, torch.ones(4))
    weight_after = weight.detach().cpu()
    torch.cuda.manual_seed(3)
    expected = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(3)
    graph.replay()
    assert torch.equal(drawn, expected)
    same(total, torch.tensor([2.0, 2.0, 1.0, 1.0]))
    same(weight, weight_after - 0.5)
