"""Random numbers of tensor-parallel ranks: one stream that all share, one that each has alone."""

import pytest

import simrank.distributed as dist
from simrank.tp import parallel_state
from simrank.tp.random import fork, init_method_normal, model_parallel_manual_seed


def drawn(ctx, *, shared):
    """Return two numbers from one of the streams."""
    with fork(shared=shared):
        return ctx.rand(2).tolist()


@pytest.mark.ranks(4)
def test_the_shared_stream_is_one_and_the_others_are_four(ctx):
    """Over the ranks of a tensor-parallel group."""
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(4)
    model_parallel_manual_seed(7)
    everywhere = [None] * 4
    dist.all_gather_object(everywhere, (drawn(ctx, shared=True), drawn(ctx, shared=False)))
    assert len({tuple(shared) for shared, _ in everywhere}) == 1
    assert len({tuple(own) for _, own in everywhere}) == 4


@pytest.mark.ranks(1)
def test_a_stream_goes_on_where_it_stopped(ctx):
    """And a seed starts it again; what is drawn outside does not move it."""
    model_parallel_manual_seed(7)
    first, _, second = drawn(ctx, shared=True), ctx.rand(5), drawn(ctx, shared=True)
    assert first != second
    model_parallel_manual_seed(7)
    assert [drawn(ctx, shared=True), drawn(ctx, shared=True)] == [first, second]


@pytest.mark.ranks(1)
def test_the_initialiser_has_its_standard_deviation(ctx):
    """Normal numbers around 0, written into the tensor."""
    weight = ctx.empty(100, 100)
    with fork(shared=True):
        init_method_normal(0.02)(weight)
    numbers = weight.numpy()
    assert abs(numbers.mean()) < 1e-3
    assert abs(numbers.std() - 0.02) < 1e-3
