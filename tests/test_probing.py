"""The search for ranks that do the same."""

import time

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import ConfigError
from simrank.probing import Probe, find_folding, ranks_in_text
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
    assert found.folding.axes == (FoldedAxis("tensor", 8, 1, num_run=2),)
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


@pytest.mark.parametrize("rank", [8, _search(_alike)[1][4][0]])
def test_the_second_node_s_first_rank_and_some_drawn_ones_are_compared(rank):
    """Along each axis, too."""
    found, _ = _search(_of_rank(rank, lambda ctx: ctx.ones(4, device="cuda") * 3))
    assert found.folding is None
    assert f"on rank {rank}" in found.lines[0]


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
    assert found.folding.axes == (FoldedAxis("world", 32, 1, num_run=2),)
    assert found.lines == ()


def test_ranks_whose_numbers_a_program_s_text_compares_are_compared_too(tmp_path):
    """In the script and in modules beside it that it imports; not 0, 1 and the last one."""
    script = tmp_path / "train.py"
    script.write_text(
        "import rules\nimport os\nfrom package.deep import x\n"
        "rank = int(os.environ['RANK'])\n"
        "if rank == 5 or 9 < rank or rank in (12, 31) or rank != 0 or rank == 40: print(7)"
    )
    (tmp_path / "rules.py").write_text("def odd(r): return r % 2 == 1 and not r == 20")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "deep.py").write_text("x = 1 if 2 > 3 else (")
    assert ranks_in_text(script, 32) == [5, 9, 12, 20]
    assert ranks_in_text(tmp_path / "missing.py", 32) == []
    found, _ = _search(_of_rank(5, lambda ctx: ctx.ones(4, device="cuda") * 3), also=[5])
    assert found.folding is None
    assert "on rank 5" in found.lines[0]
