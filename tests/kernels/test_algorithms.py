"""Kernels as collectives: what a module must have, and what its options may be."""

from pathlib import Path

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import DeadlockError, SpawnException, UnsupportedError
from simrank.kernels.algorithms import DEFAULTS, KernelAlgorithm, kernels_of

KERNELS = Path(__file__).parents[2] / "benches" / "kernels"

MODULE = """
COLLECTIVE = "all_reduce"
kernel = None
def buffer_elements(*sizes): return 1
def pad_words(*sizes): return 1
"""


@pytest.fixture
def reference(tmp_path):
    """A file that has all that is needed."""
    path = tmp_path / "own.py"
    path.write_text(MODULE)
    return str(path)


def test_what_is_not_given_has_a_default(reference):
    """A size may have a unit."""
    algorithm = KernelAlgorithm("own", reference, {"slot_size": "8 KiB"})
    assert algorithm.collective == "all_reduce"
    assert algorithm.options == {**DEFAULTS, "slot_size": 8192}


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"slots": 3}, ValueError, "no option slots; choices"),
        ({"num_slots": 0}, ValueError, "num_slots must be a whole number from 1, got 0"),
        ({"num_warps": True}, ValueError, "num_warps must be a whole number"),
        ({"slot_size": 3000}, ValueError, "power of two in bytes, got 3000"),
        ({"buffer": "l2"}, UnsupportedError, "only hbm"),
    ],
)
def test_an_option_that_no_kernel_takes_is_refused(reference, options, kind, words):
    """With its value, and what it may be."""
    with pytest.raises(kind, match=words):
        KernelAlgorithm("own", reference, options)


def test_a_module_that_lacks_something_is_refused_by_what_it_lacks(tmp_path):
    """All of it at once."""
    path = tmp_path / "half.py"
    path.write_text('COLLECTIVE = "all_reduce"\n')
    with pytest.raises(ValueError, match=r"half\.py has no kernel, buffer_elements, pad_words"):
        KernelAlgorithm("half", str(path), {})


def test_a_module_that_raises_is_refused_with_its_line(tmp_path):
    """And is no module that another one finds."""
    path = tmp_path / "broken.py"
    path.write_text("x = 1\nx / 0\n")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"broken\.py:2 raised ZeroDivisionError"):
            KernelAlgorithm("broken", str(path), {})


class Kernels:
    """Counts the kernels and the collectives of a run."""

    def __init__(self):
        self.kinds = []

    def on_operation(self, operation):
        self.kinds.append(operation.kind)

    def on_host(self, *_):
        pass

    on_task_switch = on_transfer = on_host


@pytest.mark.parametrize("name", ["one_shot_all_reduce", "ring_all_reduce", "two_shot_all_reduce"])
def test_a_program_runs_a_kernel_in_place_of_its_collective(run, name):
    """In all groups, at once and later, in place as torch's call is, again and again."""
    watch = Kernels()

    def program(rank, ctx):
        if rank == 0:
            ctx.observe(watch)
        dist.init_process_group("nccl")
        half = dist.new_group([0, 1]) if rank < 2 else None
        dist.new_group([0, 1]) if rank >= 2 else None
        for count in (1, 1000, 1000):
            x = ctx.arange(count, dtype=simrank.float32) + rank
            dist.all_reduce(x)
            assert x.tolist() == [4.0 * i + 6 for i in range(count)]
        y = ctx.full((300,), rank + 1.0)
        if half is not None:
            dist.all_reduce(y, group=half, async_op=True).wait()
            assert y.tolist() == [3.0] * 300
        ctx.synchronize()

    forced = {"all_reduce": {"kernel": str(KERNELS / f"{name}.py"), "num_channels": 2}}
    run(program, 4, algorithms=forced)
    assert watch.kinds.count("kernel") >= 4
    assert "collective" not in watch.kinds


def test_what_a_kernel_does_not_do_is_refused(run):
    """It sums; a rank that does not call is waited for, and named."""
    forced = {"all_reduce": {"kernel": str(KERNELS / "ring_all_reduce.py"), "num_channels": 2}}

    def largest(rank, ctx):
        dist.init_process_group("nccl")
        dist.all_reduce(ctx.ones(4), op=dist.ReduceOp.MAX)

    with pytest.raises(SpawnException, match=r"ring_all_reduce\.py: it sums"):
        run(largest, 2, algorithms=forced)

    def skips(rank, ctx):
        dist.init_process_group("nccl")
        if rank:
            dist.all_reduce(ctx.ones(4))
            ctx.synchronize()

    with pytest.raises(DeadlockError, match="rendezvous #1 of symmetric memory"):
        run(skips, 2, algorithms=forced)


def test_mappings_name_kernels_and_nothing_else(reference):
    """Of the collective that they are forced for."""
    kernels = kernels_of({"all_reduce": {"kernel": reference}, "broadcast": "chain"})
    assert list(kernels) == ["all_reduce"]
    with pytest.raises(ValueError, match="a kernel for all_reduce, not all_gather"):
        kernels_of({"all_gather": {"kernel": reference}})
    with pytest.raises(ValueError, match="expected a key `kernel`"):
        kernels_of({"all_gather": {"name": "ring"}})
