"""Teams of ranks: who is in them, and what they do together."""

from contextlib import nullcontext

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import DeadlockError
from simrank.kernels import channels

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


# ---- multicast addresses of symmetric memory, as `multimem` instructions take them ----


@triton.jit
def load_reduce(pointer):
    return tl.inline_asm_elementwise(
        "multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,l",
        [pointer],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=False,
        pack=1,
    )


@triton.jit
def store_all(pointer, x, y, z, w):
    tl.inline_asm_elementwise(
        "multimem.st.relaxed.sys.global.v4.f32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0;",
        "=r,l,r,r,r,r",
        [pointer, x, y, z, w],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def all_reduce(multicast, pads, n, rank, WORLD_SIZE: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    channels.barrier(pads, pid * (WORLD_SIZE + 1), rank, WORLD_SIZE)
    base = multicast.to(tl.pointer_type(tl.float32))
    per_rank = n // WORLD_SIZE
    for start in range(pid * BLOCK * 4, per_rank, tl.num_programs(0) * BLOCK * 4):
        offs = rank * per_rank + start + tl.arange(0, BLOCK) * 4
        x, y, z, w = load_reduce(base + offs)
        store_all(base + offs, x, y, z, w)
    channels.barrier(pads, pid * (WORLD_SIZE + 1), rank, WORLD_SIZE)


def reduced(run, world_size, values, **options):
    """Return what each rank has after an all-reduce in the switch, and the kernel's duration."""
    found, times = {}, {}

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(values.shape[1])
        buffer.copy_(ctx.from_numpy(values[rank]))
        handle = symm_mem.rendezvous(buffer)
        handle.barrier()
        ctx.synchronize()
        start_ps = ctx.now_ps
        all_reduce[(2,)](
            handle.multicast_ptr, handle.signal_pad_ptrs_dev, values.shape[1], rank,
            WORLD_SIZE=world_size, BLOCK=16,
        )  # fmt: skip
        found[rank] = buffer.numpy()  # It comes behind the kernel, which has the address only.
        times[rank] = ctx.now_ps - start_ps

    run(body, world_size, **options)
    return found, max(times.values())


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_an_all_reduce_in_the_switch_is_exact(run, world_size):
    """In place, without a race, under two orders of arrival."""
    values = np.random.default_rng(0).integers(-9, 9, (world_size, 1024)).astype(np.float32)
    for seed in (0, 3):
        found, _ = reduced(run, world_size, values, races="error", seed=seed)
        for rank in range(world_size):
            np.testing.assert_array_equal(found[rank], values.sum(axis=0))


def test_what_a_switch_reduces_costs_one_access(run):
    """More ranks make the same instructions for less each, not more."""
    times = {n: reduced(run, n, np.ones((n, 4096), np.float32))[1] for n in (2, 8)}
    assert times[8] < times[2]


def test_a_plain_load_of_a_multicast_address_is_refused(run):
    """Only `multimem` instructions know what it stands for."""

    @triton.jit
    def load(address, out):
        tl.store(out, tl.load(address.to(tl.pointer_type(tl.float32))))

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(4))
        load[(1,)](handle.multicast_ptr, ctx.zeros(1))
        with pytest.raises(
            simrank.kernels.memory.addresses.IllegalAccessError, match="of no allocation"
        ):
            ctx.synchronize()

    run(body, 2)
