"""Predictions of left-out sites as a page: scores, coverage, times over size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from simrank.bench.hold_outs import KIND_WORDS, NETWORK, SITE, score
from simrank.collectives.nccl.pool import NORMAL_90, ONE_NODE, SEVERAL_NODES
from simrank.collectives.nccl.size_classes import NAMES
from simrank.trace.page import (
    Curve,
    Point,
    beside,
    chart,
    document,
    folded,
    heat,
    pictures,
    section,
    table,
)
from simrank.trace.page.chart import linear_axis, ratios_axis, sizes_axis, time_text
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simrank.bench.hold_outs import LeftOut
    from simrank.collectives.nccl.laws import Floats
    from simrank.trace.page.chart import Axis
    from simrank.trace.page.document import Markup

_STEPS = (0.05, 0.1, 0.2, 0.4)  # Errors from which on a cell has the next colour.
_WORDS = "A cell is MAE (that of NCCL's own constants), half the 90% interval, and coverage."
# Standard deviations of a normal distribution within which so many percent of it are.
_STATED: Final = {50: 0.674, 60: 0.842, 70: 1.036, 80: 1.282, 90: NORMAL_90, 95: 1.960, 99: 2.576}


def rows_of(left: Sequence[LeftOut]) -> list[tuple[str, list[LeftOut]]]:
    """Return predictions by kind of hold-out and of series, with words for them."""
    found: dict[tuple[str, int], list[LeftOut]] = {}
    for each in left:
        found.setdefault((each.hold_out, each.kind), []).append(each)
    order = list(KIND_WORDS)
    hold_outs = list(dict.fromkeys(each.hold_out for each in left))
    keys = sorted(found, key=lambda key: (hold_outs.index(key[0]), order.index(key[1])))
    return [(f"{hold_out}: {KIND_WORDS[kind]}", found[hold_out, kind]) for hold_out, kind in keys]


def platforms_of(left: Sequence[LeftOut]) -> list[tuple[str, list[LeftOut]]]:
    """Return predictions of left-out sites by platform and network, with words for them."""
    seen = {each.observed.labels.series for each in left if each.hold_out == SITE}
    found: dict[str, list[LeftOut]] = {}
    for each in left:
        labels = each.observed.labels
        # A network of one site is left out with it.
        if each.hold_out == SITE or (each.hold_out == NETWORK and labels.series not in seen):
            where = "one node" if labels.network is None else f"over {labels.network}"
            found.setdefault(f"{labels.platform}, {where}", []).append(each)
    return sorted(found.items())


def hold_outs_page(left: Sequence[LeftOut], noises: Floats) -> str:
    """Return the page; equal predictions give equal text.

    Args:
        left: Predictions of series by constants that were not fitted to them.
        noises: As of a pool.
    """
    parts = [
        section("Kinds of hold-outs", _table(rows_of(left), noises)),
        section("Platforms and networks, sites left out", _table(platforms_of(left), noises)),
        section("Stated and seen coverage", *_coverage(left, noises)),
        section("Predicted over measured", folded("By series", *_series(left, noises))),
    ]
    series = {each.observed.labels.series for each in left}
    facts = [("series", str(len(series))), ("cells", _WORDS)]
    return document("simrank accuracy: left-out machines", facts, parts, num_curves=3)


def _table(rows: Sequence[tuple[str, list[LeftOut]]], noises: Floats) -> Markup:
    cells = []
    for words, mine in rows:
        units = len({each.unit for each in mine})
        scores = [score(mine, noises, number) for number in range(len(NAMES))]
        shown = [
            heat("-", None, _STEPS) if each is None else heat(each.text(), each.error, _STEPS)
            for each in scores
        ]
        cells.append([words, str(units), *shown])
    return table("Scores", ["left out", "units", *NAMES], cells)


def _coverage(left: Sequence[LeftOut], noises: Floats) -> Iterable[Markup]:
    """Yield the curve of seen over stated coverage, of one node and of several."""
    stated = list(_STATED)
    points = tuple(Point(each, each, f"stated {each} %") for each in stated)
    curves = [Curve("as stated", points, None)]
    for kind, words in ((ONE_NODE, "one node"), (SEVERAL_NODES, "several nodes")):
        mine = [each for each in left if each.kind == kind and each.hold_out == SITE]
        if not mine:
            continue
        seen = [100 * _seen(mine, noises, _STATED[each]) for each in stated]
        pairs = zip(stated, seen, strict=True)
        drawn = [Point(x, y, f"stated {x} %, seen {y:.0f} %") for x, y in pairs]
        curves.append(Curve(words, tuple(drawn), len(curves) - 1))
    axes = linear_axis(stated, "stated (%)"), linear_axis([40, 100], "seen (%)")
    yield pictures(curves, chart("Sites left out", axes, curves))


def _seen(left: Sequence[LeftOut], noises: Floats, sigmas: float) -> float:
    """Return the share of times within so many sigmas, the mean of the sites."""
    by_unit: dict[str, list[Floats]] = {}
    for each in left:
        noise = noises[each.kind][each.observed.classes]
        inside = np.abs(each.errors) <= sigmas * np.sqrt(each.variance + noise**2)
        by_unit.setdefault(each.unit, []).append(inside.astype(np.float64))
    return float(np.mean([np.concatenate(each).mean() for each in by_unit.values()]))


def _series(left: Sequence[LeftOut], noises: Floats) -> Iterable[Markup]:
    mine = [each for each in left if each.hold_out in (SITE, NETWORK)]
    axes = (
        sizes_axis(size for each in mine for size in each.observed.size_bytes.tolist()),
        ratios_axis([0.5, 2.0], "predicted / measured"),
    )
    yield beside(*(_picture(each, noises, axes) for each in mine), are_small=True)


def _picture(left: LeftOut, noises: Floats, axes: tuple[Axis, Axis]) -> Markup:
    noise = noises[left.kind][left.observed.classes]
    half = NORMAL_90 * np.sqrt(left.variance + noise**2)
    rows = zip(
        left.observed.size_bytes.tolist(),
        left.observed.time_us.tolist(),
        np.exp(left.errors).tolist(),
        np.exp(left.errors - half).tolist(),
        np.exp(left.errors + half).tolist(),
        strict=True,
    )
    points = [
        Point(
            size,
            ratio,
            f"{format_size(size)}: {time_text(ratio * time_us)}, measured {time_text(time_us)}",
            low,
            high,
        )
        for size, time_us, ratio, low, high in sorted(rows)
    ]
    title = left.observed.labels.series + (", network unseen" if left.hold_out == NETWORK else "")
    return chart(title, axes, [Curve("predicted", tuple(points), 0)], is_small=True)
