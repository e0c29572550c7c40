"""Random programs whose ranks are deactivated at random times: those that are left always agree."""

import random

import pytest

import simrank
import simrank.distributed as dist

OPS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "barrier")


def issued(op, rank, size, device):
    """Issue a collective; return its Work, and what it leaves or None."""
    x = simrank.full((4 * size,), float(1 << rank), device=device)
    if op == "all_reduce":
        return dist.all_reduce(x, async_op=True), x
    if op == "broadcast":
        return dist.broadcast(x, 0, async_op=True), x
    if op == "all_gather":
        y = simrank.full((4 * size * size,), 0.0, device=device)
        return dist.all_gather_into_tensor(y, x, async_op=True), y
    if op == "reduce_scatter":
        y = simrank.full((4,), 0.0, device=device)
        return dist.reduce_scatter_tensor(y, x, async_op=True), y
    return dist.barrier(async_op=True), None


def values_of(seed):
    """Run a random program; return what each rank that stayed active saw, call by call."""
    drawn = random.Random(seed)
    size = drawn.choice([2, 3, 4, 6])
    ops = [drawn.choice(OPS) for _ in range(12)]
    faults = [
        {"deactivate": drawn.randrange(1, size), "within": "200 us"}
        for _ in range(drawn.choice([1, 2]))
    ]
    is_async = drawn.random() < 0.5
    backend, device = drawn.choice([("nccl", "cuda"), ("gloo", "cpu")])
    seen = {}

    def program(rank, ctx):
        dist.init_process_group(backend)
        own, calls = random.Random(100 * seed + rank), []
        for op in ops:
            if own.random() < 0.3:
                ctx.engine.sleep(own.randrange(20_000_000))
            calls.append(issued(op, rank, size, device))
            if not is_async:
                calls[-1][0].wait()
        for work, _ in calls:
            work.wait()
        seen[rank] = [None if left is None else set(left.tolist()) for _, left in calls]

    with simrank.Context("hgx_h100", seed=seed, faults=faults, races="error") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=size, share_args=True)
    broken = {fault["deactivate"] for fault in faults}
    return [seen[rank] for rank in sorted(set(seen) - broken)]


@pytest.mark.parametrize("seed", range(30))
def test_ranks_that_stay_agree_on_every_call(seed):
    """Whatever a broken rank had sent counts for all of them, or for none; no race, no hang."""
    first, *others = values_of(seed)
    assert all(other == first for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_ranks_that_stay_agree_on_every_call_of_many_programs(block):
    """As above, for 40 programs each."""
    for seed in range(100 + 40 * block, 140 + 40 * block):
        first, *others = values_of(seed)
        assert all(other == first for other in others), seed
