"""torch.distributed's functions: results, streams, errors."""

import pytest

import simrank.distributed as dist
from simrank.errors import NoRankError

RANKS = (1, 2, 3, 5, 8)


@pytest.mark.parametrize("world", RANKS)
def test_every_collective_gives_torchs_result(run, world):
    """Sums, gathers, scatters, exchanges, roots."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        mine = ctx.full((2,), float(rank))
        total = mine.clone()
        dist.all_reduce(total)
        assert total.tolist() == [sum(range(world))] * 2
        dist.all_reduce(mine.clone(), dist.ReduceOp.MAX)
        gathered = ctx.empty(2 * world)
        dist.all_gather_into_tensor(gathered, mine)
        assert gathered.tolist() == [float(r) for r in range(world) for _ in range(2)]
        part = ctx.empty(2)
        dist.reduce_scatter_tensor(part, gathered)
        assert part.tolist() == [rank * world] * 2
        root = world - 1
        sent = ctx.full((3,), float(rank))
        dist.broadcast(sent, root)
        assert sent.tolist() == [root] * 3
        reduced = ctx.full((1,), float(rank + 1))
        dist.reduce(reduced, root)
        assert reduced.item() == (sum(range(world + 1)) if rank == root else rank + 1)
        out = ctx.empty(world, dtype="int64")
        dist.all_to_all_single(out, ctx.arange(world) + 10 * rank)
        assert out.tolist() == [10 * r + rank for r in range(world)]
        dist.barrier()
        dist.destroy_process_group()

    run(program, world)


def test_in_place_gather_and_scatter(run):
    """all_gather from, and reduce_scatter into, a rank's own part of the large tensor."""

    def program(rank, ctx):
        dist.init_process_group()
        whole = ctx.zeros(8)
        part = whole[2 * rank : 2 * rank + 2]
        part.fill_(rank + 1)
        dist.all_gather_into_tensor(whole, part)
        assert whole.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
        dist.reduce_scatter_tensor(part, whole)
        assert part.tolist() == [4 * (rank + 1)] * 2

    run(program, 4)


def test_barrier_blocks_the_host_until_everybody_is_there(run):
    """Nobody leaves before the last rank has arrived."""
    left_ps = {}

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 2:
            ctx.engine.sleep(10**9)
        dist.barrier()
        left_ps[rank] = ctx.now_ps

    run(program, 3)
    assert min(left_ps.values()) > 10**9


def test_barrier_can_be_asynchronous_and_its_wait_blocks_the_host(run):
    """The Work of a barrier waits on the host."""

    def program(rank, ctx):
        dist.init_process_group()
        work = dist.barrier(async_op=True)
        assert ctx.now_ps == 0
        work.wait()
        assert ctx.now_ps > 0

    run(program, 2)


def test_a_broadcast_root_ends_before_late_ranks_arrive(run):
    """Completion is causal: the root's small message is eager (C2)."""
    done_ps = {}

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.full((4,), float(rank))
        if rank == 3:
            ctx.engine.sleep(10**9)
        dist.broadcast(x, 0)
        assert x.tolist() == [0] * 4
        done_ps[rank] = ctx.now_ps
        x.fill_(-1)  # The root may reuse its buffer: what it sent is already out.

    run(program, 4)
    assert done_ps[0] < 10**8
    assert done_ps[3] > 10**9


def test_collectives_outside_a_rank_say_where_to_call_them():
    """The error names the function and the remedy."""
    with pytest.raises(NoRankError, match=r"all_reduce was called outside a rank"):
        dist.all_reduce(None)


def test_zero_elements_and_one_rank_are_normal(run):
    """Empty tensors take part; a world of one keeps its data."""

    def program(rank, ctx):
        dist.init_process_group()
        empty = ctx.empty(0)
        dist.all_reduce(empty)
        assert empty.tolist() == []
        x = ctx.ones(2)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert x.tolist() == [1, 1]

    run(program, 1)
    run(program, 3)


def test_exchanges_with_empty_parts_and_a_late_rank_end(run):
    """Uneven splits with zeros: whoever needs nothing of the late rank ends no earlier than now."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 3:
            ctx.engine.sleep(10**10)
        splits = [4, 4, 0, 0] if rank < 2 else [0, 0, 4, 4]
        out = ctx.empty(8)
        dist.all_to_all_single(out, ctx.full((8,), float(rank)), splits, splits)
        first = 0.0 if rank < 2 else 2.0
        assert out.tolist() == [first] * 4 + [first + 1] * 4

    run(program, 4)
