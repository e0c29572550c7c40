"""Functions of every element, held against numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simrank
from simrank.device.tensors import elementwise

NUMBERS = st.lists(st.integers(-8, 8), min_size=1, max_size=6)


@given(NUMBERS, st.sampled_from(["add", "sub", "mul", "maximum", "minimum"]))
def test_elementwise_operations_equal_numpy(values, name):
    """On float32 and int64 tensors, with a tensor and with a number."""
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply}.get(name) or getattr(
        np, name
    )
    with simrank.Context("hgx_h100") as ctx:
        for dtype in ("float32", "int64"):
            x = ctx.tensor(values, dtype=dtype)
            assert getattr(x, name)(x).tolist() == function(values, values).tolist()
            if name not in ("maximum", "minimum"):  # As in torch, these take tensors only.
                assert getattr(x, name)(3).tolist() == function(values, 3).tolist()


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_wide_unsigned_integers_have_what_torch_has_of_them(name):
    """Products, equality and bits are exact; what torch refuses is refused in its words."""
    largest = np.iinfo(name).max
    with simrank.Context("hgx_h100") as ctx:
        x = ctx.tensor([1, 2, largest], dtype=name)
        assert x.dtype is getattr(simrank, name)
        assert (x * x).tolist() == [1, 4, 1]
        assert (x == largest).tolist() == [False, False, True]
        assert (x & 3).tolist() == [1, 2, 3]
        assert x[1:].clone().tolist() == [2, largest]
        assert (x / 2).dtype is simrank.float32
        assert x.view(getattr(simrank, name[1:])).tolist() == [1, 2, -1]
        refused = [
            lambda: x + x, lambda: x - 1, lambda: -x, lambda: x < 2, x.max,
            x.argmin, lambda: x.topk(1), lambda: ~x, lambda: x // 2, x.abs,
        ]  # fmt: skip
        for function in refused:
            with pytest.raises(NotImplementedError, match=f"not implemented for '{name}'"):
                function()
        assert (x * ctx.tensor(2)).tolist() == [2, 4, largest - 1]  # A scalar does not promote.
        with pytest.raises(IndexError, match="must be long, int, byte or bool"):
            ctx.ones(3)[x]
        with pytest.raises(RuntimeError, match="Promotion for uint16"):
            x * ctx.tensor([1, 2, 3], dtype="int32")


def test_wide_unsigned_integers_agree_with_torch_function_by_function():
    """Every function of one and of two: computed alike, or refused by both."""
    torch = pytest.importorskip("torch")
    values = [1, 2, 60000]
    with simrank.Context("hgx_h100") as ctx:
        for name in sorted(elementwise.UNARY.keys() - {"gelu", "gelu_tanh", "silu"}):
            _both_alike(torch, ctx, name, [values])
        for name in sorted(elementwise.BINARY):
            _both_alike(torch, ctx, name, [values, [3, 2, 60001]])


def _both_alike(torch, ctx, name, operands):
    ours = [ctx.tensor(values, dtype="uint16") for values in operands]
    theirs = [torch.tensor(values, dtype=torch.uint16) for values in operands]
    try:
        wanted = getattr(torch, name)(*theirs)
    except NotImplementedError:
        with pytest.raises(NotImplementedError):
            getattr(ctx, name)(*ours)
        return
    found = getattr(ctx, name)(*ours)
    assert (name, found.dtype.name) == (name, str(wanted.dtype).removeprefix("torch."))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6)
