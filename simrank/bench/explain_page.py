"""An explained prediction as a page: terms, numbers, and NCCL's choices over size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.trace.page import Curve, Point, chart, document, notes, pictures, section, table
from simrank.trace.page.chart import sizes_axis, time_text, times_axis
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simrank.bench.crossover import Crossover, MeasuredTimes
    from simrank.bench.explain import Explanation
    from simrank.trace.page.document import Markup

_TERMS = ("NCCL's estimate", "time", "L", "base", "D", "W", "ramp")


def explain_page(found: Explanation, sizes: Crossover) -> str:
    """Return the page; equal predictions give equal text.

    Args:
        found: The size that was asked for.
        sizes: The same call over size.
    """
    curves = [*_candidates(sizes), _chosen(sizes), *map(_measured, sizes.measured)]
    return document(
        f"simrank explain: {found.collective} of {format_size(found.size_bytes)}",
        list(_facts(found)),
        [
            section("Terms", _options(found), notes(_words(found))),
            section("Time over size", _picture(curves), notes(_remarks(sizes))),
            section("Uncertainty", _uncertainties(found)),
            section("Constants and sources", _constants(found)),
        ],
        num_curves=len(curves),
    )


def _facts(found: Explanation) -> Iterable[tuple[str, str]]:
    shape, best = found.shape, found.options[0]
    low, high = best.total / (1 + found.spread), best.total * (1 + found.spread)
    yield "ranks", f"{shape.num_ranks} on {shape.num_nodes} node(s) of {found.cluster}"
    yield "predicted", f"{time_text(best.total)}, {found.busbw_GBps:.4g} GB/s bus bandwidth"
    yield "90% interval", f"{time_text(low)} to {time_text(high)}"
    yield "constants", found.rests_on
    yield "NCCL's choice", f"{best.algorithm} {best.protocol}: {found.reason}"


def _options(found: Explanation) -> Markup:
    rows = []
    for each in found.options:
        terms = (each.launch, each.base, each.latency, each.transfer, each.ramp)
        numbers = (each.estimate, each.total, *terms)
        name = f"{each.algorithm} {each.protocol}"
        rows.append([name, *(f"{number:.2f}" for number in numbers)])
    columns = ["algorithm, protocol", *(f"{name} (us)" for name in _TERMS)]
    return table("Terms per candidate, NCCL's choice first", columns, rows, "rows named")


def _words(found: Explanation) -> Iterable[str]:
    yield "First row: NCCL's choice. time = L + base + D + W + ramp, ramp = k sqrt(D W)"
    yield "L: launch; base: set-up per algorithm and protocol"
    yield f"D, sequential steps: {found.steps}"
    yield f"W, bytes on the busiest link: {found.volume}"


def _uncertainties(found: Explanation) -> Markup:
    rows = [
        [each.what, f"{100 * each.share:.0f} %", f"{100 * each.half_width:.1f} %"]
        for each in found.uncertainties
    ]
    columns = ["part", "share of the variance", "alone, half the 90% interval"]
    return table("Parts of the interval, the largest first", columns, rows, "rows texts")


def _constants(found: Explanation) -> Markup:
    rows = [[each.name, each.value, each.source] for each in found.constants]
    columns = ["constant", "value", "source"]
    return table("Constants of the prediction, with sources", columns, rows, "rows texts")


def _picture(curves: list[Curve]) -> Markup:
    points = [point for curve in curves for point in curve.points]
    values = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
    axes = sizes_axis(point.x for point in points), times_axis(values)
    title = "Candidates, NCCL's choice and measured times"
    return pictures(curves, chart(title, axes, curves))


def _remarks(sizes: Crossover) -> Iterable[str]:
    yield "Below the axis: NCCL's choice by size. The band is the 90% interval."
    names = ", ".join(each.table for each in sizes.measured)
    yield f"Measured: {names}" if names else "No built-in table has this call on this cluster."


def _candidates(sizes: Crossover) -> Iterable[Curve]:
    for index, choice in enumerate(sizes.choices):
        name = " ".join(choice)
        rows = zip(sizes.size_bytes.tolist(), sizes.times_us[index].tolist(), strict=True)
        points = (Point(x, y, f"{format_size(x)}: {time_text(y)} by {name}") for x, y in rows)
        yield Curve(name, tuple(points), index)


def _chosen(sizes: Crossover) -> Curve:
    points = []
    for column, size in enumerate(sizes.size_bytes.tolist()):
        index, spread = int(sizes.chosen[column]), float(sizes.spread[column])
        time_us, name = float(sizes.times_us[index, column]), " ".join(sizes.choices[index])
        low, high = time_us / (1 + spread), time_us * (1 + spread)
        text = f"{format_size(size)}: NCCL chooses {name}, {time_text(time_us)}"
        points.append(Point(size, time_us, text, low, high, name))
    return Curve("NCCL's choice", tuple(points), None)


def _measured(found: MeasuredTimes) -> Curve:
    rows = zip(found.size_bytes.tolist(), found.time_us.tolist(), strict=True)
    points = (Point(x, y, f"{format_size(x)}: measured {time_text(y)}") for x, y in sorted(rows))
    return Curve(f"measured: {found.table}", tuple(points), None, is_measured=True)
