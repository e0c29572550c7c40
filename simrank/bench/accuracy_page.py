"""Errors of predictions as a page: means beside aims, errors in colours, ratios over size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.bench.accuracy import DIRECT
from simrank.bench.cross_validation import FITS
from simrank.collectives.nccl.size_classes import NAMES
from simrank.trace.page import (
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
from simrank.trace.page.chart import ratios_axis, sizes_axis, time_text
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from simrank.bench.accuracy import SeriesErrors
    from simrank.bench.targets import Group
    from simrank.trace.page.chart import Axis
    from simrank.trace.page.document import Markup

_STEPS = (0.05, 0.1, 0.2, 0.4)  # Errors from which on a cell has the next colour.
_LOOK = "rows named"
_MOST_CURVES = 12  # Of one picture.
_WORDS = (
    "A cell is MAE and bias. Negative bias (blue): too fast; positive (orange): too slow. "
    "Targets follow < (met) or > (missed)."
)


def accuracy_page(
    found: Mapping[str, Sequence[SeriesErrors]], grouped: Mapping[str, Sequence[Group]]
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


def _means(grouped: Mapping[str, Sequence[Group]]) -> Markup:
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


def _missed(grouped: Mapping[str, Sequence[Group]]) -> Iterable[Markup]:
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
    drawn = chart(title, axes, curves, is_small=True)
    return drawn if len(curves) == 1 else pictures(curves, drawn)


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
