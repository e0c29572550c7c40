"""The same marked tests on simulated ranks and on real processes of gloo, by `--ranks-on`."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import simrank.suites.on_processes  # noqa: E402, F401 - once: pytester forgets what its sessions import

pytest_plugins = ["pytester"]

SUITE = """
import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import init_process_group  # A name of its own, bound at import.
from torch.distributed.device_mesh import init_device_mesh

def total(value):
    x = torch.full((2,), float(value))
    dist.all_reduce(x)
    return x[0].item()

@pytest.mark.ranks(2)
@pytest.mark.parametrize("turn", [0, 1])
def test_groups_are_made_and_left_by_the_body(rank, world_size, turn):
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)
    assert total(rank) == 1
    with pytest.raises(ValueError):
        dist.init_process_group()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    init_process_group("gloo", rank=rank, world_size=world_size)
    pair = dist.new_group([0, 1])
    dist.barrier(group=pair)
    dist.destroy_process_group(pair)
    assert total(rank) == 1  # And is not destroyed: the next test has none all the same.

SEEN = []

@pytest.mark.ranks(2)
@pytest.mark.parametrize("turn", [0, 1])
def test_communicators_of_real_ranks_are_made_once(turn):
    dist.init_process_group()
    SEEN.append(dist.group.WORLD)
    if turn == 1 and "SIMRANK_WORKER" in os.environ:
        assert SEEN[0] is SEEN[1]

@pytest.mark.ranks(2)
@pytest.mark.parametrize("turn", [0, 1])
def test_a_group_with_options_of_its_own(rank, turn):
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    assert total(rank) == 1

@pytest.mark.ranks(2)
def test_a_mesh(rank):
    mesh = init_device_mesh("cpu", (2,))
    assert mesh.get_local_rank() == rank

@pytest.mark.ranks(2)
def test_a_keyword_that_barrier_does_not_have(rank):
    dist.init_process_group()
    dist.barrier(tiemout=30)

@pytest.mark.ranks(2)
def test_the_other_rank_fails(rank):
    dist.init_process_group()
    if rank == 1:
        raise ValueError("before the collective")
    total(rank)

@pytest.mark.ranks(2)
def test_a_rank_returns(rank):
    dist.init_process_group()
    if rank == 0:
        total(rank)

@pytest.mark.ranks(2)
def test_after(rank):
    dist.init_process_group()
    assert total(1) == 2

@pytest.mark.ranks(2)
def test_skips(rank):  # Last: workers that do not all end alike are replaced.
    dist.init_process_group()
    if rank == 0:
        pytest.skip("on one")
    total(rank)
"""
NCCL = """
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2)
def test_it(rank):
    dist.init_process_group("nccl")
"""


def test_one_body_runs_on_simulated_ranks_and_on_gloo(pytester):
    """With the same outcomes; process groups are each body's own, and gloo's alone on gloo.

    A keyword that is swallowed would let a guard that catches everything never run its barrier.
    """
    pytester.makepyfile(test_suite=SUITE, test_nccl=NCCL)
    result = pytester.runpytest_inprocess("-v", "--ranks-on=simrank", "--ranks-on=gloo")
    outcomes = {}
    for line in result.outlines:
        if line.startswith("test_suite.py::"):
            name, outcome = line.split()[:2]
            place = "gloo" if "gloo" in name else "simrank"
            outcomes.setdefault(place, {})[name.replace(place, "")] = outcome
    assert outcomes["gloo"] == outcomes["simrank"]
    result.assert_outcomes(passed=17, failed=7, skipped=2)
    for lines in (
        [
            "1 rank(s) failed on gloo: rank 1: ValueError: before the collective",
            "*ended there:",
            "  rank 0: all_reduce #1 on group 'default_pg' at *test_suite.py:13",
            "RanksPartedError: *1 of 2 rank(s) hang",
        ],
        ["*on gloo: rank *: TypeError: barrier() got an unexpected keyword*'tiemout'*"],
        [
            "*init_process_group('nccl') on ranks that are real processes of gloo*",
            "*to fix: init_process_group() takes what the ranks run on*",
        ],
    ):
        result.stdout.fnmatch_lines(lines)


@pytest.mark.skipif(torch.cuda.is_available(), reason="GPUs are there")
def test_gpus_that_are_missing_are_a_skip(pytester):
    """Ranks of nccl where there is no GPU."""
    pytester.makepyfile(NCCL)
    result = pytester.runpytest_inprocess("--ranks-on=nccl", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * needs 2 GPUs, found 0"])
