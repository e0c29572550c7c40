"""Tensors in reports: the number, if there is one and it is there."""

import simrank
from simrank.device.tensors.printing import tensor_text


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
