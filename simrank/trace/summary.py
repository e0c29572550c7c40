"""Breakdown of a run's simulated time per set of equal ranks, and its costliest operations."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from simrank.config.wires import ASSUMED, KINDS
from simrank.errors import who_text
from simrank.hardware.roofline import BY_BYTES, GROUPED
from simrank.trace.activity import PHASES, RankOperations
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from simrank.config.wires import Provenance
    from simrank.device import Operation
    from simrank.distributed.arrivals import LastArrivals
    from simrank.distributed.call import CollectiveOperation
    from simrank.distributed.p2p import PeerOperation
    from simrank.engine import Task
    from simrank.ranks.folding import Folding
    from simrank.trace.activity import Span

_NUM_COSTLIEST = 5
_UNSEEN_SHARE = 0.02  # Assumed: of the kernels' time; less is not worth a line.
_MAX_NAMED = 6
_MAX_SHAPES = 3
_SHOWN_BYTES = 1 << 20  # Of memory by kind.
_BASES = {
    BY_BYTES: "charged by their bytes alone",
    GROUPED: "products of groups, of even sizes and at an assumed rate",
}


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Times of the ranks that spent theirs alike, in microseconds.

    Attributes:
        ranks: Their numbers.
        compute_us: At least one kernel or copy ran.
        exposed_communication_us: Only collectives ran.
        waiting_us: The part of that in which a rank that the collective needs had not arrived.
        wire_us: The rest of it.
        idle_us: Nothing ran on the device.
        peak_memory_bytes: The most that was allocated on the device.
        exposed_by_group_us: What collectives and messages of each group cost of the exposed
            communication; of several in flight, the one that ends first counts.
        memory_by_kind_bytes: What torch's tensors were where they took most: parameters,
            gradients, ...
        peak_reserved_bytes: The most that torch's allocator had taken from the device.
    """

    ranks: tuple[int, ...]
    compute_us: float
    exposed_communication_us: float
    waiting_us: float
    wire_us: float
    idle_us: float
    peak_memory_bytes: int
    exposed_by_group_us: dict[str, float]
    memory_by_kind_bytes: dict[str, int]
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True)
class RankStep:
    """The last training step of the ranks that spent it alike, in microseconds.

    Attributes:
        ranks: Their numbers.
        total_us: From the end of the optimizer's step before, or from the first kernel.
        by_phase_us: Computing time by phase: forward, backward, recomputation, optimizer, other.
        exposed_by_group_us: As in `RankTimes`.
        waiting_us: Likewise.
        wire_us: Likewise.
        idle_us: Nothing ran on the device.
    """

    ranks: tuple[int, ...]
    total_us: float
    by_phase_us: dict[str, float]
    exposed_by_group_us: dict[str, float]
    waiting_us: float
    wire_us: float
    idle_us: float


@dataclass(frozen=True, slots=True)
class TrainingSteps:
    """The training steps of a run.

    Attributes:
        times_us: Of each step, on the rank that took longest.
        last: The last one.
        model_flops: Floating-point operations of the products of the last one, mean of the ranks,
            without recomputation; of a causal attention those that are not masked.
        recomputed_flops: Those of recomputation.
    """

    times_us: tuple[float, ...]
    last: tuple[RankStep, ...]
    model_flops: float
    recomputed_flops: float


class PeakMemory(NamedTuple):
    """The most memory that a device held.

    Attributes:
        allocated_bytes: Of tensors.
        by_kind_bytes: Of torch's: parameters, gradients, ...; empty for others.
        reserved_bytes: Taken by torch's allocator.
        totals_bytes: Of torch's large tensors together, after each allocation and free.
        size_bytes: Of the device's memory; 0 if unknown.
    """

    allocated_bytes: int
    by_kind_bytes: dict[str, int] = {}  # noqa: RUF012 - it never changes
    reserved_bytes: int = 0
    totals_bytes: Sequence[int] = ()
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LateRanks:
    """Ranks that came last to collectives or messages while others waited for nothing else.

    Attributes:
        ranks: Their numbers; empty if the awaited rank left the group instead.
        line: Where they made the calls: `train.py:16`; empty if unknown.
        num_calls: How many were waited for, on the rank that waited longest.
        waiting_us: Exposed waiting for them, in all, on that rank.
        waiting_ranks: The ranks that waited.
    """

    ranks: tuple[int, ...]
    line: str
    num_calls: int
    waiting_us: float
    waiting_ranks: tuple[int, ...]


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
class KernelCalls:
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
_Found = TypeVar("_Found")
_Calls = dict[_Key, dict[int, tuple[int, int]]]  # Per rank how many, and their picoseconds.


_NOTHING = RankOperations()  # Of ranks that never used their devices.
_NO_MEMORY = PeakMemory(0)


class Summary:
    """Sums of operations per rank: an observer of the engine.

    Everything needed is kept per rank as intervals until `ranks` is asked for.

    Args:
        folding: The ranks that run and represent others; None: all run.
    """

    def __init__(self, folding: Folding | None = None) -> None:
        self._folding = folding
        self._activities: dict[int, RankOperations] = {}
        self._calls: _Calls[tuple[str, str, int, str]] = {}
        self._kernels: _Calls[tuple[str, str, int]] = {}
        self._by_basis_ps: dict[str, Counter[str]] = {BY_BYTES: Counter(), GROUPED: Counter()}
        self._kernels_ps = 0
        self._late: dict[tuple[object, ...], int] = {}
        self._late_ranks: list[LastArrivals] = []
        self._no_shapes: list[list[int]] = []
        self._shapes: dict[int, list[list[int]]] = {}  # By identity, which they keep unique.
        self._known_shapes: dict[tuple[tuple[int, ...], ...], list[list[int]]] = {}

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
        took_ps = operation.complete_ps - operation.start_ps
        activity = self._activities.get(rank)
        if activity is None:
            activity = self._activities[rank] = RankOperations()
        details = operation.details or {}
        if operation.kind == "collective":
            name, _, group = operation.name.partition(" on group ")
            group = group.strip("'")
            key = (
                name.partition(" #")[0], group, details.get("bytes", 0),
                " ".join(filter(None, (details.get("algorithm"), details.get("protocol")))),
            )  # fmt: skip
            operation = cast("CollectiveOperation | PeerOperation", operation)
            ready_ps = operation.ready_ps
            is_late = ready_ps > operation.start_ps
            activity.communicated(
                operation, group, ready_ps, self._number(operation) if is_late else -1
            )
            _add_call(self._calls, key, rank, took_ps)
        else:
            activity.computed(operation)
            shapes: list[list[int]] = details.get("shapes") or self._no_shapes
            if self._shapes.get(id(shapes)) is not shapes:  # Forms share theirs, others do not.
                shapes = self._known_shapes.setdefault(tuple(map(tuple, shapes)), shapes)
                self._shapes[id(shapes)] = shapes
            key_of_kernel = operation.name, details.get("fuses", ""), id(shapes)
            _add_call(self._kernels, key_of_kernel, rank, took_ps)
            self._kernels_ps += took_ps
            if operation.basis:
                self._by_basis_ps[operation.basis][operation.name.partition(".")[0]] += took_ps

    def _number(self, operation: CollectiveOperation | PeerOperation) -> int:
        """Return the number of the late ranks that an operation waited for."""
        late = operation.last_arrivals()
        places = ((id(site.code), site.instruction) for site in late.sites)
        number = self._late.setdefault((late.ranks, *places), len(self._late_ranks))
        if number == len(self._late_ranks):
            self._late_ranks.append(late)
        return number

    def ranks(
        self, end_ps: int, peaks: dict[int, PeakMemory], begin_ps: int = 0
    ) -> list[RankTimes]:
        """Return the times of every set of equal ranks, until the end of the run.

        Args:
            end_ps: When the run ended.
            peaks: Per rank the most memory that its device held.
            begin_ps: Where times begin.
        """
        found: dict[int, tuple[Span, PeakMemory]] = {}
        for rank in sorted(peaks.keys() | self._activities.keys()):
            activity = self._activities.get(rank, _NOTHING)
            found[rank] = activity.span(begin_ps, end_ps), peaks.get(rank, _NO_MEMORY)
        return [
            RankTimes(
                ranks,
                span.compute_ps / PS_PER_US,
                span.exposed_ps / PS_PER_US,
                *_split_us(span),
                (end_ps - begin_ps - span.compute_ps - span.exposed_ps) / PS_PER_US,
                peak.allocated_bytes,
                _in_us(span.exposed_by_group_ps),
                peak.by_kind_bytes,
                peak.reserved_bytes,
            )
            for ranks, (span, peak) in self._alike(
                found, lambda each: (*_times_of(each[0]), repr(each[1][:3]))
            )
        ]

    def late_ranks(self, end_ps: int, begin_ps: int = 0) -> list[LateRanks]:
        """Return the late ranks that were waited for longest, five at most.

        Ranks that were late alike, at one line, are one entry.
        """
        waits: dict[int, list[tuple[int, int]]] = {}
        for rank, activity in self._activities.items():
            for number, time_ps in activity.span(begin_ps, end_ps).waiting_ps.items():
                waits.setdefault(number, []).append((time_ps, rank))
        alike: dict[tuple[str, int, int], tuple[set[int], set[int]]] = {}
        for number, found in waits.items():
            late, (most_ps, rank) = self._late_ranks[number], max(found)
            line = ", ".join(sorted({str(site.line()) for site in late.sites}))
            key = line, self._activities[rank].num_waits(number), most_ps
            ranks, waiting = alike.setdefault(key, (set(), set()))
            ranks.update(late.ranks)
            waiting.update(rank for _, rank in found)
        entries = [
            LateRanks(self._alike_to(ranks), line, calls, ps / PS_PER_US, self._alike_to(waiting))
            for (line, calls, ps), (ranks, waiting) in alike.items()
        ]
        entries.sort(key=lambda each: (-each.waiting_us, each.ranks, each.line))
        return entries[:_NUM_COSTLIEST]

    def _alike_to(self, ranks: set[int]) -> tuple[int, ...]:
        """Return ranks with those that have the same representatives, sorted."""
        if self._folding is None:
            return tuple(sorted(ranks))
        fold = self._folding
        found = {fold.representative(rank) for rank in ranks}
        return tuple(r for r in range(fold.world_size) if fold.representative(r) in found)

    def steps(self) -> TrainingSteps | None:
        """Return the training steps of the run, or None if no optimizer stepped after backward."""
        ends = {rank: activity.steps() for rank, activity in self._activities.items()}
        count = max(map(len, ends.values()), default=0)
        if not count:
            return None
        spans = {
            rank: self._activities[rank].span(*steps[-1])
            for rank, steps in ends.items() if len(steps) == count
        }  # fmt: skip
        times_us = tuple(
            max(
                steps[number][1] - steps[number][0]
                for steps in ends.values()
                if number < len(steps)
            )
            / PS_PER_US
            for number in range(count)
        )
        last = [
            RankStep(
                ranks,
                (span.end_ps - span.begin_ps) / PS_PER_US,
                _in_us(dict(zip((*PHASES, "other"), span.by_phase_ps, strict=True))),
                _in_us(span.exposed_by_group_ps),
                *_split_us(span),
                (span.end_ps - span.begin_ps - span.compute_ps - span.exposed_ps) / PS_PER_US,
            )
            for ranks, span in self._alike(
                spans, lambda span: (*_times_of(span), span.end_ps - span.begin_ps)
            )
        ]
        alike = list(self._alike(spans, lambda span: (span.flops, span.recomputed_flops)))
        num_ranks = sum(len(ranks) for ranks, _ in alike)
        return TrainingSteps(
            times_us,
            tuple(last),
            sum(span.flops * len(ranks) for ranks, span in alike) / num_ranks,
            sum(span.recomputed_flops * len(ranks) for ranks, span in alike) / num_ranks,
        )

    def _alike(
        self, found: dict[int, _Found], facts: Callable[[_Found], Hashable]
    ) -> Iterable[tuple[tuple[int, ...], _Found]]:
        """Return the ranks whose facts are equal, with those of the first; all ranks, if folded."""
        folding = self._folding
        by_facts: dict[Hashable, list[int]] = {}
        known = found if folding is None else range(folding.world_size)
        for rank in known:
            runs = rank if folding is None else folding.representative(rank)
            if runs in found:
                by_facts.setdefault(facts(found[runs]), []).append(rank)
        for ranks in by_facts.values():
            first = ranks[0] if folding is None else folding.representative(ranks[0])
            yield tuple(ranks), found[first]

    def costliest(self) -> list[CollectiveCost]:
        """Return the five collectives that took most time in all."""
        return [CollectiveCost(*key, calls, us) for key, calls, us in _costliest(self._calls)]

    def not_run(self) -> dict[int, tuple[int, ...]]:
        """Return the ranks of a folded run that did not run, by the rank they are taken as."""
        return {} if self._folding is None else self._folding.not_run()

    def by_basis(self, basis: str) -> list[tuple[str, float]]:
        """Return the operators whose time rests on less than that of others.

        Args:
            basis: `BY_BYTES` or `GROUPED`.

        Returns:
            Their names with their share of the time of all kernels, the largest first; none if
            they have less than 2 % together.
        """
        times_ps = self._by_basis_ps[basis]
        if times_ps.total() <= _UNSEEN_SHARE * self._kernels_ps:
            return []
        largest = sorted(times_ps.items(), key=lambda entry: (-entry[1], entry[0]))
        return [(name, took_ps / self._kernels_ps) for name, took_ps in largest[:_NUM_COSTLIEST]]

    def has_backward(self) -> bool:
        """Return whether a rank computed gradients."""
        return any(activity.has_backward() for activity in self._activities.values())

    def costliest_kernels(self) -> list[KernelCalls]:
        """Return the five kernels that took most time in all."""
        return [
            KernelCalls(name, lines, _shapes_text(self._shapes[number]), calls, us)
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


def _times_of(span: Span) -> tuple[Hashable, ...]:
    """Return the times of a part of a run, in which ranks are alike or not."""
    waiting_ps = sum(span.waiting_ps.values())
    return (*span.by_phase_ps, waiting_ps, *sorted(span.exposed_by_group_ps.items()))


def _split_us(span: Span) -> tuple[float, float]:
    """Return the waiting and the wire time of exposed communication."""
    waiting_ps = sum(span.waiting_ps.values())
    return waiting_ps / PS_PER_US, (span.exposed_ps - waiting_ps) / PS_PER_US


def _in_us(times_ps: dict[str, int]) -> dict[str, float]:
    return {name: time_ps / PS_PER_US for name, time_ps in times_ps.items() if time_ps}


class Rates(NamedTuple):
    """Peak rate and tokens, of which rates of training steps are made.

    Attributes:
        peak_flops_per_s: Of one device in bfloat16; None if unknown.
        tokens_per_step: Of all ranks together; None if unknown.
    """

    peak_flops_per_s: float | None = None
    tokens_per_step: int | None = None

    def of(self, steps: TrainingSteps) -> dict[str, float]:
        """Return the rates of the last step, by name."""
        step_s, found = steps.times_us[-1] / 1e6, {}
        num_ranks = sum(len(step.ranks) for step in steps.last)
        if self.peak_flops_per_s and steps.model_flops:
            possible = self.peak_flops_per_s * step_s
            found["model_flops_utilization"] = steps.model_flops / possible
            all_flops = steps.model_flops + steps.recomputed_flops
            found["hardware_flops_utilization"] = all_flops / possible
        if self.tokens_per_step:
            found["tokens_per_s"] = self.tokens_per_step / step_s
            found["tokens_per_s_per_rank"] = found["tokens_per_s"] / num_ranks
        return found


def summary_json(
    summary: Summary,
    end_ps: int,
    peaks: dict[int, PeakMemory],
    provenance: Sequence[Provenance] = (),
    rates: Rates = Rates(),  # noqa: B008 - it cannot change
) -> dict[str, Any]:
    """Return a run's summary as plain data, with where the cluster's constants come from."""
    steps = summary.steps()
    return {
        "constants": [constant._asdict() for constant in provenance],
        "simulated_us": end_ps / PS_PER_US,
        "ranks": [asdict(times) for times in summary.ranks(end_ps, peaks)],
        "late_ranks": [asdict(late) for late in summary.late_ranks(end_ps)],
        "steps": None if steps is None else {**asdict(steps), **rates.of(steps)},
        "collectives": [asdict(cost) for cost in summary.costliest()],
        "kernels": [asdict(cost) for cost in summary.costliest_kernels()],
        "has_backward": summary.has_backward(),
        "charged_by_bytes": dict(summary.by_basis(BY_BYTES)),
        "grouped_products": dict(summary.by_basis(GROUPED)),
        "not_run": {str(rank): list(taken) for rank, taken in summary.not_run().items()},
    }


def summary_text(
    summary: Summary,
    end_ps: int,
    peaks: dict[int, PeakMemory],
    provenance: Sequence[Provenance] = (),
    rates: Rates = Rates(),  # noqa: B008 - it cannot change
) -> str:
    """Return the summary of a run as text, with the assumed constants."""
    lines = [f"simulated time: {end_ps / PS_PER_US:.3f} us"]
    found = summary.ranks(end_ps, peaks)
    lines += [
        f"  {who_text(times.ranks)}: compute {times.compute_us:.3f} us, "
        f"exposed communication {times.exposed_communication_us:.3f} us "
        f"(waiting for late ranks {times.waiting_us:.3f}, wire {times.wire_us:.3f}), "
        f"idle {times.idle_us:.3f} us, peak memory {times.peak_memory_bytes / 1e6:.3f} MB"
        for times in found
    ]
    if late := summary.late_ranks(end_ps):
        lines.append("late ranks:")
    lines += [f"  {late_text(each)}" for each in late]
    if not_run := summary.not_run():
        lines.append(f"not run: {not_run_text(not_run)}")
    lines += _steps_text(summary.steps(), rates)
    lines += _memory_text(found)
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
    for basis, what in _BASES.items():
        if found_here := summary.by_basis(basis):
            named = ", ".join(f"{name} {share:.1%}" for name, share in found_here)
            lines.append(f"{what}, of the kernels' time: {named}")
    if provenance:
        lines.append(constants_text(provenance))
    return "\n".join(lines)


def late_text(late: LateRanks) -> str:
    """Return `rank 2 at train.py:16: 3 calls, ranks 0-1, 3 waited 5000.000 us`."""
    calls = "1 call" if late.num_calls == 1 else f"{late.num_calls} calls"
    waited = f"{who_text(late.waiting_ranks)} waited {late.waiting_us:.3f} us"
    return f"{late_name(late)}: {calls}, {waited}"


def late_name(late: LateRanks) -> str:
    """Return `rank 2 at train.py:16`."""
    who = who_text(late.ranks) if late.ranks else "a rank that left its group"
    return f"{who} at {late.line}" if late.line else who


def not_run_text(not_run: Mapping[int, Sequence[int]]) -> str:
    """Return `ranks 1-15, taken as rank 0; ...`."""
    parts = [f"{who_text(ranks)}, taken as rank {rank}" for rank, ranks in not_run.items()]
    left = len(parts) - _MAX_NAMED
    return "; ".join(parts[:_MAX_NAMED]) + f"; {left} more sets" * (left > 0)


def _steps_text(steps: TrainingSteps | None, rates: Rates) -> Iterator[str]:
    """Yield the lines of the training steps: times of all, and parts and rates of the last."""
    if steps is None:
        return
    shown = [f"{time_us / 1e3:.3f}" for time_us in steps.times_us[:_MAX_NAMED]]
    left = len(steps.times_us) - len(shown)
    yield f"training steps: {', '.join(shown)}{f', {left} more' if left else ''} ms; of the last:"
    for step in steps.last:
        parts = [f"{phase} {us / 1e3:.3f} ms" for phase, us in step.by_phase_us.items()]
        groups = step.exposed_by_group_us
        exposed = f"exposed communication {sum(groups.values()) / 1e3:.3f} ms"
        split = []
        if step.waiting_us:
            waiting, wire = step.waiting_us / 1e3, step.wire_us / 1e3
            split.append(f"waiting for late ranks {waiting:.3f}, wire {wire:.3f}")
        if len(groups) > 1:
            ordered = sorted(groups.items(), key=lambda entry: -entry[1])
            split.append(", ".join(f"'{name}' {us / 1e3:.3f}" for name, us in ordered))
        exposed += f" ({'; '.join(split)})" * bool(split)
        parts += [exposed, f"idle {step.idle_us / 1e3:.3f} ms"]
        yield f"  {who_text(step.ranks)}: {', '.join(parts)}"
    found = rates.of(steps)
    if steps.model_flops:
        text = f"  model FLOPs: {steps.model_flops / 1e12:.3f} TFLOP per rank"
        if "model_flops_utilization" in found:
            text += f", {found['model_flops_utilization']:.1%} of the bfloat16 peak"
        if steps.recomputed_flops and "hardware_flops_utilization" in found:
            text += f" ({found['hardware_flops_utilization']:.1%} with recomputation)"
        yield text
    if "tokens_per_s" in found:
        yield (
            f"  tokens/s: {found['tokens_per_s']:.1f}, "
            f"{found['tokens_per_s_per_rank']:.1f} per rank"
        )


def _memory_text(found: Sequence[RankTimes]) -> Iterator[str]:
    """Yield the lines of torch's memory by kind, where it was most, of ranks that have it alike."""
    by_text: dict[str, list[int]] = {}
    for times in found:
        kinds = times.memory_by_kind_bytes
        if not kinds:
            continue
        rest = max(times.peak_memory_bytes - sum(kinds.values()), 0)
        parts = [
            f"{kind} {size / 2**30:.3f}"
            for kind, size in {**kinds, "other": rest}.items() if size >= _SHOWN_BYTES
        ]  # fmt: skip
        by_text.setdefault(
            f"{', '.join(parts)}; allocated {times.peak_memory_bytes / 2**30:.3f}, "
            f"reserved {times.peak_reserved_bytes / 2**30:.3f}",
            [],
        ).extend(times.ranks)
    if by_text:
        yield "peak memory, GiB:"
    for text, ranks in by_text.items():
        yield f"  {who_text(ranks)}: {text}"


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
