"""Hooks around launches are called, with what the kernel says of the launch."""

import triton
import triton.language as tl


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
