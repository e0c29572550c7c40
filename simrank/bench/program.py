"""What a rank of the benchmark runs: a `simrank.distributed` program that loops as nccl-tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import simrank.distributed as dist
from simrank.collectives import Problem
from simrank.collectives.problem import REDUCING, ROOTED
from simrank.device import as_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.context import Context
    from simrank.device import Tensor
    from simrank.kernels.algorithms import KernelAlgorithm

Array = np.ndarray[Any, Any]
BLOCKS = ("all_gather", "reduce_scatter", "all_to_all")  # Their size counts every rank's block.
_SHIFT = 7  # assumed: rank r's data starts 7 r elements further on, so that ranks differ


@dataclass(frozen=True, slots=True)
class Case:
    """One collective of one size.

    Attributes:
        collective: Its name.
        num_ranks: Ranks that take part.
        dtype: torch's name of the element type.
        redop: Reduce operation; "none" where nothing is reduced.
        root: Root rank; -1 where there is none.
        count: Elements, as the `count` of NCCL's call.
        in_place: Whether output and input share memory.
    """

    collective: str
    num_ranks: int
    dtype: str
    redop: str
    root: int
    count: int
    in_place: bool

    @property
    def size_bytes(self) -> int:
        """The size nccl-tests prints, in bytes."""
        blocks = self.num_ranks if self.collective in BLOCKS else 1
        itemsize: int = as_dtype(self.dtype).itemsize
        return self.count * blocks * itemsize

    @property
    def problem(self) -> Problem:
        """The case as the collectives see it."""
        itemsize = as_dtype(self.dtype).itemsize
        root = max(self.root, 0)
        return Problem(self.collective, self.num_ranks, self.count, root=root, itemsize=itemsize)

    @property
    def num_inputs(self) -> int:
        """Elements that each rank contributes."""
        blocks = self.num_ranks if self.collective in ("reduce_scatter", "all_to_all") else 1
        return self.count * blocks

    @property
    def num_outputs(self) -> int:
        """Elements that each rank ends with."""
        blocks = self.num_ranks if self.collective in ("all_gather", "all_to_all") else 1
        return self.count * blocks


def counts(collective: str, num_ranks: int, dtype: str, sizes_bytes: tuple[int, ...]) -> list[int]:
    """Return NCCL's count for each size; sizes below one element per block are left out."""
    unit = as_dtype(dtype).itemsize * (num_ranks if collective in BLOCKS else 1)
    return list(dict.fromkeys(size // unit for size in sizes_bytes if size >= unit))


def redop_of(collective: str, redop: str) -> str:
    """Return the reduce operation that a collective uses: "none" if it only copies."""
    return redop if collective in REDUCING else "none"


def root_of(collective: str, root: int) -> int:
    """Return the root that a collective uses: -1 if it has none."""
    return root if collective in ROOTED else -1


def prepared(case: Case, kernel: KernelAlgorithm | None) -> Callable[[Tensor, Tensor], Any]:
    """Return what issues a collective once: torch's call, or the launch of a kernel."""
    if kernel is not None:
        return kernel.prepare(case.count, case.dtype).launch
    return partial(issue, case)


def issue(case: Case, source: Tensor, target: Tensor) -> None:
    """Call the collective once; torch's all_reduce, broadcast and reduce work on `target`."""
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(target, dist.ReduceOp(case.redop)),
        "reduce": lambda: dist.reduce(target, case.root, dist.ReduceOp(case.redop)),
        "broadcast": lambda: dist.broadcast(target, case.root),
        "all_gather": lambda: dist.all_gather_into_tensor(target, source),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(
            target, source, dist.ReduceOp(case.redop)
        ),
        "all_to_all": lambda: dist.all_to_all_single(target, source),
    }
    calls[case.collective]()


def buffers(ctx: Context, case: Case, rank: int, values: Array | None) -> tuple[Tensor, Tensor]:
    """Return a rank's input and output; in place, one is a part of the other.

    Args:
        ctx: The Context.
        case: The collective.
        rank: The rank.
        values: What the rank contributes; None to leave garbage.
    """
    dtype = case.dtype
    if case.collective not in BLOCKS:  # torch's call is in place; out of place, on a copy.
        target = ctx.empty(case.count, dtype=dtype) if values is None else ctx.from_numpy(values)
        return target, target
    source = ctx.empty(case.num_inputs, dtype=dtype) if values is None else ctx.from_numpy(values)
    if not case.in_place:
        return source, ctx.empty(case.num_outputs, dtype=dtype)
    own = slice(rank * case.count, (rank + 1) * case.count)
    if case.collective == "reduce_scatter":
        return source, source[own]
    whole = ctx.empty(case.num_outputs, dtype=dtype)
    part = whole[own]
    part.copy_(source)
    return part, whole


class TestData:
    """What the ranks of a checked run contribute: views of one array, shifted rank by rank.

    Args:
        num_elements: The largest input of any rank.
        num_ranks: Number of ranks.
        dtype: torch's name of the element type.
        redop: Products get values near 1, so that they neither vanish nor overflow.
        seed: Of the values.
    """

    __test__ = False  # Not for pytest, whatever the name.

    def __init__(
        self, num_elements: int, num_ranks: int, dtype: str, redop: str, seed: int
    ) -> None:
        generator = np.random.Generator(np.random.PCG64(seed))
        kind = as_dtype(dtype)
        total = num_elements + _SHIFT * num_ranks
        if kind.kind == "float":
            values: Array = generator.random(total, dtype=np.float32)
            if redop == "prod":
                values += 0.5
        else:
            low, high = (1, 3) if redop == "prod" else (0, 2 if kind.kind == "bool" else 8)
            values = generator.integers(low, high, total, dtype=np.int8)
        self._values = values.astype(kind.numpy)

    def of(self, rank: int, num_elements: int) -> Array:
        """Return what a rank contributes."""
        return self._values[rank * _SHIFT : rank * _SHIFT + num_elements]


def timed_program(
    rank: int,
    ctx: Context,
    cases: list[Case],
    iterations: tuple[int, int],
    report: Callable[[int, int, float], None],
    kernel: KernelAlgorithm | None = None,
) -> None:
    """Time every case as nccl-tests does: warm up, then iterations back to back between events.

    Args:
        rank: This rank.
        ctx: A Context; shape-only unless a kernel runs.
        cases: What to time.
        iterations: Warm-up and timed iterations.
        report: Called with (rank, index of the case, microseconds per iteration).
        kernel: What runs instead of the library's collective.
    """
    dist.init_process_group()
    num_warmup, num_timed = iterations
    for index, case in enumerate(cases):
        source, target = buffers(ctx, case, rank, None)
        call = prepared(case, kernel)
        for _ in range(num_warmup):
            call(source, target)
        ctx.synchronize()
        dist.barrier()
        start, end = ctx.Event(enable_timing=True), ctx.Event(enable_timing=True)
        start.record()
        for _ in range(num_timed):
            call(source, target)
        end.record()
        end.synchronize()
        report(rank, index, start.elapsed_time(end) * 1e3 / num_timed)
        del source, target, call  # Else the next case's buffers would have to fit beside them.


def checked_program(
    rank: int,
    ctx: Context,
    case: Case,
    data: TestData,
    outputs: list[Array | None],
    kernel: KernelAlgorithm | None = None,
) -> None:
    """Run one case once on real numbers and leave the result for the check."""
    dist.init_process_group()
    source, target = buffers(ctx, case, rank, data.of(rank, case.num_inputs))
    prepared(case, kernel)(source, target)
    target.wait_values()
    outputs[rank] = target.array  # Not a copy: nothing writes it any more.
