"""What a call costs the interpreter is part of the design (C7)."""

import cProfile
import pstats

import numpy as np
import pytest

import simrank
import simrank.distributed as dist
from simrank.distributed import api
from simrank.errors import CollectiveMismatchError


def python_calls(num_calls, num_ranks=8):
    """Return how many functions a run of some all_reduces calls."""

    def program(rank):
        dist.init_process_group("nccl")
        x = simrank.ones(1024)
        for _ in range(num_calls):
            dist.all_reduce(x)
        x[0].item()

    profiler = cProfile.Profile()
    profiler.enable()
    with simrank.Context(checks="off") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=num_ranks)
    profiler.disable()
    return pstats.Stats(profiler).total_calls


def test_a_call_of_a_rank_is_at_most_seventy_calls_of_python():
    """With all that the engine does for it; it was 480, then 100."""
    python_calls(2)
    extra = python_calls(60) - python_calls(10)
    assert extra / 50 / 8 < 70


def test_a_call_is_described_once_for_tensors_of_the_same_kind(run, monkeypatch):
    """Another shape, type, reduction or group is another call; another rank or tensor is not."""
    described = []
    real = api._all_reduce
    monkeypatch.setattr(api, "_all_reduce", lambda *a: described.append(a) or real(*a))

    def program(rank, ctx):
        dist.init_process_group("nccl")
        group = dist.new_group()
        for _ in range(3):
            dist.all_reduce(ctx.ones(4))
            dist.all_reduce(ctx.ones(2, 2))
            dist.all_reduce(ctx.ones(4), dist.ReduceOp.MAX)
            dist.all_reduce(ctx.ones(4, dtype=ctx.int32))
            dist.all_reduce(ctx.ones(4), group=group)

    run(program, 4)
    assert len(described) == 5


def test_a_wrong_call_is_wrong_every_time(run):
    """Nothing is remembered of it."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        for _ in range(3):
            with pytest.raises(ValueError, match="must be contiguous"):
                dist.all_reduce(ctx.ones(4, 4).T)
            with pytest.raises(ValueError, match="world_size times input"):
                dist.all_gather_into_tensor(ctx.ones(4), ctx.ones(4))
            with pytest.raises(TypeError, match="Expected parameter `tensor`"):
                dist.all_reduce(np.ones(4))
            with pytest.raises(ValueError, match="different devices, cpu and cuda:"):
                dist.all_gather_into_tensor(ctx.ones(8), ctx.ones(4, device="cpu"))

    run(program, 2)


def test_calls_that_differ_are_found_when_both_are_known(run):
    """Both were made before, in another order."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        small, large = ctx.ones(4), ctx.ones(8)
        dist.all_reduce(small)
        dist.all_reduce(large)
        dist.all_reduce(small if rank else large)

    with pytest.raises(simrank.multiprocessing.SpawnException) as caught:
        run(program, 2)
    error = next(iter(caught.value.errors.values()))
    assert isinstance(error, CollectiveMismatchError)
    assert error.differing == ("count",)


def test_a_premultiplied_sum_takes_each_rank_s_own_factor(run):
    """A factor is no metadata: it is not remembered."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        for factor in (2.0, 3.0):
            x = ctx.ones(2)
            dist.all_reduce(x, dist._make_nccl_premul_sum(factor + rank))
            assert x.tolist() == [2 * factor + 1] * 2

    run(program, 2)


def test_what_is_no_tensor_is_refused_by_name_whatever_the_reduction_is_called(run):
    """A name of nccl-tests, a premultiplied sum, and a list instead of a tensor."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        premul = dist._make_nccl_premul_sum(2.0)
        for wrong, op in ((np.ones(4), "sum"), ([1], "sum"), (np.ones(4), premul)):
            with pytest.raises(TypeError, match="Expected parameter `tensor`"):
                dist.all_reduce(wrong, op)

    run(program, 2)


def test_a_root_that_cannot_be_hashed_is_looked_at_each_time(run):
    """A numpy array of one number stands for it, as in an index."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.full((2,), float(rank))
        for _ in range(2):
            dist.broadcast(x, np.array([1])[0])
        assert x.tolist() == [1.0, 1.0]
        with pytest.raises(TypeError):
            dist.broadcast(x, [0])

    run(program, 2)


def test_the_warning_of_a_rank_that_is_no_member_names_its_line(run):
    """For each function, however deep the library calls it."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        group = dist.new_group([0])
        x = ctx.ones(2)
        calls = (
            lambda: dist.all_reduce(x, group=group),
            lambda: dist.broadcast(x, 0, group=group),
            lambda: dist.barrier(group),
            lambda: dist.all_gather([ctx.ones(2)], x, group=group),
            lambda: dist.send(x, 0, group),
        )
        if rank == 1:
            for call in calls:
                with pytest.warns(UserWarning, match="which does not belong") as caught:
                    call()
                assert caught[0].filename == __file__

    run(program, 2)
