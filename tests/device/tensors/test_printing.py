"""Tensors in reports: the number, if there is one and it is there."""

import pytest

import simrank
from simrank.device.tensors.printing import tensor_text
from simrank.errors import SpawnException


def test_a_tensor_of_one_number_is_shown_if_the_number_is_there():
    """Else its shape: nobody waits for it."""
    with simrank.Context.for_ranks(1) as ctx:
        assert tensor_text(ctx.tensor([0.123456789], device="cpu")) == "0.123457"
        assert tensor_text(ctx.ones(2, 3)) == "tensor of shape (2, 3)"
        x = ctx.ones(1)
        x += 1
        assert tensor_text(x) == "tensor of shape (1,)"
        ctx.synchronize()
        assert tensor_text(x) == "2.0"


def test_an_exception_of_a_rank_shows_its_tensors_later():
    """Their values, or the shape where they are not there yet; other arguments are as they were."""
    kept = object()

    def program(_rank, ctx):
        x, pending = ctx.ones(2), ctx.ones(3)
        ctx.synchronize()
        pending += 1
        try:
            raise KeyError(x)
        except KeyError as error:
            raise ValueError("bad", x, pending, kept) from error

    with simrank.Context.for_ranks(1) as ctx, pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(program, (ctx,), 1, share_args=True)
    error = caught.value.errors[0]
    assert "1." in str(error.__cause__)
    assert (error.args[0], error.args[3]) == ("bad", kept)
    assert str(error.args[1]) == str(error.__cause__)
    assert str(error.args[2]) == "tensor of shape (3,)"
