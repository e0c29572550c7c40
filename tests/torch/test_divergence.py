"""Planted bugs in torch programs: reports name the line at which ranks parted, and its values."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import simrank

NPROCS = 3


def begin(rank):
    """Start the group; ranks that log or save part here, and nobody minds."""
    dist.init_process_group("gloo")
    if rank == 0:
        len("log")
    reduce()
    if rank == 1:
        torch.ones(2).tolist()


def reduce():
    dist.all_reduce(torch.ones(2))


def skips(rank):
    begin(rank)
    loss = torch.tensor([2.5 + rank])
    if loss > 3:  # here
        reduce()


def skips_on_a_device(rank):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    x = torch.full((1,), 1.0 + rank, device="cuda")
    dist.all_reduce(x)
    norm = (x / 6 * (rank + 1)).item()
    if rank == 0:
        len("log")
    if norm > 2.5:  # here
        dist.all_reduce(x)
    torch.cuda.synchronize()


def other_order(rank):
    begin(rank)
    x = torch.ones(2)
    if rank == 0:  # here
        dist.broadcast(x, 0)
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)
        dist.broadcast(x, 0)


def raises(rank):
    begin(rank)
    loss = torch.tensor(1.5 * rank)
    if loss.isnan() or loss > 2:  # here
        raise ValueError("planted")
    reduce()


def returns_early(rank):
    begin(rank)
    epochs = 5 - rank // 2
    for epoch in range(6):
        if epoch == epochs:  # here
            return
        reduce()


def breaks(rank):
    begin(rank)
    seen = 0
    while True:
        reduce()
        seen += 1
        if seen * (rank + 1) >= 9:  # here
            break


def uneven_data(rank):
    begin(rank)
    loader = DataLoader(torch.ones(8 + rank // 2 * 4, 2), batch_size=4)
    for batch in loader:  # here
        dist.all_reduce(batch)


def matches(rank):
    begin(rank)
    mode = ["train", "train", "eval"][rank]
    match mode:  # here
        case "train":
            reduce()
        case "eval":
            len("no call")


def other_exception(rank):
    begin(rank)
    sizes = {0: 2, 1: 2}
    try:
        torch.ones(sizes[rank])  # here
        reduce()
    except KeyError:
        len("skipped")


def backward(rank):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    for step in range(2):
        loss = model(torch.ones(1, 2)).sum()
        if rank == 2 and step == 1:  # here
            continue
        loss.backward()


class Gate(torch.nn.Module):
    """Skips a call in `forward`, by an attribute and an argument."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def forward(self, x):
        if self.limit > x:  # here
            reduce()


def in_a_module(rank):
    begin(rank)
    Gate(rank)(torch.ones(1))


def shapes_differ(rank):
    begin(rank)
    dist.all_reduce(torch.ones(2 + rank // 2))


def one_device(rank):
    dist.init_process_group("nccl")
    if rank == 0:
        len("log")
    dist.all_reduce(torch.ones(2, device="cuda:0"))


def waits_for_nobody(rank):
    begin(rank)
    dist.recv(torch.ones(2), (rank + 1) % NPROCS)


def logs_and_ends(rank):
    begin(rank)
    if rank == 0:
        torch.ones(2).tolist()
    reduce()


PROGRAMS = [
    skips, skips_on_a_device, other_order, raises, returns_early, breaks, uneven_data, matches,
    other_exception, backward,
]  # fmt: skip


def found(program, **settings):
    """Run a program that fails; return where its ranks parted, and the failure."""
    settings = {"divergence": True, **settings}
    with pytest.raises(Exception) as caught, simrank.Context.for_ranks(NPROCS, **settings) as ctx:  # noqa: PT011
        ctx.multiprocessing.spawn(program, nprocs=NPROCS)
    return ctx.divergence.diverged_at, caught.value


def marked(program):
    """Return the number of the program's line that is marked."""
    code, first = program.__code__, program.__code__.co_firstlineno
    with open(code.co_filename) as file:
        lines = file.read().splitlines()
    return next(n for n in range(first, len(lines)) if lines[n - 1].endswith("# here"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_branch_that_leads_to_the_failure_is_named(program):
    """Not those before it, which do no harm."""
    diverged_at, error = found(program)
    assert diverged_at is not None, error
    assert (diverged_at.file, diverged_at.line) == (__file__, marked(program)), diverged_at
    assert f"diverged at test_divergence.py:{diverged_at.line} `{diverged_at.text}`: " in str(error)


def test_a_branch_in_a_module_is_named():
    """With the values of attributes and arguments, on each side."""
    diverged_at, _ = found(in_a_module)
    assert diverged_at.line == marked(Gate.forward)
    values = {side.ranks: dict(side.values) for side in diverged_at.sides}
    assert values == {
        (0, 1): {"self.limit": "0, 1", "x": "1.0"},
        (2,): {"self.limit": "2", "x": "1.0"},
    }


def test_a_swallowed_exception_is_told_with_what_its_line_read():
    """Of the rank that raised."""
    diverged_at, _ = found(other_exception)
    (side,) = [side for side in diverged_at.sides if side.ranks == (2,)]
    assert (side.did, dict(side.values)["rank"]) == ("raised KeyError", "2")


@pytest.mark.parametrize("program", [shapes_differ, one_device, waits_for_nobody])
def test_nobody_is_accused_where_no_branch_parted_the_ranks(program):
    """Those that log are left alone; the report says what differs."""
    diverged_at, error = found(program)
    assert diverged_at is None
    assert "diverged_at" not in str(error)


def test_a_run_that_ends_well_has_no_parting():
    """Its numbers and times are those of a run that nobody follows."""
    ends = []
    for divergence in (False, True):
        with simrank.Context.for_ranks(NPROCS, divergence=divergence) as ctx:
            ctx.multiprocessing.spawn(logs_and_ends, nprocs=NPROCS)
        ends.append(ctx.now_ps)
    assert ctx.divergence.diverged_at is None
    assert ends[0] == ends[1]
