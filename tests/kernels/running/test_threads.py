"""Kernels that ask which thread they are: each thread keeps its own values and goes its own way."""

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language import core
from triton.language.core import _aggregate as aggregate

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import UnsupportedError

from ..warps import ballot, launched, put, take, thread


@core.extern
def add(ptr, value, scope: core.constexpr, _semantic=None):
    return tl.inline_asm_elementwise(
        asm=f"atom.acq_rel.{scope.value}.global.add.s32 $0, [$1], $2;",
        constraints="=r,l,r",
        args=[ptr, value],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
        _semantic=_semantic,
    )


@core.extern
def look(ptr, _semantic=None):
    return tl.inline_asm_elementwise(
        asm="ld.acquire.sys.global.b32 $0, [$1];",
        constraints="=r,l",
        args=[ptr],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
        _semantic=_semantic,
    )


@triton.jit
def own_ways(out):
    me = thread(0)
    if me < 40:
        found = me * 2
        if me % 2 == 0:
            found += 1000
        else:
            extra = 7
            found += extra
    elif me < 50:
        found = tl.cast(-1, tl.int32)
    else:
        found = tl.cast(-2, tl.int32)
    put(out + me, found)


@triton.jit
def rounds(out, n):
    me = thread(0)
    total = me * 0
    for i in range(me, n, 128):
        total += i
    steps = me * 0
    while steps * 3 < me:
        steps += 1
    put(out + 2 * me, total)
    put(out + 2 * me + 1, steps)


@triton.jit
def count(counter, out):
    add(counter, 1, "gpu")
    if thread(0) == 0:
        add(counter, 1000, "gpu")
        tl.atomic_add(counter, 100000)
    tl.store(out, tl.load(counter))


@triton.jit
def meet(pads, out, rank, world_size: tl.constexpr):
    me = thread(0)
    if me < world_size:
        theirs = tl.load(pads + me).to(tl.pointer_type(tl.int32))
        put(theirs + rank, 1)
        mine = tl.load(pads + rank).to(tl.pointer_type(tl.int32))
        while look(mine + me) != 1:
            pass
    tl.store(out, 1)


@triton.jit
def store_of_each(out):
    tl.store(out + thread(0), 1)


@triton.jit
def leave_alone(out):
    if thread(0) > 3:
        return
    put(out + thread(0), 1)


@triton.jit
def block_of_each(out):
    tl.store(out, tl.sum(tl.load(out + thread(0) + tl.arange(0, 16))))


@triton.jit
def pack_threads(out):
    found = tl.inline_asm_elementwise(
        "mov.b32 $0, $2; mov.b32 $1, $3;",
        "=r,=r,r,r",
        [thread(0)],
        dtype=tl.int32,
        is_pure=True,
        pack=2,
    )
    put(out, found)


def test_threads_keep_what_they_assign_on_their_way(run):
    """On either side of an `if`, nested ones included."""

    def body(rank, ctx):
        me = np.arange(128)
        expected = np.where(me % 2 == 0, me * 2 + 1000, me * 2 + 7)
        expected = np.where(me < 40, expected, np.where(me < 50, -1, -2))
        np.testing.assert_array_equal(launched(ctx, own_ways, 128), expected)

    run(body, 1, races="error")


def test_threads_make_different_numbers_of_rounds(run):
    """In `for` and in `while`; the number of threads is that of the launch's warps."""

    def body(rank, ctx):
        me = np.arange(256)
        found = launched(ctx, rounds, 512, 300, num_warps=8).reshape(256, 2)
        sums = [sum(range(m, 300, 128)) for m in range(256)]
        np.testing.assert_array_equal(found, np.stack([sums, -(-me // 3)], axis=1))

    run(body, 1)


def test_every_thread_does_an_atomic_of_inline_assembly(run):
    """But Triton's own atomic of a scalar is done by thread 0 alone."""

    def body(rank, ctx):
        out = simrank.zeros(1, dtype=simrank.int32)
        counter = simrank.zeros(1, dtype=simrank.int32)
        count[(1,)](counter, out)
        assert out.item() == 128 + 1000 + 100000

    run(body, 1)


@pytest.mark.parametrize("world_size", [2, 8])
def test_each_thread_meets_one_peer(run, world_size):
    """A thread waits for its own flag while others have gone on."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(8, dtype=simrank.float32))
        out = simrank.zeros(1, dtype=simrank.int32)
        table = simrank.tensor(handle.signal_pad_ptrs)
        meet[(1,)](table, out, rank, world_size)
        assert out.item() == 1

    run(body, world_size, seed=3, races="error")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (store_of_each, "thread 0 alone writes"),
        (leave_alone, "a `return`"),
        (block_of_each, "blocks that differ between threads"),
        (pack_threads, "packed scalars"),
    ],
)
def test_what_only_some_threads_would_do_is_refused(run, kernel, words):
    """Rather than done by others as well."""

    def body(rank, ctx):
        with pytest.raises(UnsupportedError, match=words):
            launched(ctx, kernel, 128)

    run(body, 1)


@triton.jit
def choose_side(out):
    me = thread(0)
    put(out + me, me * 2 if me > 5 else 1)


def test_a_conditional_expression_gives_each_thread_its_side(run):
    """As Triton's compiler does for scalars."""

    def body(rank, ctx):
        me = np.arange(128)
        np.testing.assert_array_equal(launched(ctx, choose_side, 128), np.where(me > 5, me * 2, 1))

    run(body, 1)


@triton.jit
def tile_of_first_vote(out, limit):
    votes = ballot(thread(0) % 32 >= limit)
    lane = take(thread(0), limit, "idx", 31) % 32 + votes * 0
    if thread(0) < 0:
        lane = thread(0)
    tl.store(out + lane * 16 + tl.arange(0, 16), lane)


def test_what_all_threads_have_found_alike_is_theirs_together(run):
    """So that it may say where a block lies; a condition goes into a register as 0 or 1."""

    def body(rank, ctx):
        found = launched(ctx, tile_of_first_vote, 64, 2).reshape(4, 16)
        np.testing.assert_array_equal(found[:, 5], [0, 0, 2, 0])

    run(body, 1)


@triton.jit
def thread_of_assembly():
    x, _ = tl.inline_asm_elementwise(
        "mov.u32 $0, %tid.x; mov.u32 $1, %tid.y;",
        "=r,=r",
        [],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )
    return x


@triton.jit
def store_where_assembly_says(out, n):
    me = thread_of_assembly()
    if me < n:
        put(out + me, me + 1)


def test_inline_assembly_tells_threads_apart(run):
    """A guard lets through as many threads as it says, not thread 0 for all."""

    def body(rank, ctx):
        expected = np.where(np.arange(128) < 20, np.arange(128) + 1, 0)
        np.testing.assert_array_equal(launched(ctx, store_where_assembly_says, 128, 20), expected)

    run(body, 1, races="error")


@triton.jit
def choose_among_few(out, values):
    me = thread(0)
    if me < 5:
        put(out + me, look(values + me) if me < 10 else look(values - 1))


def test_a_side_of_a_conditional_expression_that_no_thread_takes_is_not_done(run):
    """Where an `if` around it has left out those that would."""

    def body(rank, ctx):
        values = simrank.arange(7, 12, dtype=simrank.int32)
        assert launched(ctx, choose_among_few, 6, values).tolist() == [7, 8, 9, 10, 11, 0]

    run(body, 1)


@aggregate
class Cell:
    """An address in memory."""

    address: tl.tensor

    def __init__(self, address):
        self.address = address

    @triton.jit
    def fill(self):
        """Write to it."""
        tl.store(self.address, 1)


@triton.jit
def add_by_method(out):
    if thread(0) == 5:
        out.atomic_add(1)


@triton.jit
def store_by_aggregate(out):
    cell = Cell(out)
    if thread(0) == 5:
        cell.fill()


@pytest.mark.parametrize("kernel", [add_by_method, store_by_aggregate])
def test_methods_write_as_functions_do_where_threads_differ(run, kernel):
    """Thread 0 alone writes a scalar, so where it is left out nothing is written by others."""

    def body(rank, ctx):
        with pytest.raises(UnsupportedError, match="only some threads"):
            launched(ctx, kernel, 1)

    run(body, 1)


def test_programs_that_ask_for_threads_are_not_run_in_lockstep(run):
    """A row of a scalar is a thread's or a program's, never both."""

    def body(rank, ctx):
        with pytest.raises(ValueError, match="asks which thread it is"):
            launched(ctx, own_ways, 128, mode="batched")

    run(body, 1)


@triton.jit
def keep_signs(out):
    zero = tl.cast(0.0, tl.float32)
    if thread(0) > 5:
        zero = zero * -1.0
    put(out + thread(0), zero.to(tl.int32, bitcast=True) < 0)


def test_zeros_of_two_signs_are_not_alike(run):
    """Though they are equal."""

    def body(rank, ctx):
        assert launched(ctx, keep_signs, 128).tolist() == [0] * 6 + [1] * 122

    run(body, 1)
