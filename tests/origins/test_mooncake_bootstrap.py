"""Mooncake PR 1755: first collectives that hang, on simulated ranks, where the cause is exact.

Numbers 1 to 8 are its requirements. Kernels load at their first launch here, as on a GPU.
"""

import random
import socket
import time

import pytest

import simrank
import simrank.distributed as dist
import simrank.multiprocessing as mp
from simrank.distributed.request import DTYPES
from simrank.errors import (
    DeadlockError,
    IllegalTransportError,
    ProcessExitedException,
    SpawnException,
    UnsupportedError,
)

LAZY = {
    "name": "two",
    "device": {"like": "hgx_h100", "count": 2, "lazy_loading": True},
    "switches": ["switch"],
    "links": [
        {"between": ["each gpu", "switch"], "bandwidth": "450 GB/s", "latency": "1 us",
         "source": "assumed, for this test"},
    ],
}  # fmt: skip


def first_calls_ps(dtype, *, preload):
    """Return how long the first and the second all_reduce of a type take, in picoseconds."""
    took = []

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(64, dtype=getattr(simrank, dtype))
        ctx.synchronize()  # The kernel that fills it is loaded, too.
        for _ in range(2):
            start_ps = ctx.now_ps
            dist.all_reduce(x)
            ctx.synchronize()
            if rank == 0:
                took.append(ctx.now_ps - start_ps)

    with simrank.Context(LAZY) as ctx:
        if preload:
            ctx.preload()
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    return took


def total(ctx, rank):
    """Return the sum over the active ranks of one bit for each."""
    x = ctx.full((4,), float(1 << rank))
    dist.all_reduce(x)
    return int(x[0].item())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_preload_loads_the_reduction_kernels(dtype):
    """1: the first all_reduce takes as long as the second; without preload it takes longer."""
    first_ps, second_ps = first_calls_ps(dtype, preload=False)
    assert first_ps > second_ps + 100_000_000
    first_ps, second_ps = first_calls_ps(dtype, preload=True)
    assert first_ps < second_ps + 100_000_000


def test_preload_has_nine_types_without_float16():
    """1: as the source; the first all_reduce of float16 still loads its kernel."""
    assert sorted(DTYPES) == sorted(
        ("uint8", "int8", "int16", "int32", "int64", "float32", "float64", "bool", "bfloat16")
    )
    first_ps, second_ps = first_calls_ps("float16", preload=True)
    assert first_ps > second_ps + 100_000_000


def test_the_first_collective_behind_a_spinning_kernel_is_a_cycle():
    """2: the deadlock names each part of it; with preload the program ends."""
    pytest.importorskip("triton")
    from .spinning import spin_until_set

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x, flag = ctx.ones(64), ctx.zeros(1, dtype=simrank.int32)
        one = ctx.ones(1, dtype=simrank.int32)
        ctx.synchronize()
        with ctx.stream(ctx.Stream()):
            spin_until_set[(1,)](flag)
            dist.all_reduce(x)
        with ctx.stream(ctx.Stream()):
            flag.copy_(one)  # Ends the spin; the load of all_reduce is in front of this call.
        ctx.synchronize()

    with pytest.raises(DeadlockError) as caught, simrank.Context(LAZY) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    assert caught.value.proved
    cycle = "load of 'all_reduce sum float32' <- spin_until_set <- its flag <- "
    assert cycle in str(caught.value)
    with simrank.Context(LAZY) as ctx:
        ctx.preload([spin_until_set, "all_reduce"])
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)


def test_host_memory_is_no_memory_for_nccl(run):
    """3: an error at the call, with kind, transport and line; not a write that fails in silence."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(64, device="cpu")
        with pytest.raises(IllegalTransportError, match="256 bytes in host memory") as caught:
            dist.all_reduce(x)
        assert caught.value.transport == "nccl"

    run(program, 2)


def serve(sock, tried):
    """Bind the first free port of 15000 to 16999 that is drawn, as the RPC server does."""
    while True:
        port = random.randint(15000, 16999)
        tried.append(port)
        try:
            sock.bind(("", port))
        except OSError:
            continue
        return port


def test_a_port_conflict_is_found_at_bind_and_a_retry_succeeds(run):
    """4: an injected conflict strikes where the port is bound, before anything is published."""
    tried = {}

    def program(rank, ctx):
        random.seed(rank)
        with socket.socket() as sock:
            serve(sock, tried.setdefault(rank, []))

    run(program, 2, faults=[{"port_conflict": 0, "times": 2}])
    assert {rank: len(ports) for rank, ports in tried.items()} == {0: 3, 1: 1}


def test_ranks_of_a_host_share_its_ports(run):
    """4: the second rank that binds a port gets the error of the system."""
    seen = {}

    def program(rank, ctx):
        with socket.socket() as sock:
            try:
                sock.bind(("", 15000))
            except OSError as error:
                seen[rank] = type(error)
                return
            seen[rank] = "bound"
            ctx.wait(ctx.timer(10**6))

    run(program, 2)
    assert seen == {0: "bound", 1: OSError}


def test_inactive_ranks_are_skipped_and_come_back(run):
    """5: their calls end at once and keep their numbers."""
    seen = {}

    def program(rank, ctx):
        dist.init_process_group("nccl")
        seen[rank] = [total(ctx, rank)]
        dist.set_active_ranks([0, 2])
        seen[rank].append(total(ctx, rank))
        dist.set_active_ranks([0, 1, 2])
        seen[rank].append(total(ctx, rank))

    run(program, 3)
    assert seen == {0: [7, 5, 7], 1: [7, 2, 7], 2: [7, 5, 7]}


def test_a_rank_is_deactivated_by_a_fault():
    """5: from its third collective on; all ranks agree on the call."""
    seen = {}

    def program(rank, ctx):
        dist.init_process_group("nccl")
        seen[rank] = [total(ctx, rank) for _ in range(4)]

    faults = [{"deactivate": 1, "at_collective": 3}]
    with simrank.Context("hgx_h100", faults=faults) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
    assert seen == {0: [7, 7, 5, 5], 1: [7, 7, 2, 2], 2: [7, 7, 5, 5]}


@pytest.mark.parametrize(("op", "expected"), [("SUM", 9), ("PRODUCT", 20), ("MIN", 4), ("MAX", 5)])
def test_a_reduction_is_over_the_active_ranks(run, op, expected):
    """6: sum, product, minimum and maximum."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        dist.set_active_ranks([1, 2])
        x = ctx.full((1,), float((3, 4, 5)[rank]))
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        assert x.item() == (3 if rank == 0 else expected)

    run(program, 3)


def test_other_reductions_over_active_ranks_are_errors(run):
    """6: at the call, by name."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        dist.set_active_ranks([0])
        if rank == 0:
            with pytest.raises(UnsupportedError, match="all_reduce with avg"):
                dist.all_reduce(ctx.ones(4), dist.ReduceOp.AVG)

    run(program, 2)


def test_a_loop_on_a_shared_dictionary_ends(run):
    """7: `while len(results) < world_size: sleep(1)` sleeps in simulated time."""
    results = mp.Manager().dict()

    def program(rank, ctx):
        time.sleep(rank * 3)
        results[rank] = rank
        while len(results) < 3:
            time.sleep(1)

    assert run(program, 3).now_ps >= 6 * 10**12
    assert dict(results) == {0: 0, 1: 1, 2: 2}


def test_a_rank_that_a_signal_kills_is_named(run):
    """8: with its signal, as torch names a process."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        total(ctx, rank)

    with pytest.raises(ProcessExitedException) as caught:
        run(program, 4, faults=[{"kill": 3, "at_collective": 1}])
    assert (caught.value.error_index, caught.value.signal_name) == (3, "SIGKILL")


def test_the_first_error_of_a_rank_is_kept(run):
    """8: `errors` has root causes; peers that fail for lack of that rank are `consequences`."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank == 1:
            raise ValueError("broken")
        total(ctx, rank)

    with pytest.raises(SpawnException) as caught:
        run(program, 3, on_failure="continue")
    assert list(caught.value.errors) == [1]
    assert sorted(caught.value.consequences) == [0, 2]


def test_a_failed_rank_leaves_an_elastic_group_that_goes_on():
    """8: the survivors agree on the call from which on it is gone."""
    seen = {}

    def program(rank, ctx):
        dist.init_process_group("nccl", pg_options=dist.ElasticOptions())
        sums = [total(ctx, rank)]
        if rank == 1:
            raise ValueError("broken")
        sums.append(total(ctx, rank))
        seen[rank] = sums

    with (
        pytest.raises(SpawnException),
        simrank.Context("hgx_h100", on_failure="continue") as ctx,
    ):
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
    assert seen == {0: [7, 5], 2: [7, 5]}
