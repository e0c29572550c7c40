"""Errors of predictions as pages: means beside aims, left-out sites, ratios over size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from simrank.calibration.accuracy import DIRECT
from simrank.calibration.cross_validation import FITS
from simrank.calibration.hold_outs import KIND_WORDS, NETWORK, SITE, score
from simrank.collectives.nccl.pool import NORMAL_90, ONE_NODE, SEVERAL_NODES
from simrank.collectives.nccl.size_classes import NAMES
from simrank.pages import (
    Curve,
    Point,
    beside,
    chart,
    document,
    folded,
    heat,
    notes,
    pictures,
    section,
    table,
)
from simrank.pages.chart import linear_axis, ratios_axis, sizes_axis, time_text
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from simrank.calibration.accuracy import SeriesErrors
    from simrank.calibration.hold_outs import LeftOut
    from simrank.calibration.targets import TargetGroup
    from simrank.collectives.nccl.laws import Floats
    from simrank.pages.chart import Axis
    from simrank.pages.document import Markup

_STEPS = (0.05, 0.1, 0.2, 0.4)  # Errors from which on a cell has the next colour.
_LOOK = "rows named"
_MOST_CURVES = 12  # Of one picture.
_WORDS = (
    "A cell is MAE and bias. Negative bias (blue): too fast; positive (orange): too slow. "
    "Targets follow < (met) or > (missed)."
)


def accuracy_page(
    found: Mapping[str, Sequence[SeriesErrors]], grouped: Mapping[str, Sequence[TargetGroup]]
) -> str:
    """Return the page; equal errors give equal text.

    Args:
        found: The errors by kind of fit.
        grouped: The same in groups.
    """
    curves = [len(mine) for series in found.values() for mine in _by_picture(series).values()]
    tables = {each.table for series in found.values() for each in series}
    return document(
        "simrank accuracy: predicted against measured",
        [("tables", str(len(tables))), ("constants", ", ".join(found)), ("cells", _WORDS)],
        [
            section("Means and targets", _means(grouped), *_missed(grouped)),
            *(section(f"{name}: {FITS[name].what}", *_parts(mine)) for name, mine in found.items()),
        ],
        num_curves=max(curves, default=0),
    )


def _means(grouped: Mapping[str, Sequence[TargetGroup]]) -> Markup:
    rows: list[list[str]] = []
    for name, mine in grouped.items():
        for group in mine:
            aims = group.aims_pct or [None] * len(NAMES)
            cells = [_cell(mean, aim) for mean, aim in zip(group.means, aims, strict=True)]
            rows.append([f"{name}: {group.title}", str(len(group.series)), *cells])
    return table("MAE and bias", ["constants: evaluation", "series", *NAMES], rows, _LOOK)


def _cell(mean: tuple[float, float] | None, aim_pct: float | None = None) -> Markup:
    if mean is None:
        return heat("-", None, _STEPS)
    text = f"{100 * mean[0]:.0f} % ({100 * mean[1]:+.0f})"
    if aim_pct is not None:
        text += f" {'>' if 100 * mean[0] > aim_pct else '<'} {aim_pct:.0f}"
    return heat(text, mean[0] if mean[1] >= 0 else -mean[0], _STEPS)


def _missed(grouped: Mapping[str, Sequence[TargetGroup]]) -> Iterable[Markup]:
    lines = [
        f"{name}, {' '.join(_sentences(list(missed.lines())))}"
        for name, mine in grouped.items()
        for group in mine
        for missed in group.missed()
    ]
    if lines:
        yield folded("Missed targets, by table", notes(lines))


def _sentences(lines: Sequence[str]) -> list[str]:
    return [lines[0], "; ".join(lines[1:])]


def _parts(series: Sequence[SeriesErrors]) -> Iterable[Markup]:
    rows = [
        [_name(each), str(each.num_nodes), *(_cell(mean) for mean in each.by_class())]
        for each in series
    ]
    yield table("Errors by size class", ["table", "nodes", *NAMES], rows, _LOOK)
    drawn = _by_picture(series)
    if not drawn:
        return
    axes = (
        sizes_axis(size for each in series for size in each.size_bytes.tolist()),
        ratios_axis([ratio for each in series for ratio in _ratios(each)], "predicted / measured"),
    )
    yield folded(
        "Predicted over measured, by size",
        beside(*(_picture(title, axes, mine) for title, mine in drawn.items()), are_small=True),
    )


def _name(errors: SeriesErrors) -> str:
    fitted = errors.fitted_to
    own = f"{errors.table}, {errors.collective}, {errors.num_ranks} ranks"
    return own if fitted in ("", errors.table) else f"{own}; of {fitted}"


def _by_picture(series: Sequence[SeriesErrors]) -> dict[str, list[SeriesErrors]]:
    """Return the series of each picture, by its title."""
    found: dict[str, list[SeriesErrors]] = {}
    for each in series:
        title = f"{each.table}, {each.collective}"
        if each.mode == DIRECT:
            title += f", {each.num_ranks} ranks"
        found.setdefault(title, []).append(each)
    return {title: mine[:_MOST_CURVES] for title, mine in found.items()}


def _ratios(errors: SeriesErrors) -> list[float]:
    return [1 + float(error) for error in errors.error]


def _picture(title: str, axes: tuple[Axis, Axis], series: Sequence[SeriesErrors]) -> Markup:
    curves = [Curve(_label(each), tuple(_points(each)), look) for look, each in enumerate(series)]
    source = measured_by(each.published_by for each in series)
    drawn = chart(title, axes, curves, source=source, is_small=True)
    return drawn if len(curves) == 1 else pictures(curves, drawn)


def measured_by(sources: Iterable[str]) -> str:
    """Return `measured: 8xA100 NVLink3, github.com/...`, with each source once."""
    named = "; ".join(dict.fromkeys(filter(None, sources)))
    return f"measured: {named}" if named else ""


def _label(errors: SeriesErrors) -> str:
    if errors.mode != DIRECT:
        return f"{errors.num_ranks} ranks"
    return f"of {errors.fitted_to}" if errors.fitted_to not in ("", errors.table) else "predicted"


def _points(errors: SeriesErrors) -> Iterable[Point]:
    rows = zip(
        errors.size_bytes.tolist(),
        errors.measured_us.tolist(),
        errors.predicted_us.tolist(),
        errors.chosen,
        strict=True,
    )
    for size, measured, predicted, choice in sorted(rows):
        text = (
            f"{format_size(size)}: {time_text(predicted)} by {' '.join(choice)}, "
            f"measured {time_text(measured)}, error {100 * (predicted / measured - 1):+.1f} %"
        )
        yield Point(size, predicted / measured, text)


# ---- predictions of left-out sites as a page: scores, coverage, times over size ----

_HOLD_OUT_WORDS = (
    "A cell is MAE (that of NCCL's own constants), half the 90% interval, and coverage."
)
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
    facts = [("series", str(len(series))), ("cells", _HOLD_OUT_WORDS)]
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
    return table("Scores", ["left out", "units", *NAMES], cells, _LOOK)


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
    yield beside(*(_hold_out_picture(each, noises, axes) for each in mine), are_small=True)


def _hold_out_picture(left: LeftOut, noises: Floats, axes: tuple[Axis, Axis]) -> Markup:
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
    source = measured_by([left.observed.published_by])
    curve = Curve("predicted", tuple(points), 0)
    return chart(title, axes, [curve], source=source, is_small=True)
