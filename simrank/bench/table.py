"""The benchmark's text output: nccl-tests' columns, then algorithm, measured time and error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from simrank.bench.program import BLOCKS
from simrank.bench.run import CHECK_UP_TO_BYTES, CHECK_UP_TO_TOTAL_BYTES, is_too_large
from simrank.bench.series import NCCL
from simrank.calibration.hold_outs import is_fitted_to, site_of
from simrank.calibration.pool_fit import HOST_LAUNCH_US
from simrank.collectives.nccl.evidence import uses_pool
from simrank.collectives.nccl.size_classes import errors_by_class
from simrank.config.measured import load_machine
from simrank.config.project import NO_CALIBRATION
from simrank.device import as_dtype
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from simrank.bench.series import Row, Series
    from simrank.config import BenchConfig


# ---- when a benchmark's rows have errors against a measured table; start with `comparison_of` ----

_CHOSEN_BY_NCCL = ("auto", NCCL)
_DIRECT = "back_to_back"


@dataclass(frozen=True, slots=True)
class SeriesComparison:
    """Whether a series is comparable with the measured times.

    Attributes:
        difference: How the measurement differs from the series; None where it does not.
        floor_us: Shorter times are not comparable: one host thread launched on several GPUs.
        basis: The constants behind the errors, in words; None: no constants of NCCL's laws.
        is_left_out: Whether errors are those of constants without the measured site.
    """

    difference: str | None = None
    floor_us: float = 0.0
    basis: str | None = None
    is_left_out: bool = False

    def shown(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows without errors and intervals that are not comparable."""
        found = []
        for row in rows:
            if self.difference is not None:
                found.append(replace(row, error_pct=None, interval_us=None))
            elif min(row.time_us, row.measured_us or 0.0) < self.floor_us:
                found.append(replace(row, error_pct=None))
            else:
                found.append(row)
        return found

    def notes(self) -> Iterable[str]:
        """Yield comment lines about errors and intervals that are missing."""
        if self.difference is not None:
            yield f"# No 90% interval and no error: {self.difference}"
        elif self.floor_us:
            yield (
                f"# No error below {self.floor_us:g} us: "
                "one host thread launched on several GPUs in the measured run"
            )


COMPARABLE = SeriesComparison()


def comparison_of(series: Series, config: BenchConfig) -> SeriesComparison:
    """Return whether the measured tables, and the tables behind intervals, fit a series.

    They were measured with the algorithm that NCCL chose, and with calls back to back.
    """
    if series.kernel is not None:
        return SeriesComparison(
            f"{series.algorithm} is a Triton kernel, NCCL's kernels were measured"
        )
    if series.algorithm not in _CHOSEN_BY_NCCL:
        return SeriesComparison(f"{series.algorithm} is forced, NCCL's own choice was measured")
    if config.iterations.blocking and series.algorithm != NCCL:
        return SeriesComparison("iterations wait for each other, back to back was measured")
    machines = [load_machine(path) for path in config.measured]
    modes = sorted({each.mode for each in machines if each is not None} - {_DIRECT})
    if modes:
        return SeriesComparison(
            f"calls run back to back, loops of {' and '.join(modes)} were measured"
        )
    num_gpus = max(
        (each.gpus_per_thread for each in machines if each is not None and not each.cuda_graph),
        default=1,
    )
    floor_us = HOST_LAUNCH_US * num_gpus if num_gpus > 1 else 0.0
    if not config.measured or series.cluster.nccl is None:
        return SeriesComparison(floor_us=floor_us)
    basis, is_left_out = _basis(series, config)
    return SeriesComparison(floor_us=floor_us, basis=basis, is_left_out=is_left_out)


def _basis(series: Series, config: BenchConfig) -> tuple[str, bool]:
    """Return the constants behind errors, in words, and whether measured sites are left out."""
    word = series.cluster.calibration
    if word == NO_CALIBRATION:
        return "by NCCL's own constants, fitted to no site", False
    if not uses_pool(series.cluster):
        return f"by constants of {Path(str(word)).name}, with no site left out", False
    sites = dict.fromkeys(site_of(Path(path)) for path in config.measured)
    fitted = [f"'{site}'" for site in sites if is_fitted_to(site)]
    if not fitted:
        return "at a site that the calibration has not seen", False
    named = f"site{'s' if len(fitted) > 1 else ''} {', '.join(fitted)}"
    unseen = " (further sites are not in it)" if len(fitted) < len(sites) else ""
    return f"with {named} left out of the calibration{unseen}", True


# ---- The benchmark's text output ----

_WHOLE_FROM_US = 1e5  # Longer times keep their column's width without decimals.
_FORMS = (("out-of-place", False), ("in-place", True))


class Table:
    """Prints series as their rows come.

    Args:
        echo: Prints a line, or several.
        with_measured: Whether other times stand beside those of the rows.
        beside: What these are: measured beside simulated ones, or the reverse.
        width: Characters of a line, or None for any: where nccl-tests' columns do not fit, those
            that say the same in other words are left out.
    """

    def __init__(
        self,
        echo: Callable[[str], object],
        *,
        with_measured: bool,
        beside: str = "measured",
        width: int | None = None,
    ) -> None:
        self._echo = echo
        self._width = width
        self._is_narrow = False
        self._beside = beside
        self._with_measured = with_measured
        self._series: Series | None = None
        self._comparison = COMPARABLE
        self._rows: list[Row] = []

    def add(
        self, series: Series, rows: Sequence[Row], comparison: SeriesComparison = COMPARABLE
    ) -> None:
        """Print rows, below the head of their series."""
        rows = comparison.shown(rows)
        with_measured = self._with_measured and comparison.difference is None
        if series is not self._series:
            self.close()
            self._series, self._comparison = series, comparison
            has_interval = rows[0].interval_us is not None
            beside = (self._beside, _error_name(comparison)) if with_measured else None
            head = header(series, beside=beside, has_interval=has_interval)
            needed = max(map(len, head.splitlines()[1:]))
            self._is_narrow = self._width is not None and self._width < needed
            if self._is_narrow:
                head = narrow_header(series, needed, beside=beside, has_interval=has_interval)
            self._echo(head)
        self._rows += rows
        shown = narrow_lines if self._is_narrow else lines
        for line in shown(rows, with_measured=with_measured):
            self._echo(line)

    def close(self) -> None:
        """Print the comment lines of a complete series."""
        if self._series is not None:
            for line in notes_of(self._rows, self._series, self._comparison):
                self._echo(line)
        self._rows = []


def _error_name(comparison: SeriesComparison) -> str:
    return "left out" if comparison.is_left_out else "error"


def header(series: Series, *, beside: tuple[str, str] | None, has_interval: bool) -> str:
    """Return the comment lines above a series; `beside` names times and errors, if any."""
    measured = f" {beside[0]:>9} {beside[1]:>8}" if beside else ""
    units = f" {'(us)':>9} {'(%)':>8}" if beside else ""
    if has_interval:
        measured = f" {'90% interval':>21}{measured}"
        units = f" {'(us)':>21}{units}"
    cells = f" {'time':>9} {'algbw':>8} {'busbw':>8} {'#wrong':>7}"
    cell_units = f" {'(us)':>9} {'(GB/s)':>8} {'(GB/s)':>8} {'':>7}"
    left = f"{'size':>12} {'count':>12} {'type':>13} {'redop':>7} {'root':>5}"
    left_units = f"{'(B)':>12} {'(elements)':>12} {'':>13} {'':>7} {'':>5}"
    names = "".join(f"{name:>{len(cells)}}" for name, _ in _FORMS)
    return "\n".join(
        [
            f"# {series.title}",
            f"# {'':>{len(left)}}{names}",
            f"# {left}{cells * 2}  {'algorithm':<16}{measured}",
            f"# {left_units}{cell_units * 2}  {'':<16}{units}",
        ]
    )


def lines(rows: Sequence[Row], *, with_measured: bool) -> Iterator[str]:
    """Yield one line per size, both forms beside each other."""
    by_size: dict[int, dict[bool, Row]] = {}
    for row in rows:
        by_size.setdefault(row.size_bytes, {})[row.in_place] = row
    for forms in by_size.values():
        any_row = next(iter(forms.values()))
        columns = "".join(_columns(forms.get(in_place)) for _, in_place in _FORMS)
        measured = _measured(any_row) if with_measured else ""
        text = f"  {_left(any_row)}{columns}  {_algorithm(any_row):<16}{measured}"
        yield text.rstrip()


def narrow_header(
    series: Series, needed: int, *, beside: tuple[str, str] | None, has_interval: bool
) -> str:
    """Return the comment lines above a series on a narrow terminal; 98 characters at most."""
    names = f"# {'size':>11} {'time':>9} {'busbw':>8} {'#wrong':>6}  {'algorithm':<16}"
    units = f"# {'(B)':>11} {'(us)':>9} {'(GB/s)':>8} {'':>6}  {'':<16}"
    if has_interval:
        names, units = f"{names} {'90% interval':>21}", f"{units} {'(us)':>21}"
    if beside:
        names = f"{names} {beside[0]:>9} {beside[1]:>8}"
        units = f"{units} {'(us)':>9} {'(%)':>8}"
    left_out = f"# Out-of-place; all columns from {needed} characters on, in a pipe and in --csv"
    return "\n".join([f"# {series.title}", left_out, names, units.rstrip()])


def narrow_lines(rows: Sequence[Row], *, with_measured: bool) -> Iterator[str]:
    """Yield one line per size: out-of-place, where that ran."""
    seen = set()
    for row in sorted(rows, key=lambda row: row.in_place):
        if row.size_bytes in seen:
            continue
        seen.add(row.size_bytes)
        wrong = "N/A" if row.num_wrong is None else str(row.num_wrong)
        left = f"{row.size_bytes:>11} {_time(row.time_us):>9} {row.busbw_GBps:>8.2f} {wrong:>6}"
        measured = _measured(row) if with_measured else ""
        yield f"  {left}  {_algorithm(row):<16}{measured}".rstrip()


def count_of(row: Row) -> int:
    """Return the elements that nccl-tests counts: of collectives of blocks, one block's."""
    count = row.size_bytes // as_dtype(row.dtype).itemsize
    return count // row.num_ranks if row.collective in BLOCKS else count


def _left(row: Row) -> str:
    size = f"{row.size_bytes:>12} {count_of(row):>12}"
    return f"{size} {row.dtype:>13} {row.redop:>7} {row.root:>5}"


def _algorithm(row: Row) -> str:
    """Return algorithm and protocol, and the interval of a prediction."""
    name = row.algorithm if row.protocol is None else f"{row.algorithm} {row.protocol}"
    if row.interval_us is None:
        return name
    low_us, high_us = row.interval_us
    return f"{name:<16} {f'{_time(low_us)} - {_time(high_us)}':>21}"


def _columns(row: Row | None) -> str:
    if row is None:
        return f" {'N/A':>9} {'N/A':>8} {'N/A':>8} {'N/A':>7}"
    wrong = "N/A" if row.num_wrong is None else str(row.num_wrong)
    return f" {_time(row.time_us):>9} {row.algbw_GBps:>8.2f} {row.busbw_GBps:>8.2f} {wrong:>7}"


def _measured(row: Row) -> str:
    measured = "-" if row.measured_us is None else _time(row.measured_us)
    error = "-" if row.error_pct is None else f"{row.error_pct:+.1f}"
    return f" {measured:>9} {error:>8}"


def _time(time_us: float) -> str:
    return f"{time_us:.2f}" if time_us < _WHOLE_FROM_US else f"{time_us:.0f}"


def notes_of(rows: Sequence[Row], series: Series, comparison: SeriesComparison) -> Iterator[str]:
    """Yield the comment lines under the rows of a series.

    Args:
        rows: As `SeriesComparison.shown` returns them.
        series: Their series.
        comparison: Whether measured times fit it.
    """
    if any(row.measured_us is not None or row.cost_level == NCCL for row in rows):
        yield from comparison.notes()
    lines = (
        coverage_line(rows, comparison.basis),
        errors_line(rows, comparison.basis),
        constants_line(rows),
        unchecked_line(rows, series.algorithm),
    )
    yield from (line for line in lines if line is not None)


def coverage_line(rows: Sequence[Row], basis: str | None = None) -> str | None:
    """Return the line of coverage of the interval; None without errors.

    Args:
        rows: The rows of a series.
        basis: As in `SeriesComparison`.
    """
    inside = []
    for row in {row.size_bytes: row for row in reversed(rows)}.values():
        interval_us = row.left_out_interval_us or row.interval_us
        if interval_us and row.measured_us is not None and row.error_pct is not None:
            inside.append(interval_us[0] <= row.measured_us <= interval_us[1])
    if not inside:
        return None
    counts = f"{sum(inside)} of {len(inside)} rows"
    return f"# Measured time inside the 90% interval in {counts}{_of(basis)}"


def _of(basis: str | None) -> str:
    return "" if basis is None else f", {basis}"


def unchecked_line(rows: Sequence[Row], algorithm: str) -> str | None:
    """Return why `#wrong` is N/A in some rows; None where every row was checked."""
    unchecked = [row for row in rows if row.num_wrong is None]
    if not unchecked:
        return None
    if algorithm == NCCL:
        return f"# #wrong is N/A: {NCCL} predicts times without a run"
    if all(is_too_large(row.size_bytes, row.num_ranks) for row in unchecked):
        limits = f"{format_size(CHECK_UP_TO_BYTES)}, or {format_size(CHECK_UP_TO_TOTAL_BYTES)}"
        return f"# #wrong is N/A: data is not checked above {limits} on all ranks together"
    return "# #wrong is N/A: the check is off"


def errors_line(rows: Sequence[Row], basis: str | None = None) -> str | None:
    """Return the mean absolute error of a series by class of size; None where no row has one.

    Args:
        rows: The rows of a series.
        basis: As in `SeriesComparison`.
    """
    errors = [(row.size_bytes, row.error_pct) for row in rows if row.error_pct is not None]
    found = errors_by_class(errors)
    return f"# Mean absolute error against measured times{_of(basis)}: {found}" if found else None


def constants_line(rows: Sequence[Row]) -> str | None:
    """Return the source of a prediction's constants; None where nothing is predicted."""
    if not rows or rows[0].cost_level != NCCL:
        return None
    if rows[0].calibration is None:
        return "# Predicted with NCCL's own constants, not fitted to a machine"
    narrowed = "`simrank calibrate` with one small size of your machine narrows the interval"
    return f"# Predicted with constants {rows[0].calibration}; {narrowed}"


def footer(rows: Sequence[Row]) -> str:
    """Return nccl-tests' closing lines."""
    wrong = sum(row.num_wrong or 0 for row in rows)
    checked = sum(row.num_wrong is not None for row in rows)
    verdict = "OK" if not wrong else "FAILED"
    text = [f"# Out of bounds values : {wrong} {verdict} ({checked} of {len(rows)} rows checked)"]
    if rows:
        mean = sum(row.busbw_GBps for row in rows) / len(rows)
        text.append(f"# Avg bus bandwidth    : {mean:.4g} GB/s")
    return "\n".join(text)
