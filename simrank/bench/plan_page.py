"""A plan as a page: speed over memory with the best trade-offs, and the parts of steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from simrank.bench.plan import (
    best_command,
    best_first,
    label_of,
    pareto_front,
    remarks_of,
    table_of,
)
from simrank.config.plan import ERROR, FITS
from simrank.trace.page import (
    Bar,
    Curve,
    Point,
    bars,
    chart,
    document,
    folded_table,
    notes,
    pictures,
    section,
)
from simrank.trace.page.chart import linear_axis

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from simrank.bench.grid import Row
    from simrank.config.plan import PlanConfig
    from simrank.trace.page.document import Markup

_MOST_BARS = 20  # Of one picture: the best rows.


def plan_page(
    config: PlanConfig,
    rows: Sequence[Row],
    head: Mapping[str, object],
    partial: str | None = None,
) -> str:
    """Return the page of a plan; equal rows give equal text.

    Args:
        config: The plan.
        rows: As in the JSON file.
        head: As in the JSON file.
        partial: Why rows are missing, if some are.
    """
    facts = {name: str(value) for name, value in head.items()}
    facts["combinations"] = f"{config.num_combinations}, of which {len(config.cells)} are run"
    known = [row for row in best_first(rows) if row[ERROR] is None]
    best = best_command(config, rows)
    if best is not None:
        facts["the best"] = best
    facts |= {f"note {number}": text for number, text in enumerate(remarks_of(rows), 1)}
    num_curves = sum(len({row[name] for row in known}) for name in ("cluster", "memory_bytes"))
    drawn: list[Markup] = []
    if known:
        drawn += _pictures(config, known)
        drawn += [_times(config, known), _memory(config, known)]
    if rows:
        columns, lines = table_of(config, rows)
        drawn.append(folded_table("Table of all rows", columns, lines))
    return document(
        f"simrank plan: {config.command}", list(facts.items()), drawn, partial=partial,
        num_curves=1 + num_curves,
    )  # fmt: skip


def _pictures(config: PlanConfig, known: Sequence[Row]) -> Iterator[Markup]:
    """Yield the section of speed over memory: the best trade-offs, all rows, devices' memories."""
    is_rate = all(row["tokens_per_s_per_rank"] is not None for row in known)
    title = "tokens per second and GPU" if is_rate else "steps per second"

    def points_of(rows: Sequence[Row]) -> tuple[Point, ...]:
        by_memory = sorted(rows, key=lambda row: float(row["peak_reserved_bytes"]))
        return tuple(_point(config, row, is_rate) for row in by_memory)

    curves = [Curve("best for its memory", points_of(pareto_front(known)), 0)]
    for cluster in dict.fromkeys(row["cluster"] for row in known):
        own = points_of([row for row in known if row["cluster"] == cluster])
        curves.append(Curve(str(cluster), own, len(curves), is_measured=True))
    most = max(point.y for curve in curves for point in curve.points)
    for gib in sorted({row["memory_bytes"] / 2**30 for row in known}):
        text = f"a device's {gib:.1f} GiB"
        ends = Point(gib, 0.0, text), Point(gib, most, text)
        curves.append(Curve(text, ends, len(curves)))
    every = [point for curve in curves for point in curve.points]
    axes = (
        linear_axis([point.x for point in every], "peak of reserved memory (GiB)"),
        linear_axis([point.y for point in every], title),
    )
    remark = (
        "Layouts that do not fit were run with four times the memory, of which torch keeps more."
    )
    picture = pictures(curves, chart("Speed over memory", axes, curves))
    yield section("Speed and memory", picture, notes([remark]))


def _point(config: PlanConfig, row: Row, is_rate: bool) -> Point:
    gib = row["peak_reserved_bytes"] / 2**30
    rate = row["tokens_per_s_per_rank"] if is_rate else 1e3 / (row["step_ms"] or math.inf)
    fits = "" if row[FITS] else ", does not fit"
    unit = "tokens/s/GPU" if is_rate else "steps/s"
    shown = f"{row['step_ms']:.1f} ms, {rate:.0f} {unit}, {gib:.1f} GiB reserved{fits}"
    text = f"{label_of(row, config)}: {shown}"
    return Point(gib, rate, text)


def _times(config: PlanConfig, known: Sequence[Row]) -> Markup:
    shown = known[:_MOST_BARS]
    names = list(dict.fromkeys(name for row in shown for name in row["parts_ms"]))
    rows = [
        Bar(
            label_of(row, config),
            tuple(row["parts_ms"].get(name, 0.0) for name in names),
            f"{row['step_ms']:.1f} ms" + ("" if row[FITS] else ", does not fit"),
        )
        for row in shown
    ]
    return section("Time of a step, mean of ranks", bars("ms", names, rows), _left(known))


def _memory(config: PlanConfig, known: Sequence[Row]) -> Markup:
    shown = known[:_MOST_BARS]
    kinds = list(dict.fromkeys(kind for row in shown for kind in row["memory_by_kind_bytes"]))
    rows = []
    for row in shown:
        held = row["memory_by_kind_bytes"]
        allocated, reserved = row["peak_allocated_bytes"], row["peak_reserved_bytes"]
        parts = [held.get(kind, 0) for kind in kinds]
        parts += [max(allocated - sum(held.values()), 0), max(reserved - allocated, 0)]
        total = f"{reserved / 2**30:.1f} of {row['memory_bytes'] / 2**30:.1f} GiB"
        rows.append(Bar(label_of(row, config), tuple(part / 2**30 for part in parts), total))
    names = [*kinds, "other", "reserved beyond that"]
    title = "Peak memory of the fullest rank"
    return section(title, bars("GiB", names, rows), _left(known))


def _left(known: Sequence[Row]) -> Markup:
    left = len(known) - _MOST_BARS
    return notes([f"The best {_MOST_BARS}; {left} more are in the table."] if left > 0 else [])
