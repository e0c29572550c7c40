"""Programs that do on real ranks something else than on simulated ones, each in one way.

A real rank knows itself by a variable that its pool sets.
"""

import os
import sys

import torch
import torch.distributed as dist

IS_REAL = "SIMRANK_WORKER" in os.environ


def _values():
    """Return what all ranks agree on, after a collective."""
    x = torch.arange(12.0).reshape(3, 4) / 7
    dist.all_reduce(x)
    return x


def nothing(rank, world):
    return {"loss": [_values(), 1.5], "rank": rank, "halves": _values().bfloat16()}


def one_element(rank, world):
    x = _values()
    if IS_REAL and rank == 1:
        x[1, 2] += 0.25
    return {"loss": [x]}


def dtype(rank, world):
    return _values().double() if IS_REAL else _values()


def nan(rank, world):
    x = _values()
    if IS_REAL:
        x[2, 3] = float("nan")
    return x


def ulps(rank, world):
    """Return what is 1,000 steps of float32 away: 1.2e-4, beyond 1.3e-6 and 1e-5."""
    x = _values() + 1
    return x * (1 + 1000 * 2**-23) if IS_REAL else x


def shape(rank, world):
    return _values()[:2] if IS_REAL else _values()


def key(rank, world):
    return {"loss": 1, "step": 2} if IS_REAL else {"loss": 1}


def integer(rank, world):
    return 2**60 + (IS_REAL and rank == 0)


def no_error(rank, world):
    _values()
    if rank == 1 and not IS_REAL:
        raise ValueError("bad shard")


def other_error(rank, world):
    _values()
    if rank == 1:
        raise (KeyError if IS_REAL else ValueError)("bad shard")


def other_rank(rank, world):
    _values()
    if rank == (0 if IS_REAL else 1):
        raise ValueError("bad shard")


def exits(rank, world):
    _values()
    if IS_REAL and rank == 1:
        sys.exit(3)


def dies(rank, world):
    _values()
    if IS_REAL and rank == 1:
        os._exit(3)


def hangs(rank, world):
    if not IS_REAL or rank == 0:
        _values()


def waits_elsewhere(rank, world):
    x = torch.ones(3)
    if rank == 0 and IS_REAL:
        dist.broadcast(x, 1)
    elif rank == 0:
        dist.all_reduce(x)


def order(rank, world):
    x = torch.ones(4)
    calls = [lambda: dist.all_reduce(x), lambda: dist.broadcast(x, 0)]
    for call in reversed(calls) if IS_REAL else calls:
        call()


def size(rank, world):
    dist.all_reduce(torch.ones(8 if IS_REAL else 4))


def type_of_call(rank, world):
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if IS_REAL else torch.float32))


def extra(rank, world):
    dist.all_reduce(torch.ones(4))
    if IS_REAL:
        dist.barrier()


def missing(rank, world):
    dist.all_reduce(torch.ones(4))
    if not IS_REAL:
        dist.all_reduce(torch.ones(4))


def group(rank, world):
    alone = [dist.new_group([each]) for each in range(world)]
    dist.all_reduce(torch.ones(4), group=alone[rank] if IS_REAL else None)


def message(rank, world):
    for _ in range(2 if IS_REAL else 1):
        if rank == 0:
            dist.send(torch.ones(4), 1)
        if rank == 1:
            dist.recv(torch.ones(4), 0)
