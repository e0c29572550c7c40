"""A measured table from outside: whether it can be shipped, and what it would change.

Start with `contribution`. It requires what the pooled constants need of a table: which machine, at
which site, by which library and launch, and that it is no table that is known.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.calibration.accuracy import DIRECT, measured_series
from simrank.calibration.calibrate import doubt
from simrank.calibration.hold_outs import known_series, left_out, observed_of
from simrank.calibration.measured_text import rows_by_file
from simrank.calibration.pool_fit import fit_pool
from simrank.config.files import write_text
from simrank.config.measured import COLUMNS, load_machine
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from simrank.calibration.hold_outs import LeftOut
    from simrank.calibration.pool_fit import Observed
    from simrank.collectives.nccl.laws import Floats
    from simrank.collectives.nccl.pool import Pool
    from simrank.config.measured import MachineConfig, MeasuredRow

_LEAST_SIZES = 3  # Assumed: fewer tell latency and bandwidth apart at no collective.
_ALIKE = 1e-3  # Times that differ by less are those of the same run.


@dataclass(frozen=True, slots=True)
class Contribution:
    """Evidence that a table would add, and changes of predictions.

    Attributes:
        table: The CSV file.
        is_written: Whether it was written from a log.
        left: Its series, predicted by constants that are fitted to what is shipped.
        again: The same by constants that are fitted to them, too: what a fit can explain.
        evidence: Of each kind of evidence that it belongs to, sites before and after.
        shifts: [n] By how much predictions of the shipped tables change, as shares: of each series
            the largest change of a time.
        doubts: Why times may be of another machine or in another unit.
    """

    table: Path
    is_written: bool
    left: tuple[LeftOut, ...]
    again: tuple[LeftOut, ...]
    evidence: dict[str, tuple[int, int]]
    shifts: Floats
    doubts: tuple[str, ...]


def contribution(
    file: Path,
    text: str,
    known: Sequence[Observed] = (),
    *,
    collective: str | None = None,
    num_ranks: int | None = None,
) -> Contribution:
    """Check a measured table and the machine file beside it, and fit with and without it.

    A log of nccl-tests or the JSON of NCCL Inspector is written as a CSV table beside it.

    Args:
        file: The table or log; its machine file has the same name and ends with `.yaml`.
        text: Its text.
        known: What is shipped; empty: all of it.
        collective: What ran, where a log does not say it.
        num_ranks: On how many ranks, where a log does not list them.

    Raises:
        ConfigError: Something is missing or wrong: all of it, with what to write.
    """
    said: dict[str, Any] = {"collective": collective, "num_ranks": num_ranks}
    rows = [row for found in rows_by_file({str(file): text}, **said).values() for row in found]
    machine = load_machine(file)
    problems = list(_problems(file, rows, machine))
    if problems:
        raise ConfigError(*problems)
    observed = [observed_of(each) for each in measured_series({str(file): text}, **said)]
    known = known or known_series()
    _check_new(file, observed, known)
    before, after = (fit_pool(each, "") for each in (known, [*known, *observed]))
    table = file.with_suffix(".csv")
    is_log = table != file
    if is_log:
        if table.exists():
            expected = f"no file {table.name}, to which the log is written"
            raise ConfigError(ConfigProblem(str(file), None, "", expected, "one"))
        _write_table(table, rows)
    names = dict.fromkeys(name for each in observed for name in each.labels.evidence)
    return Contribution(
        table,
        is_log,
        tuple(left_out(each, before) for each in observed),
        tuple(left_out(each, after) for each in observed),
        {name: (before.evidence.get(name, 0), after.evidence[name]) for name in names},
        np.array([_shift(each, before, after) for each in known]),
        tuple(filter(None, map(doubt, observed))),
    )


def _problems(
    file: Path, rows: Sequence[MeasuredRow], machine: MachineConfig | None
) -> Iterator[ConfigProblem]:
    """Yield what keeps a table from being shipped."""
    beside = file.with_suffix(".yaml")
    if machine is None:
        expected = "a file that says which machine was measured"
        lines = "cluster: h100_ib, nodes: 2, library: NCCL 2.28.7, mode: back_to_back, site: NAME"
        yield ConfigProblem(str(beside), None, "", expected, "no file", f"write {lines}")
        return
    place = str(beside)
    if machine.site is None:
        expected = "the name of a site: its tables are left out together"
        yield ConfigProblem(place, None, "site", expected, "none")
    if machine.mode != DIRECT:
        expected = f"{DIRECT}: pooled constants have no overhead of a framework"
        yield ConfigProblem(place, None, "mode", expected, machine.mode)
    if machine.nodes > 1 and not machine.launch and machine.gpus_per_thread == 1:
        expected = "processes (mpirun, torchrun) or threads (-t 8)"
        got = rows[0].launch or "none"
        yield ConfigProblem(place, None, "launch", expected, got)
    yield from _unsaid(place, rows[0], machine)
    sizes: dict[tuple[str, int], set[int]] = {}
    for row in rows:
        sizes.setdefault((row.collective, row.num_ranks), set()).add(row.size_bytes)
        if not row.source.strip():
            expected, got = "the publication, or the name of a measured machine", "nothing"
            yield ConfigProblem(str(file), None, "source", expected, got)
            return
    for (collective, num_ranks), mine in sizes.items():
        if len(mine) < _LEAST_SIZES:
            where = f"{collective} on {num_ranks} ranks"
            expected = f"{_LEAST_SIZES} sizes or more of {where}"
            yield ConfigProblem(str(file), None, "", expected, str(len(mine)))


def _unsaid(place: str, row: MeasuredRow, machine: MachineConfig) -> Iterator[ConfigProblem]:
    """Yield what only a log says: its rows as CSV say it no more."""
    pairs: dict[str, tuple[object, object]] = {
        "gpus_per_thread": (row.gpus_per_thread, machine.gpus_per_thread),
        "algorithms": (row.algorithms, machine.algorithms or ()),
        "protocols": (row.protocols, machine.protocols or ()),
        "cuda_graph": (row.is_graph, machine.cuda_graph),
    }
    for key, (said, stated) in pairs.items():
        if said and said not in (1, stated):
            words = ", ".join(said) if isinstance(said, tuple) else str(said).lower()
            yield ConfigProblem(place, None, key, f"{words}, as the log says", "another value")


def _check_new(file: Path, observed: Sequence[Observed], known: Sequence[Observed]) -> None:
    """Look whether times are those of a shipped table.

    Raises:
        ConfigError: They are.
    """
    for mine in observed:
        for its in known:
            _, here, there = np.intersect1d(mine.size_bytes, its.size_bytes, return_indices=True)
            is_alike = len(here) == len(mine.size_bytes) and np.allclose(
                mine.time_us[here], its.time_us[there], rtol=_ALIKE
            )
            if is_alike and mine.collective == its.collective:
                expected = "times that are not shipped"
                raise ConfigError(
                    ConfigProblem(str(file), None, "", expected, f"those of {its.labels.series}")
                )


def _shift(observed: Observed, before: Pool, after: Pool) -> float:
    """Return the largest change of a predicted time of a series, as a share."""
    errors = [left_out(observed, pool).errors for pool in (before, after)]
    return float(np.expm1(np.abs(errors[1] - errors[0]).max()))


def _write_table(table: Path, rows: Sequence[MeasuredRow]) -> None:
    lines = [
        (
            row.system,
            row.collective,
            row.num_ranks,
            row.size_bytes,
            row.dtype,
            f"{row.time_us:g}",
            f"{row.algbw_GBps:.4g}",
            f"{row.busbw_GBps:.4g}",
            row.source,
        )
        for row in rows
    ]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *lines])
    write_text(str(table), text.getvalue())
