"""What simulated time makes of tuned choices that were published: is the chosen one the fastest?

`python benches/kernels_tuned.py [--json FILE]` tries attention forward in blocks of 32 to 128 rows
and columns with 4 and 8 warps, and products in tiles of 16 to 128 rows, 32 to 256 columns and 64 to
256 of the inner dim with 2 to 5 stages, without data, and prints where the published choice stands
among them. It compiles each for its device, which takes some ten minutes.

Sources: pytorch/pytorch, torch/_inductor/template_heuristics/triton.py, the choices for float16 of
FlexAttention's forward on H100 and A100; vllm-project/vllm, fused_moe/configs, the choices for one
expert in bfloat16, of which the first product of a layer is tried (its inner dim is not published:
4,096 is assumed).
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0913, PLR0917

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import triton
import triton.language as tl
from kernels_published import attention
from triton.runtime.errors import OutOfResources

import simrank

if TYPE_CHECKING:
    from collections.abc import Callable


class Choice(NamedTuple):
    """How attention is launched."""

    rows: int
    columns: int
    num_warps: int


class Tile(NamedTuple):
    """How a product is launched."""

    rows: int
    columns: int
    inner: int
    num_warps: int
    num_stages: int


PUBLISHED = {
    ("hgx_h100", 64): Choice(128, 128, 4),
    ("hgx_h100", 128): Choice(128, 64, 8),
    ("hgx_h100", 256): Choice(64, 32, 4),
    ("hgx_a100", 64): Choice(128, 64, 4),
    ("hgx_a100", 128): Choice(128, 64, 8),
    ("hgx_a100", 256): Choice(32, 64, 4),
}
CANDIDATES = [Choice(*each) for each in product((32, 64, 128), (32, 64, 128), (4, 8))]
LENGTH, WIDTH, BATCH = 4096, 2048, 2  # Tokens, and what all heads of one have together.
STAGES = 3

# By device and columns of the product: what was chosen for so many rows.
PRODUCTS = {
    ("hgx_h100", 2 * 3072): {
        16: Tile(16, 64, 256, 4, 3),
        24: Tile(64, 64, 256, 4, 3),
        32: Tile(64, 64, 256, 8, 3),
        64: Tile(128, 64, 128, 4, 4),
        96: Tile(64, 64, 64, 4, 5),
        128: Tile(128, 64, 64, 4, 4),
        256: Tile(128, 128, 64, 4, 3),
        512: Tile(128, 128, 64, 4, 4),
        1024: Tile(128, 128, 64, 4, 3),
        4096: Tile(128, 128, 64, 4, 3),
        17408: Tile(128, 256, 64, 8, 3),
    },
    ("hgx_a100", 2 * 14336): {
        16: Tile(16, 64, 256, 4, 4),
        32: Tile(32, 64, 128, 4, 5),
        48: Tile(32, 64, 64, 4, 5),
        64: Tile(64, 64, 128, 4, 4),
        96: Tile(32, 256, 64, 4, 5),
        128: Tile(64, 128, 64, 4, 4),
        256: Tile(128, 128, 64, 8, 4),
        512: Tile(128, 128, 64, 4, 3),
        4096: Tile(128, 128, 64, 4, 3),
    },
}
INNER, GROUP = 4096, 16
_GRID = product((16, 32, 64, 128), (32, 64, 128, 256), (64, 128), (4, 8), (2, 3, 4))
TILES = sorted({Tile(*each) for each in _GRID} | {t for c in PRODUCTS.values() for t in c.values()})


@triton.jit
def by_tiles(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
             GROUP: tl.constexpr):  # fmt: skip
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group, place = tl.program_id(0) // (GROUP * across), tl.program_id(0) % (GROUP * across)
    tall = min(down - group * GROUP, GROUP)
    rows = (group * GROUP + place % tall) * BM + tl.arange(0, BM)
    columns = place // tall * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_at = a_ptr + rows[:, None] * K + inner[None, :]
    b_at = b_ptr + columns[None, :] * K + inner[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        a = tl.load(a_at, mask=(rows[:, None] < M) & (inner[None, :] < K - start), other=0.0)
        b = tl.load(b_at, mask=inner[:, None] < K - start, other=0.0)
        acc = tl.dot(a, b, acc)
        a_at += BK
        b_at += BK
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16), mask=inside)


def attention_us(ctx, dim: int, *, causal: bool) -> dict[Choice, float]:
    """Return what each choice that fits takes."""
    heads = BATCH * WIDTH // dim
    q, k, v, o = (ctx.empty(heads * LENGTH, dim, dtype=ctx.float16) for _ in range(4))
    sums = ctx.empty(heads * LENGTH)

    def launched(choice: Choice):
        return ctx.launch(
            attention, (LENGTH // choice.rows, heads), q, k, v, o, sums, 0.1, LENGTH,
            CAUSAL=causal, BM=choice.rows, BN=choice.columns, D=dim,
            num_warps=choice.num_warps, num_stages=STAGES,
        )  # fmt: skip

    # Below the mask blocks end with the rows.
    tried = [each for each in CANDIDATES if not causal or each.rows % each.columns == 0]
    return _times_us(ctx, launched, tried)


def product_us(ctx, rows: int, columns: int) -> dict[Tile, float]:
    """Return what each tile that fits takes."""
    sizes = ((rows, INNER), (columns, INNER), (rows, columns))
    a, b, c = (ctx.empty(*each, dtype=ctx.bfloat16) for each in sizes)

    def launched(tile: Tile):
        grid = (triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns),)
        return ctx.launch(
            by_tiles, grid, a, b, c, rows, columns, INNER, BM=tile.rows, BN=tile.columns,
            BK=tile.inner, GROUP=GROUP, num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip

    return _times_us(ctx, launched, TILES)


def _times_us(ctx, launched: Callable, tried: list) -> dict:
    found = {}
    for choice in tried:
        try:
            done = launched(choice)
            ctx.synchronize()
        except OutOfResources:
            continue
        found[choice] = done.cost.duration_ps / 1e6
    return found


def on_one_device(cluster: str, tried: Callable[..., dict]) -> dict:
    """Return what was found in a run on a device of a cluster."""
    found: list[dict] = []
    with simrank.Context(cluster, data=False) as ctx:
        ctx.multiprocessing.spawn(lambda _rank: found.append(tried(ctx)), nprocs=1)
    return found[0]


def _cases():
    """Yield a name, what was published, and what finds the times, of each."""
    for ((cluster, dim), choice), causal in product(PUBLISHED.items(), (False, True)):
        name = f"{cluster}  heads of {dim:<4}{'causal' if causal else 'all':<8}"
        yield name, cluster, choice, lambda c, d=dim, m=causal: attention_us(c, d, causal=m)
    for (cluster, columns), choices in PRODUCTS.items():
        for rows, tile in choices.items():
            name = f"{cluster}  product of {rows:<10}"
            yield name, cluster, tile, lambda c, m=rows, n=columns: product_us(c, m, n)


def main() -> None:
    """Print a row per published choice."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    wanted, rows = parser.parse_args(), []
    for name, cluster, published, tried in _cases():
        found = on_one_device(cluster, tried)
        if published not in found:
            continue
        fastest = min(found, key=lambda choice: found[choice])
        slower = found[published] / found[fastest] - 1
        place = sum(each < found[published] for each in found.values()) + 1
        rows.append({"case": name.split(), "slower": slower})
        print(
            f"{name}published {tuple(published)!s:<22} simulated: {place:>3} of {len(found):>3}, "
            f"{slower:4.0%} slower than {tuple(fastest)}",
            flush=True,
        )
    near = sum(row["slower"] <= 0.1 for row in rows)
    print(f"{near} of {len(rows)} published choices are within 10 % of the fastest")
    if wanted.json:
        wanted.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
