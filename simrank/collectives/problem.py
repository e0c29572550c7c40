"""The problem of an algorithm: one collective, its ranks, sizes and reductions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
)
GATHERED = ("gather", "scatter")  # Of lists on the root; no benchmark is made of them.
ROOTED = ("broadcast", "reduce", *GATHERED)
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
COPYING = ("all_gather", "all_to_all")  # Without a root.


@dataclass(frozen=True, slots=True)
class Problem:
    """One collective call as an algorithm sees it.

    Shapes: (n = world_size, m = count; elements on each rank)
        all_reduce, broadcast, reduce: input [m], output [m]
        all_gather (all_gather_into_tensor): input [m], output [n * m]
        reduce_scatter (reduce_scatter_tensor): input [n * m], output [m]
        all_to_all (all_to_all_single): input [n * m], output [n * m]; m goes to each peer
        gather: input [m], output [n * m] on the root; scatter: the other way round

    Attributes:
        collective: One of `COLLECTIVES` or `GATHERED`.
        world_size: Number of ranks.
        count: Elements, with the meaning above (the `count` of NCCL's call). With `splits`, 0.
        root: Root rank of those in `ROOTED`, 0 for the others.
        splits: Uneven sizes in elements. all_gather: input of each rank. reduce_scatter: output
            of each rank. all_to_all: row-major [n, n], row = sender, column = receiver.
        itemsize: Bytes of an element; algorithms choose pipeline chunks by it.
        node_size: Ranks per node, if each node has an equal run of consecutive ranks; 0 if not, or
            not known. Algorithms place their lanes by it.
        is_mesh: Whether every two ranks of a node have a link of their own.
    """

    collective: str
    world_size: int
    count: int
    root: int = 0
    splits: tuple[int, ...] | None = None
    itemsize: int = 4
    node_size: int = 0
    is_mesh: bool = False

    def __post_init__(self) -> None:
        """Check the fields against each other.

        Raises:
            ValueError: The collective is unknown, a number is out of range, or `splits` has the
                wrong length for the collective.
        """
        if self.collective not in (*COLLECTIVES, *GATHERED):
            choices = ", ".join((*COLLECTIVES, *GATHERED))
            raise ValueError(f"unknown collective {self.collective!r}; choices: {choices}")
        if self.world_size < 1 or self.count < 0 or self.itemsize < 1:
            raise ValueError(
                f"{self.collective}: world_size and itemsize must be at least 1 and count at least "
                f"0, got {self.world_size}, {self.itemsize} and {self.count}"
            )
        if not 0 <= self.root < self.world_size:
            raise ValueError(f"root {self.root} is not one of {self.world_size} ranks")
        if self.node_size < 0 or (self.node_size and self.world_size % self.node_size):
            raise ValueError(
                f"{self.world_size} ranks cannot stand on nodes of {self.node_size} each"
            )
        if self.splits is not None:
            self._check_splits(self.splits)

    @property
    def num_nodes(self) -> int:
        """Nodes that the ranks stand on; 1 if that is not known."""
        return self.world_size // self.node_size if self.node_size else 1

    def _check_splits(self, splits: tuple[int, ...]) -> None:
        lengths = {
            "all_gather": self.world_size,
            "reduce_scatter": self.world_size,
            "all_to_all": self.world_size**2,
        }
        if self.collective not in lengths:
            raise ValueError(f"{self.collective} takes no splits; choices: {', '.join(lengths)}")
        if len(splits) != lengths[self.collective] or min(splits) < 0:
            raise ValueError(
                f"{self.collective} on {self.world_size} ranks needs {lengths[self.collective]} "
                f"splits of at least 0 elements, got {len(splits)} with minimum {min(splits)}"
            )


def node_size_of(nodes: npt.NDArray[np.int64]) -> int:
    """Return the ranks per node if each node has an equal run of consecutive ranks, else 0.

    Shapes: (n ranks)
        nodes: [n] node of each rank
    """
    changes = np.flatnonzero(nodes[1:] != nodes[:-1])
    size = int(changes[0]) + 1 if len(changes) else len(nodes)
    if len(nodes) % size:
        return 0
    runs = nodes.reshape(-1, size)
    is_equal = bool((runs == runs[:, :1]).all()) and len(np.unique(runs[:, 0])) == len(runs)
    return size if is_equal else 0


def runs_of(nodes: npt.NDArray[np.int64]) -> list[int]:
    """Return the lengths of the runs of ranks that share a node, in the order of ranks.

    Shapes: (n ranks)
        nodes: [n] node of each rank
    """
    ends = np.flatnonzero(np.append(nodes[1:] != nodes[:-1], True)) + 1
    runs: list[int] = np.diff(ends, prepend=0).tolist()
    return runs


# ---- reduce operations on the dtypes that collectives carry ----

AnyArray: TypeAlias = npt.NDArray[Any]
Combine: TypeAlias = Callable[..., AnyArray]

REDUCE_OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
NARROW_FLOATS = tuple(
    np.dtype(name)
    for name in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
)
FLOAT8 = NARROW_FLOATS[2:]
FLOATS = (np.dtype(np.float32), np.dtype(np.float64), *NARROW_FLOATS)
INTEGERS = tuple(np.dtype(name) for name in (np.int8, np.uint8, np.int16, np.int32, np.int64))
DTYPES = (*FLOATS, *INTEGERS, np.dtype(np.bool_))

TABLE_BLOCK = 64 * 1024  # Keeps the indices of a look-up, 8 bytes each, in the cache.

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,  # Like NCCL's and torch's, it propagates NaN; np.fmin would not.
    "max": np.maximum,
    "avg": np.add,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """The combination of two elements, with the steps before and after.

    Attributes:
        combine: Takes operand, arriving elements and `out`, all of the storage dtype.
        combine_wide: The same for a schedule with `wide`, in the dtype `wide`.
        wide: Dtype in which such a schedule accumulates.
        scale: Takes elements read from INPUT and returns them scaled, or None.
        divisor: Divides the finished results, or None.
    """

    combine: Combine
    combine_wide: np.ufunc
    wide: np.dtype[Any]
    scale: Callable[[AnyArray], AnyArray] | None
    divisor: int | None


@lru_cache(maxsize=1024)
def reduction(reduce_op: str, dtype: np.dtype[Any], world_size: int) -> Reduction:
    """Return the reduction of an op on a dtype.

    `avg` is NCCL's: floats are multiplied by 1 / n, in their own dtype, before the sum; integers
    are summed and then divided, rounding towards zero. `sum` of bools is their maximum.

    Raises:
        ValueError: The op is unknown, or not defined on the dtype.

    Source:
        NCCL 2.30 `src/enqueue.cc` (hostToDevRedOp), torch `ProcessGroupNCCL.cpp` for bool.
    """
    if reduce_op not in REDUCE_OPS:
        raise ValueError(f"unknown reduce op {reduce_op!r}; choices: {', '.join(REDUCE_OPS)}")
    if not admits(reduce_op, dtype):
        raise ValueError(f"reduce op {reduce_op!r} is not defined on {dtype.name}")
    ufunc = _UFUNCS[reduce_op]
    is_average = reduce_op == "avg" and world_size > 1
    return Reduction(
        combine=_combine_by_table(ufunc, dtype) if dtype in FLOAT8 else ufunc,
        combine_wide=ufunc,
        wide=np.dtype(np.float32) if dtype in NARROW_FLOATS else dtype,
        scale=_scale(dtype, world_size) if is_average and dtype in FLOATS else None,
        divisor=world_size if is_average and dtype not in FLOATS else None,
    )


def _combine_by_table(ufunc: np.ufunc, dtype: np.dtype[Any]) -> Combine:
    """Return a ufunc of two one-byte floats as a look-up of both bytes: 6 times as fast."""
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    with np.errstate(all="ignore"):
        table = ufunc(codes[:, None], codes[None, :]).view(np.uint8).ravel()

    def combine(held: AnyArray, values: AnyArray, *, out: AnyArray) -> AnyArray:
        index = held.view(np.uint8).astype(np.uint16)
        index <<= 8
        index |= values.view(np.uint8)
        out.view(np.uint8)[...] = table[index]
        return out

    return combine


def _scale(dtype: np.dtype[Any], world_size: int) -> Callable[[AnyArray], AnyArray]:
    """Return the multiplication by 1 / n in a float dtype."""
    factor = dtype.type(1.0 / world_size)
    if dtype not in FLOAT8:
        return lambda values: np.multiply(values, factor)
    table = np.multiply(np.arange(256, dtype=np.uint8).view(dtype), factor)
    return lambda values: table[values.view(np.uint8)]


def admits(reduce_op: str, dtype: np.dtype[Any]) -> bool:
    """Return whether a reduce op is defined on a dtype."""
    if dtype not in DTYPES:
        return False
    if reduce_op in ("band", "bor", "bxor"):
        return dtype not in FLOATS
    return not (reduce_op == "avg" and dtype == np.bool_)


def divide_towards_zero(values: AnyArray, divisor: int) -> None:
    """Divide integers in place, rounding towards zero.

    Args:
        values: Integers of any width.
        divisor: At least 1; may exceed the range of the dtype.
    """
    if values.dtype.itemsize <= 2:
        bits = np.dtype(f"u{values.dtype.itemsize}")
        codes = np.arange(1 << (8 * bits.itemsize)).astype(bits).view(values.dtype)
        numbers = codes.astype(np.int64)
        table = (np.sign(numbers) * (np.abs(numbers) // divisor)).astype(values.dtype)
        for block in np.array_split(values, 1 + len(values) // TABLE_BLOCK):
            block[...] = table[block.view(bits)]
        return
    quotient, rest = np.divmod(values, values.dtype.type(divisor))
    np.add(quotient, (values < 0) & (rest != 0), out=values)
