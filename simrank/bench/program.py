"""The program of a benchmark's rank: `simrank.distributed` calls in nccl-tests' loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import simrank.distributed as dist
from simrank.collectives import Problem
from simrank.collectives.problem import REDUCING, ROOTED
from simrank.device import as_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.config.bench import Iterations
    from simrank.context import Context
    from simrank.device import Tensor
    from simrank.kernels.algorithms import KernelAlgorithm

Array = np.ndarray[Any, Any]
IntArray: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
# Their size counts every rank's block.
BLOCKS = ("all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter")
ON_TARGET = ("all_reduce", "broadcast", "reduce")  # torch's calls work on one tensor.
OUT_OF_PLACE = ("all_to_all", "all_to_all_v", "sendrecv")  # As in nccl-tests, only that.
EXCHANGES = ("all_to_all_v", "sendrecv")  # To the library an exchange with uneven splits.
_LONG_INPUT = ("reduce_scatter", "all_to_all", "all_to_all_v", "scatter")
_LONG_OUTPUT = ("all_gather", "all_to_all", "all_to_all_v", "gather")
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
        """The case as the collectives see it; `sendrecv` is an exchange with one peer each."""
        itemsize = as_dtype(self.dtype).itemsize
        if self.collective in EXCHANGES:
            splits = tuple(self.splits.reshape(-1).tolist())
            return Problem("all_to_all", self.num_ranks, 0, splits=splits, itemsize=itemsize)
        root = max(self.root, 0)
        return Problem(self.collective, self.num_ranks, self.count, root=root, itemsize=itemsize)

    @property
    def splits(self) -> IntArray:
        """Elements that each rank sends to each; row = sender, column = receiver.

        `sendrecv`: all to the next one. `all_to_all_v`: rank r sends j parts to the rank that is j
        further than -r, and with j = 0 what is left, so that each sends and receives as much.

        Source:
            nccl-tests' `src/sendrecv.cu`; rccl-tests' `src/alltoallv.cu`.
        """
        ranks = np.arange(self.num_ranks)
        if self.collective == "sendrecv":
            is_next = (ranks[:, None] + 1) % self.num_ranks == ranks
            return np.asarray(is_next * self.count, dtype=np.int64)
        part = 2 * self.count // self.num_ranks
        parts = (ranks[:, None] + ranks) % self.num_ranks
        rest = self.count * self.num_ranks - part * int(ranks.sum())
        return np.where(parts, parts * part, rest).astype(np.int64)

    @property
    def num_inputs(self) -> int:
        """Elements that each rank contributes."""
        return self.count * (self.num_ranks if self.collective in _LONG_INPUT else 1)

    @property
    def num_outputs(self) -> int:
        """Elements that each rank ends with."""
        return self.count * (self.num_ranks if self.collective in _LONG_OUTPUT else 1)


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
    """Return a function that issues a collective once: a call, or a kernel's launch."""
    if kernel is not None:
        return kernel.prepare(case.count, case.dtype).launch
    return partial(issue, case)


def issue(case: Case, source: Any, target: Any, on: Any = dist) -> None:  # noqa: ANN401 - torch's, too
    """Call the collective once; `ON_TARGET` collectives work on `target`.

    Args:
        case: Which.
        source: What this rank contributes.
        target: Where its result goes.
        on: Whose functions are called: simrank's, or torch.distributed with torch's tensors.
    """
    redop = getattr(on.ReduceOp, dist.ReduceOp("sum" if case.redop == "none" else case.redop).name)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: on.all_reduce(target, redop),
        "reduce": lambda: on.reduce(target, case.root, redop),
        "broadcast": lambda: on.broadcast(target, case.root),
        "all_gather": lambda: on.all_gather_into_tensor(target, source),
        "reduce_scatter": lambda: on.reduce_scatter_tensor(target, source, redop),
        "all_to_all": lambda: on.all_to_all_single(target, source),
        "all_to_all_v": lambda: _exchange(case, source, target, on),
        "gather": lambda: on.gather(source, _blocks(case, target, on), case.root),
        "scatter": lambda: on.scatter(target, _blocks(case, source, on), case.root),
        "sendrecv": lambda: _send_on(source, target, on),
    }
    calls[case.collective]()


def _exchange(case: Case, source: Any, target: Any, on: Any) -> None:  # noqa: ANN401 - as above
    splits, rank = case.splits, on.get_rank()
    on.all_to_all_single(target, source, splits[:, rank].tolist(), splits[rank].tolist())


def _blocks(case: Case, whole: Any, on: Any) -> list[Any] | None:  # noqa: ANN401 - as above
    """Return the parts of the root's long tensor by rank; None on other ranks."""
    if on.get_rank() != case.root:
        return None
    return [whole[rank * case.count : (rank + 1) * case.count] for rank in range(case.num_ranks)]


def _send_on(source: Any, target: Any, on: Any) -> None:  # noqa: ANN401 - as above
    """Send to the next rank and receive from the one before, as one batch."""
    rank, num_ranks = on.get_rank(), on.get_world_size()
    ends = [
        on.P2POp(on.isend, source, (rank + 1) % num_ranks),
        on.P2POp(on.irecv, target, (rank - 1) % num_ranks),
    ]
    for work in on.batch_isend_irecv(ends):
        work.wait()


def buffers(ctx: Context, case: Case, rank: int, values: Array | None) -> tuple[Tensor, Tensor]:
    """Return a rank's input and output; in place, one is a part of the other.

    Args:
        ctx: The Context.
        case: The collective.
        rank: The rank.
        values: What the rank contributes; None to leave garbage.
    """

    def made(count: int) -> Any:  # noqa: ANN401 - as the Context returns it
        return ctx.empty(count, dtype=case.dtype)

    pair: tuple[Tensor, Tensor]
    pair = laid_out(case, rank, made, None if values is None else ctx.from_numpy(values))
    return pair


def laid_out(case: Case, rank: int, made: Callable[[int], Any], given: Any) -> tuple[Any, Any]:  # noqa: ANN401 - torch's, too
    """Return a rank's input and output, of simrank's tensors or torch's; see `buffers`.

    Args:
        case: The collective.
        rank: The rank.
        made: Returns a tensor of so many elements, with garbage.
        given: What the rank contributes; None: garbage, too.
    """
    if case.collective in ON_TARGET:  # torch's call is in place; out of place, on a copy.
        target = made(case.count) if given is None else given
        return target, target
    source = made(case.num_inputs) if given is None else given
    has_long = case.collective not in ROOTED or rank == case.root  # Others need no long tensor.
    if not case.in_place or not has_long:
        return source, made(case.num_outputs if has_long else case.count)
    own = slice(rank * case.count, (rank + 1) * case.count)
    if case.num_inputs > case.num_outputs:
        return source, source[own]
    whole = made(case.num_outputs)
    part = whole[own]
    part.copy_(source)
    return part, whole


class TestData:
    """Test data of checked runs: views of one array, shifted rank by rank.

    Args:
        num_elements: The largest input of any rank.
        num_ranks: Number of ranks.
        dtype: torch's name of the element type.
        redop: Products get values near 1, so that they neither vanish nor overflow.
        seed: Of the values.
    """

    __test__ = False  # Not a test of pytest.

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
        """Return the input of a rank."""
        return self._values[rank * _SHIFT : rank * _SHIFT + num_elements]


def timed_program(
    rank: int,
    ctx: Context,
    cases: list[Case],
    iterations: Iterations,
    report: Callable[[int, int, float], None],
    kernel: KernelAlgorithm | None = None,
) -> None:
    """Time every case as nccl-tests does: warm up, then iterations back to back between events.

    Args:
        rank: This rank.
        ctx: A Context; shape-only unless a kernel runs.
        cases: What to time.
        iterations: How many are not timed and timed, and whether each is waited for.
        report: Called with (rank, index of the case, microseconds per iteration).
        kernel: What runs instead of the library's collective.
    """
    dist.init_process_group()
    for index, case in enumerate(cases):
        source, target = buffers(ctx, case, rank, None)
        call = prepared(case, kernel)
        for _ in range(iterations.warmup):
            call(source, target)
        ctx.synchronize()
        dist.barrier()
        start, end = ctx.Event(enable_timing=True), ctx.Event(enable_timing=True)
        start.record()
        for _ in range(iterations.timed):
            call(source, target)
            if iterations.blocking:
                ctx.synchronize()
        end.record()
        end.synchronize()
        report(rank, index, start.elapsed_time(end) * 1e3 / iterations.timed)
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
