"""Collectives and messages of NCCL over sizes, in nccl-tests' way but from torch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from simrank.validate.kit.script.rows import REPEATS, size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.validate.kit.script.rows import Rows

SIZES = tuple(1 << power for power in range(10, 31, 2))  # 1 KiB to 1 GiB.
LARGE_BYTES = 32 << 20
PAIR_SIZES = (8, 64 << 20)
MEMORY_SHARE = 4  # No buffer has more than this part of the free memory.


def collectives(rows: Rows) -> None:
    """Measure the collectives of all ranks, and messages around a ring of them, size by size."""
    ranks = dist.get_world_size()
    for size in SIZES:
        for name, make in CALLS.items():
            if not agreed(not rows.is_over() and fits(size)):
                text = f"stopped before {name}, {size_text(size)}: {why(rows)}"
                rows.add("note", "collectives", text=text)
                return
            times = host_us(make(size), 20 if size < LARGE_BYTES else 5)
            title = f"{name} of {ranks} ranks, {size_text(size)}"
            facts = {"collective": name, "bytes": size, "ranks": ranks, "dtype": "float32"}
            rows.times("collectives", title, times, **facts)


def pairs(rows: Rows) -> None:
    """Measure a message from one GPU to another, of each pair in turn; the others wait."""
    ranks = dist.get_world_size()
    every = [(giver, taker) for giver in range(ranks) for taker in range(giver + 1, ranks)]
    for size in PAIR_SIZES:
        each_us = {}
        for giver, taker in every:
            if not agreed(not rows.is_over() and fits(size)):
                text = f"stopped before {giver} to {taker}, {size_text(size)}: {why(rows)}"
                rows.add("note", "pairs", text=text)
                return
            body = message(size, giver, taker)
            times = host_us(body, 20 if size < LARGE_BYTES else 5, is_longest=True)
            each_us[f"{giver} to {taker}"] = round(sorted(times)[len(times) // 2], 3)
        title = f"{size_text(size)} between 2 of {ranks} GPUs"
        rows.times("pairs", title, each_us.values(), bytes=size, ranks=ranks, each_us=each_us)


def fits(size: int) -> bool:
    """Return whether buffers of a size are a small part of the free memory."""
    free, _ = torch.cuda.mem_get_info()
    return size * 2 < free // MEMORY_SHARE


def why(rows: Rows) -> str:
    """Return the reason why a phase stops."""
    return "its share of --limit is used up" if rows.is_over() else "too little free memory"


def agreed(is_going_on: bool) -> bool:
    """Return whether all ranks go on, so that all do the same."""
    said = torch.tensor([is_going_on], dtype=torch.int32, device="cuda")
    dist.all_reduce(said, op=dist.ReduceOp.MIN)
    return bool(said.item())


def host_us(
    body: Callable[[], object], number: int, *, warm_ups: int = 5, is_longest: bool = False
) -> list[float]:
    """Return the time of one of `number` calls, launched back to back, per repeat.

    It is the mean over ranks, as nccl-tests has it, or the longest.
    """
    for _ in range(warm_ups):
        body()
    torch.cuda.synchronize()
    found = []
    for _ in range(REPEATS):
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(number):
            body()
        torch.cuda.synchronize()
        spent = torch.tensor([(time.perf_counter() - start) * 1e6 / number], device="cuda")
        dist.all_reduce(spent, op=dist.ReduceOp.MAX if is_longest else dist.ReduceOp.SUM)
        found.append(spent.item() / (1 if is_longest else dist.get_world_size()))
    return found


def buffers(send_bytes: int, take_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two buffers of float32."""
    return torch.zeros(send_bytes // 4, device="cuda"), torch.zeros(take_bytes // 4, device="cuda")


def all_reduce(size: int) -> Callable[[], Any]:
    """Sum `size` bytes of each rank, in place."""
    data, _ = buffers(size, 4)
    return lambda: dist.all_reduce(data)


def all_gather(size: int) -> Callable[[], Any]:
    """Gather `size` bytes in all; each rank gives its part."""
    ranks = dist.get_world_size()
    part = size // ranks // 4 * 4
    give, take = buffers(part, part * ranks)
    return lambda: dist.all_gather_into_tensor(take, give)


def reduce_scatter(size: int) -> Callable[[], Any]:
    """Sum `size` bytes, and give each rank a part."""
    ranks = dist.get_world_size()
    part = size // ranks // 4 * 4
    give, take = buffers(part * ranks, part)
    return lambda: dist.reduce_scatter_tensor(take, give)


def broadcast(size: int) -> Callable[[], Any]:
    """Send `size` bytes of rank 0 to all."""
    data, _ = buffers(size, 4)
    return lambda: dist.broadcast(data, 0)


def alltoall(size: int) -> Callable[[], Any]:
    """Exchange `size` bytes of each rank."""
    ranks = dist.get_world_size()
    part = size // ranks // 4 * 4
    give, take = buffers(part * ranks, part * ranks)
    return lambda: dist.all_to_all_single(take, give)


def sendrecv(size: int) -> Callable[[], Any]:
    """Send `size` bytes to the next rank, and take those of the previous one."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    give, take = buffers(size, size)

    def body() -> None:
        send = dist.P2POp(dist.isend, give, (rank + 1) % ranks)
        take_op = dist.P2POp(dist.irecv, take, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([send, take_op]):
            work.wait()

    return body


def message(size: int, giver: int, taker: int) -> Callable[[], Any]:
    """Send `size` bytes from one rank to another; the other ranks do nothing."""
    rank = dist.get_rank()
    data, _ = buffers(size, 4)

    def body() -> None:
        operation, other = (dist.isend, taker) if rank == giver else (dist.irecv, giver)
        if rank in (giver, taker):  # In a batch of one: of the communicator of all.
            for work in dist.batch_isend_irecv([dist.P2POp(operation, data, other)]):
                work.wait()

    return body


CALLS = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "broadcast": broadcast,
    "alltoall": alltoall,
    "sendrecv": sendrecv,
}
