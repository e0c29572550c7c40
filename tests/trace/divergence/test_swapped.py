"""Equal calls in opposite orders: a finding where lines are followed; none for right programs."""

import pytest

import simrank
import simrank.distributed as dist

WORLD = 3


def findings_of(program, *, divergence=True):
    """Return the findings of a program on three ranks."""
    with simrank.Context("hgx_h100", divergence=divergence) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=WORLD)
    return ctx.findings


def by_key(rank):
    dist.init_process_group("nccl")
    held = {"a": simrank.ones(4), "b": simrank.zeros(4)}
    for name in sorted(held, reverse=rank == 1):
        dist.broadcast(held[name], 0)
    dist.destroy_process_group()


def first(x):
    dist.all_reduce(x)


def second(x):
    dist.all_reduce(x)


def by_function(rank):
    dist.init_process_group("nccl")
    calls = (first, second) if rank != 1 else (second, first)
    for call in calls:
        call(simrank.ones(4))
    dist.destroy_process_group()


def test_tensors_of_a_container_in_opposite_orders_are_a_finding():
    """Named by where the program keeps them; without the option nothing is compared."""
    (found,) = findings_of(by_key)
    assert "broadcast #1 and #2 on 'default_pg'" in found
    assert "rank 0: first held['a'], then held['b'] at test_swapped.py:" in found
    assert "rank 1: first held['b'], then held['a'] at test_swapped.py:" in found
    assert findings_of(by_key, divergence=False) == []


def test_lines_in_opposite_orders_are_a_finding():
    """Where no container tells the tensors apart."""
    (found,) = findings_of(by_function)
    ours, theirs = (f.__code__.co_firstlineno + 1 for f in (first, second))
    assert f"rank 0: first line {ours}, then line {theirs}" in found


def branches(rank, held):
    if rank == 0:
        dist.broadcast(held["a"], 0)
    else:
        dist.broadcast(held["b"], 0)


def rotating_roots(rank, held):
    for root in range(WORLD):
        if rank == root:
            dist.broadcast(held["a"], root)
        else:
            dist.broadcast(held["b"], root)


def rotating_roles(rank, held):
    for step in range(2 * WORLD):
        if step % WORLD == rank:
            dist.all_reduce(held["a"])
        else:
            dist.all_reduce(held["b"])


def own_parts(rank, held):
    outputs = [simrank.zeros(4) for _ in range(WORLD)]
    parts = [simrank.ones(4) for _ in range(WORLD)]
    for step in range(WORLD):
        dist.all_gather(outputs, parts[(rank + step) % WORLD])


def double_buffers(rank, held):
    buffers = [held["a"], held["b"]]
    for step in range(4):
        dist.all_reduce(buffers[step % 2])


@pytest.mark.parametrize(
    "body", [branches, rotating_roots, rotating_roles, own_parts, double_buffers]
)
def test_programs_that_are_right_get_no_finding(body):
    """Branches, roles that rotate, parts that each rank chooses for itself, buffers in turn."""

    def program(rank):
        dist.init_process_group("nccl")
        body(rank, {"a": simrank.ones(4), "b": simrank.zeros(4)})
        dist.destroy_process_group()

    assert findings_of(program) == []
