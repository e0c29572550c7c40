"""A kernel's source is bound once, with its own lines, and goes with the kernel."""

import gc
import sys
import weakref

import numpy as np
import triton
import triton.language as tl

from simrank.kernels.source.bind import bind

FACTOR = tl.constexpr(2)


def adding(number):
    """Return a new kernel that adds a number."""

    @triton.jit
    def add(x_ptr, out_ptr):
        lanes = tl.arange(0, 16)
        tl.store(out_ptr + lanes, tl.load(x_ptr + lanes) + number)

    return add


@triton.jit
def scaled(x_ptr, out_ptr):
    lanes = tl.arange(0, 16)
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes) * FACTOR)


def test_kernels_that_are_made_anew_do_not_stay(on_rank):
    """What is known of a kernel goes with it: 20 kernels of a function leave nothing behind."""
    made = []

    def body(ctx):
        x, out = ctx.arange(16), ctx.zeros(16, dtype=np.int64)
        for number in range(20):
            kernel = adding(tl.constexpr(number))
            made.append(weakref.ref(kernel))
            kernel[(1,)](x, out)
            assert out.numpy().tolist() == (np.arange(16) + number).tolist()

    on_rank(body)
    gc.collect()
    gone = [kernel() is None for kernel in made]
    # Releases of Triton that have a registry keep the last one of a name themselves.
    keeps_last = hasattr(triton.runtime.jit, "_triton_jit_function_registry")
    assert gone == [True] * 19 + [not keeps_last]


def test_a_kernel_is_bound_once_until_a_name_of_it_changes(monkeypatch):
    """A global that is bound to something else makes what was bound stale."""
    first = bind(scaled)
    assert bind(scaled) is first
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(3))
    assert bind(scaled) is not first


def test_a_bound_kernel_has_the_lines_of_its_file():
    """Its code names the file and the line of the source."""
    code = bind(scaled).function.__code__
    assert code.co_filename == __file__
    assert code.co_firstlineno == scaled.fn.__code__.co_firstlineno + 1  # Without the decorator.


def test_breakpoints_stop_in_the_kernel(on_rank, monkeypatch):
    """With the kernel's own frame, where its variables can be read."""
    stopped = []

    def hook():
        frame = sys._getframe(1)
        stopped.append((frame.f_code.co_filename, frame.f_lineno, list(frame.f_locals)))

    @triton.jit
    def with_breakpoint(x_ptr, N: tl.constexpr):
        x = tl.load(x_ptr + tl.arange(0, N))
        breakpoint()
        tl.store(x_ptr + tl.arange(0, N), x)

    monkeypatch.setattr(sys, "breakpointhook", hook)
    on_rank(lambda ctx: with_breakpoint[(1,)](ctx.zeros(16), N=16) and None)
    line = with_breakpoint.fn.__code__.co_firstlineno + 3
    assert stopped == [(__file__, line, ["x_ptr", "N", "x"])]
