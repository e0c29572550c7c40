"""Streams and events: torch's classes, and what the simulator above hears of them."""

from __future__ import annotations

import pytest
import torch

from simrank.errors import UnsupportedError
from simrank.torch import cuda as simulated
from simrank.torch.cuda import StreamCall


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
