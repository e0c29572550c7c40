"""The current stream and device of a program."""

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
    from simrank.device.current import streams_of

    for _ in range(100):
        with ctx.stream(ctx.Stream()):
            x = ctx.zeros(4)
            x.add_(1)
    ctx.synchronize()
    assert x.array.tolist() == [1] * 4
    assert len(list(streams_of(ctx.devices[0], ctx.program))) <= 2
