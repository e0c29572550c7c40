"""What a kernel may write to is read off its source; host reads and race checks go by it."""

import pytest
import triton
import triton.language as tl

import simrank
from simrank.errors import RaceError
from simrank.kernels.source import analyse


@triton.jit
def put(address, value):
    tl.store(address, value)


@triton.jit
def through_a_callee(x, y, z, n):
    offs = tl.arange(0, 16)
    p = y + offs
    put(p, tl.load(x + offs))
    q = z
    q += n


@triton.jit
def through_pointers_that_move(a, b, c, n):
    here = a
    for _ in range(n):
        here = here + 1
        tl.atomic_add(here, tl.load(b))
    for address in tl.static_range(2):
        tl.store(c + address, 1)


@triton.jit
def copy_kernel(x, y, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offs, tl.load(x + offs))


def test_only_parameters_that_reach_a_store_are_written():
    """Through names, pointer arithmetic, loops and callees; loads do not count."""
    assert analyse.written_by_jit(through_a_callee) == {"y"}
    assert analyse.written_by_jit(through_pointers_that_move) == {"a", "c"}
    assert analyse.written_by_jit(copy_kernel) == {"y"}


def test_a_host_read_of_an_input_does_not_wait_for_the_kernel(run):
    """It waits for what may still be written, and nothing else."""

    def body(rank, ctx):
        x, y = ctx.ones(1 << 22), ctx.empty(1 << 22)
        ctx.synchronize()
        copy_kernel[(1 << 12,)](x, y, BLOCK=1024)
        start_ps = ctx.now_ps
        assert x[0].item() == 1.0
        assert ctx.now_ps == start_ps
        assert y[0].item() == 1.0
        assert ctx.now_ps > start_ps

    run(body, 1)


def test_a_kernel_that_overtakes_the_producer_of_its_input_is_a_race(run):
    """On another stream, without an event."""

    def body(rank, ctx):
        x, y = ctx.ones(1 << 12), ctx.empty(1 << 12)
        x.mul_(2.0)
        with ctx.stream(ctx.Stream()):
            copy_kernel[(4,)](x, y, BLOCK=1024)

    with pytest.raises(simrank.errors.SpawnException) as caught:
        run(body, 1, races="error")
    assert isinstance(caught.value.errors[0], RaceError)


def test_two_kernels_that_read_the_same_weights_do_not_race(run):
    """On two streams at the same time."""

    def body(rank, ctx):
        weights, first, second = ctx.ones(4096), ctx.empty(4096), ctx.empty(4096)
        side = ctx.Stream()
        side.wait_stream(ctx.current_stream())
        copy_kernel[(4,)](weights, first, BLOCK=1024)
        with ctx.stream(side):
            copy_kernel[(4,)](weights, second, BLOCK=1024)
        ctx.synchronize()

    assert run(body, 1, races="error").races == []


@triton.jit
def look_in_ptx(flag, other, out):
    seen = tl.inline_asm_elementwise(
        asm="ld.global.relaxed.sys.b32 $0, [$1];", constraints="=r,l", args=[flag],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    tl.inline_asm_elementwise(
        f"st.global.b32 [$1], {'$2'}; mov.u32 $0, 0;", "=r,l,r", [other, 5],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    tl.store(out, seen)


def test_assembly_that_only_loads_writes_nothing():
    """Its text says so; what stores is taken to write through all that it is given."""
    assert analyse.written_by_jit(look_in_ptx) == {"other", "out"}
