"""What workers with torch run in these tests."""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist

from simrank import validate

KEPT = {}


def is_the_group_of_before():
    """Whether the ranks' group is the very object that this function has seen before."""
    active, group = validate.active_ranks(), validate.active_group()
    is_same = KEPT.get(active) is group
    KEPT[active] = group
    return is_same


def all_reduce(value=1.0):
    x = torch.full((4,), value)
    dist.all_reduce(x)
    return x[0].item()


def raise_before(rank):
    if validate.rank() == rank:
        raise ValueError("before the collective")
    return all_reduce()


def die_before(rank, number=signal.SIGKILL):
    if validate.rank() == rank:
        os.kill(os.getpid(), number)
    return all_reduce()


def skip(rank):
    dist.barrier()
    if validate.rank() != rank:
        all_reduce()


def part():
    if validate.rank() == 0:
        dist.all_reduce(torch.ones(4))
    else:
        dist.broadcast(torch.ones(4), 0)


def receive_in_a_ring():
    work = dist.irecv(torch.ones(1), (validate.rank() + 1) % validate.world_size())
    work.wait()


def stuck_async():
    if validate.rank() == 0:
        time.sleep(600)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()


def among_active():
    x = torch.ones(1)
    dist.all_reduce(x, group=validate.active_group())
    return x.item()


def send_to_nobody():
    """A message that is on its way when the case ends."""
    if validate.rank() == 0:
        dist.isend(torch.ones(1), 1)


def make_groups():
    group = dist.new_group([0, 1])
    if validate.rank() < 2:
        dist.all_reduce(torch.ones(1), group=group)
    return len(dist.distributed_c10d._world.pg_map)


def use_what_is_gone():
    """Return what torch makes of a destroyed group, and of one of its name with other members."""
    group = dist.new_group([0, 1])
    if validate.rank() > 1:
        return None
    dist.barrier(group)
    dist.destroy_process_group(group)
    reported = []
    for call in (
        lambda: dist.broadcast(torch.ones(1), src=0, group=group),
        lambda: dist.send(torch.ones(1), dst=0, group=group),
        lambda: dist.send(torch.ones(1), dst=validate.rank()),
    ):
        try:
            call()
        except (RuntimeError, ValueError) as error:
            reported.append(f"{type(error).__name__}: {str(error).partition('<')[0]}")
    x = torch.ones(1)
    dist.all_reduce(x, group=group)  # gloo's own half lives while somebody holds it.
    return [*reported, x.item()]


def destroy_world():
    dist.destroy_process_group()


def numbers():
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    return torch.rand(3).tolist()


def defaults():
    return str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.rand(2).tolist()


def variables(*names):
    return [os.environ.get(name) for name in names]


def spawned(rank, world_size, path):
    """A program of torch.multiprocessing.spawn, as users write them."""
    store = f"file://{path}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == world_size
    if os.environ.get("FAIL_ON") == str(rank):
        raise ValueError(f"failed on {rank}")
    dist.destroy_process_group()
