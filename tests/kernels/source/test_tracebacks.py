"""Debuggers stop in the source of a kernel."""

import sys

import pytest

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
N = 256


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
    on_rank(lambda ctx: with_breakpoint[(1,)](ctx.zeros(N), N=N) and None)
    line = with_breakpoint.fn.__code__.co_firstlineno + 3
    assert stopped == [(__file__, line, ["x_ptr", "N", "x"])]
