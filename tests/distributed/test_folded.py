"""Groups of which some members do not run: the same times as if they did."""

import random

import pytest

import simrank
import simrank.distributed as dist
from simrank.collectives import DataPlayer
from simrank.errors import DeadlockError, FoldingError, SpawnException
from simrank.ranks.folding import FoldedAxis, Folding
from tests.quick import slow_after

CLUSTERS = ("h100_ib", "a100_efa", "h100_tcpx", "mi300x_roce")  # Some share a NIC among GPUs.
SHAPES = ((2, 4, 2), (1, 4, 4), (4, 4, 1), (2, 2, 4), (1, 2, 8))  # Pipeline, data, tensor.
KINDS = ("all_reduce", "async", "gather", "scatter", "exchange", "barrier", "message", "objects")


def _groups(rank, shape):
    """Return the rank's groups by axis."""
    _, data, tensor = shape
    world = [*range(dist.get_world_size())]
    found = {}
    axes = {"tp": (1, tensor), "dp": (tensor, data), "pp": (tensor * data, shape[0])}
    for name, (stride, size) in axes.items():
        for first in (each for each in world if each // stride % size == 0):
            members = [first + step * stride for step in range(size)]
            group = dist.new_group(members)
            if rank in members:
                found[name] = group
    return found


def _call(ctx, kind, group, size):
    members = dist.get_world_size(group)
    x = ctx.ones(size, device="cuda")
    if kind == "all_reduce":
        dist.all_reduce(x, group=group)
    elif kind == "async":
        return dist.all_reduce(x, group=group, async_op=True)
    elif kind == "gather":
        dist.all_gather_into_tensor(ctx.zeros(size * members, device="cuda"), x, group=group)
    elif kind == "scatter":
        whole = ctx.ones(size * members, device="cuda")
        dist.reduce_scatter_tensor(x, whole, group=group)
    elif kind == "exchange":
        whole = ctx.ones(size * members, device="cuda")
        dist.all_to_all_single(ctx.zeros_like(whole), whole, group=group)
    elif kind == "barrier":
        dist.barrier(group)
    elif kind == "objects":
        dist.all_gather_object([None] * members, [size], group=group)
    return None


def _program(rank, ctx, shape, calls):
    dist.init_process_group("nccl")
    groups, ahead = _groups(rank, shape), dist.get_world_size() // shape[0]
    for _ in range(2):
        works = []
        for kind, axis, size in calls:
            if kind != "message":
                works.append(_call(ctx, kind, groups.get(axis), size))
                continue
            x = ctx.ones(size, device="cuda")
            if rank + ahead < dist.get_world_size():
                dist.send(x, rank + ahead)
            if rank >= ahead:
                dist.recv(x, rank - ahead)
        for work in works:
            if work is not None:
                work.wait()
        ctx.cuda.synchronize()


@pytest.mark.parametrize("seed", slow_after(8, range(24)))  # Eight have every kind and cluster.
def test_random_programs_take_the_same_time_folded(run, seed):
    """To the picosecond, where replicas share NICs and switches, too."""
    draw = random.Random(seed)
    cluster = {"name": draw.choice(CLUSTERS), "nodes": 2}
    shape = draw.choice(SHAPES)
    calls = [
        (draw.choice(KINDS), draw.choice(("tp", "dp", "pp", "world")), 1 << draw.randint(2, 21))
        for _ in range(draw.randint(3, 12))
    ]
    _, data, tensor = shape
    dp, tp = (
        FoldedAxis(name, size, stride).beside(
            draw.sample(range(size), draw.randint(0, min(2, size - 1)))
        )
        for name, size, stride in (("dp", data, tensor), ("tp", tensor, 1))
    )
    axes = draw.choice(([dp], [tp], [dp, tp]))
    options = {"cluster": cluster, "data": False}
    whole = run(_program, 16, shape, calls, **options)
    folded = run(_program, 16, shape, calls, **options, folding=Folding(16, axes))
    assert folded.now_ps == whole.now_ps


def _run(run, program, num_run):
    """Run the first few of eight ranks, of which the last represents the others."""
    folding = Folding(8, [FoldedAxis("dp", 8, 1, num_run - 1, tuple(range(num_run - 1)))])
    run(program, 8, data=False, folding=folding)


def test_known_values_count_for_all_that_a_rank_stands_for(run):
    """A sum of ones is the number of ranks; a gather has one part of each."""
    found = {}

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(3, device="cuda")
        dist.all_reduce(x)
        parts = [ctx.zeros(1, device="cuda") for _ in range(8)]
        dist.all_gather(parts, ctx.ones(1, device="cuda") * rank)
        found[rank] = x.tolist(), [part.item() for part in parts]

    _run(run, program, 2)
    assert found[0] == found[1] == ([8.0] * 3, [0.0] + [1.0] * 7)


def test_split_sizes_of_who_does_not_run_are_what_the_others_expect(run):
    """An uneven exchange is matched."""
    done = []

    def program(rank, ctx):
        dist.init_process_group("nccl")
        sends = [1 + (rank + peer) % 3 for peer in range(8)]
        x = ctx.ones(sum(sends), device="cuda")
        dist.all_to_all_single(ctx.zeros(sum(sends), device="cuda"), x, sends, sends)
        ctx.cuda.synchronize()
        done.append(rank)

    _run(run, program, 2)
    assert done == [0, 1]


@pytest.mark.parametrize("kind", ["gather", "uneven gather", "exchange", "uneven exchange"])
def test_copies_among_ranks_that_do_not_run_play_no_schedule(run, monkeypatch, kind):
    """Each rank has each other's part; a step for each pair of ranks would take n squared."""
    monkeypatch.delattr(DataPlayer, "play")
    found = {}

    def program(rank, ctx):
        dist.init_process_group("nccl")
        as_run = min(rank, 1)  # Rank 1 represents ranks 2 to 7.
        sizes = [2, 3, 3, 3, 3, 3, 3, 3] if "uneven" in kind else [2] * 8
        if kind.endswith("gather"):
            x = ctx.full((sizes[rank],), float(rank), device="cuda")
            parts = [ctx.zeros(size, device="cuda") for size in sizes]
            dist.all_gather(parts, x)
            found[rank] = [part.tolist() for part in parts]
        else:
            sends = [as_run + size for size in sizes]
            takes = [min(peer, 1) + sizes[rank] for peer in range(8)]
            x = ctx.tensor(
                [10.0 * as_run + min(peer, 1) for peer in range(8) for _ in range(sends[peer])]
            )
            got = ctx.zeros(sum(takes), device="cuda")
            dist.all_to_all_single(got, x.to("cuda"), takes, sends)
            found[rank] = [got.tolist(), takes]

    _run(run, program, 2)
    for rank in (0, 1):
        if kind.endswith("gather"):
            sizes = [2] + [3 if "uneven" in kind else 2] * 7
            assert found[rank] == [[float(min(peer, 1))] * sizes[peer] for peer in range(8)]
        else:
            got, takes = found[rank]
            parts = [[10.0 * min(peer, 1) + rank] * size for peer, size in enumerate(takes)]
            assert got == [value for part in parts for value in part]


def test_a_message_to_a_rank_that_does_not_run_is_refused(run):
    """With its representative."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        dist.send(ctx.ones(4, device="cuda"), 3)

    with pytest.raises(
        SpawnException, match="rank 3 does not run, rank 0 is its representative"
    ) as caught:
        _run(run, program, 1)
    assert isinstance(caught.value.errors[0], FoldingError)


def test_a_tensor_on_the_device_of_another_rank_is_refused(run):
    """That rank may not run, and NCCL would find both on one GPU."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        dist.all_reduce(ctx.ones(4, device="cuda:0"))

    with pytest.raises(SpawnException, match="rank 1 calls with a tensor on device 0"):
        _run(run, program, 2)


def test_a_hang_names_only_ranks_that_run(run):
    """Those that do not run would come as their representative."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank:
            dist.barrier()

    with pytest.raises(DeadlockError, match="rank 1: barrier #1") as caught:
        _run(run, program, 2)
    assert "rank 0: returned" in str(caught.value)
    assert "rank 2" not in str(caught.value)


def test_a_spawn_of_another_size_is_refused(run):
    """Instead of one in which too many run."""
    folding = Folding(8, [FoldedAxis("dp", 8, 1)])
    with pytest.raises(FoldingError, match="but 4 ranks are spawned"):
        run(lambda rank, ctx: None, 4, data=False, folding=folding)


def test_folding_needs_a_run_without_data():
    """Ranks that do not run have no numbers."""
    with pytest.raises(ValueError, match="folding needs data=False"):
        simrank.Context(folding=Folding(8, [FoldedAxis("dp", 8, 1)]))
