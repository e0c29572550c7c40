"""Breakdown of a run's simulated time per set of equal ranks, and its costliest operations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from simrank.config.wires import ASSUMED, KINDS
from simrank.errors import ranks_text
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simrank.config.wires import Provenance
    from simrank.device import Operation
    from simrank.engine import Task
    from simrank.ranks.folding import Folding

_NUM_COSTLIEST = 5
_MAX_NAMED = 6
_MAX_SHAPES = 3


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Times of the ranks that spent theirs alike, in microseconds.

    Attributes:
        ranks: Who.
        compute_us: At least one kernel or copy ran.
        exposed_communication_us: Only collectives ran.
        idle_us: Nothing ran on the device.
        peak_memory_bytes: The most that was allocated on the device.
    """

    ranks: tuple[int, ...]
    compute_us: float
    exposed_communication_us: float
    idle_us: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """All calls of one collective with one size and algorithm.

    Attributes:
        name: For example `all_reduce`.
        group: The group's name.
        size_bytes: Of one call.
        algorithm: What ran, with its protocol where there is one: ring LL.
        num_calls: How many.
        total_us: Time of all calls, on the rank that spent most of it.
    """

    name: str
    group: str
    size_bytes: int
    algorithm: str
    num_calls: int
    total_us: float


@dataclass(frozen=True, slots=True)
class KernelCost:
    """All calls of one kernel or copy with one set of shapes.

    Attributes:
        name: The operator's, or the kernel's.
        lines: Of the program, which a compiled kernel fuses: `model.py:9, model.py:11`; empty for
            others.
        shapes: Of the inputs of an operator: `4096x1024, 1024x512`; empty for others.
        num_calls: How many.
        total_us: Time of all calls, on the rank that spent most of it.
    """

    name: str
    lines: str
    shapes: str
    num_calls: int
    total_us: float


_Key = TypeVar("_Key")
_Calls = dict[_Key, dict[int, tuple[int, int]]]  # Per rank how many, and their picoseconds.


class Summary:
    """Sums of operations per rank: an observer of the engine.

    Everything needed is kept per rank as intervals until `ranks` is asked for.

    Args:
        folding: The ranks that run and represent others; None: all run.
    """

    def __init__(self, folding: Folding | None = None) -> None:
        self._folding = folding
        self._busy: dict[int, dict[bool, list[tuple[int, int]]]] = {}
        self._calls: _Calls[tuple[str, str, int, str]] = {}
        self._kernels: _Calls[tuple[str, str, int]] = {}
        self._shapes: dict[int, list[list[int]]] = {0: []}  # By identity, which they keep unique.

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Note nothing."""

    def on_host(self, task: Task, name: str, start_ps: int, end_ps: int) -> None:
        """Note nothing: hosts cost nothing but their charges."""

    def on_transfer(
        self, size_bytes: int, links: tuple[str, ...], start_ps: int, end_ps: int
    ) -> None:
        """Note nothing: the copy is an operation."""

    def on_operation(self, operation: Operation) -> None:
        """Add an operation to its rank's intervals."""
        rank = operation.rank
        if rank is None or operation.kind in ("event", "wait"):
            return
        is_collective = operation.kind == "collective"
        interval = (operation.start_ps, operation.complete_ps)
        self._busy.setdefault(rank, {True: [], False: []})[is_collective].append(interval)
        details = operation.details or {}
        if is_collective:
            name, _, group = operation.name.partition(" on group ")
            key = (
                name.partition(" #")[0], group.strip("'"), details.get("bytes", 0),
                " ".join(filter(None, (details.get("algorithm"), details.get("protocol")))),
            )  # fmt: skip
            _add_call(self._calls, key, rank, interval[1] - interval[0])
        else:
            shapes = details.get("shapes")
            number = 0 if shapes is None else id(shapes)
            if number and number not in self._shapes:
                self._shapes[number] = shapes
            key_of_kernel = operation.name, details.get("fuses", ""), number
            _add_call(self._kernels, key_of_kernel, rank, interval[1] - interval[0])

    def ranks(self, end_ps: int, peak_bytes: dict[int, int]) -> list[RankTimes]:
        """Return the times of every set of equal ranks, until the end of the run.

        Args:
            end_ps: When the run ended.
            peak_bytes: Per rank the most memory its device held.
        """
        ranks_by_facts: dict[tuple[int, int, int], list[int]] = {}
        facts: dict[int, tuple[int, int, int]] = {}
        folding = self._folding
        known = sorted(peak_bytes.keys() | self._busy.keys())
        for rank in known if folding is None else range(folding.world_size):
            runs = rank if folding is None else folding.representative(rank)
            if runs not in facts:
                busy = self._busy.get(runs, {True: [], False: []})
                compute_ps = _covered_ps(busy[False])
                both_ps = _covered_ps([*busy[False], *busy[True]])
                facts[runs] = (compute_ps, both_ps - compute_ps, peak_bytes.get(runs, 0))
            ranks_by_facts.setdefault(facts[runs], []).append(rank)
        return [
            RankTimes(
                tuple(ranks),
                compute_ps / PS_PER_US,
                exposed_ps / PS_PER_US,
                (end_ps - compute_ps - exposed_ps) / PS_PER_US,
                peak,
            )
            for (compute_ps, exposed_ps, peak), ranks in ranks_by_facts.items()
        ]

    def costliest(self) -> list[CollectiveCost]:
        """Return the five collectives that took most time in all."""
        return [CollectiveCost(*key, calls, us) for key, calls, us in _costliest(self._calls)]

    def costliest_kernels(self) -> list[KernelCost]:
        """Return the five kernels that took most time in all."""
        return [
            KernelCost(name, lines, _shapes_text(self._shapes[number]), calls, us)
            for (name, lines, number), calls, us in _costliest(self._kernels)
        ]


def _add_call(calls: _Calls[_Key], key: _Key, rank: int, took_ps: int) -> None:
    by_rank = calls.setdefault(key, {})
    num_calls, total_ps = by_rank.get(rank, (0, 0))
    by_rank[rank] = (num_calls + 1, total_ps + took_ps)


def _costliest(calls: _Calls[_Key]) -> list[tuple[_Key, int, float]]:
    costs = []
    for key, by_rank in calls.items():
        num_calls, total_ps = max(by_rank.values(), key=lambda entry: entry[1])
        costs.append((key, num_calls, total_ps / PS_PER_US))
    return sorted(costs, key=lambda cost: -cost[2])[:_NUM_COSTLIEST]


def _shapes_text(shapes: Sequence[Sequence[int]]) -> str:
    """Return `4096x1024, 1024x512, 1 more`; a scalar is `1`."""
    shown = ["x".join(map(str, sizes)) or "1" for sizes in shapes[:_MAX_SHAPES]]
    left = len(shapes) - len(shown)
    return ", ".join([*shown, f"{left} more"] if left else shown)


def _covered_ps(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the time that a set of intervals covers."""
    covered = end = 0
    for start_ps, end_ps in sorted(intervals):
        if end_ps > end:
            covered += end_ps - max(start_ps, end)
            end = end_ps
    return covered


def summary_json(
    summary: Summary,
    end_ps: int,
    peak_bytes: dict[int, int],
    provenance: Sequence[Provenance] = (),
) -> dict[str, Any]:
    """Return a run's summary as plain data, with where the cluster's constants come from."""
    return {
        "constants": [constant._asdict() for constant in provenance],
        "simulated_us": end_ps / PS_PER_US,
        "ranks": [asdict(times) for times in summary.ranks(end_ps, peak_bytes)],
        "collectives": [asdict(cost) for cost in summary.costliest()],
        "kernels": [asdict(cost) for cost in summary.costliest_kernels()],
    }


def summary_text(
    summary: Summary,
    end_ps: int,
    peak_bytes: dict[int, int],
    provenance: Sequence[Provenance] = (),
) -> str:
    """Return the summary of a run as text, with the assumed constants."""
    lines = [f"simulated time: {end_ps / PS_PER_US:.3f} us"]
    for times in summary.ranks(end_ps, peak_bytes):
        who = "rank" if len(times.ranks) == 1 else "ranks"
        lines.append(
            f"  {who} {ranks_text(times.ranks)}: compute {times.compute_us:.3f} us, "
            f"exposed communication {times.exposed_communication_us:.3f} us, "
            f"idle {times.idle_us:.3f} us, peak memory {times.peak_memory_bytes / 1e6:.3f} MB"
        )
    costs = summary.costliest()
    if costs:
        lines.append("costliest collectives:")
    for cost in costs:
        algorithm = f" ({cost.algorithm})" if cost.algorithm else ""
        lines.append(
            f"  {cost.name} of {cost.size_bytes} B on '{cost.group}'{algorithm}: "
            f"{cost.num_calls} calls, {cost.total_us:.3f} us"
        )
    if kernels := summary.costliest_kernels():
        lines.append("costliest kernels:")
    for kernel in kernels:
        fused = f" ({kernel.lines or kernel.shapes})" if kernel.lines or kernel.shapes else ""
        lines.append(f"  {kernel.name}{fused}: {kernel.num_calls} calls, {kernel.total_us:.3f} us")
    if provenance:
        lines.append(constants_text(provenance))
    return "\n".join(lines)


def constants_text(provenance: Sequence[Provenance]) -> str:
    """Return the numbers of calibrated, sourced and assumed constants, with the assumed names."""
    by_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for constant in provenance:
        by_kind[constant.kind].append(constant.key)
    counts = ", ".join(f"{len(keys)} {kind}" for kind, keys in by_kind.items())
    assumed = by_kind[ASSUMED]
    names = ", ".join(assumed[:_MAX_NAMED])
    if len(assumed) > _MAX_NAMED:
        names += f", {len(assumed) - _MAX_NAMED} more"
    return f"constants of the cluster: {counts}{f' ({names})' if names else ''}"
