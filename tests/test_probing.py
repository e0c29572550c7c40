"""The search for ranks that do the same."""

import time

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import ConfigError
from simrank.probing import Probe, find_folding
from simrank.ranks.folding import Alone, FoldedAxis

CLUSTER = {"name": "h100_ib", "nodes": 4}
TENSOR = 8


def _search(program, num_ranks=32, **options):
    """Return the result of the search for a program, and the ranks of each probe."""
    seen = []

    def run(probe):
        context = probe.watch(simrank.Context(CLUSTER, data=False, folding=probe.folding))
        with context:
            context.multiprocessing.spawn(program, (context,), num_ranks)

    found = find_folding(run, num_ranks, on_progress=seen.append, **options)
    return found, seen


def _axes(rank):
    """Return the rank's groups: of four nodes, and within one."""
    dist.init_process_group("nccl")
    members = dist.get_world_size()
    dp = [dist.new_group(range(i, members, TENSOR), group_desc="mesh_dp") for i in range(TENSOR)]
    firsts = range(0, members, TENSOR)
    tp = [dist.new_group(range(i, i + TENSOR), group_desc="TENSOR_PARALLEL_GROUP") for i in firsts]
    return dp[rank % TENSOR], tp[rank // TENSOR]


def _alike(rank, ctx):
    dp, tp = _axes(rank)
    x = ctx.ones(1024, device="cuda")
    dist.all_reduce(x * 2, group=tp)
    dist.all_reduce(x, group=dp)


def _first_reads(rank, ctx):
    _alike(rank, ctx)
    if rank == 0:
        ctx.ones(4, device="cuda").sum().item()


def _odd_differ(rank, ctx):
    dp, tp = _axes(rank)
    dist.all_reduce(ctx.ones(1024, device="cuda"), group=tp)
    dist.all_reduce(ctx.ones(1024, device="cuda") * 2, group=dp)
    if rank % TENSOR % 2:
        ctx.ones(4, device="cuda") * 3


def _last_differs(rank, ctx):
    _alike(rank, ctx)
    if rank == 31:
        ctx.ones(4, device="cuda") * 3


def _pipeline(rank, ctx):
    dp, tp = _axes(rank)
    x = ctx.ones(1024, device="cuda")
    dist.all_reduce(x, group=tp)
    dist.all_reduce(x, group=dp)
    peer = rank + TENSOR if rank // TENSOR % 2 == 0 else rank - TENSOR
    (dist.send if peer > rank else dist.recv)(x, peer)


def test_axes_are_folded_along_which_ranks_do_the_same():
    """The first, second and last along all of them, the second node's first, and some drawn."""
    found, seen = _search(_alike)
    assert found.folding.axes == (FoldedAxis("dp", 4, 8), FoldedAxis("tensor", 8, 1))
    assert found.lines == ()
    assert seen[:4] == [(0,), (9,), (31,), (8,)]
    assert 4 < len(seen) <= 7
    assert _search(_alike)[1] == seen
    assert _search(_alike, seed=1)[1][4:] != seen[4:]


def test_a_first_rank_that_does_more_runs_for_itself():
    """The second represents the others, and the differences are reported."""
    found, _ = _search(_first_reads)
    assert found.folding.axes == (FoldedAxis("tensor", 8, 1, representative=1, alone=(0,)),)
    assert any("tensor runs for itself: rank 0 runs" in line for line in found.lines)


def test_ranks_that_differ_all_run():
    """The report names the operation and both ranks."""
    found, _ = _search(_odd_differ)
    assert [axis.name for axis in found.folding.axes] == ["dp"]
    assert any("tensor is not folded: rank 1 runs" in line for line in found.lines)


def test_the_last_of_all_ranks_is_compared_too():
    """It may report for all of them."""
    found, _ = _search(_last_differs)
    assert found.folding is None
    assert "rank 31 runs" in found.lines[-1]


def test_axes_with_messages_are_not_folded():
    """A message needs its peer."""
    found, _ = _search(_pipeline)
    assert [axis.name for axis in found.folding.axes] == ["tensor"]


def test_named_axes_are_folded_without_a_comparison():
    """One rank is run alone, to see the layout."""
    found, seen = _search(_odd_differ, wanted="tensor")
    assert found.folding.axes == (FoldedAxis("tensor", 8, 1),)
    assert seen == [(0,)]
    assert len(_search(_alike, wanted="all")[0].folding.running) == 1


def test_an_unknown_axis_is_refused_with_those_that_there_are():
    """With their sizes."""
    with pytest.raises(ConfigError, match=r"axes of this program: dp \(4 ranks\), tensor \(8"):
        _search(_alike, wanted="cp")


def test_a_program_that_fails_is_not_folded():
    """Its own run reports the error."""

    def program(rank, ctx):
        raise ValueError("no such file")

    found, _ = _search(program)
    assert found.folding is None
    assert found.lines == ("not folded: rank 0 fails alone: ValueError: no such file",)


class Optimizer:
    """Something that steps."""


def test_ranks_are_ended_when_an_optimizer_steps_again():
    """Two whole steps are seen, and nothing of the third one."""
    probe, optimizer = Probe(Alone(8, 0)), Optimizer()
    with probe.watch(simrank.Context(data=False, folding=probe.folding)) as context:

        def program(rank):
            for _ in range(5):
                context.ones(4, device="cuda")
                context.probe.stepped(optimizer)

        context.multiprocessing.spawn(program, nprocs=8)
    assert len(probe.ran[0][0]) == 3


def _of_rank(rank_of_fault, do):
    """Return a program of 32 ranks of which one does something else."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        kept = do(ctx) if rank == rank_of_fault else None
        dist.all_reduce(ctx.ones(1024, device="cuda"))
        return kept

    return program


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        (lambda ctx: ctx.empty(1 << 28, device="cuda"), "rank 0 holds at most"),
        (lambda ctx: time.sleep(0.05), "alone, rank"),
        (lambda ctx: ctx.ones(4, device="cuda") * 3, "rank 31"),
    ],
    ids=["memory", "host time", "a kernel"],
)
def test_the_last_rank_is_compared_by_memory_and_time_too(do, reason):
    """Of what it allocates and waits for no operation tells."""
    found, _ = _search(_of_rank(31, do))
    assert found.folding is None
    assert any(reason in line for line in found.lines)


@pytest.mark.parametrize("odd", [8, _search(_alike)[1][4][0]])
def test_the_second_node_s_first_rank_and_some_drawn_ones_are_compared(odd):
    """Along each axis, too; no comparison tells that they differ."""
    sizes = [1024] * 32
    sizes[odd] = 64

    def program(rank, ctx):
        dist.init_process_group("nccl")
        ctx.ones(1024, device="cuda")[: sizes[rank]] * 3
        dist.all_reduce(ctx.ones(1024, device="cuda"))

    found, _ = _search(program)
    assert found.folding is None
    assert f"rank {odd} 8704 B" in found.lines[0]


TRIPLED = {"do": lambda ctx: ctx.ones(4, device="cuda") * 3}


@pytest.mark.parametrize("odd", [5, 27])
def test_a_rank_that_a_comparison_tells_apart_runs_for_itself(odd):
    """Beside a representative of the others; the line of the comparison is named."""
    found, _ = _search(_of_rank(odd, TRIPLED["do"]))
    assert found.folding.running == (0, odd)
    (line,) = found.lines
    assert line.startswith(f"rank {odd} runs beside a representative, for test_probing.py:")


def test_each_axis_keeps_a_representative_beside_a_rank_that_runs_for_itself():
    """Of the groups of both its axes, that is."""

    def program(rank, ctx):
        if rank == 11:
            TRIPLED["do"](ctx)
        _alike(rank, ctx)

    found, _ = _search(program)
    assert found.folding.running == (0, 3, 8, 11)


def test_ranks_are_told_apart_by_what_they_compute_of_their_numbers():
    """Those on the other side of a comparison on rank 0, then of one that only they make."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank % 8 == 3 and rank // 8 == 2:
            TRIPLED["do"](ctx)
        dist.all_reduce(ctx.ones(1024, device="cuda"))

    assert _search(program)[0].folding.running == (0, 19)


def test_more_classes_than_can_be_compared_are_named():
    """Each value is a line of its own."""
    source = "\n".join(f"if rank == {value}: pass" for value in range(2, 20))
    code = compile(source, "train.py", "exec")

    def program(rank, ctx):
        exec(code, {"rank": rank})  # noqa: S102 - lines of a program
        _alike(rank, ctx)

    found, _ = _search(program)
    assert found.folding.running == (0,)
    assert "are not compared: there are more than 8 classes of ranks" in found.lines[0]
    assert "train.py:" in found.lines[0]


def _after_run(program):
    """Return the folding before the representatives run, and the one after."""
    found, _ = _search(program)
    context = simrank.Context(CLUSTER, data=False, folding=found.folding)
    with context:
        context.multiprocessing.spawn(program, (context,), 32)
    return found, found.after_run(context.comparisons)


def _trains(late):
    """Return a program that does something after three steps, of which a probe sees two."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        optimizer = Optimizer()
        for _ in range(3):
            dist.all_reduce(ctx.ones(1024, device="cuda"))
            if ctx.probe is not None:
                ctx.probe.stepped(optimizer)
        late(rank, ctx)

    return program


def _late_kernel(rank, ctx):
    if rank == 5:
        TRIPLED["do"](ctx)


def _late_leak(rank, ctx):
    work = dist.all_reduce(ctx.ones(1024, device="cuda"), async_op=True)
    if rank != 5:
        ctx.wait(work)


def _late_failure(rank, ctx):
    assert {5: "bad"}.get(rank) is None


@pytest.mark.parametrize("late", [_late_kernel, _late_leak, _late_failure])
def test_what_one_rank_does_after_the_steps_of_a_probe_is_found_after_the_run(late):
    """It is compared to the end, for the run told it apart."""
    found, later = _after_run(_trains(late))
    assert found.folding.running == (0,)
    assert later.folding.running == (0, 5)


def test_a_comparison_without_consequences_leaves_the_ranks_folded():
    """The first prints, say."""

    def late(rank, ctx):
        if rank == 0:
            str(rank)

    found, later = _after_run(_trains(late))
    assert later.folding.running == found.folding.running == (0,)
    assert later.lines == ()


def test_half_of_the_ranks_that_differ_late_unfold_all():
    """They are too many to run for themselves."""

    def late(rank, ctx):
        if rank % 2:
            TRIPLED["do"](ctx)

    _, later = _after_run(_trains(late))
    assert later.folding is None
    assert "on rank" in later.lines[0] or "rank 1 runs" in later.lines[0]


def test_a_list_of_many_values_is_named_unless_each_rank_is_in_it():
    """One rank that is in none of many would have been run."""

    def own_group(rank, ctx):
        [first for first in range(32) if first == rank]

    def bad_ranks(rank, ctx):
        any(rank == bad for bad in range(9, 31, 2))

    assert _after_run(_trains(own_group))[1].lines == ()
    (line,) = _after_run(_trains(bad_ranks))[1].lines
    assert line.endswith("compares ranks with many values: those that did not run are not compared")


def _attention_over_ranks(rank, ctx):
    """Ranks of a group of four have parts of a sequence that cost differently."""
    dist.init_process_group("nccl")
    groups = [dist.new_group(range(i, i + 4), group_desc="mesh_cp") for i in range(0, 32, 4)]
    x = ctx.ones((1 + rank % 4) << 20, device="cuda")
    dist.all_reduce(ctx.ones(64, device="cuda"), group=groups[rank // 4])
    dist.all_reduce(ctx.ones(64, device="cuda"))
    x * 2


def test_an_axis_is_split_where_only_the_inner_part_differs():
    """Of the whole world, the parts that lie beyond a smaller group are alike."""
    found, _ = _search(_attention_over_ranks)
    assert found.folding.axes == (FoldedAxis("world", 8, 4),)
    assert "cp is not folded" in found.lines[0]


def _broadcasts(rank, ctx):
    """Buffers of a model come from its first rank, again and again."""
    dist.init_process_group("nccl")
    x = ctx.ones(1 << 16, device="cuda")
    for _ in range(4):
        dist.broadcast(x, 0)
        dist.all_reduce(x)


def test_the_root_of_repeated_collectives_runs_beside_a_representative():
    """It ends before the others."""
    found, _ = _search(_broadcasts)
    assert found.folding.axes == (FoldedAxis("world", 32, 1, representative=1, alone=(0,)),)
    assert found.lines == ()
