"""A run as a page: where time went per rank, the costliest collectives, links and memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from simrank.engine.task import SwitchObserver
from simrank.errors import ranks_text
from simrank.pages import (
    Bar,
    Curve,
    Point,
    bars,
    chart,
    document,
    notes,
    pictures,
    section,
)
from simrank.pages.chart import linear_axis, time_text
from simrank.trace.activity import PHASES
from simrank.trace.summary import constants_text, late_name
from simrank.units import PS_PER_US, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from simrank.config.wires import Provenance
    from simrank.device import Operation
    from simrank.pages.document import Markup
    from simrank.trace.summary import (
        CollectiveCost,
        KernelCalls,
        LateRanks,
        PeakMemory,
        RankTimes,
        Summary,
        TrainingSteps,
    )

_MOST_ROWS = 40  # Bars of one picture: more than fit on a screen.
_MOST_LINKS = 12
_MOST_POINTS = 400  # Of a curve: about as many as its picture has pixels to tell apart.
_MOST_NAMED = 2  # Of links that carried equally much.
_PARTS = ("compute", "waiting for late ranks", "wire time", "idle")
_NUM_CURVES = 2  # Of the picture of memory.
_US_BY_UNIT = {"s": 1e6, "ms": 1e3, "us": 1.0}
_BYTES_BY_UNIT = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}


class Seen(NamedTuple):
    """The observed data of a run.

    Attributes:
        summary: Of its operations.
        links: What crossed them.
        end_ps: When it ended.
        peaks: Per device the most that was allocated.
        provenance: Where the cluster's constants come from.
    """

    summary: Summary
    links: LinkBytes
    end_ps: int
    peaks: dict[int, PeakMemory]
    provenance: Sequence[Provenance]


def run_page(
    title: str,
    facts: Mapping[str, str],
    seen: Seen,
    partial: str | None = None,
    report: str | None = None,
) -> str:
    """Return the page of a run; equal runs give equal text.

    Args:
        title: What ran.
        facts: How, by name.
        seen: What was seen of it.
        partial: Why the run ended early, if it did.
        report: The report of its failure, with which the page begins.
    """
    listed = [*facts.items(), ("simulated time", time_text(seen.end_ps / PS_PER_US))]
    if seen.provenance:
        name, _, counts = constants_text(seen.provenance).partition(": ")
        listed.append((name, counts))
    ranks = seen.summary.ranks(seen.end_ps, seen.peaks)
    sections = [
        _times(ranks),
        *_late_ranks(seen.summary.late_ranks(seen.end_ps)),
        *map(_steps, filter(None, [seen.summary.steps()])),
        _collectives(seen.summary.costliest()),
        *map(_kernels, filter(None, [seen.summary.costliest_kernels()])),
        _links(seen.links.busiest()),
        _memory(seen.peaks),
        *_memory_by_kind(ranks),
        *_memory_over_time(seen.peaks),
    ]
    return document(title, listed, sections, partial=partial, report=report, num_curves=_NUM_CURVES)


def _times(found: Sequence[RankTimes]) -> Markup:
    parts = [(each.compute_us, each.waiting_us, each.wire_us, each.idle_us) for each in found]
    unit, scale = _unit([sum(each) for each in parts], _US_BY_UNIT)
    rows = []
    for seen, each in zip(found, parts, strict=True):
        exposed = f"{100 * seen.exposed_communication_us / (sum(each) or 1.0):.1f} % exposed"
        rows.append(Bar(_named("rank", seen.ranks), tuple(part / scale for part in each), exposed))
    return _section("Time per rank", unit, _PARTS, rows)


def _late_ranks(found: Sequence[LateRanks]) -> Iterator[Markup]:
    """Yield the section of the ranks that came last, with the ranks that waited for them."""
    unit, scale = _unit([late.waiting_us for late in found], _US_BY_UNIT)
    rows = []
    for late in found:
        waiting = f"{late.num_calls} call{'' if late.num_calls == 1 else 's'}"
        label = f"{late_name(late)}: {waiting}, {_named('rank', late.waiting_ranks)} waited"
        rows.append(Bar(label, (late.waiting_us / scale,), f"{late.waiting_us:.3f} us"))
    if rows:
        yield _section("Late ranks", unit, ("waiting of the rank that waited longest",), rows)


def _steps(steps: TrainingSteps) -> Markup:
    """Return the section of the last training step: phases of computation, then all waiting."""
    groups = dict.fromkeys(name for step in steps.last for name in step.exposed_by_group_us)
    phases = [
        phase for phase in (*PHASES, "other") if any(phase in s.by_phase_us for s in steps.last)
    ]
    names = [*phases, *(f"wait for '{group}'" for group in groups), "idle"]
    parts = [
        (
            *(step.by_phase_us.get(phase, 0.0) for phase in phases),
            *(step.exposed_by_group_us.get(group, 0.0) for group in groups),
            step.idle_us,
        )
        for step in steps.last
    ]
    unit, scale = _unit([sum(each) for each in parts], _US_BY_UNIT)
    rows = [
        Bar(
            _named("rank", step.ranks),
            tuple(part / scale for part in each),
            time_text(step.total_us),
        )
        for step, each in zip(steps.last, parts, strict=True)
    ]
    return _section(f"Last of {len(steps.times_us)} training steps", unit, names, rows)


def _collectives(costs: Sequence[CollectiveCost]) -> Markup:
    unit, scale = _unit([cost.total_us for cost in costs], _US_BY_UNIT)
    rows = []
    for cost in costs:
        algorithm = f" ({cost.algorithm})" if cost.algorithm else ""
        label = f"{cost.name} of {format_size(cost.size_bytes)} on '{cost.group}'{algorithm}"
        rows.append(Bar(label, (cost.total_us / scale,), _total(cost)))
    return _section("Costliest collectives", unit, ("time of all calls",), rows)


def _kernels(costs: Sequence[KernelCalls]) -> Markup:
    """Return the section of kernels, with shapes or with the lines that they fuse."""
    unit, scale = _unit([cost.total_us for cost in costs], _US_BY_UNIT)
    rows = []
    for cost in costs:
        label = f"{cost.lines}: {cost.name}" if cost.lines else cost.name
        label += f" ({cost.shapes})" if cost.shapes and not cost.lines else ""
        rows.append(Bar(label, (cost.total_us / scale,), _total(cost)))
    return _section("Costliest kernels", unit, ("time of all calls",), rows)


def _total(cost: CollectiveCost | KernelCalls) -> str:
    calls = "1 call" if cost.num_calls == 1 else f"{cost.num_calls} calls"
    return f"{calls}, {time_text(cost.total_us)}"


def _links(busiest: Sequence[tuple[str, int]]) -> Markup:
    names_by_size: dict[int, list[str]] = {}
    for name, size in busiest:
        names_by_size.setdefault(size, []).append(name)
    unit, scale = _unit(list(names_by_size), _BYTES_BY_UNIT)
    rows = []
    for size, names in names_by_size.items():
        left = len(names) - _MOST_NAMED
        label = ", ".join(names[:_MOST_NAMED]) + (f" and {left} more" if left > 0 else "")
        rows.append(Bar(label, (size / scale,), f"{size / scale:.4g} {unit}"))
    return _section("Bytes over the busiest links", unit, ("bytes",), rows, _MOST_LINKS)


def _memory(peaks: Mapping[int, PeakMemory]) -> Markup:
    devices_by_peak: dict[int, list[int]] = {}
    for device, peak in sorted(peaks.items()):
        devices_by_peak.setdefault(peak.allocated_bytes, []).append(device)
    unit, scale = _unit(list(devices_by_peak), _BYTES_BY_UNIT)
    rows = [
        Bar(_named("device", devices), (peak / scale,), f"{peak / scale:.4g} {unit}")
        for peak, devices in devices_by_peak.items()
    ]
    return _section("Peak memory per device", unit, ("peak memory",), rows)


def _memory_by_kind(ranks: Sequence[RankTimes]) -> Iterator[Markup]:
    """Yield the section of the kinds of torch's tensors where they took most memory."""
    found = [each for each in ranks if each.memory_by_kind_bytes]
    if not found:
        return
    kinds = list(dict.fromkeys(kind for each in found for kind in each.memory_by_kind_bytes))
    rows: dict[tuple[float, ...], list[int]] = {}
    for each in found:
        held = [each.memory_by_kind_bytes.get(kind, 0) for kind in kinds]
        other = max(each.peak_memory_bytes - sum(held), 0)
        reserved = max(each.peak_reserved_bytes - each.peak_memory_bytes, 0)
        parts = tuple(size / 2**30 for size in (*held, other, reserved))
        rows.setdefault(parts, []).extend(each.ranks)
    names = [*kinds, "other", "reserved beyond that"]
    drawn = [
        Bar(_named("rank", sorted(numbers)), parts, f"{sum(parts):.4g} GiB reserved")
        for parts, numbers in rows.items()
    ]
    yield _section("Peak memory by kind", "GiB", names, drawn)


def _memory_over_time(peaks: Mapping[int, PeakMemory]) -> Iterator[Markup]:
    """Yield the section of the memory of torch's tensors on the device where they took most."""
    found = {device: peak for device, peak in peaks.items() if len(peak.totals_bytes)}
    if not found:
        return
    device = max(found, key=lambda each: (max(found[each].totals_bytes), -each))
    peak = found[device]
    points = tuple(_thinned(peak.totals_bytes))
    curves = [Curve(f"tensors on device {device}", points, 0)]
    if peak.size_bytes:
        size = f"the device's memory, {peak.size_bytes / 2**30:.4g} GiB"
        ends = tuple(Point(p.x, peak.size_bytes / 2**30, size) for p in (points[0], points[-1]))
        curves.append(Curve(size, ends, 1))
    axes = (
        linear_axis([point.x for point in points], "allocations and frees of 1 MiB and more"),
        linear_axis([point.y for curve in curves for point in curve.points], "GiB"),
    )
    drawn = pictures(curves, chart("Memory over allocations", axes, curves))
    yield section("Memory over allocations", drawn)


def _thinned(totals_bytes: Sequence[int]) -> Iterator[Point]:
    """Yield at most `_MOST_POINTS` values: the largest of as many equal parts."""
    length = -(-len(totals_bytes) // _MOST_POINTS)
    for first in range(0, len(totals_bytes), length):
        part = totals_bytes[first : first + length]
        gib = max(part) / 2**30
        yield Point(first + 1, gib, f"{gib:.4g} GiB after {first + 1}")


def _section(
    title: str, unit: str, names: Sequence[str], rows: Sequence[Bar], most: int = _MOST_ROWS
) -> Markup:
    """Return bars under a heading, or that there is nothing to show."""
    if not rows:
        return section(title, notes(["None."]))
    left = len(rows) - most
    remarks = notes([f"{left} more are not shown."] if left > 0 else [])
    return section(title, bars(unit, names, rows[:most]), remarks)


def _named(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'' if len(numbers) == 1 else 's'} {ranks_text(numbers)}"


def _unit(values: Sequence[float], scale_by_unit: Mapping[str, float]) -> tuple[str, float]:
    """Return the unit for the largest value, and its factor."""
    largest = max(values, default=0.0)
    for unit, scale in scale_by_unit.items():
        if largest >= scale:
            return unit, scale
    return list(scale_by_unit.items())[-1]


# ---- bytes per link of a run: an observer of copies, messages and collectives ----


class LinkBytes(SwitchObserver):
    """Sum of bytes per link; a collective counts when its first rank ends.

    No operation is kept: it would keep its tensors, and with them the memory of its device.
    """

    def __init__(self) -> None:
        self._total: Counter[str] = Counter()
        self._counted: WeakSet[Any] = WeakSet()  # Calls.

    def on_transfer(
        self, size_bytes: int, links: tuple[str, ...], start_ps: int, end_ps: int
    ) -> None:
        """Add a copy or a message, whenever it was."""
        del start_ps, end_ps
        for link in links:
            self._total[link] += size_bytes

    def on_operation(self, operation: Operation) -> None:
        """Add a collective, as its first rank ends."""
        call = getattr(operation, "call", None)
        if call is None or call in self._counted:
            return
        self._counted.add(call)
        link_name = operation.stream.device.network.cluster.link_name
        for link, size_bytes in call.link_bytes.items():
            self._total[link_name(link)] += size_bytes

    def busiest(self) -> list[tuple[str, int]]:
        """Return links with their bytes, the most first; also of calls that a failure cut off."""
        return sorted(self._total.items(), key=lambda entry: (-entry[1], entry[0]))
