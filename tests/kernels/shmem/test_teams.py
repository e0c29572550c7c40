"""Teams of ranks: who is in them, and what they do together."""

from contextlib import nullcontext

import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import DeadlockError

from ..fake_libraries import library_in

dl = simt = shmem = hip = None  # Set by the fixture: what kernels call.


@pytest.fixture(autouse=True, scope="module")
def library(tmp_path_factory):
    """Modules of the library's names, without the compiler behind them."""
    yield from library_in(globals(), tmp_path_factory)


@triton.jit
def root_of_the_node(buffer, sizes, N: tl.constexpr):
    tl.store(sizes, shmem.team_n_pes(2))
    shmem.broadcastmem_block(2, buffer + N, buffer, N * 4, 1)


@triton.jit
def meet_in_teams(team):
    shmem.team_sync_block(team)


def symmetric(shape, dtype):
    tensor = symm_mem.empty(shape, dtype=dtype)
    tensor.fill_(0)
    symm_mem.rendezvous(tensor)
    dist.barrier()
    return tensor


def test_the_team_of_a_node_has_the_ranks_of_one_node(run):
    """Two nodes of eight: each has a root of its own."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symmetric(32, simrank.float32)
        sizes = simrank.zeros(1, dtype=simrank.int32)
        buffer[:16].fill_(float(rank))
        root_of_the_node[(1,)](buffer, sizes, 16)
        assert sizes.item() == 8
        assert buffer[16:].tolist() == [float(rank // 8 * 8 + 1)] * 16

    run(body, 16, cluster="h100_ib", races="error")


@pytest.mark.parametrize("is_same", [True, False])
def test_teams_of_the_same_ranks_meet_apart(run, is_same):
    """Who calls the barrier of another team is waited for, as by the library."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        meet_in_teams[(1,)](0 if is_same else 2 * rank)
        ctx.synchronize()

    with nullcontext() if is_same else pytest.raises(DeadlockError, match="1 of 2 ranks"):
        run(body, 2)
