"""Benchmarks as pages: pictures over size per collective, tables, and the time of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.bench.table import comparison_of, footer, notes_of
from simrank.collectives.bounds import busbw_factor
from simrank.config.calibration import provenance_of
from simrank.config.measured import load_measured, published_by
from simrank.config.sweep import ALGORITHMS, ERROR
from simrank.pages import (
    Bar,
    Curve,
    Point,
    bars,
    chart,
    document,
    folded,
    folded_table,
    notes,
    pictures,
    section,
)
from simrank.pages.chart import linear_axis, sizes_axis, time_text, times_axis
from simrank.trace.summary import constants_text
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from simrank.bench.series import Row, Series
    from simrank.config import BenchConfig
    from simrank.config.sweep import SweepConfig
    from simrank.pages.document import Markup

SeriesRows = tuple["Series", list["Row"]]
_NOT_KNOWN = "N/A"
_MANY_TABLES = 6  # Whose titles would push the next picture out of sight.


def collectives_page(
    config: BenchConfig,
    found: Sequence[SeriesRows],
    head: Mapping[str, object],
    partial: str | None = None,
) -> str:
    """Return the page of a benchmark; equal rows give equal text.

    Args:
        config: The benchmark.
        found: Every series with its rows, in their order.
        head: As in the JSON file.
        partial: Why rows are missing, if some are.
    """
    by_collective: dict[str, list[SeriesRows]] = {}
    for series, rows in found:
        by_collective.setdefault(series.collective, []).append((series, rows))
    drawn = {name: _Group(mine, config) for name, mine in by_collective.items()}
    return document(
        f"simrank bench: {', '.join(by_collective) or 'no rows'}",
        [*head_facts(config, head), *_verdict(found)],
        [section(group.title, *group.parts()) for group in drawn.values()],
        partial=partial,
        num_curves=max((len(group.times) for group in drawn.values()), default=0),
    )


def head_facts(
    config: BenchConfig | SweepConfig, head: Mapping[str, object]
) -> list[tuple[str, str]]:
    """Return the facts of a run, by name."""
    facts = {name: str(value) for name, value in head.items()}
    facts["cluster"] = ", ".join(cluster.name for cluster in config.clusters)
    timed, warmup = config.iterations.timed, config.iterations.warmup
    facts["iterations"] = f"{timed} timed after {warmup} to warm up, in simulated time"
    for cluster in config.clusters:
        counts = constants_text(provenance_of(cluster)).partition(": ")[2]
        facts[f"constants of {cluster.name}"] = counts
    return list(facts.items())


def _verdict(found: Sequence[SeriesRows]) -> Iterable[tuple[str, str]]:
    for line in footer([row for _, rows in found for row in rows]).splitlines():
        name, _, value = line.removeprefix("# ").partition(":")
        yield name.strip(), value.strip()


class _Form(NamedTuple):
    """Rows that one curve shows."""

    label: str
    rows: list[Row]


class _Group:
    """The series of one collective, which share their pictures.

    Attributes:
        title: What they have in common.
        times: Curves of time.
        rates: The same ones of bus bandwidth.
    """

    def __init__(self, found: Sequence[SeriesRows], config: BenchConfig) -> None:
        self._tables = config.measured
        self._comparisons = [comparison_of(series, config) for series, _ in found]
        found = [
            (series, comparison.shown(rows))
            for comparison, (series, rows) in zip(self._comparisons, found, strict=True)
        ]
        self._found = found
        names = [_words(series, rows) for series, rows in found]
        common = [words[0] for words in zip(*names, strict=True) if len(set(words)) == 1]
        labels = [
            ", ".join(word for word in words if word and word not in common) for words in names
        ]
        self.title = f"{found[0][0].collective}: {', '.join(filter(None, common))}"
        self._labels = _numbered_labels([label or found[0][0].algorithm for label in labels])
        self._forms = [
            form
            for label, (_, rows) in zip(self._labels, found, strict=True)
            for form in _forms(label, rows)
        ]
        self.times = [*self._curves(_time_point), *self._measured(_measured_time)]
        self.rates = [*self._curves(_rate_point), *self._measured(_measured_rate)]

    def parts(self) -> Iterable[Markup]:
        """Yield pictures, remarks and tables."""
        sizes = sizes_axis(row.size_bytes for _, rows in self._found for row in rows)
        rates = linear_axis(_values(self.rates), "bus bandwidth (GB/s)")
        times = times_axis(_values(self.times))
        yield pictures(
            self.times,
            chart("Bus bandwidth over size", (sizes, rates), self.rates),
            chart("Time over size", (sizes, times), self.times),
        )
        yield notes(self._remarks())
        tables = [
            _table(f"Table of {label}", rows)
            for label, (_, rows) in zip(self._labels, self._found, strict=True)
        ]
        is_long = len(tables) > _MANY_TABLES
        yield from [folded(f"Tables of {len(tables)} series", *tables)] if is_long else tables

    def _remarks(self) -> Iterable[str]:
        if any(curve.is_measured for curve in self.times):
            collective = self._found[0][0].collective
            for path in self._tables:
                mine = [row for row in load_measured(path) if row.collective == collective]
                if mine:
                    yield f"Measured: {path.stem} ({published_by(mine)})"
        untimed = sum(not row.time_us for _, rows in self._found for row in rows)
        if untimed:
            yield f"{untimed} rows took no time; they are in the tables only."
        labels_by_line: dict[str, list[str]] = {}
        each = zip(self._labels, self._found, self._comparisons, strict=True)
        for label, (series, rows), comparison in each:
            for line in notes_of(rows, series, comparison):
                labels_by_line.setdefault(line.removeprefix("# "), []).append(label)
        for line, labels in labels_by_line.items():
            yield f"{'; '.join(labels)}: {line}"

    def _curves(self, point: Callable[[Row], Point]) -> Iterable[Curve]:
        for look, form in enumerate(self._forms):
            rows = sorted(form.rows, key=lambda row: row.size_bytes)
            yield Curve(form.label, tuple(point(row) for row in rows if row.time_us), look)

    def _measured(self, point: Callable[[Row], Point]) -> Iterable[Curve]:
        """Yield the measured series, once per table."""
        labels_by_points: dict[tuple[Point, ...], list[int]] = {}
        for index, form in enumerate(self._forms):
            rows = sorted(form.rows, key=lambda row: row.size_bytes)
            points = tuple(point(row) for row in rows if row.measured_us)
            if points:
                labels_by_points.setdefault(points, []).append(index)
        is_only = len(labels_by_points) == 1
        for points, indices in labels_by_points.items():
            first = self._forms[indices[0]].label
            label = "measured" if is_only else f"measured, for {first}"
            yield Curve(label, points, None if is_only else indices[0], is_measured=True)


def _words(series: Series, rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the properties of a series, for its label."""
    return (
        series.algorithm,
        series.dtype,
        "" if series.redop == "none" else series.redop,
        "" if series.root < 0 else f"root {series.root}",
        f"cost level {rows[0].cost_level}",
        f"{series.num_ranks} ranks",
        series.cluster.name,
    )


def _numbered_labels(labels: Sequence[str]) -> list[str]:
    """Return labels made unique by numbers."""
    seen: dict[str, int] = {}
    found = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        found.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return found


def _forms(label: str, rows: Sequence[Row]) -> list[_Form]:
    """Return the curves of a series: one, or two where in place takes another time."""
    by_form = {form: [row for row in rows if row.in_place == form] for form in (False, True)}
    times = [{row.size_bytes: row.time_us for row in mine} for mine in by_form.values()]
    apart = any(time_us != times[0].get(size, time_us) for size, time_us in times[1].items())
    if apart:
        return [
            _Form(f"{label}, out of place", by_form[False]),
            _Form(f"{label}, in place", by_form[True]),
        ]
    missing = [row for row in by_form[True] if row.size_bytes not in times[0]]
    return [_Form(label, [*by_form[False], *missing])]


def _choice(row: Row) -> str:
    return " ".join(filter(None, (row.algorithm, row.protocol)))


def _text(row: Row) -> str:
    """Return a row's exact numbers."""
    words = [f"{format_size(row.size_bytes)}: {time_text(row.time_us)}"]
    if row.interval_us is not None:
        low_us, high_us = row.interval_us
        words.append(f"90% interval {time_text(low_us)} to {time_text(high_us)}")
    words += [f"bus bandwidth {row.busbw_GBps:.4g} GB/s", _choice(row)]
    if row.measured_us is not None and row.error_pct is not None:
        which = "" if row.left_out is None else f" with site '{row.left_out}' left out"
        words.append(f"measured {time_text(row.measured_us)}, error{which} {row.error_pct:+.1f} %")
    return ", ".join(words)


def _time_point(row: Row) -> Point:
    low_us, high_us = row.interval_us or (None, None)
    return Point(row.size_bytes, row.time_us, _text(row), low_us, high_us, _choice(row))


def _rate_point(row: Row) -> Point:
    low_us, high_us = row.interval_us or (None, None)
    low, high = _busbw(row, high_us), _busbw(row, low_us)
    return Point(row.size_bytes, row.busbw_GBps, _text(row), low, high, _choice(row))


def _measured_time(row: Row) -> Point:
    measured_us = row.measured_us or 0.0
    text = f"{format_size(row.size_bytes)}: measured {time_text(measured_us)}"
    return Point(row.size_bytes, measured_us, f"{text}, {_busbw(row, measured_us):.4g} GB/s")


def _measured_rate(row: Row) -> Point:
    point = _measured_time(row)
    return Point(point.x, _busbw(row, row.measured_us) or 0.0, point.text)


def _busbw(row: Row, time_us: float | None) -> float | None:
    """Return the bus bandwidth of a row in GB/s if it took some time."""
    if not time_us:
        return None
    factor: float = busbw_factor(row.collective, row.num_ranks)
    return row.size_bytes / time_us / 1e3 * factor


def _values(curves: Sequence[Curve]) -> list[float]:
    """Return everything that an axis has to hold."""
    points = [point for curve in curves for point in curve.points]
    return [v for p in points for v in (p.y, p.low, p.high) if v is not None]


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "size (B)": lambda row: str(row.size_bytes),
    "form": lambda row: "in place" if row.in_place else "out of place",
    "time (us)": lambda row: f"{row.time_us:.2f}",
    "algbw (GB/s)": lambda row: f"{row.algbw_GBps:.2f}",
    "busbw (GB/s)": lambda row: f"{row.busbw_GBps:.2f}",
    "wrong": lambda row: _NOT_KNOWN if row.num_wrong is None else str(row.num_wrong),
    "algorithm": _choice,
    "90% interval (us)": lambda row: (
        _NOT_KNOWN
        if row.interval_us is None
        else f"{row.interval_us[0]:.2f} - {row.interval_us[1]:.2f}"
    ),
    "measured (us)": lambda row: (
        _NOT_KNOWN if row.measured_us is None else f"{row.measured_us:.2f}"
    ),
    "error (%)": lambda row: (
        _NOT_KNOWN if row.error_pct is None or row.left_out else f"{row.error_pct:+.1f}"
    ),
    "predicted, site left out (us)": lambda row: (
        _NOT_KNOWN if row.left_out_us is None else f"{row.left_out_us:.2f}"
    ),
    "error, site left out (%)": lambda row: (
        f"{row.error_pct:+.1f}" if row.left_out and row.error_pct is not None else _NOT_KNOWN
    ),
}
_OPTIONAL = (
    "90% interval (us)",
    "measured (us)",
    "error (%)",
    "predicted, site left out (us)",
    "error, site left out (%)",
)


def _table(title: str, rows: Sequence[Row]) -> Markup:
    """Return the rows of a series, without columns that say nothing."""
    cells = {name: [cell(row) for row in rows] for name, cell in _COLUMNS.items()}
    shown = {
        name: column
        for name, column in cells.items()
        if name not in _OPTIONAL or set(column) != {_NOT_KNOWN}
    }
    return folded_table(title, list(shown), zip(*shown.values(), strict=True))


# ---- a benchmark of a program as a page: where the time of a step goes, per combination ----

_PARTS = {"compute": "compute_us", "exposed communication": "exposed_us", "idle": "idle_us"}


def program_page(
    config: SweepConfig,
    rows: Sequence[Mapping[str, Any]],
    head: Mapping[str, object],
    partial: str | None = None,
) -> str:
    """Return the page of a program's benchmark; equal rows give equal text.

    Args:
        config: The benchmark.
        rows: As in the JSON file.
        head: As in the JSON file.
        partial: Why rows are missing, if some are.
    """
    drawn = []
    if rows:
        labelled = zip(_labels(config, rows), rows, strict=True)
        found = [(label, row) for label, row in labelled if row[ERROR] is None]
        of_rank = "of a step, on the rank with most exposed communication"
        names = list(_PARTS)
        drawn = [
            section(f"Time {of_rank}", bars("us", names, [_times(*each) for each in found])),
            section(f"Shares {of_rank}", bars("%", names, [_shares(*each) for each in found])),
            folded_table("Table of all rows", list(rows[0]), map(_cells, rows)),
        ]
    title = f"simrank bench: {config.program}"
    return document(title, head_facts(config, head), drawn, partial=partial)


def _labels(config: SweepConfig, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the distinguishing properties of each row."""
    names = ["cluster", *config.parameters, *([ALGORITHMS] if config.algorithms else [])]
    differing = [name for name in names if len({str(row[name]) for row in rows}) > 1]
    for row in rows:
        words = [
            str(row[name]) if name == "cluster" else f"{name}={row[name]}"
            for name in differing or names
        ]
        yield " ".join(words)


def _times(label: str, row: Mapping[str, Any]) -> Bar:
    return Bar(label, _parts(row), f"{row['step_us']:.1f} us")


def _shares(label: str, row: Mapping[str, Any]) -> Bar:
    parts = _parts(row)
    whole = sum(parts) or 1.0
    shares = tuple(100 * part / whole for part in parts)
    return Bar(label, shares, f"{shares[1]:.1f} % exposed")


def _parts(row: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(row[name] for name in _PARTS.values())


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values()]
