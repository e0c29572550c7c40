"""Streams and events: torch's classes, and what the simulator above hears of them."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's custom.

from simrank.errors import UnsupportedError
from simrank.torch import cuda as simulated
from simrank.torch.cuda import StreamCall
from tests.torch.cuda.check import same


def test_streams(recorded):
    """Operations run on the current stream of their device; streams are compared by number."""
    s, current = torch.cuda.Stream(), torch.cuda.current_stream()
    assert s != current
    assert current == torch.cuda.default_stream()
    assert s.device == torch.device("cuda:0")
    assert isinstance(s, torch.Stream)
    x = torch.ones(4, device="cuda")
    with torch.cuda.stream(s):
        assert torch.cuda.current_stream() == s
        y = x * 2
        event = s.record_event()
    assert torch.cuda.current_stream() == current
    current.wait_event(event)
    y + 1
    s.wait_stream(current)
    y.record_stream(s)
    on = {op.name: op.stream for op in recorded()}
    assert on["mul.Tensor"] == s.stream_id
    assert on["add.Tensor"] == current.stream_id
    for done in (event.synchronize, s.synchronize, torch.cuda.synchronize):
        done()
    assert event.query()
    assert s.query()


def test_streams_of_other_devices_priorities_and_numbers(cuda):
    """A stream is made on any device, and named by its number."""
    assert torch.cuda.Stream(priority=-1).priority == -1
    assert torch.cuda.Stream(device=2).device == torch.device("cuda:2")
    assert torch.cuda.ExternalStream(5).cuda_stream == 5
    with torch.cuda.stream(torch.cuda.Stream(device="cuda:1")):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    s = torch.cuda.Stream()
    torch.cuda.set_stream(s)
    assert torch.cuda.current_stream() == s


def test_events(cuda):
    """Without a simulator all is complete and no time passes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    torch.ones(1000, device="cuda").sum()
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) == 0.0
    end.wait()
    end.wait(torch.cuda.Stream())
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.cuda.Event().elapsed_time(end)
    with pytest.raises(UnsupportedError, match="IPC"):
        start.ipc_handle()


def test_backward_runs_on_the_streams_of_forward(recorded):
    """Autograd restores the stream of each node."""
    s = torch.cuda.Stream()
    x = torch.ones(4, device="cuda", requires_grad=True)
    with torch.cuda.stream(s):
        y = x.sin()
    torch.cuda.current_stream().wait_stream(s)
    z = y.sum()
    recorded()
    z.backward()
    assert {op.name: op.stream for op in recorded()}["cos"] == s.stream_id


@pytest.mark.parametrize(
    ("call", "reads"),
    [
        (lambda x: x.item(), True),
        (lambda x: x.view(1).nonzero(), True),
        (lambda x: x.view(1)[x.view(1) > 0], True),
        (lambda x: x.view(1).unique(), True),
        (lambda x: x.equal(x), True),
        (lambda x: x.cpu(), True),
        (lambda x: x.to("cpu", non_blocking=True), False),
        (lambda x: x.view(1).masked_fill_(x.view(1) > 0, 2), False),
        (lambda x: x.view(1).__setitem__(x.view(1) > 0, 2), False),
        (lambda x: x.add(1).sum(), False),
    ],
)
def test_host_reads_are_told(call, reads):
    """Exactly where CUDA's kernels wait for a value or a shape."""
    heard = []
    callbacks = simulated.Callbacks(on_stream_call=lambda what, *_: heard.append(what))
    with simulated.standalone(1, callbacks=callbacks):
        x = torch.ones((), device="cuda")
        heard.clear()
        call(x)
    assert heard == [StreamCall.HOST_READ] * reads


def test_the_simulator_hears_of_streams_and_answers_queries():
    """Every call arrives with rank, device, stream and event; queries and times are its own."""
    heard = []

    def on_stream_call(what, rank, device, stream, event):
        heard.append((what.name, rank, device, stream))
        return what is not StreamCall.STREAM_QUERY

    callbacks = simulated.Callbacks(
        on_stream_call=on_stream_call, elapsed_ms=lambda start, end: 10.0 * (end - start)
    )
    simulated.enable(2, callbacks=callbacks)
    state = simulated.RankState(7, first_device=0, num_devices=2)
    try:
        state.bind()
        s = torch.cuda.Stream(device=1)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(s)
        last.record(s)
        s.wait_event(last)
        assert first.elapsed_time(last) == 10.0
        assert not s.query()
        s.synchronize()
        torch.cuda.synchronize(1)
        torch.ones(1, device="cuda:1").item()
        assert heard == [
            ("STREAM_CREATE", 7, 1, 1),
            ("EVENT_RECORD", 7, 1, 1),
            ("EVENT_RECORD", 7, 1, 1),
            ("STREAM_WAIT_EVENT", 7, 1, 1),
            ("EVENT_QUERY", 7, 1, 1),  # elapsed_time asks first.
            ("EVENT_QUERY", 7, 1, 1),
            ("STREAM_QUERY", 7, 1, 1),
            ("STREAM_SYNCHRONIZE", 7, 1, 1),
            ("DEVICE_SYNCHRONIZE", 7, 1, 0),
            ("HOST_READ", 7, 1, 0),
        ]
    finally:
        simulated.unbind()
        simulated.disable()
        state.free()


# ---- cUDA graphs: captured once, computed again on the same memory ----


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


def reserved():
    """Return how many bytes of the device the allocator has, once it let go of what it could."""
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def test_a_graph_holds_its_pool_and_not_the_tensors_that_it_captured(cuda):
    """What a capture freed is allocated no more, and is reserved as long as the graph lives."""
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2 + 1
    assert torch.cuda.memory_allocated() == 1024, "x and y, not the product"
    segments = torch.cuda.memory_snapshot()
    assert [s["segment_pool_id"] for s in segments] == [(0, 0), graph.pool()]
    with_graph = reserved()
    del y
    assert reserved() == with_graph
    del graph
    assert reserved() < with_graph


def chain(x, length):
    """Compute as many products, of which none but the last is kept."""
    for _ in range(length):
        x = x * 2
    return x


def test_what_a_capture_frees_is_given_out_again_within_it(cuda):
    """A hundred temporaries take the room of two, as on CUDA, and replays are right."""
    x = torch.ones(1 << 20, device="cuda")
    before = reserved()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = chain(x, 100)
    assert reserved() - before < 30 << 20
    x.fill_(3)
    graph.replay()
    assert y.eq(3 * 2.0**100).all()


def test_others_never_get_a_graph_s_memory(cuda):
    """Nor does a replay write what others have."""
    x = torch.ones(1 << 18, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = chain(x, 10)
    others = [torch.full((1 << 18,), 7.0, device="cuda") for _ in range(50)]
    graph.replay()
    assert y.eq(2.0**10).all()
    assert all(each.eq(7).all() for each in others)


def test_graphs_that_share_a_pool_share_its_room(cuda):
    """As frameworks capture a graph per batch size."""
    x = torch.ones(4 << 20, device="cuda")

    def capture(pool):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            chain(x, 3)
        return graph

    def growth(pool, graphs=4):
        before = reserved()
        kept = [capture(pool)]
        one = reserved() - before
        kept += [capture(pool or None) for _ in range(graphs - 1)]
        return (reserved() - before) / one

    assert growth(torch.cuda.graph_pool_handle()) == 1
    assert growth(None) == 4


def test_a_capture_has_no_results_before_the_first_replay(cuda):
    """CUDA has computed nothing yet: whoever reads too early finds out."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.ones(4, device="cuda") * 2
    assert y.isnan().all()
    graph.replay()
    same(y, torch.full((4,), 2.0))


def test_a_graph_forgets_its_pool_when_it_is_reset(cuda):
    """What it gave to tensors stays theirs."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.ones(4, device="cuda") * 2
    graph.replay()
    graph.reset()
    torch.cuda.empty_cache()
    same(y, torch.full((4,), 2.0))
    del y
    assert reserved() == 0


@pytest.mark.parametrize("seed", range(20))
def test_random_captures_replay_what_eager_computes(cuda, seed):
    """Whatever is freed in between, in place or not, on whatever is reused."""
    draw = random.Random(seed)
    choices = [(draw.randrange(5), draw.random(), draw.random()) for _ in range(60)]

    def program(x):
        live = [x * 1]
        for kind, first, second in choices:
            a, b = (live[int(at * len(live))] for at in (first, second))
            if kind == 0 and len(live) > 1:
                live.pop(int(first * len(live)))
            elif kind == 1:
                a.mul_(0.5).add_(1)
            elif kind == 2:
                live.append(torch.cat([a, b])[: a.numel()].clone())
            elif kind == 3:
                torch.add(a, b, out=b)
            else:
                live.append((a * 0.5 + b * 0.25).tanh())
        return torch.stack([each[:64].sum() for each in live])

    x = torch.randn(1 << draw.choice([8, 16, 19]), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = program(x)
    for value in range(3):
        x.normal_(value)
        expected = program(x)
        graph.replay()
        assert torch.equal(y, expected)


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
