"""What tensors compute, against numpy; where operations go and what they cost."""

import numpy as np
import pytest

from simrank.device.dtypes import as_dtype


def test_operators_work_from_both_sides(ctx):
    """3 - x, 2 / x, x @ x, -x and comparisons."""
    x = ctx.tensor([1.0, 2.0, 4.0])
    assert (3 - x).tolist() == [2, 1, -1]
    assert (2 / x).tolist() == [2, 1, 0.5]
    assert (-x).tolist() == [-1, -2, -4]
    assert (x > 1).tolist() == [False, True, True]
    assert (x == x).tolist() == [True, True, True]
    assert (x**2).tolist() == [1, 4, 16]
    square = ctx.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert (square @ square).tolist() == [[7, 10], [15, 22]]


def test_bfloat16_rounds_to_nearest_even(ctx):
    """1 + 2**-8 is halfway and rounds to 1; 1 + 3 * 2**-8 rounds up."""
    one = ctx.ones(1, dtype="bfloat16")
    assert (one + 2.0**-8).item() == 1.0
    assert (one + 3 * 2.0**-8).item() == 1 + 2.0**-6


def test_narrow_sums_and_products_accumulate_in_float32(ctx):
    """1,000 ones in float16 and bfloat16 add up; a matmul does not lose small terms."""
    for dtype in ("float16", "bfloat16"):
        assert ctx.ones(256, dtype=dtype).sum().item() == 256
        row = ctx.ones((1, 256), dtype=dtype)
        assert row.matmul(row.t()).item() == 256
    assert ctx.ones(5, dtype="int32").sum().dtype is as_dtype("int64")


def test_an_in_place_result_that_does_not_fit_is_torchs_error(ctx):
    """An int tensor cannot take a float result."""
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type int64"):
        ctx.arange(3).add_(0.5)


def test_tensors_on_two_devices_are_torchs_error(ctx):
    """The message names both devices."""
    with pytest.raises(RuntimeError, match="cuda:0 and cuda:1"):
        ctx.ones(2, device=0) + ctx.ones(2, device=1)


def test_matmul_of_wrong_shapes_is_torchs_error(ctx):
    """The message names both shapes."""
    with pytest.raises(RuntimeError, match=r"2x3 and 2x3"):
        ctx.ones((2, 3)).matmul(ctx.ones((2, 3)))


def test_a_kernel_costs_roofline_time(shapes):
    """4,096^3 in float32, of which no products were measured; a small one takes the floor."""
    a = shapes.empty((4096, 4096), dtype="float32")
    shapes.synchronize()
    start = shapes.now_ps
    a.matmul(a)
    shapes.drain()
    assert shapes.now_ps - start == pytest.approx(2 * 4096**3 / 67e12 * 1e12, rel=1e-6)
    start = shapes.now_ps
    shapes.ones(1)
    shapes.drain()
    assert shapes.now_ps - start == shapes.cluster.device.kernel_floor_ps


def test_host_tensors_compute_at_once_and_for_free(ctx):
    """Cpu tensors need no stream and no simulated time."""
    x = ctx.ones(3, device="cpu")
    y = (x + 1) * 2
    assert y.device == "cpu"
    assert y.tolist() == [4, 4, 4]
    assert ctx.now_ps == 0


def test_division_of_integers_gives_float32(ctx):
    """As torch's true division."""
    result = ctx.arange(3) / 2
    assert result.dtype.name == "float32"
    assert result.tolist() == [0, 0.5, 1]


def test_broadcasting_is_numpys(ctx):
    """A row and a column make a table; an in-place operation broadcasts its operand."""
    row, column = ctx.arange(3), ctx.arange(2).view(2, 1)
    assert (row + column).tolist() == [[0, 1, 2], [1, 2, 3]]
    x = ctx.zeros((2, 3))
    assert x.add_(row).tolist() == [[0, 1, 2], [0, 1, 2]]
    assert x.add_(row, alpha=2).tolist() == [[0, 3, 6], [0, 3, 6]]


def test_an_in_place_operand_that_does_not_fit_is_an_error_where_it_is_written(shapes):
    """Shapes are checked at once, also without values."""
    x = shapes.zeros(2**20)
    with pytest.raises(RuntimeError, match=r"output with shape \[1048576\] doesn't match"):
        x.add_(shapes.zeros((2, 2**20)))
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        x.add_(shapes.zeros(5))
    with pytest.raises(RuntimeError, match="alpha must not be a floating point"):
        shapes.arange(3).add_(1, alpha=0.5)


def test_scalars_do_not_widen_from_either_side(ctx):
    """Numpy integers and 0-d tensors count as scalars of their category."""
    assert (ctx.arange(3) * np.int64(2)).dtype.name == "int64"
    assert (ctx.tensor(5) * ctx.ones(2, dtype="int8")).dtype.name == "int8"
    assert (ctx.tensor(1.0, dtype="float64") * ctx.ones(2, dtype="float16")).dtype.name == "float16"


def test_reducing_a_huge_shape_only_tensor_takes_no_memory(shapes):
    """Shapes of results are arithmetic."""
    x = shapes.empty((7, 10**10), dtype="uint8")
    assert x.sum().shape == ()
    assert x.sum(1, keepdim=True).shape == (7, 1)
