"""What a kernel does is read off its source, and that of what it calls."""

import ast

import pytest
import triton
import triton.language as tl
from triton.language import core

import simrank
from simrank.errors import RaceError, UnsupportedError
from simrank.kernels.source import (
    analyse,
    bind,  # noqa: F401 - it attaches them
)
from simrank.kernels.source.analyse import effects_of
from simrank.kernels.source.bind import SEMANTIC
from simrank.kernels.values.block import Block

NEGATE = tl.constexpr("neg.f32 $0, $1;")
SPIN = "{\n.reg .pred %p;\nspin: ld.global.u32 $0, [$1];\nsetp.eq.u32 %p, $0, 0;\n@%p bra spin;\n}"


@triton.jit
def negate_by_name(x, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.inline_asm_elementwise(
        asm=NEGATE, constraints="=f,f", args=[tl.load(x + offs)], dtype=tl.float32,
        is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(x + offs, found)


@triton.jit
def spin_by_name(flag, text: tl.constexpr):
    tl.inline_asm_elementwise(text, "=r,l", [flag], dtype=tl.int32, is_pure=False, pack=1)


def test_assembly_that_a_name_stands_for_is_read_before_a_kernel_is_taken_to_wait(run):
    """Arithmetic runs in lockstep; what nobody can know yet runs as tasks."""

    def body(rank, ctx):
        x = ctx.arange(64, dtype=simrank.float32)
        assert negate_by_name[(4,)](x, BLOCK=16).mode == "batched"
        assert x.tolist() == [-float(i) for i in range(64)]
        flag = ctx.ones(1, dtype=simrank.int32)
        assert spin_by_name[(1,)](flag, SPIN).mode == "tasks"

    run(body, 1)


# ---- what a kernel shows to other programs, read off its source ----


def of(*lines):
    """The effects of a kernel with these lines; strings are known where they are written."""
    tree = ast.parse("def kernel():\n" + "".join(f"    {line}\n" for line in lines)).body[0]
    return effects_of(tree, lambda _: None, lambda text: getattr(text, "value", None))


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("tl.store(x, 1)", ""),
        ("tl.atomic_add(x, 1)", "reads atomics"),
        ('tl.atomic_add(x, 1, sem="release")', "reads atomics publishes"),
        ('tl.atomic_xchg(x, 1, sem="relaxed", scope="sys")', "reads atomics publishes"),
        ("tl.atomic_poll(x, 1)", "atomics waits"),
        ("tl.inline_asm_elementwise('mov.u32 $0, %laneid;')", "reads publishes threads"),
        ("tl.inline_asm_elementwise('a: ld.u32 $0, [$1]; bra a;')", "reads waits"),
        ("tl.inline_asm_elementwise(text)", "reads waits publishes"),
        ("extern_call('', '', [], {(): ('nvshmem_my_pe', t)})", ""),
        ("extern_call('', '', [], {(): ('nvshmem_barrier_all', t)})", "publishes waits"),
        ("extern_call('', '', [], {(): (f'nvshmem_{name}', t)})", "publishes waits"),
        ("extern_call('nvshmem', '', [], {(): ('my_own', t)})", ""),
    ],
)
def test_a_line_says_what_it_does(line, names):
    """What is not known may wait and publish."""
    effects = of(line)
    found = {name for name in effects.__slots__ if getattr(effects, name)}
    assert found == set(names.split())


def test_a_kernel_does_what_its_lines_do():
    """All of them."""
    effects = of("tl.atomic_poll(x, 1)", 'tl.atomic_xchg(y, 1, sem="release")')
    assert (effects.waits, effects.publishes) == (True, True)


# ---- blocks have the methods of Triton's tensors ----


def test_every_public_method_of_a_tensor_is_there():
    """Those that are functions of tl too."""
    names = {
        name
        for name, value in vars(core.tensor).items()
        if not name.startswith("_") and callable(value) and hasattr(tl, name)
    }
    assert names
    assert [name for name in sorted(names) if not hasattr(Block, name)] == []


@triton.jit
def by_method(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, x.sum() + x.max(axis=0))


def test_a_method_does_what_the_function_does(on_rank):
    """It is bound when it is first called."""

    def body(ctx):
        out = ctx.zeros(1, dtype="int64")
        by_method[(1,)](ctx.arange(16), out, N=16)
        assert out.item() == 120 + 15

    on_rank(body)


# ---- what libraries may ask of the compiler ----


def test_a_barrier_of_threads_is_there_and_nothing_else_that_builds():
    """Threads meet after every line anyway."""
    assert SEMANTIC.builder.create_barrier() is None
    with pytest.raises(UnsupportedError, match="create_load"):
        SEMANTIC.builder.create_load()


# ---- what a kernel may write to is read off its source; host reads and race checks go by it ----


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
