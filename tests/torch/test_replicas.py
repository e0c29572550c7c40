"""Replicas of DistributedDataParallel that drift: a finding where it is asked for."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import simrank

with warnings.catch_warnings():  # Its package compiles with torch.jit.script, which is deprecated.
    warnings.simplefilter("ignore")
    from torch.distributed.optim import ZeroRedundancyOptimizer


def findings_of(program, *, replicas=True):
    """Return the findings of a program on two ranks, and the time that it took."""
    with simrank.Context("hgx_h100", replicas=replicas) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    return ctx.findings, ctx.now_ps


def made():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 1))
    return DistributedDataParallel(model)


def backward(model):
    model(torch.full((1, 4), 1.0 + dist.get_rank())).sum().backward()


def drifts(rank):
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    optimizer.step()
    with model.no_sync():
        backward(model)
    optimizer.step()  # here
    dist.destroy_process_group()


def averages(rank):
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(4):
        if step % 2 == 0:
            with model.no_sync():
                backward(model)
        else:
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


def shards(rank):
    model = made()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for _ in range(2):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def without_ddp(rank):
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)  # Each rank's own, at random.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    optimizer.step()
    dist.destroy_process_group()


def test_a_replica_that_misses_an_average_is_a_finding():
    """Of the first step that differs, with its line; in no simulated time."""
    (found,), now_ps = findings_of(drifts)
    line = drifts.__code__.co_firstlineno + 7
    assert found == (
        "  replicas on group 'default_pg' differ after optimizer step 2 at test_replicas.py:"
        f"{line}, first in 0.weight: rank 0 / rank 1 have different values"
    )
    assert findings_of(drifts, replicas=False) == ([], now_ps)


@pytest.mark.parametrize("program", [averages, shards, without_ddp])
def test_replicas_that_agree_are_none(program):
    """With accumulated gradients, sharded optimizers, and models that are no replicas."""
    assert findings_of(program)[0] == []
