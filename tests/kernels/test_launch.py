"""Launches: unmodified Triton kernels on simulated tensors give right results, in both modes."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
from simrank.kernels.launch import grid_sizes
from simrank.kernels.memory.addresses import IllegalAccessError


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(axis=0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def softmax_kernel(out, inp, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(inp + row * stride + cols, mask=cols < n, other=-float("inf"))
    x = x - tl.max(x, axis=0)
    num = tl.exp(x)
    tl.store(out + row * stride + cols, num / tl.sum(num, axis=0), mask=cols < n)


@triton.jit
def optional_start_kernel(start_ptr, out_ptr):
    pid = tl.program_id(0)
    start = 0
    if start_ptr:
        start = tl.load(start_ptr + pid)
    if not start_ptr:
        start = -1
    tl.store(out_ptr + pid, start)


@pytest.mark.parametrize("mode", ["batched", "one-by-one"])
def test_vector_add_equals_numpy(on_rank, mode):
    """With a ragged end that is masked off."""

    def body(ctx):
        n = 5000
        x, y, out = ctx.randn(n), ctx.randn(n), ctx.empty(n)
        operation = add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024, mode=mode)
        assert (out.numpy() == x.numpy() + y.numpy()).all()
        assert operation.mode == mode
        assert operation.statistics.num_masked_lanes == 3 * 120

    on_rank(body)


@pytest.mark.parametrize("mode", ["batched", "one-by-one"])
def test_softmax_equals_numpy(on_rank, mode):
    """Rows that fill no power of two."""

    def body(ctx):
        x, out = ctx.randn(64, 100), ctx.empty(64, 100)
        softmax_kernel[(64,)](out, x, 100, 100, BLOCK=128, mode=mode)
        wanted = np.exp(x.numpy() - x.numpy().max(1, keepdims=True))
        wanted /= wanted.sum(1, keepdims=True)
        assert np.allclose(out.numpy(), wanted, rtol=1e-6)

    on_rank(body)


@pytest.mark.parametrize("mode", ["batched", "one-by-one", "tasks"])
def test_a_pointer_is_true_also_where_it_points_to_the_first_element(on_rank, mode):
    """Kernels ask `if start_ptr:` for arguments that may be None, which is false."""

    def body(ctx):
        out = ctx.zeros(3, dtype=simrank.int32)
        optional_start_kernel[(3,)](ctx.arange(5, 8, dtype=simrank.int32), out, mode=mode)
        assert out.tolist() == [5, 6, 7]
        optional_start_kernel[(3,)](None, out, mode=mode)
        assert out.tolist() == [-1, -1, -1]

    on_rank(body)


def test_the_main_program_is_told_of_a_kernel_that_failed_before_it_reads_what_it_wrote(ctx):
    """Not at its next wait: the values are there, but they are no results."""
    x, out = ctx.zeros(4), ctx.zeros(4)
    add_kernel[(1,)](x, x, out, 1000, BLOCK=1024)
    with pytest.raises(IllegalAccessError):
        out.numpy()
    add_kernel[(1,)](x, x, out, 4, BLOCK=1024)
    assert out.tolist() == [0.0] * 4


@triton.jit
def copy_one(source, target):
    tl.store(target, tl.load(source))


def test_a_part_seen_as_another_type_is_an_argument_like_others(ctx):
    """Its storage need not have room for whole elements of that type."""
    whole = ctx.arange(10, dtype=simrank.uint8)
    words, long = whole[:4].view(simrank.int32), whole[:8].view(simrank.int64)
    out = ctx.zeros(1, dtype=simrank.int32)
    copy_one[(1,)](words, out)
    assert out.item() == 0x03020100
    out.fill_(-1)
    copy_one[(1,)](out, words)
    copy_one[(1,)](long, out)
    assert out.item() == -1
    assert whole.tolist() == [255] * 4 + [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("grid", "kind", "named"),
    [
        ((5000 / 1024,), TypeError, "divide with triton.cdiv"),
        (lambda meta: (5000 / meta["BLOCK"],), TypeError, "whole numbers"),
        ((1, 65536), ValueError, "at most 2147483647, 65535, 65535 programs"),
    ],
)
def test_a_grid_that_no_device_takes_is_refused(on_rank, grid, kind, named):
    """It would silently run too few programs, or more than hardware can."""

    def body(ctx):
        x = ctx.ones(5000)
        with pytest.raises(kind, match=named):
            add_kernel[grid](x, x, x, 5000, BLOCK=1024)

    on_rank(body)


@pytest.mark.parametrize("mode", ["batched", "tasks"])
def test_an_operation_that_has_ended_keeps_no_memory(on_rank, mode):
    """Whoever keeps it for its statistics does not keep the arguments of the launch."""

    def body(ctx):
        x = ctx.ones(5000)
        operation = ctx.launch(add_kernel, (5,), x, x, x, 5000, BLOCK=1024, mode=mode)
        ctx.synchronize()
        del x
        assert ctx.cuda.memory_allocated() == 0
        assert operation.statistics.num_masked_lanes == 3 * 120

    on_rank(body)


# ---- hooks around launches are called, with what the kernel says of the launch ----


def _described(grid, kernel, arguments):
    return {"name": f"{kernel.name} {grid[0]}x{kernel.num_warps}", "flops": arguments["n"]}


@triton.jit(launch_metadata=_described)
def filled(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, 1.0, mask=offs < n)


def test_hooks_are_called_around_each_launch(run):
    """Nobody has to set both; names come from the kernel's own metadata."""
    seen = []

    def enter(metadata):
        seen.append(("enter", metadata.get()["name"], metadata.get()["flops"]))

    def leave(metadata):
        seen.append(("leave", metadata.get()["name"], metadata.get()["flops"]))

    def body(rank, ctx):
        runtime, x = triton.knobs.runtime, ctx.zeros(100)
        runtime.launch_enter_hook.add(enter)
        try:
            filled[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, 100, BLOCK=64, num_warps=2)
            runtime.launch_exit_hook.add(leave)
            filled[2,](x, 100, BLOCK=64)
        finally:
            runtime.launch_enter_hook.remove(enter)
            runtime.launch_exit_hook.remove(leave)
        filled[2,](x, 100, BLOCK=64)
        assert x.tolist() == [1.0] * 100

    run(body, 1)
    assert seen == [
        ("enter", "filled 2x2", 100),
        ("enter", "filled 2x4", 100),
        ("leave", "filled 2x4", 100),
    ]


# ---- grids: three numbers, whatever was given ----


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (5, (5, 1, 1)),
        ((2, 3), (2, 3, 1)),
        ([2, 3, 4], (2, 3, 4)),
        (lambda meta: (meta["n"] // 2,), (4, 1, 1)),
        (0, (0, 1, 1)),
    ],
)
def test_a_grid_has_three_axes(given, expected):
    """Of a number, of some, or of a function of the arguments."""
    assert grid_sizes(given, {"n": 8}) == expected


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((1, 2, 3, 4), ValueError, "one to three axes"),
        ((), ValueError, "one to three axes"),
        (1.5, TypeError, "divide with triton.cdiv"),
        (-1, ValueError, "no negative size"),
        ((1, 65536), ValueError, "use the first axis for what is long"),
    ],
)
def test_other_grids_are_refused(given, error, message):
    """As CUDA would at the launch, with the cure."""
    with pytest.raises(error, match=message):
        grid_sizes(given, {})
