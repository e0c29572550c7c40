"""Factories: torch's defaults, devices and generators."""

import numpy as np
import pytest

from simrank.errors import NoRankError, SimrankError, UnsupportedError


def test_factories_have_torchs_shapes_and_dtypes(ctx):
    """Sizes as ints or as one sequence; dtypes as torch infers them."""
    assert ctx.zeros(2, 3).shape == ctx.zeros((2, 3)).shape == (2, 3)
    assert ctx.full((2,), 7).dtype.name == "int64"
    assert ctx.full((2,), 7.0).dtype.name == "float32"
    assert ctx.tensor([1, 2]).dtype.name == "int64"
    assert ctx.tensor([1.0, 2]).dtype.name == "float32"
    assert ctx.tensor([True]).dtype.name == "bool"
    assert ctx.tensor(np.ones(2)).dtype.name == "float64"
    assert ctx.arange(2, 10, 3).tolist() == [2, 5, 8]
    assert ctx.ones(1, dtype=ctx.bfloat16).dtype is ctx.bfloat16


def test_the_default_place_is_the_ranks_own_device(run):
    """Rank r's tensors are on device r, others where they are told."""

    def program(rank, ctx):
        assert ctx.ones(1).device.index == rank
        assert ctx.ones(1, device="cuda:1").device.index == 1
        assert ctx.ones(1, device="cpu").device == "cpu"

    run(program, 3)


def test_a_device_that_does_not_exist_is_an_error_with_both_numbers(ctx):
    """The message says how many there are."""
    with pytest.raises(SimrankError, match=r"device 8 does not exist: the cluster has 8"):
        ctx.ones(1, device="cuda:8")
    with pytest.raises(UnsupportedError, match="meta"):
        ctx.ones(1, device="meta")


def test_each_rank_draws_its_own_numbers_and_the_same_in_every_run(run):
    """Generators come from the Context's seed and the rank."""
    found = {}

    def program(rank, ctx, run_number):
        found[run_number, rank] = ctx.rand(4).tolist() + ctx.randn(2).tolist()

    run(program, 2, 0)
    run(program, 2, 1)
    run(program, 2, 2, seed=1)
    assert found[0, 0] == found[1, 0]
    assert found[0, 0] != found[0, 1]
    assert found[0, 0] != found[2, 0]


def test_manual_seed_repeats_a_ranks_numbers(run):
    """As torch.manual_seed, for this rank only."""

    def program(_, ctx):
        ctx.manual_seed(5)
        first = ctx.rand(3).tolist()
        ctx.manual_seed(5)
        assert ctx.rand(3).tolist() == first

    run(program, 2)


def test_a_factory_outside_every_context_says_what_to_do():
    """No Context, no device."""
    from simrank.device.tensors import factories

    with pytest.raises(NoRankError, match=r"with Context\(\)"):
        factories.ones(1)


def test_shape_only_draws_nothing_that_it_throws_away_and_later_numbers_stay(run):
    """A large randn without values, then small numbers: the same as with values."""
    found = {}

    def program(_, ctx, key):
        ctx.randn(2**15)
        found[key] = ctx.rand(4).tolist()

    run(program, 1, "values")
    run(program, 1, "shapes", data=False)
    assert found["values"] == found["shapes"]

    def enormous(_, ctx):
        ctx.randn(2**33)
        ctx.randperm(2**32)

    run(enormous, 1, data=False)


def test_factories_beside_a_tensor_take_its_dtype_and_device(run):
    """The _like factories and the new_ methods."""

    def program(_, ctx):
        x = ctx.ones(2, 3, dtype=ctx.bfloat16, device="cuda:1")
        for y in (ctx.zeros_like(x), ctx.randn_like(x), ctx.randint_like(x, 5), x.new_ones(2, 3)):
            assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
        assert sorted(ctx.randperm(5).tolist()) == list(range(5))
        assert set(ctx.randint(3, 5, (20,)).tolist()) == {3, 4}

    run(program, 1)


def test_every_factory_is_also_a_name_of_the_package():
    """Inside a rank they need no Context at hand."""
    import simrank
    from simrank.device.tensors.namespace import FACTORIES

    assert all(callable(getattr(simrank, name)) for name in FACTORIES)
