"""Kernels as a page: where each line's time goes, and how far the kernel is from its roof."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.trace.kernel_report import COLUMNS, PARTS, source_lines, summary
from simrank.trace.page import (
    Bar,
    Curve,
    Point,
    bars,
    chart,
    document,
    notes,
    pictures,
    section,
    table,
)
from simrank.trace.page.axes import powers_axis
from simrank.trace.page.markup import Markup, element
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.kernels.machine.statistics import KernelProfile, Roof
    from simrank.trace.kernel_report import SourceLine

_LEAST_PART = 1e-3  # Of the longest line: what is shorter would not be seen.
_SPREAD = 32.0  # How far the roofline reaches beyond its ridge, and beyond the kernel.


def report_html(profiles: Sequence[KernelProfile]) -> str:
    """Return all kernels as one page that opens without a network."""
    shown = [_kernel(profile) for profile in profiles]
    facts = [("kernels", ", ".join(profile.name for profile in profiles))]
    return document("simrank kernels report", facts, shown, num_curves=2)


def _kernel(profile: KernelProfile) -> Markup:
    rows = list(source_lines(profile))
    parts = [notes(summary(profile))]
    drawn = _bars(rows)
    if drawn:
        parts.append(bars("us", PARTS, drawn))
    if profile.roof is not None:
        parts.append(_roofline(profile, profile.roof))
    cells = [
        [str(row.number), *(row.texts.get(name, "") for name in COLUMNS), _code(row)]
        for row in rows
    ]
    parts.append(table(f"lines of {profile.name}", ["line", *COLUMNS, ""], cells))
    return section(profile.name, *parts)


def _code(row: SourceLine) -> Markup:
    return element("td", element("code", row.source), style="text-align:left;white-space:pre")


def _bars(rows: Sequence[SourceLine]) -> list[Bar]:
    """Return a bar for each line that takes time, in the order of the source."""
    totals = {row.number: sum(row.parts_ps.values()) for row in rows}
    least = _LEAST_PART * max(totals.values(), default=0.0)
    found = []
    for row in rows:
        if totals[row.number] > least:
            times = tuple(row.parts_ps.get(part, 0.0) / PS_PER_US for part in PARTS)
            found.append(Bar(f"{row.number}  {row.source.strip()}", times, row.texts["most time"]))
    return found


def _roofline(profile: KernelProfile, roof: Roof) -> Markup:
    """Return the roof of the device, and the kernel as a point below it.

    Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model",
    CACM 52(4), 2009.
    """
    flops = sum(line.flops for line in profile.lines.values())
    operations = sum(sum(line.operations) for line in profile.lines.values())
    done = flops or operations
    seconds = profile.duration_ps / 1e12
    if not done or not profile.hbm_bytes or not seconds:
        return Markup("")
    intensity, rate = done / profile.hbm_bytes, done / seconds / 1e12
    ridge = roof.flops_per_s / roof.bytes_per_s
    low, high = min(ridge, intensity) / _SPREAD, max(ridge, intensity) * _SPREAD
    peak = roof.flops_per_s / 1e12

    def below(x: float) -> Point:
        y = min(peak, x * roof.bytes_per_s / 1e12)
        return Point(x, y, f"{x:.4g} per byte: {y:.4g} TFLOPS")

    what = "operations" if flops else "vector operations"
    own = Point(
        intensity, rate, f"{profile.name}: {intensity:.4g} {what} per byte, {rate:.4g} TFLOPS"
    )
    curves = [
        Curve(f"roof of {roof.device}", (below(low), below(ridge), below(high)), 0),
        Curve(profile.name, (own,), 1, is_measured=True),
    ]
    rates = [below(low).y, peak, rate]
    axes = (
        powers_axis([low, high], f"{what} per byte of memory"),
        powers_axis(rates, "TFLOPS"),
    )
    return pictures(curves, chart("Roofline", axes, curves))
