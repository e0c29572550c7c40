"""torch.distributed's functions: results, streams, errors."""

import numpy as np
import pytest

import simrank.distributed as dist
from simrank.errors import NoRankError, UnsupportedError

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


def test_all_to_all_single_takes_uneven_splits(run):
    """Rank r sends d + 1 rows to rank d."""

    def program(rank, ctx):
        dist.init_process_group()
        rows = ctx.arange(6 * 2).view(6, 2) + 100 * rank
        out = ctx.empty((rank + 1) * 3, 2, dtype="int64")
        dist.all_to_all_single(out, rows, [rank + 1] * 3, [1, 2, 3])
        first = sum(range(rank + 1))
        expected = [[100 * r + 2 * i, 100 * r + 2 * i + 1]
                    for r in range(3) for i in range(first, first + rank + 1)]  # fmt: skip
        assert out.tolist() == expected

    run(program, 3)


def test_reduce_ops_on_integers(run):
    """prod, min, max, avg with nccl; the bitwise ones with gloo."""
    expected = {"sum": 10, "prod": 24, "min": 1, "max": 4, "avg": 2, "band": 0, "bor": 7, "bxor": 4}

    def program(rank, ctx):
        dist.init_process_group()
        for op in dist.ReduceOp:
            if op is not dist.ReduceOp.PREMUL_SUM:
                bitwise = op.value in ("band", "bor", "bxor")
                x = ctx.full((3,), rank + 1, device="cpu" if bitwise else None)
                dist.all_reduce(x, op)
                assert x.tolist() == [expected[op.value]] * 3

    run(program, 4)


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


def test_sub_groups_have_their_own_ranks_and_calls(run):
    """Two disjoint groups reduce apart; non-members get -1, None and torch's warning."""

    def program(rank, ctx):
        dist.init_process_group()
        even, odd = dist.new_group([0, 2]), dist.new_group([1, 3], group_desc="odd")
        mine, other = (even, odd) if rank % 2 == 0 else (odd, even)
        assert dist.get_rank(mine) == mine.rank() == rank // 2
        assert dist.get_rank(other) == -1
        assert dist.get_world_size(mine) == 2
        assert dist.get_world_size(other) == -1
        x = ctx.full((1,), float(rank))
        assert other == dist.GroupMember.NON_GROUP_MEMBER
        with pytest.warns(UserWarning, match=f"Running all_reduce on global rank {rank} which"):
            assert dist.all_reduce(x, group=other) is None
        dist.all_reduce(x, group=mine)
        dist.broadcast(x, src=mine.ranks[1], group=mine)
        assert x.item() == (2 if rank % 2 == 0 else 4)
        assert rank % 2 == 0 or odd.name == "odd"

    run(program, 4)


def test_a_synchronous_collective_does_not_block_the_host(run):
    """async_op=False runs on the current stream; the host goes on until it reads (NCCL)."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        assert dist.all_reduce(x) is None
        assert ctx.now_ps == 0
        assert x.tolist() == [2] * 4

    run(program, 2)


def test_an_asynchronous_collective_overlaps_with_the_current_stream(run):
    """Work on the current stream runs beside it; after wait() it runs behind it."""

    def program(rank, ctx):
        dist.init_process_group()
        x, y = ctx.ones(2**24), ctx.ones(4)
        work = dist.all_reduce(x, async_op=True)
        y.add_(1)
        assert y.tolist() == [2] * 4
        assert not work._operation.complete
        assert work.wait() is True
        x.mul_(10)
        assert x[:2].tolist() == [20, 20]
        assert work.is_completed()
        assert work.is_success()
        assert work.result()[0] is x

    run(program, 2)


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


def test_initialisation_has_torchs_rules(run):
    """Once, with the right rank and world size, and again after destroy."""

    def program(rank, ctx):
        with pytest.raises(ValueError, match="Default process group has not been initialized"):
            dist.get_rank()
        assert not dist.is_initialized()
        dist.init_process_group("nccl", rank=rank, world_size=2)
        with pytest.raises(ValueError, match="default process group twice!"):
            dist.init_process_group()
        assert dist.is_initialized()
        dist.destroy_process_group()
        with pytest.raises(ValueError, match="rank=7"):
            dist.init_process_group(rank=7)
        with pytest.raises(UnsupportedError, match="mpi"):
            dist.init_process_group("mpi")
        dist.init_process_group()
        x = ctx.ones(1)
        dist.all_reduce(x)
        assert x.item() == 2
        dist.destroy_process_group()
        with pytest.raises(ValueError, match="Invalid process group"):
            dist.destroy_process_group()

    run(program, 2)


def test_bad_tensors_get_torchs_errors(run):
    """Type, place, contiguity, dtype and sizes."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        with pytest.raises(TypeError, match="Invalid function argument"):
            dist.all_reduce(np.ones(2))
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(ctx.ones(2, device="cpu"))
        with pytest.raises(ValueError, match="must be contiguous"):
            dist.all_reduce(ctx.ones((2, 3)).t())
        with pytest.raises(ValueError, match="different dtypes"):
            dist.all_gather_into_tensor(ctx.ones(4), ctx.ones(2, dtype="int32"))
        with pytest.raises(ValueError, match="world_size times input"):
            dist.all_gather_into_tensor(ctx.ones(5), ctx.ones(2))
        with pytest.raises(ValueError, match="output size times world size"):
            dist.reduce_scatter_tensor(ctx.ones(2), ctx.ones(5))
        with pytest.raises(RuntimeError, match="does not divide equally"):
            dist.all_to_all_single(ctx.ones(3), ctx.ones(3))
        with pytest.raises(RuntimeError, match="doesn't match total dim 0 size"):
            dist.all_to_all_single(ctx.ones(3), ctx.ones(3), [1, 1], [1, 2])
        with pytest.raises(UnsupportedError, match="choices: sum"):
            dist.all_reduce(ctx.ones(2), op="median")

    run(program, 2)


def test_bad_groups_and_peers_get_torchs_errors(run):
    """Ranks that do not exist, roots outside the group, both ways of naming a root."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(1)
        with pytest.raises(ValueError, match="Rank 5 is out of range"):
            dist.new_group([0, 5])
        with pytest.raises(ValueError, match="duplicate"):
            dist.new_group([0, 0])
        pair = dist.new_group([0, 1])
        if rank < 2:
            with pytest.raises(ValueError, match="Global rank 2 is not part of group"):
                dist.broadcast(x, 2, group=pair)
        with pytest.raises(ValueError, match="Can't specify both group_rank and global_rank"):
            dist.broadcast(x, 0, group_src=0)
        with pytest.raises(ValueError, match="Invalid destination rank"):
            dist.send(x, rank)
        with pytest.raises(UnsupportedError, match="any source"):
            dist.recv(x)

    run(program, 3)


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


def test_collectives_of_one_group_run_one_after_the_other(run):
    """A communicator serializes what is launched on it, whatever the streams."""
    took_ps = {}

    def program(rank, ctx, count):
        dist.init_process_group()
        x, y = ctx.empty(2**26), ctx.empty(2**26)
        work = dist.all_reduce(x, async_op=True)
        if count == 2:
            dist.all_reduce(y)
        work.wait()
        ctx.synchronize()
        took_ps[count] = ctx.now_ps

    run(program, 4, 1, data=False)
    run(program, 4, 2, data=False)
    assert took_ps[2] > 1.9 * took_ps[1]


def test_an_asynchronous_collective_follows_the_current_streams_work(run):
    """It reads what was issued before it, however long that takes."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.zeros(4)
        large = ctx.empty((2048, 2048), dtype="bfloat16")
        large @ large
        x.fill_(rank + 1)
        dist.all_reduce(x, async_op=True).wait()
        assert x.tolist() == [3] * 4

    run(program, 2)


def test_what_is_no_group_of_this_spawn_is_refused(run):
    """A number, a string, a group kept from an earlier spawn."""
    kept = []

    def first(rank, ctx):
        dist.init_process_group()
        kept.append(dist.new_group([0, 1]))

    def second(rank, ctx):
        dist.init_process_group()
        for wrong, error in ((5, TypeError), ("tp", TypeError), (kept[0], ValueError)):
            with pytest.raises(error):
                dist.all_reduce(ctx.ones(1), group=wrong)

    run(first, 2)
    run(second, 2)
