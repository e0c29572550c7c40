"""What simulated time makes of tuned choices that were published: is the chosen one the fastest?

`python benches/kernels_tuned.py [--json FILE]` tries attention forward in blocks of 32 to 128 rows
and columns with 4 and 8 warps, without data, and prints where the published choice stands among
them. It compiles each for its device, which takes some minutes.

Source: pytorch/pytorch, torch/_inductor/template_heuristics/triton.py, the choices for float16 of
FlexAttention's forward on H100 and A100.
"""

# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import NamedTuple

from kernels_published import attention
from triton.runtime.errors import OutOfResources

import simrank


class Choice(NamedTuple):
    """How a kernel is launched."""

    rows: int
    columns: int
    num_warps: int


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


def times_us(cluster: str, dim: int, *, causal: bool) -> dict[Choice, float]:
    """Return what each choice that fits takes."""
    found: dict[Choice, float] = {}
    heads = BATCH * WIDTH // dim

    def program(_rank, ctx):
        q, k, v, o = (ctx.empty(heads * LENGTH, dim, dtype=ctx.float16) for _ in range(4))
        sums = ctx.empty(heads * LENGTH)
        for choice in CANDIDATES:
            if causal and choice.rows % choice.columns:
                continue  # Below the mask blocks end with the rows.
            try:
                done = ctx.launch(
                    attention, (LENGTH // choice.rows, heads), q, k, v, o, sums, 0.1, LENGTH,
                    CAUSAL=causal, BM=choice.rows, BN=choice.columns, D=dim,
                    num_warps=choice.num_warps, num_stages=STAGES,
                )  # fmt: skip
                ctx.synchronize()
            except OutOfResources:
                continue
            found[choice] = done.cost.duration_ps / 1e6

    with simrank.Context(cluster, data=False) as ctx:
        ctx.multiprocessing.spawn(program, args=(ctx,), nprocs=1)
    return found


def main() -> None:
    """Print a row per published choice."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    wanted, rows = parser.parse_args(), []
    for ((cluster, dim), published), causal in product(PUBLISHED.items(), (False, True)):
        found = times_us(cluster, dim, causal=causal)
        if published not in found:
            continue
        fastest = min(found, key=lambda choice: found[choice])
        slower = found[published] / found[fastest] - 1
        place = sorted(found.values()).index(found[published]) + 1
        rows.append({"cluster": cluster, "dim": dim, "causal": causal, "slower": slower})
        print(
            f"{cluster}  heads of {dim:<4}{'causal' if causal else 'all':<8}"
            f"published {tuple(published)!s:<15} simulated: {place:>2} of {len(found)}, "
            f"{slower:4.0%} slower than {tuple(fastest)}",
            flush=True,
        )
    near = sum(row["slower"] <= 0.1 for row in rows)
    print(f"{near} of {len(rows)} published choices are within 10 % of the fastest")
    if wanted.json:
        wanted.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
