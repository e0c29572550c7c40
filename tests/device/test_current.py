"""The current stream and device of a program."""

import copy
import pickle

import pytest

from simrank.device import current_device, current_stream
from simrank.errors import NoRankError


def test_a_block_sets_the_current_stream_and_restores_it(ctx):
    """Nested blocks restore what was before, also after an error."""
    default = ctx.current_stream()
    outer, inner = ctx.Stream(), ctx.Stream()
    with ctx.stream(outer):
        with pytest.raises(ValueError, match="stop"), ctx.stream(inner):
            assert current_stream() is inner
            raise ValueError("stop")
        assert current_stream() is outer
    assert current_stream() is default


def test_outside_a_context_there_is_no_current_device():
    """The error says where to call it."""
    with pytest.raises(NoRankError):
        current_device()


def test_streams_that_nobody_holds_are_forgotten_once_their_work_has_ended(ctx):
    """A program that makes a stream per step does not grow (E10), and still waits for all."""
    from simrank.device.stream import streams_of

    for _ in range(100):
        with ctx.stream(ctx.Stream()):
            x = ctx.zeros(4)
            x.add_(1)
    ctx.synchronize()
    assert x.array.tolist() == [1] * 4
    assert len(list(streams_of(ctx.devices[0], ctx.program))) <= 2


def test_a_stream_of_another_device_makes_that_the_current_one(ctx):
    """Within the block, as in torch; factories and collectives follow."""
    side = ctx.cuda.Stream("cuda:2")
    with ctx.cuda.stream(side):
        assert ctx.cuda.current_device() == 2
        assert ctx.ones(1).device.index == 2
        assert ctx.cuda.current_stream() is side
    assert ctx.cuda.current_device() == 0
    ctx.cuda.set_stream(side)
    assert ctx.cuda.current_device() == 2


def test_devices_are_copied_and_pickled_by_their_index(ctx):
    """A device is what it is, wherever it is unpickled."""
    device = ctx.device("cuda:3")
    assert copy.copy(device) is device
    assert copy.deepcopy({"on": device})["on"] is device
    assert pickle.loads(pickle.dumps(device)) is device
