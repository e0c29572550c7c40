"""A benchmark of a program as a page: where the time of a step goes, per combination."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.bench.page import head_facts
from simrank.config.sweep import ALGORITHMS, ERROR
from simrank.trace.page import Bar, bars, document, folded_table, section

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from simrank.config.sweep import SweepConfig

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
