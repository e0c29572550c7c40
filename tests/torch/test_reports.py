"""Hangs and mismatches of torch programs: reported with the program's own lines, not torch's."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import simrank
from simrank.errors import (
    CollectiveMismatchError,
    DeadlockError,
    SpawnException,
)


def skipped_collective(rank):
    dist.init_process_group("gloo")
    if rank != 2:
        dist.all_reduce(torch.ones(2))  # here


def half_made_group(rank):
    dist.init_process_group("gloo")
    if rank != 2:
        group = dist.new_group([0, 1, 2])
        dist.barrier(group)  # here


def cycle(rank):
    dist.init_process_group("gloo")
    dist.recv(torch.ones(2), (rank + 1) % 3)  # here


def backward_skipped(rank):
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    loss = model(torch.ones(1, 2)).sum()
    if rank != 2:
        loss.backward()  # here


def module_of_fsdp_skipped(rank):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (3,))
    first, last = (fully_shard(torch.nn.Linear(6, 6), mesh=mesh) for _ in range(2))
    hidden = first(torch.ones(1, 6))
    if rank != 2:
        last(hidden)  # here


def shapes_differ(rank):
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(2 + rank // 2))  # here


def one_raises(rank):
    dist.init_process_group("gloo")
    if rank == 2:
        raise ValueError("planted")
    dist.barrier()


def fails(program):
    """Run a program on three ranks; return its failure."""
    with pytest.raises(Exception) as caught, simrank.Context.for_ranks(3) as ctx:  # noqa: PT011
        ctx.multiprocessing.spawn(program, nprocs=3)
    return caught.value


def marked(program):
    """Return the number of the program's line that is marked."""
    code, first = program.__code__, program.__code__.co_firstlineno
    with open(code.co_filename) as file:
        lines = file.read().splitlines()
    return next(n for n in range(first, len(lines)) if lines[n - 1].endswith("# here"))


@pytest.mark.parametrize(
    "program",
    [skipped_collective, half_made_group, cycle, backward_skipped, module_of_fsdp_skipped],
)
def test_a_hang_names_the_program_s_own_line(program):
    """Of who waits; whoever is absent is told too."""
    error = fails(program)
    assert isinstance(error, DeadlockError)
    waiting = [state for state in error.waits if state.waits]
    assert {state.file.rpartition("/")[2] for state in waiting} == {"test_reports.py"}
    assert marked(program) in {state.line for state in waiting}
    assert program is cycle or any(2 in state.ranks for state in error.waits)


def test_shapes_that_differ_are_a_mismatch_with_the_program_s_line():
    """And the numbers of elements."""
    error = fails(shapes_differ)
    assert isinstance(error, SpawnException)
    (mismatch, *_) = error.errors.values()
    assert isinstance(mismatch, CollectiveMismatchError)
    assert {v.line for v in mismatch.variants} == {marked(shapes_differ)}


def test_a_rank_that_raises_ends_the_others_and_is_the_only_cause():
    """With its own type."""
    error = fails(one_raises)
    assert isinstance(error, SpawnException)
    assert [(rank, type(e)) for rank, e in error.errors.items()] == [(2, ValueError)]


def group_of_its_half(rank):
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1] if rank < 2 else [2, 3])  # here
    dist.barrier(group)


def test_groups_that_each_half_makes_for_itself_are_a_mismatch():
    """Torch numbers groups per process, and meets under that number: every rank makes them all."""
    with (
        pytest.raises(SpawnException) as raised,
        simrank.Context("hgx_h100") as context,
    ):
        context.multiprocessing.spawn(group_of_its_half, nprocs=4)
    error = raised.value.errors[2]
    assert isinstance(error, CollectiveMismatchError)
    assert error.differing == ("ranks",)


def groups_by_hash(rank):
    dist.init_process_group("gloo")
    ranks = [0, 1] if rank < 2 else [2, 3]
    group = dist.new_group(ranks, use_local_synchronization=True)
    value = torch.tensor([rank])
    dist.all_reduce(value, group=group)
    assert value.item() == sum(ranks)


def test_groups_that_members_alone_synchronize_are_not():
    """Their names are hashes of the members."""
    with simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(groups_by_hash, nprocs=4)


def test_an_exception_shows_its_tensors_once_the_devices_are_gone(spawn):
    """As torch prints them, or by their shape; one of the host is as it was."""
    host = torch.ones(1)

    def program(rank):
        x, z = (torch.ones(2, dtype=kind, device="cuda") for kind in (torch.int8, torch.cfloat))
        raise ValueError("bad", str(x), x, x[1], z, x[:0], host)

    with pytest.raises(SpawnException) as caught:
        spawn(program, 1)
    bad, printed, *shown, kept = caught.value.errors[0].args
    assert (bad, kept) == ("bad", host)
    assert [*map(str, shown)] == [
        printed,
        "tensor(1, device='cuda:0', dtype=torch.int8)",
        "tensor of shape (2,)",
        "tensor of shape (0,)",
    ]
