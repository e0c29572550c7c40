"""What stands for the functions of a library."""

import pytest
import triton

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem

from ..fake_libraries import nvshmem_in

nv = None  # Set by the fixture: what kernels call.


@pytest.fixture(scope="module")
def nvshmem(tmp_path_factory):
    """A module of the bindings' name, without the library behind it."""
    yield from nvshmem_in(globals(), tmp_path_factory)


@triton.jit
def put_fence_signal(dst, src, signal, n):
    right = (nv.my_pe() + 1) % nv.n_pes()
    nv.put(dst, src, n, right)
    nv.fence()
    nv.signal_op(signal, 1, 0, right)
    nv.wait_until(signal, 0, 1)


@triton.jit
def scan_all(dst, src):
    nv.scan(0, dst, src)


def parts(ctx, rank):
    """Return a buffer to receive into, one to send from, and the signal pad as int64."""
    dist.init_process_group("nccl")
    both = [symm_mem.empty(8, dtype=simrank.float32) for _ in range(2)]
    handles = [symm_mem.rendezvous(tensor) for tensor in both]
    both[1].fill_(float(rank))
    return both[0], both[1], handles[0].get_signal_pad(rank, dtype=simrank.int64), handles


def test_what_is_not_done_is_refused_by_name(run, nvshmem):
    """Collectives of teams, for example."""

    def body(rank, ctx):
        dst, src, _, _ = parts(ctx, rank)
        scan_all[(1,)](dst, src)
        ctx.synchronize()

    with pytest.raises(Exception, match=r"_nvshmem_triton\.scan is not supported"):
        run(body, 2)


def test_a_wrapper_that_adds_libraries_launches(run, nvshmem):
    """As torch's decorator does: `run` of the kernel gets the path of a library."""

    class WithLibraries(triton.runtime.jit.KernelInterface):
        def run(self, *args, **kwargs):
            return put_fence_signal.run(*args, **kwargs, extern_libs={"nvshmem": "nowhere.bc"})

    def body(rank, ctx):
        dst, src, signal, _ = parts(ctx, rank)
        WithLibraries()[(1,)](dst, src, signal, 8)
        assert dst.tolist() == [float((rank - 1) % 2)] * 8

    run(body, 2, races="error")
