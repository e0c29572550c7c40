"""Methods of tensors come from tables: the same function under both of torch's spellings."""

import operator

import numpy as np
import pytest

from simrank.device.tensors.methods import TensorMethods
from simrank.errors import UnsupportedError


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (operator.add, "add"),
        (operator.sub, "sub"),
        (operator.mul, "mul"),
        (operator.truediv, "div"),
        (operator.pow, "pow"),
        (operator.floordiv, "floor_divide"),
        (operator.mod, "remainder"),
    ],
)
def test_an_operator_its_method_and_its_function_are_one(ctx, symbol, name):
    """`x + y`, `x.add(y)` and `ctx.add(x, y)`."""
    x, y = ctx.tensor([7.0, -3.0]), ctx.tensor([2.0, 2.0])
    wanted = symbol(x.numpy(), y.numpy())
    for found in (symbol(x, y), getattr(x, name)(y), getattr(ctx, name)(x, y)):
        assert np.allclose(found.numpy(), wanted)


@pytest.mark.parametrize(
    "symbol", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]
)
def test_a_number_may_stand_on_the_left(ctx, symbol):
    """Operands are swapped where that matters."""
    x = ctx.tensor([7.0, 3.0])
    assert np.allclose(symbol(2.0, x).numpy(), symbol(2.0, x.numpy()))


def test_alpha_scales_what_is_added(ctx):
    """In place too, as torch's `add` and `sub`."""
    x = ctx.ones(2)
    assert x.add(x, alpha=3).tolist() == [4.0, 4.0]
    x.sub_(x, alpha=0.5)
    assert x.tolist() == [0.5, 0.5]


def test_every_method_says_what_it_does():
    """Those from tables get their docstring there."""
    public = {name: each for name, each in vars(TensorMethods).items() if name[0] != "_"}
    assert len(public) > 100
    assert [name for name, each in public.items() if callable(each) and not each.__doc__] == []


def test_autograd_is_refused_by_name(ctx):
    """Not with an AttributeError that could be a typing error."""
    with pytest.raises(UnsupportedError, match=r"Tensor\.backward is not supported"):
        ctx.ones(1).backward()


def test_a_comparison_with_what_is_no_number_is_pythons(ctx):
    """`x == None` is False, and does not wait."""
    assert (ctx.ones(1) == None) is False  # noqa: E711 - what is tested
