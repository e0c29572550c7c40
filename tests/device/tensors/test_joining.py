"""Tensors from several others or several times one, held against numpy; torch's errors."""

import numpy as np
import pytest


@pytest.fixture
def pair(ctx):
    """Two tensors of different dtypes, and their numbers."""
    first = np.arange(6, dtype=np.float32).reshape(2, 3)
    second = -np.arange(6, dtype=np.int32).reshape(2, 3)
    return (ctx.from_numpy(first).cuda(), ctx.from_numpy(second).cuda()), (first, second)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat_joins_along_a_dim_and_promotes(ctx, pair, dim):
    """Float32 and int32 give float32; empty tensors of one dim are skipped."""
    tensors, arrays = pair
    joined = ctx.cat([*tensors, ctx.zeros(0)], dim)
    assert joined.dtype is ctx.float32
    assert np.array_equal(joined.numpy(), np.concatenate(arrays, dim))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_stack_makes_a_new_dim(ctx, pair, dim):
    """Between any two of the old ones."""
    tensors, arrays = pair
    assert np.array_equal(ctx.stack(tensors, dim).numpy(), np.stack(arrays, dim))


@pytest.mark.parametrize(
    ("name", "args", "wanted"),
    [
        ("repeat", (2, 1, 2), lambda x: np.tile(x, (2, 1, 2))),
        ("repeat_interleave", (3, 1), lambda x: np.repeat(x, 3, 1)),
        ("repeat_interleave", (2,), lambda x: np.repeat(x, 2)),
        ("flip", (0, 1), lambda x: np.flip(x, (0, 1))),
        ("roll", (1, 1), lambda x: np.roll(x, 1, 1)),
        ("tril", (), np.tril),
        ("triu", (1,), lambda x: np.triu(x, 1)),
        ("clamp", (1, 4), lambda x: np.clip(x, 1, 4)),
    ],
)
def test_copies_of_a_tensor_equal_numpys(pair, name, args, wanted):
    """Repeated, turned round, moved on, cut and bounded."""
    (tensor, _), (array, _) = pair
    assert np.array_equal(getattr(tensor, name)(*args).numpy(), wanted(array))


def test_what_optimizers_compute_is_one_kernel_in_place(ctx, pair):
    """`addcmul_`, `addcdiv_` and `lerp_` write the tensor that they are called on."""
    (x, _), (array, _) = pair
    ones = ctx.ones(2, 3)
    before = x.data_ptr()
    x.addcmul_(ones, ones, value=2).addcdiv_(ones, 2 * ones, value=4).lerp_(ones, 0.5)
    assert x.data_ptr() == before
    assert np.allclose(x.numpy(), (array + 2 + 2 + 1) / 2)


def test_sizes_that_differ_elsewhere_are_torchs_error(ctx):
    """With both sizes and the number of the tensor."""
    with pytest.raises(RuntimeError, match="Expected size 3 but got size 4 for tensor number 1"):
        ctx.cat([ctx.ones(2, 3), ctx.ones(2, 4)])
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        ctx.stack([ctx.ones(2), ctx.ones(3)])
    with pytest.raises(RuntimeError, match="At least one of 'min' or 'max'"):
        ctx.ones(2).clamp()
