"""What nccl-tests printed, as rows of a measured table; start with `parse_nccl_tests`.

Format: one line per size with size, count, type, redop, root, and for each of out-of-place and
in-place time, algbw, busbw and errors; lines of `#` say what ran and on which ranks. Source:
NVIDIA/nccl-tests src/common.cu. Out-of-place times are taken.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simrank.collectives.bounds import busbw_factor
from simrank.config.measured import MeasuredRow
from simrank.config.names import COLLECTIVE_ALIASES, COLLECTIVES, DTYPE_ALIASES, DTYPES
from simrank.config.quantity import choice_text
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

_COLUMNS = "size, count, type, redop, root, time, algbw, busbw, #wrong"
_AFTER_TIME = 4  # With the time: algbw, busbw and errors.
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b(?:.*\bon\s+(\S+)\s+device\b)?", re.IGNORECASE)
_HEADING = re.compile(r"^#\s+size\s+count\s+type\s+redop\b.*\btime\b", re.IGNORECASE)
_MAX_DIGITS = 18
_WHAT = re.compile(r"\b(\w+)_perf\b")


def is_nccl_tests(text: str) -> bool:
    """Whether a text is what nccl-tests prints, rather than a CSV table."""
    first = text.lstrip().partition("\n")[0]
    return first.startswith("#") or "," not in first


def parse_nccl_tests(
    text: str, file: str, collective: str | None = None, num_ranks: int | None = None
) -> list[MeasuredRow]:
    """Read nccl-tests' output.

    Args:
        text: What it printed, from whatever line on.
        file: Name for messages.
        collective: What ran, where the output does not say it.
        num_ranks: On how many ranks, where the output does not list them.

    Raises:
        ConfigError: A line has too few columns or a bad number, or nothing says what ran on how
            many ranks; with the line.
    """
    lines = list(enumerate(text.splitlines(), 1))
    what = collective or _what_ran(text)
    if what is None or COLLECTIVE_ALIASES.get(what, what) not in COLLECTIVES:
        got = "nothing that says it" if what is None else what
        expected = f"what ran: {choice_text(COLLECTIVES)}"
        raise ConfigError(ConfigProblem(file, None, "", expected, got, "--collective all_reduce"))
    listed = [match[1] for _, line in lines if (match := _RANK.match(line))]
    if len(set(listed)) < len(listed):
        expected = "the output of one run"
        raise ConfigError(ConfigProblem(file, None, "", expected, f"rank {listed[0]} twice"))
    ranks = num_ranks or len(listed)
    if not ranks:
        expected, got = "lines `#  Rank  0 ...`", "none"
        raise ConfigError(ConfigProblem(file, None, "", expected, got, "--num-ranks 8"))
    name = COLLECTIVE_ALIASES.get(what, what)
    rows = list(_rows(lines, file, name, ranks))
    if not rows:
        raise ConfigError(ConfigProblem(file, None, "", f"lines of {_COLUMNS}", "none"))
    return rows


def ranks_per_host(text: str) -> list[int]:
    """Return how many ranks each host has, as the output lists them; empty where it does not."""
    hosts = [match[2] for line in text.splitlines() if (match := _RANK.match(line)) and match[2]]
    return [hosts.count(host) for host in dict.fromkeys(hosts)]


def _what_ran(text: str) -> str | None:
    found = _WHAT.search(text)
    return found[1] if found else None


def _rows(
    lines: list[tuple[int, str]], file: str, collective: str, num_ranks: int
) -> Iterator[MeasuredRow]:
    columns = _COLUMNS.split(", ")
    for number, line in lines:
        if _HEADING.match(line):
            columns = line.lower().lstrip("# ").split()
        cells = line.split()
        if not cells or not cells[0].isdigit():
            continue  # A comment, a heading, a line of the launcher.
        at = columns.index("time")
        if len(cells) < at + _AFTER_TIME or ("root" in columns and not _is_whole(cells[4])):
            expected = ", ".join(columns[: at + _AFTER_TIME])
            raise ConfigError(ConfigProblem(file, number, "", expected, f"{len(cells)} others"))
        if len(cells[0]) > _MAX_DIGITS:
            raise ConfigError(ConfigProblem(file, number, "size", "bytes", f"{cells[0][:20]}..."))
        dtype = DTYPE_ALIASES.get(cells[2], cells[2])
        if dtype not in DTYPES:
            raise ConfigError(ConfigProblem(file, number, "type", choice_text(DTYPES), cells[2]))
        size_bytes, time_us = int(cells[0]), _time_us(cells[at], file, number)
        if size_bytes == 0:
            continue  # nccl-tests prints sizes that are less than an element of each rank.
        algbw = size_bytes / time_us / 1e3
        yield MeasuredRow(
            system=file,
            collective=collective,
            num_ranks=num_ranks,
            size_bytes=size_bytes,
            dtype=dtype,
            time_us=time_us,
            algbw_GBps=algbw,
            busbw_GBps=algbw * busbw_factor(collective, num_ranks),
            source=file,
        )


def _is_whole(cell: str) -> bool:
    return cell.removeprefix("-").isdigit()


def _time_us(cell: str, file: str, line: int) -> float:
    try:
        time_us = float(cell)
    except ValueError:
        time_us = 0.0
    if not 0 < time_us < float("inf"):
        expected = "a time in microseconds above 0"
        raise ConfigError(ConfigProblem(file, line, "time", expected, cell))
    return time_us
