"""CUDA_DEVICE_MAX_CONNECTIONS: launches of several streams in the order of issue."""

import os

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import ConfigError, DeadlockError, SpawnException

found = {}


def overlap(rank, ctx, connections):
    """Let a stream wait for a long product and add a little, then another one add a little too."""
    if connections is not None:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
    a = ctx.empty((8192, 8192), dtype="bfloat16")
    small = ctx.ones(4)
    behind, other = ctx.cuda.Stream(), ctx.cuda.Stream()
    start, waited, free = (ctx.Event() for _ in range(3))
    start.record()
    a.matmul(a)
    behind.wait_stream(ctx.cuda.current_stream())
    with ctx.cuda.stream(behind):
        small.add_(1)
        waited.record()
    with ctx.cuda.stream(other):
        small.clone()
        free.record()
    ctx.synchronize()
    found[connections] = start.elapsed_time(waited), start.elapsed_time(free)


def test_what_is_first_in_a_queue_holds_up_other_streams_behind_it(run):
    """With one connection a stream waits for what another waits for; with enough it does not."""
    for connections in (None, "1", "2", "3"):
        run(overlap, 1, connections, data=False)
    assert found[None] == found["3"]
    assert found[None][1] < 0.1 < found[None][0]
    # The third stream shares the queue of the first, where nothing waits.
    assert found["2"][1] < 0.1
    assert found["1"][1] >= found["1"][0] > 0.1


def test_collectives_and_products_keep_their_order_of_issue(run):
    """All data is right, whatever the number of queues."""

    def program(rank, ctx, connections):
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
        dist.init_process_group("nccl")
        groups = [dist.new_group() for _ in range(3)]
        tensors = [ctx.full((64,), float(rank + index)) for index in range(6)]
        works = [
            dist.all_reduce(x, group=groups[index % 3], async_op=True)
            for index, x in enumerate(tensors)
        ]
        for index, (x, work) in enumerate(zip(tensors, works, strict=True)):
            x2 = ctx.ones(64)
            work.wait()
            x2.add_(x)
            assert x2[0].item() == 1 + 6 + 4 * index

    for connections in ("1", "2", "8", "32"):
        run(program, 4, connections)


def test_a_hang_through_a_shared_queue_names_what_is_first_in_it(run):
    """A stream that has nothing to wait for waits for a collective that a peer never makes."""

    def program(rank, ctx):
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        dist.init_process_group("nccl")
        x = ctx.ones(4)
        if rank == 0:
            dist.all_reduce(x, async_op=True).wait()
            with ctx.cuda.stream(ctx.cuda.Stream()):
                ctx.ones(4).tolist()
        else:
            dist.recv(x, src=0)

    with pytest.raises(DeadlockError, match="rank 0: all_reduce #"):
        run(program, 2)


@pytest.mark.parametrize("given", ["0", "33", "one", "-1"])
def test_a_number_that_is_none_of_cudas_is_an_error(run, given):
    """CUDA knows 1 to 32."""

    def program(rank, ctx):
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = given
        ctx.ones(4)

    with pytest.raises(SpawnException) as caught:
        run(program, 1)
    error = caught.value.errors[0]
    assert isinstance(error, ConfigError)
    assert "CUDA_DEVICE_MAX_CONNECTIONS: expected a number from 1 to 32" in str(error)


def test_a_rank_that_dies_leaves_the_queue_to_others():
    """What it had issued is forgotten; a later program on the same device starts afresh."""

    def fails(rank, ctx):
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        dist.init_process_group("nccl")
        dist.all_reduce(ctx.ones(4), async_op=True)
        ctx.ones(4).add_(1)
        if rank:
            raise ValueError("dead")
        ctx.synchronize()

    with simrank.Context("hgx_h100", data=False) as ctx:
        with pytest.raises(SpawnException):
            ctx.multiprocessing.spawn(fails, args=(ctx,), nprocs=2)
        ctx.multiprocessing.spawn(overlap, args=(ctx, "1"), nprocs=2)
