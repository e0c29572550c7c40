"""Reference outputs of collectives, and tolerances of rounding.

The reference is computed in float64 (integers: in their own dtype, where every order gives the
same bits), without looking at any schedule. It works in cache-sized blocks, so checking 8 ranks of
64 MiB needs no large temporary.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from simrank.collectives.problem import (
    FLOAT8,
    FLOATS,
    REDUCING,
    AnyArray,
    Problem,
    divide_towards_zero,
    reduction,
)

FloatArray: TypeAlias = npt.NDArray[np.float64]
RankArrays: TypeAlias = Sequence[AnyArray] | AnyArray
Bound: TypeAlias = FloatArray | float
Mask: TypeAlias = npt.NDArray[np.bool_] | bool

BLOCK_ELEMENTS = 32 * 1024  # Measured: a float64 block of this length stays in the cache.


class Piece(NamedTuple):
    """A range of outputs that one set of input ranges explains.

    Attributes:
        ranks: Ranks whose outputs have it, at the same position.
        start: First element in each of those outputs.
        size: Number of elements.
        sources: (rank, first element) of each input range, reduced if there are several.
    """

    ranks: Sequence[int]
    start: int
    size: int
    sources: Sequence[tuple[int, int]]


def pieces(problem: Problem) -> Iterator[Piece]:
    """Yield the pieces that make up all outputs of a collective."""
    everyone, size = range(problem.world_size), problem.count
    if problem.collective in ("all_reduce", "reduce"):
        ranks = everyone if problem.collective == "all_reduce" else (problem.root,)
        yield Piece(ranks, 0, size, [(rank, 0) for rank in everyone])
    elif problem.collective == "gather":
        for rank in everyone:
            yield Piece((problem.root,), rank * size, size, [(rank, 0)])
    elif problem.collective == "scatter":
        for rank in everyone:
            yield Piece((rank,), 0, size, [(problem.root, rank * size)])
    elif problem.collective == "broadcast":
        yield Piece(everyone, 0, size, [(problem.root, 0)])
    elif problem.collective == "all_to_all":
        yield from _exchanged(problem)
    else:
        sizes = problem.splits or (size,) * problem.world_size
        starts = np.cumsum((0, *sizes)).tolist()
        for rank, start, block in zip(everyone, starts, sizes, strict=False):
            if problem.collective == "all_gather":
                yield Piece(everyone, start, block, [(rank, 0)])
            else:
                yield Piece((rank,), 0, block, [(source, start) for source in everyone])


def _exchanged(problem: Problem) -> Iterator[Piece]:
    num_ranks = problem.world_size
    splits = problem.splits or (problem.count,) * num_ranks**2
    sizes = np.array(splits, dtype=np.int64).reshape(num_ranks, num_ranks)
    sent_at, placed_at = np.cumsum(sizes, axis=1) - sizes, np.cumsum(sizes, axis=0) - sizes
    for src, dst in np.argwhere(sizes).tolist():
        source = (src, int(sent_at[src, dst]))
        yield Piece((dst,), int(placed_at[src, dst]), int(sizes[src, dst]), [source])


@np.errstate(all="ignore")
def reference(
    problem: Problem, inputs: RankArrays, *, reduce_op: str = "sum"
) -> list[AnyArray | None]:
    """Return each rank's reference output; None for ranks that receive nothing.

    Args:
        problem: The collective.
        inputs: One 1-D array per rank.
        reduce_op: One of `REDUCE_OPS`; not used by collectives that only copy.

    Returns:
        float64 arrays, or the inputs' dtype for integers and bools.
    """
    dtype = inputs[0].dtype
    pieces_by_rank: list[list[tuple[int, AnyArray]]] = [[] for _ in range(problem.world_size)]
    for piece in pieces(problem):
        values = _expected(problem, inputs, piece, reduce_op)[0]
        for rank in piece.ranks:
            pieces_by_rank[rank].append((piece.start, values))
    results: list[AnyArray | None] = []
    for parts in pieces_by_rank:
        ordered = [values for _, values in sorted(parts, key=lambda part: part[0])]
        empty = np.empty(0, np.float64 if dtype in FLOATS else dtype)
        results.append(np.concatenate(ordered or [empty]))
    if problem.collective in ("reduce", "gather"):
        results = [part if rank == problem.root else None for rank, part in enumerate(results)]
    return results


@np.errstate(all="ignore")
def count_wrong(
    problem: Problem,
    inputs: RankArrays,
    outputs: RankArrays,
    *,
    reduce_op: str = "sum",
    only: int | None = None,
) -> int:
    """Return the number of output elements outside of the tolerance of rounding.

    Args:
        problem: The collective.
        inputs: What every rank contributed (a copy, if it ran in place).
        outputs: What it left on every rank; not looked at where a rank receives nothing.
        reduce_op: One of `REDUCE_OPS`; not used by collectives that only copy.
        only: The rank whose output is looked at; None: all ranks.
    """
    num_wrong = 0
    for whole in pieces(problem):
        ranks = [rank for rank in whole.ranks if only in (None, rank)]
        for first in range(0, whole.size if ranks else 0, BLOCK_ELEMENTS):
            piece = _cut(whole, first)
            window = slice(piece.start, piece.start + piece.size)
            expected, allowed, may_overflow = _expected(problem, inputs, piece, reduce_op)
            checked: AnyArray | None = None
            for rank in ranks:
                got = outputs[rank][window]
                # Ranks mostly agree to the last bit, and comparing bytes is the cheapest check.
                if checked is None or not np.array_equal(_bytes(got), _bytes(checked)):
                    checked, num_outside = got, _num_outside(got, expected, allowed, may_overflow)
                num_wrong += num_outside
    return num_wrong


def tolerance(
    dtype: npt.DTypeLike,
    reduce_op: str,
    *,
    world_size: int,
    magnitude: npt.ArrayLike,
    growth: npt.ArrayLike = 1.0,
) -> FloatArray:
    """Return the tolerance of a result, for any order of reduction.

    Each of the n - 1 operations may err by half a unit in the last place of its result, and so
    may scaling and the final rounding.

    Args:
        dtype: Storage dtype.
        reduce_op: One of `REDUCE_OPS`.
        world_size: Number of contributions n.
        magnitude: Sum of the contributions' absolute values (avg: their mean; prod: the absolute
            value of the product).
        growth: For prod, the product of the contributions that exceed 1 in absolute value: it
            magnifies what was lost to underflow.

    Source:
        Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 4.2.
    """
    scale = np.asarray(magnitude, dtype=np.float64)
    if np.dtype(dtype) not in FLOATS or reduce_op in ("min", "max") or world_size == 1:
        return np.zeros_like(scale)
    info = _float_info(np.dtype(dtype))
    num_roundings = world_size + 1 + (reduce_op == "avg")
    # float64 results are compared with a float64 reference that errs just as much.
    num_roundings *= 2 if np.dtype(dtype) == np.float64 else 1
    relative = np.expm1(num_roundings * np.log1p(float(info.eps) / 2))
    underflow = num_roundings * float(info.smallest_subnormal) * np.asarray(growth)
    return np.asarray(relative * scale + underflow, dtype=np.float64)


def _bytes(values: AnyArray) -> AnyArray:
    return np.ascontiguousarray(values).view(np.uint8)


def _float64(values: AnyArray) -> FloatArray:
    """Return a copy of floats as float64; one-byte floats by look-up, which is faster."""
    if values.dtype in FLOAT8:
        return _float8_values(values.dtype)[values.view(np.uint8)]
    return values.astype(np.float64)


@lru_cache
def _float8_values(dtype: np.dtype[Any]) -> FloatArray:
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)


@lru_cache
def _float_info(dtype: np.dtype[Any]) -> ml_dtypes.finfo:
    """Return the limits of a float dtype; looking them up takes longer than a small check."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def _cut(piece: Piece, first: int) -> Piece:
    """Return up to a block of a piece, from element `first` on."""
    size = min(BLOCK_ELEMENTS, piece.size - first)
    sources = [(rank, start + first) for rank, start in piece.sources]
    return Piece(piece.ranks, piece.start + first, size, sources)


def _expected(
    problem: Problem, inputs: RankArrays, piece: Piece, reduce_op: str
) -> tuple[AnyArray, Bound, Mask]:
    """Return the reference of a piece, its tolerance, and where the dtype may overflow."""
    dtype = inputs[0].dtype
    parts = [inputs[rank][start : start + piece.size] for rank, start in piece.sources]
    if problem.collective not in REDUCING:
        return (_float64(parts[0]) if dtype in FLOATS else parts[0]), 0.0, False
    how = reduction(reduce_op, dtype, problem.world_size)
    if dtype not in FLOATS:
        total = parts[0].copy()
        for part in parts[1:]:
            how.combine(total, part, out=total)
        if how.divisor is not None:
            divide_towards_zero(total, how.divisor)
        return total, 0, False
    return _float_reference(parts, dtype, reduce_op, combine=how.combine_wide)


def _float_reference(
    parts: list[AnyArray], dtype: np.dtype[Any], reduce_op: str, *, combine: np.ufunc
) -> tuple[FloatArray, Bound, Mask]:
    total = _float64(parts[0])
    size, growth = np.abs(total), np.maximum(np.abs(total), 1.0)
    for part in parts[1:]:
        values = _float64(part)
        combine(total, values, out=total)
        if reduce_op in ("sum", "avg"):
            size += np.abs(values, out=values)
        elif reduce_op == "prod":
            growth *= np.maximum(np.abs(values, out=values), 1.0)
    if reduce_op in ("min", "max"):
        return total, 0.0, False
    world_size = len(parts)
    if reduce_op == "avg":
        total /= world_size
        size /= world_size
    if reduce_op == "prod":
        size = np.abs(total)
    else:
        growth = np.ones(1)
    allowed = tolerance(dtype, reduce_op, world_size=world_size, magnitude=size, growth=growth)
    largest = growth if reduce_op == "prod" else size
    limit = float(_float_info(dtype).max)
    may_overflow = largest + allowed >= limit * (1 - float(_float_info(dtype).eps))
    return total, allowed, may_overflow


def _num_outside(got: AnyArray, expected: AnyArray, allowed: Bound, may_overflow: Mask) -> int:
    """Return the number of elements outside the tolerance."""
    if expected.dtype != np.float64:
        return int(np.count_nonzero(got != expected))
    difference = _float64(got)
    difference -= expected
    inside = np.abs(difference, out=difference) <= allowed
    if inside.all():
        return 0
    values = _float64(got)
    same = (values == expected) | (np.isnan(values) & np.isnan(expected))
    excused = same | (may_overflow & ~np.isfinite(values))
    return int(np.count_nonzero(~(inside | excused)))
