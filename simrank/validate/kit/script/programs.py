"""Programs of torch.distributed: values, orders of calls, and hangs.

All numbers are small whole ones, so that sums are exact in every order.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.validate.kit.script.rows import Rows


SHOWN = 6  # Values of a rank that are written, and the weighted sum of all.


class Calls:
    """torch.distributed, with the calls of this rank noted in their order.

    Args:
        note: Takes the name of a call and the number of its elements, before it is made.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        size = f" of {tensors[0].numel()}" if tensors else ""
        self._note(f"{name}{size}")
        return getattr(dist, name)(*args, **kwargs)


def whole(*shape: int, start: int = 0) -> torch.Tensor:
    """Return whole numbers from -3 to 3 on the device."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count, device="cuda") * 5 + start) % 7 - 3).float().view(shape)


def tensor_parallel(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """A layer split over its columns, then over its rows, with the sums of both passes."""
    x = whole(4, 8).requires_grad_()
    up = whole(2 * ranks, 8, start=1).chunk(ranks)[rank].clone().requires_grad_()
    down = whole(8, 2 * ranks, start=2).chunk(ranks, 1)[rank].clone().requires_grad_()
    out = (x @ up.T).relu() @ down.T
    total = out.detach().clone()
    calls.all_reduce(total)
    out.backward(total.sign())
    assert x.grad is not None
    calls.all_reduce(x.grad)
    return [total, x.grad]


def ring(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """Each rank's part goes around; each rank adds what passes, weighted by the turn."""
    own, total = whole(16, start=rank), torch.zeros(16, device="cuda")
    for turn in range(ranks):
        total += (turn + 1) * own
        taken = torch.empty_like(own)
        works = calls.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, own, (rank + 1) % ranks),
                dist.P2POp(dist.irecv, taken, (rank - 1) % ranks),
            ]
        )
        for work in works:
            work.wait()
        own = taken
    return [total]


def experts(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """Rows go to the ranks of their experts in uneven parts, and come back."""
    give = [1 + (rank + other) % 3 for other in range(ranks)]
    counts = torch.tensor(give, device="cuda")
    taken = torch.empty_like(counts)
    calls.all_to_all_single(taken, counts)
    take = taken.tolist()
    rows = whole(sum(give), 4, start=rank)
    there = torch.empty(sum(take), 4, device="cuda")
    calls.all_to_all_single(there, rows, take, give)
    there *= rank + 1
    back = torch.empty_like(rows)
    calls.all_to_all_single(back, there, give, take)
    return [back]


def sharded(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """Parameters in shards: gathered, used, gradients reduced to shards, updated."""
    shard = whole(6 * ranks).chunk(ranks)[rank].clone()
    for step in range(2):
        full = torch.empty(6 * ranks, device="cuda")
        calls.all_gather_into_tensor(full, shard)
        gradient = full * (rank + 1 + step)
        part = torch.empty_like(shard)
        calls.reduce_scatter_tensor(part, gradient)
        shard -= part
    return [shard]


def groups(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """Two groups, handles that are waited for in another order, and a broadcast."""
    halves = [calls.new_group([r for r in range(ranks) if r % 2 == side]) for side in (0, 1)]
    own = halves[rank % 2]
    first, second = whole(8, start=rank), whole(8, start=rank + 1)
    works = [calls.all_reduce(each, group=own, async_op=True) for each in (first, second)]
    works[1].wait()
    second += 1
    works[0].wait()
    last = whole(8, start=rank)
    calls.broadcast(last, ranks - 1)
    calls.barrier()
    return [first, second, last]


def one_leaves_out(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """The last rank leaves out a sum: the others wait for it."""
    x = whole(8, start=rank)
    calls.all_reduce(x)
    if rank < ranks - 1:
        calls.all_reduce(x)
        torch.cuda.synchronize()
    return [x]


def all_receive_first(calls: Any, rank: int, ranks: int) -> list[torch.Tensor]:
    """Each rank takes from its neighbour before it sends."""
    x = whole(8, start=rank)
    calls.recv(torch.empty_like(x), (rank + 1) % ranks)
    torch.cuda.synchronize()
    calls.send(x, (rank - 1) % ranks)
    return [x]


PROGRAMS = {
    "tensor parallel": tensor_parallel,
    "ring": ring,
    "experts": experts,
    "sharded": sharded,
    "groups": groups,
}
HANGS = {"one leaves out": one_leaves_out, "all receive first": all_receive_first}


def programs(rows: Rows) -> None:
    """Run the programs, and note values and calls of every rank."""
    for name, program in PROGRAMS.items():
        noted: list[str] = []
        values = program(Calls(noted.append), dist.get_rank(), dist.get_world_size())
        flat = [int(each) for each in torch.cat([each.flatten() for each in values]).tolist()]
        weighted = sum((place + 1) * each for place, each in enumerate(flat))
        facts = {"values": [*flat[:SHOWN], weighted], "calls": noted}
        title = f"{name} on {dist.get_world_size()} ranks"
        rows.add_of_each("part", "programs", name=title, rank=dist.get_rank(), **facts)


def hang(name: str, note: Callable[[str], None]) -> None:
    """Run a program that waits forever on some ranks."""
    HANGS[name](Calls(note), dist.get_rank(), dist.get_world_size())
    torch.cuda.synchronize()
