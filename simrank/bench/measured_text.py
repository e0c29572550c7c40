"""Measured times in whichever format they come; start with `rows_by_file`.

Formats: a CSV table with simrank's columns, what nccl-tests printed, its JSON file, and the JSON
lines of NCCL Inspector. The content says which one it is, not the file's name.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

from simrank.bench.inspector import inspector_rows, is_inspector
from simrank.bench.json_parts import read_parts
from simrank.bench.nccl_tests_json import is_nccl_tests_json, nccl_tests_rows
from simrank.bench.nccl_tests_output import is_nccl_tests, parse_nccl_tests, without_marks
from simrank.config.measured import parse_measured
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from simrank.bench.json_parts import Part
    from simrank.config.measured import MeasuredRow

_JSON = re.compile(r"\s*(?:\{|\[\s*(?:[{\[\]]|$))")  # `[1,0]` is a launcher's mark.
_EXPECTED = "nccl-tests' JSON (args, config, results) or NCCL Inspector's (header, coll_perf)"


def rows_by_file(
    texts: Mapping[str, str], collective: str | None = None, num_ranks: int | None = None
) -> dict[str, list[MeasuredRow]]:
    """Read measured times.

    Args:
        texts: The text of each file, by its name.
        collective: What ran, where nccl-tests' output does not say it.
        num_ranks: On how many ranks, where nccl-tests' output does not list them.

    Returns:
        The rows of each file. NCCL Inspector writes a file per process: all of its files together
        are one table, under the name of the first.

    Raises:
        ConfigError: A text is in none of the formats, or something in it is wrong.
    """
    found: dict[str, list[MeasuredRow]] = {}
    of_inspector: dict[str, Iterator[Part]] = {}
    for file, with_mark in texts.items():
        text = with_mark.removeprefix("\ufeff")
        if not _JSON.match(text):
            text = without_marks(text)
        if text.lstrip().startswith(("{", "[")):
            parts = read_parts(text, file)
            first = next(parts, None)
            if first is not None and is_inspector(first):
                of_inspector[file] = chain([first], parts)
                continue
            runs = [] if first is None else [first, *parts]
            found[file] = _rows_of_runs(runs, file, collective, num_ranks)
        elif is_nccl_tests(text):
            found[file] = parse_nccl_tests(text, file, collective, num_ranks)
        else:
            found[file] = parse_measured(text, file)
    if of_inspector:
        name = next(iter(of_inspector))
        found[name] = inspector_rows(chain.from_iterable(of_inspector.values()), name)
    return found


def _rows_of_runs(
    runs: list[Part], file: str, collective: str | None, num_ranks: int | None
) -> list[MeasuredRow]:
    """Return the rows of what nccl-tests wrote, one run after the other."""
    rows = []
    for run in runs:
        if not is_nccl_tests_json(run):
            got = f"an object with {', '.join(run.data) or 'nothing'}"
            raise ConfigError(ConfigProblem(file, run.line, "", _EXPECTED, got))
        rows += nccl_tests_rows(run, collective, num_ranks)
    if not rows:
        raise ConfigError(ConfigProblem(file, 1, "", _EXPECTED, "nothing"))
    return rows
