"""What a compiled kernel's warps read of shared memory for their dots, as its PTX says."""

from __future__ import annotations

import re
from typing import NamedTuple

_LABEL = re.compile(r"^(\$L\w+):", re.MULTILINE)
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$L\w+)")
# Source: PTX ISA, "mma" and "ldmatrix": a warp multiplies m x k by k x n; it reads up to four
# matrices of 8 x 8 elements of two bytes.
_MULTIPLY = re.compile(r"\bmma\.sync\.aligned\.m(\d+)n(\d+)k(\d+)")
_READ = re.compile(r"\bldmatrix\.sync\.aligned\.m8n8\.x(\d)")
_MATRIX_BYTES = 8 * 8 * 2


class _Work(NamedTuple):
    """Operations of a warp's dots, and what it reads for them."""

    num_flops: int
    read_bytes: int


def operand_bytes_per_flop(ptx: str) -> float:
    """Return the bytes of shared memory that warps read for an operation of their dots.

    What counts are the innermost loops with dots, each alike: what surrounds them runs once. 0
    where warps do no dots by themselves (Hopper's groups of warps read as they multiply).
    """
    loops = _loops_with_dots(ptx)
    inner = [each for each in loops if not any(_holds(each, other) for other in loops)]
    found = [_work_of(ptx[start:stop]) for start, stop in inner or [(0, len(ptx))]]
    num_flops = sum(each.num_flops for each in found)
    return sum(each.read_bytes for each in found) / num_flops if num_flops else 0.0


def _loops_with_dots(ptx: str) -> list[tuple[int, int]]:
    """Return where loops begin and end: a branch goes back to a label before it."""
    labels = {match.group(1): match.start() for match in _LABEL.finditer(ptx)}
    branches = ((labels.get(each.group(1)), each.end()) for each in _BRANCH.finditer(ptx))
    loops = [(start, stop) for start, stop in branches if start is not None and start < stop]
    return [loop for loop in loops if _MULTIPLY.search(ptx, *loop)]


def _holds(loop: tuple[int, int], other: tuple[int, int]) -> bool:
    return loop != other and loop[0] <= other[0] and other[1] <= loop[1]


def _work_of(ptx: str) -> _Work:
    shapes = (map(int, match.groups()) for match in _MULTIPLY.finditer(ptx))
    num_flops = sum(2 * m * n * k for m, n, k in shapes)
    num_matrices = sum(int(match.group(1)) for match in _READ.finditer(ptx))
    return _Work(num_flops, num_matrices * _MATRIX_BYTES)
