"""Context: isolation, clusters, seeds, determinism."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.collectives import algorithms as table
from simrank.engine import Handle
from simrank.errors import ConfigError, DeadlockError
from tests.formats.msccl.programs import text_of


def test_two_contexts_never_see_each_other():
    """Clock, devices and memory are apart, also when nested."""
    with simrank.Context("hgx_h100") as first:
        a = first.ones(10)
        a.tolist()
        with simrank.Context("hgx_a100") as second:
            b = second.ones(10)
            assert b.device is not a.device
            assert second.now_ps == 0
            assert b.tolist() == [1] * 10
        assert first.ones(1).device is a.device
    assert first.cluster.name == "hgx_h100"
    assert second.cluster.name == "hgx_a100"


@pytest.mark.parametrize("cluster", ["hgx_h100", {"name": "h100_ib", "nodes": 4}])
def test_a_cluster_is_named_or_given_with_parameters(cluster):
    """Names, and mappings with a number of nodes."""
    assert simrank.Context(cluster).cluster.num_devices in (8, 32)


def test_an_unknown_cluster_is_a_config_error_that_lists_the_known_ones():
    """And suggests the closest."""
    with pytest.raises(ConfigError, match="hgx_h100"):
        simrank.Context("hgx_h1000")


def test_leaving_a_context_runs_what_is_left():
    """Work on streams ends before the block does."""
    with simrank.Context("hgx_h100") as ctx:
        x = ctx.ones(4)
    assert x.array.tolist() == [1] * 4


def test_an_error_in_the_block_is_not_hidden_by_what_is_left():
    """The user's exception leaves the block as it is."""
    with pytest.raises(ZeroDivisionError), simrank.Context("hgx_h100") as ctx:
        ctx.current_stream().wait_for(Handle())
        ctx.ones(4)
        raise ZeroDivisionError


def test_a_context_left_with_impossible_work_is_a_deadlock():
    """drain() cannot end what a failed wait holds up."""
    with pytest.raises(DeadlockError), simrank.Context("hgx_h100") as ctx:
        ctx.wait(Handle())


def program(rank, ctx, out):
    dist.init_process_group()
    x = ctx.rand(1000)
    for _ in range(3):
        dist.all_reduce(x, dist.ReduceOp.AVG)
    group = dist.new_group([0, 2])
    if dist.get_rank(group) >= 0:
        dist.all_reduce(x, group=group)
    out[rank] = (x.sum().item(), ctx.now_ps)


def outcome(seed):
    out = {}
    ctx = simrank.Context("hgx_h100", seed=seed)
    with ctx:
        ctx.manual_seed(1)
        ctx.multiprocessing.spawn(program, (ctx, out), nprocs=4)
    return out, ctx.now_ps


def test_the_same_seed_gives_the_same_run():
    """Numbers and times repeat exactly."""
    assert outcome(3) == outcome(3)


def test_another_tie_seed_gives_the_same_numbers():
    """What a program computes does not hang on the order of simultaneous events."""

    def fixed(rank, ctx, out):
        dist.init_process_group()
        x = ctx.arange(100, dtype="float32") * (rank + 1)
        for _ in range(3):
            dist.all_reduce(x, dist.ReduceOp.AVG)
            x.add_(rank)
        out[rank] = x.tolist()

    results = []
    for seed in range(5):
        out = {}
        with simrank.Context("hgx_h100", seed=seed) as ctx:
            ctx.multiprocessing.spawn(fixed, (ctx, out), nprocs=5)
        results.append((out, ctx.now_ps))
    assert all(result == results[0] for result in results)


def test_torchs_names_are_on_the_context(ctx):
    """dtypes, factories, Stream, Event; an unknown name is an AttributeError."""
    assert ctx.float32.name == "float32"
    assert ctx.zeros(2).tolist() == [0, 0]
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(ctx, "nonsense")  # noqa: B009 - as a user's typing error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "max_seconds", "max_mib"),
    [("1.0", 5, 500), ("random.random() + float(os.environ['RANK'])", 10, 1024)],
    ids=["plain", "with random numbers and environment"],
)
def test_ten_thousand_ranks_do_ten_all_reduces(value, max_seconds, max_mib):
    """In seconds and in bounded memory, in a process of its own."""
    import subprocess
    import sys

    source = """
import os, random, resource, time, simrank
import simrank.distributed as dist

def program(rank, ctx):
    dist.init_process_group()
    x = ctx.full((1,), VALUE)
    for _ in range(10):
        dist.all_reduce(x, dist.ReduceOp.MAX)
    assert 1.0 <= x.item() <= 10_000.0

start = time.process_time()  # Others may keep the machine busy.
ctx = simrank.Context({"name": "h100_ib", "nodes": 1250})
with ctx:
    ctx.multiprocessing.spawn(program, (ctx,), nprocs=10_000)
seconds = time.process_time() - start
try:  # Of this program alone: `ru_maxrss` is also what started it.
    status = open("/proc/self/status").read()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
except FileNotFoundError:
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(seconds, peak_kib / 1024)
"""
    output = subprocess.run(
        [sys.executable, "-c", source.replace("VALUE", value)],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, peak_mib = map(float, output.stdout.split())
    assert seconds < max_seconds
    assert peak_mib < max_mib


def test_nothing_grows_with_simulated_time():
    """E10: without an observer, a hundred steps leave no more objects behind than ten."""
    import gc

    from simrank.engine import Handle as AnyHandle

    counts = []

    def steps(rank, ctx, num_steps):
        dist.init_process_group()
        x = ctx.ones(4)
        for _ in range(num_steps):
            dist.all_reduce(x)
            dist.broadcast(x, 0)
            if rank < 2:
                (dist.send if rank else dist.recv)(x, 1 - rank)
            with ctx.stream(ctx.Stream()):
                (x + 1).cpu()
            ctx.current_stream().record_event().synchronize()
            x.fill_(1)
        x.tolist()
        if rank == 0:
            counts.append(sum(issubclass(type(o), AnyHandle) for o in gc.get_objects()))

    gc.collect()
    gc.disable()
    try:
        for num_steps in (10, 100):
            with simrank.Context("hgx_h100", races="off") as ctx:
                ctx.multiprocessing.spawn(steps, (ctx, num_steps), nprocs=3)
            gc.collect()
    finally:
        gc.enable()
    assert counts[1] < counts[0] + 30


def leaky(rank, ctx):
    dist.init_process_group()
    ctx.cuda.set_device(rank)
    dist.all_reduce(ctx.ones(4), async_op=True)
    ctx.synchronize()


def test_works_that_nobody_waited_for_are_found_and_an_error_under_strict():
    """With ranks, operation and line; without strict they are only listed."""
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(leaky, (ctx,), nprocs=3)
    (finding,) = ctx.findings
    assert finding.startswith("  ranks 0-2: all_reduce on group 'default_pg' never waited for at")
    with (
        pytest.raises(simrank.errors.SimrankError, match=r"leaks \(proved\):\n  ranks 0-2"),
        simrank.Context("hgx_h100", strict=True) as ctx,
    ):
        ctx.multiprocessing.spawn(leaky, (ctx,), nprocs=3)


def clean(rank, ctx):
    dist.init_process_group()
    ctx.cuda.set_device(rank)
    work = dist.all_reduce(ctx.ones(4), async_op=True)
    work.wait()
    ctx.synchronize()


def test_a_clean_run_has_no_findings():
    """Also under strict and with races looked for."""
    with simrank.Context("hgx_h100", strict=True, races="error") as ctx:
        ctx.multiprocessing.spawn(clean, (ctx,), nprocs=3)
    assert ctx.findings == []


def test_a_receive_from_any_source_is_named_as_dependent_on_order():
    """Another seed may give other numbers, and the report says where (E4)."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        x = ctx.ones(1, device="cpu")
        if rank == 0:
            for _ in range(2):
                dist.recv(x)
        else:
            dist.send(x, 0)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
    (finding,) = ctx.findings
    assert "any source at test_context.py:" in finding


def test_groups_that_nobody_destroyed_are_a_note():
    """As torch warns at exit; no finding, and nothing grows with the number of spawns."""

    def program(rank, ctx, tidy):
        dist.init_process_group()
        dist.barrier()
        if tidy or rank == 0:
            dist.destroy_process_group()

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx, True), nprocs=3)
        assert ctx.notes == [f"  {ctx.unchecked}"]
        for _ in range(2):
            ctx.multiprocessing.spawn(program, (ctx, False), nprocs=3)
    (note, _) = ctx.notes
    assert note == "  ranks 1-2: returned without destroy_process_group() of 'default_pg'"
    assert ctx.findings == []


def test_an_algorithm_can_come_from_a_file(tmp_path, monkeypatch):
    """MSCCL's XML: a program gets its data, and its time; other numbers of ranks are refused."""
    monkeypatch.setattr(table, "_TABLE", dict(table._TABLE))
    path = tmp_path / "two.xml"
    path.write_text(text_of("exchange"))
    sums = []

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.full((1001,), rank + 1.0)
        dist.all_reduce(x)
        sums.append(x.sum().item())

    with simrank.Context(algorithms={"all_reduce": str(path)}) as ctx:
        ctx.multiprocessing.spawn(program, args=(ctx,), nprocs=2)
        assert ctx.now_ps > 6_600_000
    assert sums == [3003.0, 3003.0]
    with (
        simrank.Context(algorithms={"all_reduce": str(path)}) as ctx,
        pytest.raises(ValueError, match="runs on 2 ranks, not on 3"),
    ):
        ctx.multiprocessing.spawn(program, args=(ctx,), nprocs=3)
