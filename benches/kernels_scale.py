"""Large launches, and what looking for races in them costs: seconds and peak memory.

Run `python benches/kernels_scale.py [--json FILE]`. Each case runs in a fresh process, so that its
peak memory is its own. Programs in lockstep: 20,000 of 1,024 elements, plain and with races looked
for (aim: 3 times the time and twice the memory). Programs as tasks: 60,000 that put to a peer.
"""

# ruff: noqa: ANN001, ANN201, ANN401, ARG001, N803

from __future__ import annotations

import time
from typing import Any

import triton
import triton.language as tl
from cases import Case, main

import simrank
import simrank.distributed as dist
from simrank.distributed import symmetric_memory

LOCKSTEP, TASKS, BLOCK = 20_000, 60_000, 1024
CLOCKS = (time.perf_counter,)  # A name of its own would be rebound to simulated time in ranks.


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, total, mask=inside)


@triton.jit
def put(x, peers, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    peer = tl.load(peers).to(tl.pointer_type(tl.float32))
    tl.store(peer + at, tl.load(x + at))


def lockstep(races: str | None) -> dict[str, Any]:
    """Return the wall time of a large vector addition."""
    found = []

    def program(rank: int, ctx: simrank.Context) -> None:
        n = LOCKSTEP * BLOCK
        x, y, out = ctx.ones(n), ctx.ones(n), ctx.empty(n)
        ctx.synchronize()
        begin = CLOCKS[0]()
        ctx.launch(add, (LOCKSTEP,), x, y, out, n, BLOCK=BLOCK)
        ctx.synchronize()
        found.append(CLOCKS[0]() - begin)

    return _run(program, 1, races, found)


def tasks(races: str | None) -> dict[str, Any]:
    """Return the wall time of programs that each put 128 elements to a peer."""
    found = []

    def program(rank: int, ctx: simrank.Context) -> None:
        dist.init_process_group("nccl")
        target = symmetric_memory.empty(TASKS * 128)
        handle = symmetric_memory.rendezvous(target)
        if rank == 0:
            x = ctx.ones(TASKS * 128)
            peers = ctx.tensor([handle.buffer_ptrs[1]], dtype=ctx.int64)
            begin = CLOCKS[0]()
            ctx.launch(put, (TASKS,), x, peers, BLOCK=128)
            ctx.synchronize()
            found.append(CLOCKS[0]() - begin)

    return _run(program, 2, races, found)


def _run(program: Any, nprocs: int, races: str | None, found: list[float]) -> dict[str, Any]:
    options = {} if races is None else {"races": races}
    with simrank.Context("hgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(program, args=(ctx,), nprocs=nprocs)
    return {"seconds": found[0]}


CASES = {
    "20,000 programs in lockstep": Case(lambda: lockstep(None), None),
    "20,000 programs in lockstep, races": Case(lambda: lockstep("error"), None),
    "60,000 programs as tasks": Case(lambda: tasks(None), 15.0),
    "60,000 programs as tasks, races": Case(lambda: tasks("error"), None),
}

if __name__ == "__main__":
    rows = main(__file__, CASES, seconds="seconds")
    if rows:
        plain, checked = list(rows.values())[:2]
        times, memory = (checked[key] / plain[key] for key in ("seconds", "peak_mib"))
        print(
            f"looking for races: {times:.1f} times the time (aim 3), {memory:.1f} times the memory"
        )
