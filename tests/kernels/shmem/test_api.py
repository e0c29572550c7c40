"""SHMEM names in kernels: substituted by module and name, whatever the module really is."""

import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist

from ..fake_libraries import nvshmem_in, parts

nv = None  # Set by the fixture: what kernels call.


@pytest.fixture(scope="module")
def nvshmem(tmp_path_factory):
    """A module of the bindings' name, without the library behind it."""
    yield from nvshmem_in(globals(), tmp_path_factory)


@triton.jit
def ring_put(dst, src, signal, n, pe):
    nv.putmem_signal_block(dst, src, n * 4, signal, 1, 5, pe)
    nv.signal_wait_until(signal, 5, 1)


@triton.jit
def put_fence_signal(dst, src, signal, n):
    right = (nv.my_pe() + 1) % nv.n_pes()
    nv.put(dst, src, n, right)
    nv.fence()
    nv.signal_op(signal, 1, 0, right)
    nv.wait_until(signal, 0, 1)


@triton.jit
def get_after_barrier(dst, src, n):
    nv.barrier_all()
    nv.get(dst, src, n, (nv.my_pe() + 1) % nv.n_pes())


@triton.jit
def exchange_all(dst, src, n):
    nv.alltoall(0, dst, src, n)


@triton.jit
def take_roots(dst, src, n, root):
    nv.broadcast(0, dst, src, n, root)


@triton.jit
def combine(dst, src, n, operation: tl.constexpr):
    nv.reduce(0, dst, src, n, operation)


@triton.jit
def wait_at_most(signal, code, limit, out):
    nv.signal_wait_until(signal, code, limit)
    tl.store(out, 1)


def test_a_put_with_signal_arrives_before_its_signal(run, nvshmem):
    """Each rank puts to the next and waits for the one before."""

    def body(rank, ctx):
        dst, src, signal, _ = parts(ctx, rank)
        ring_put[(1,)](dst, src, signal, 8, (rank + 1) % 4)
        assert dst.tolist() == [float((rank - 1) % 4)] * 8
        assert signal[0].item() == 1

    run(body, 4, seed=3)


def test_a_fence_orders_a_put_before_a_signal(run, nvshmem):
    """Who I am and how many we are is known in the kernel."""

    def body(rank, ctx):
        dst, src, signal, _ = parts(ctx, rank)
        put_fence_signal[(1,)](dst, src, signal, 8)
        assert dst.tolist() == [float((rank - 1) % 2)] * 8

    run(body, 2, seed=5)


def test_a_get_reads_the_peers_part(run, nvshmem):
    """After a barrier of all ranks' kernels."""

    def body(rank, ctx):
        dst, src, _, _ = parts(ctx, rank)
        get_after_barrier[(1,)](dst, src, 8)
        assert dst.tolist() == [float((rank + 1) % 3)] * 8

    run(body, 3)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_collectives_of_kernels_give_what_their_names_say(run, nvshmem, world_size):
    """All-to-all, broadcast, and reductions, in place too."""

    def body(rank, ctx):
        dst, src, _, _ = parts(ctx, rank)
        everyone, n = range(world_size), 8 // world_size
        exchange_all[(1,)](dst, src, n)
        assert dst.tolist() == [float(peer) for peer in everyone for _ in range(n)]
        take_roots[(1,)](dst, src, 8, world_size - 1)
        assert dst.tolist() == [world_size - 1.0] * 8
        combine[(1,)](dst, src, 8, "max")
        assert dst.tolist() == [world_size - 1.0] * 8
        combine[(1,)](src, src, 8, "sum")
        assert src.tolist() == [float(sum(everyone))] * 8

    run(body, world_size, seed=2, races="error")


def test_comparisons_have_the_numbers_of_the_librarys_header(run, nvshmem):
    """In NVSHMEM 3 is "at most" and 5 "at least"."""

    def body(rank, ctx):
        _, _, signal, _ = parts(ctx, rank)
        out = simrank.zeros(1, dtype=simrank.int32)
        wait_at_most[(1,)](signal, 3, 7, out)
        assert out.item() == 1
        wait_at_most[(1,)](signal, 5, 7, out)
        ctx.synchronize()

    with pytest.raises(Exception, match="deadlock"):
        run(body, 2)


def test_memory_without_a_rendezvous_is_refused(run, nvshmem):
    """Nobody knows where the peer has it."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        get_after_barrier[(1,)](ctx.zeros(8), ctx.zeros(8), 8)
        ctx.synchronize()

    with pytest.raises(Exception, match="does not know where rank 1 has its part"):
        run(body, 2)
