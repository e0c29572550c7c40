"""Triton kernels: values, and times."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from simrank.validate.kit.script.device_work import graphed, surviving

if TYPE_CHECKING:
    from simrank.validate.kit.script.rows import Body, Rows

triton: Any = None  # Where it is missing, or does not start.
if {"kernels", "own kernels"} & set(sys.argv):
    with suppress(Exception):
        import triton  # type: ignore[no-redef]
        import triton.language as tl

if triton is not None:

    @triton.jit
    def add_kernel(x, y, out, size, BLOCK: tl.constexpr):
        """Add vectors."""
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < size) + tl.load(y + at, at < size), at < size)

    @triton.jit
    def softmax_kernel(x, out, width, BLOCK: tl.constexpr):
        """Compute a row's softmax."""
        at = tl.program_id(0) * width + tl.arange(0, BLOCK)
        is_in = tl.arange(0, BLOCK) < width
        row = tl.load(x + at, is_in, float("-inf"))
        row = tl.exp(row - tl.max(row, 0))
        tl.store(out + at, row / tl.sum(row, 0), is_in)

    @triton.jit
    def norm_kernel(x, scale, out, width, BLOCK: tl.constexpr):
        """Normalise a row by its mean square."""
        columns = tl.arange(0, BLOCK)
        is_in = columns < width
        row = tl.load(x + tl.program_id(0) * width + columns, is_in, 0.0)
        mean = tl.sum(row * row, 0) / width
        scaled = row / tl.sqrt(mean + 1e-6) * tl.load(scale + columns, is_in, 0.0)
        tl.store(out + tl.program_id(0) * width + columns, scaled, is_in)

    @triton.jit
    def product_kernel(a, b, out, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
        """Compute a block of a matrix product."""
        rows = tl.program_id(0) * M + tl.arange(0, M)
        columns = tl.program_id(1) * N + tl.arange(0, N)
        total = tl.zeros((M, N), tl.float32)
        for start in range(0, k, K):
            inner = start + tl.arange(0, K)
            left = tl.load(a + rows[:, None] * k + inner[None, :])
            right = tl.load(b + inner[:, None] * n + columns[None, :])
            total += tl.dot(left, right)
        tl.store(out + rows[:, None] * n + columns[None, :], total)


def kernels(rows: Rows) -> None:
    """Run the kernels on small inputs."""
    if triton is None:
        rows.add("note", "kernels", text="triton is not installed")
        return
    draw = torch.Generator().manual_seed(7)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).cuda()

    x, y, out = drawn(1 << 16), drawn(1 << 16), torch.empty(1 << 16, device="cuda")
    wide, scale = drawn(64, 1000), drawn(1000)
    shown, normed = torch.empty_like(wide), torch.empty_like(wide)
    a, b = drawn(128, 256).half(), drawn(256, 128).half()
    product = torch.empty(128, 128, device="cuda")
    cases: dict[str, tuple[Any, torch.Tensor, torch.Tensor]] = {
        "add": (
            lambda _: add_kernel[(64,)](x, y, out, len(out), BLOCK=1024), out, x + y,
        ),
        "softmax": (
            lambda _: softmax_kernel[(64,)](wide, shown, 1000, BLOCK=1024), shown, wide.softmax(1),
        ),
        "norm": (
            lambda _: norm_kernel[(64,)](wide, scale, normed, 1000, BLOCK=1024), normed,
            wide * (wide.square().mean(1, keepdim=True) + 1e-6).rsqrt() * scale,
        ),
        "product": (
            lambda _: product_kernel[(2, 2)](a, b, product, 128, 256, M=64, N=64, K=32), product,
            (a.double() @ b.double()).float(),
        ),
    }  # fmt: skip
    for name, (body, got, want) in cases.items():
        if rows.is_over():
            rows.add("note", "kernels", text=f"stopped before {name}")
            return
        with surviving(rows, "kernels", name):
            one_kernel(rows, name, body, got, want)


def one_kernel(rows: Rows, name: str, body: Body, got: torch.Tensor, want: torch.Tensor) -> None:
    """Run a kernel, compare what it gives with torch's, and time it in a CUDA graph."""
    body(0)
    error = ((got - want).abs().max() / want.abs().max()).item()
    sample = [round(each, 4) for each in got.flatten()[:: got.numel() // 8].tolist()]
    facts = {"error": float(f"{error:.2g}"), "is_right": error < 1e-2}
    rows.add("value", "kernels", name=name, sample=sample, **facts)
    rows.times("kernels", f"kernel {name}", graphed(body, 10, most=3)[0])
