"""What stands for the functions of a library."""

import pytest
import triton
import triton.language as tl
from triton.language import core

import simrank
import simrank.distributed as dist
from simrank.kernels.shmem.libraries import by_symbol

from ..fake_libraries import nvshmem_in, parts

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


# ---- functions of SHMEM libraries by their names in C, and which of them wait ----


@pytest.mark.parametrize(
    "symbol",
    [
        "nvshmemx_signal_wait_until",
        "nvshmem_int_wait_until",
        "nvshmemx_barrier_all_block",
        "rocshmem_sync_all",
        "nvshmemx_fcollectmem_warp",
    ],
)
def test_what_ends_only_with_peers_waits(symbol):
    """Waits, barriers and collectives say so, whatever scope their names have."""
    assert by_symbol(symbol).effects.waits


@pytest.mark.parametrize("symbol", ["nvshmem_my_pe", "nvshmemx_putmem_signal_nbi_block"])
def test_what_ends_by_itself_does_not_wait(symbol):
    """Puts publish only; who asks for its rank does nothing that others see."""
    effects = by_symbol(symbol).effects
    assert (effects.publishes, effects.waits) == ("put" in symbol, False)


@pytest.mark.parametrize("symbol", ["nvshmem_no_such_function", "my_pe", "shmem_my_pe"])
def test_other_symbols_are_none_of_a_library(symbol):
    """Neither an unknown name nor one of no library is a function."""
    assert by_symbol(symbol) is None


# ---- external functions by their symbols ----


@core.extern
def c_function(name: core.constexpr, arguments, _semantic=None):
    kinds = tuple(core.dtype("int64") for _ in arguments)
    return core.extern_elementwise(
        "", "", arguments, {kinds: (f"nvshmem{name.value}", core.dtype("int32"))},
        is_pure=False, _semantic=_semantic,
    )  # fmt: skip


@triton.jit
def put_by_symbol(dst, src, signal, size_bytes, pe):
    there, here, flag = dst.to(tl.int64), src.to(tl.int64), signal.to(tl.int64)
    c_function("x_putmem_signal_block", [there, here, size_bytes, flag, 1, 9, pe])
    c_function("_signal_wait_until", [flag, 5, 1])


@core.extern
def wait_as_typed(flag, code, value, _semantic=None):
    address, kind = core.dtype("int64"), core.dtype("int32")
    return core.extern_elementwise(
        "", "", [flag, code, value],
        {
            (address, kind, kind): ("nvshmem_int_wait_until", kind),
            (address, kind, core.dtype("uint64")): ("nvshmem_uint64_wait_until", kind),
        },
        is_pure=False, _semantic=_semantic,
    )  # fmt: skip


@triton.jit
def wait_for_the_upper_half(flag, out):
    wait_as_typed(flag.to(tl.int64), 1, tl.full((), 0, tl.uint64))
    tl.store(out, 1)


@triton.jit
def wait_with_wrong_types(flag):
    wait_as_typed(flag.to(tl.int64), 1, 0.5)


def test_functions_are_known_by_their_names_in_c(run):
    """Whatever module wraps them."""

    def body(rank, ctx):
        dst, src, signal, _ = parts(ctx, rank)
        put_by_symbol[(1,)](dst, src, signal, 32, (rank + 1) % 4)
        assert dst.tolist() == [float((rank - 1) % 4)] * 8

    run(body, 4, seed=3, races="error")


def test_of_several_names_in_c_the_types_of_the_arguments_choose(run):
    """As Triton does: the first that is known may be of other elements."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        flag, out = simrank.full((1,), 1 << 32, dtype=simrank.int64), ctx.zeros(1)
        wait_for_the_upper_half[(1,)](flag, out)
        assert out.item() == 1
        wait_with_wrong_types[(1,)](flag)
        with pytest.raises(ValueError, match="input arg type does not match"):
            flag.item()

    run(body, 1)
