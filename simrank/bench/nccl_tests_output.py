"""What nccl-tests printed, as rows of a measured table; start with `parse_nccl_tests`.

Format: one line per size with size, count, type, redop, root, and for each of out-of-place and
in-place time, algbw, busbw and errors; lines of `#` say what ran and on which ranks. Source:
NVIDIA/nccl-tests src/common.cu. Out-of-place times are taken.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simrank.bench.ran import MAX_SIZE_BYTES, Ran, collective_named, is_time
from simrank.config.names import DTYPE_ALIASES, DTYPES
from simrank.config.quantity import choice_text
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.config.measured import MeasuredRow

_COLUMNS = "size, count, type, redop, root, time, algbw, busbw, #wrong"
_AFTER_TIME = 4  # With the time: algbw, busbw and errors.
# A page that takes "#" for a heading of its own has dropped it.
_RANK = re.compile(r"^#?\s+Rank\s+(\d+)\b(?:.*\bon\s+(\S+)\s+device\b)?", re.IGNORECASE)
_HEADING = re.compile(r"^#?\s+size\s+count\s+type\s+redop\b.*time\b", re.IGNORECASE)
_LINE = re.compile(r"^\s*\d+\s+\d+\s+\w+\s+\w+\s", re.ASCII | re.MULTILINE)
_OF_TESTS = re.compile(
    r"^(.{0,120}?)(?:# +size +count +type |[ \t]*\d+[ \t]+\d+[ \t]+\w+[ \t]+"
    r"(?:sum|prod|max|min|avg|mulsum|none)[ \t])",
    re.ASCII | re.MULTILINE | re.IGNORECASE,
)
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_MAX_DIGITS = 19
_WHAT = re.compile(r"\b(\w+)_perf\b")


def without_launcher(text: str) -> str:
    """Return a text without what a launcher wrote before each line.

    As `mpirun --tag-output` (`[1,0]<stdout>:`), `srun --label` (`0: `), and logs of containers with
    times or names: what stands before the first line of nccl-tests, with any other numbers.
    """
    text = _COLOURS.sub("", text)
    found = _OF_TESTS.search(text)
    if found is None or not found[1].strip():
        return text
    prefix = re.sub(r"\d+", lambda _: r"\d+", re.escape(found[1]))
    text = re.sub(f"^{prefix}", "", text, flags=re.MULTILINE)
    # Tags stand within lines, too: nccl-tests writes each in two parts.
    return re.sub(prefix, " ", text) if found[1].startswith("[") else text


def is_nccl_tests(text: str) -> bool:
    """Whether a text is what nccl-tests prints, rather than a CSV table."""
    text = without_launcher(text)
    first = text.lstrip().partition("\n")[0]
    return first.startswith("#") or "," not in first or _LINE.search(text) is not None


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
    text = without_launcher(text)
    lines = list(enumerate(text.splitlines(), 1))
    name = collective_named(collective or program_collective(text), file)
    listed = [match[1] for _, line in lines if (match := _RANK.match(line))]
    if len(set(listed)) < len(listed):
        expected = "the output of one run"
        raise ConfigError(ConfigProblem(file, None, "", expected, f"rank {listed[0]} twice"))
    ranks = num_ranks or len(listed)
    if not ranks:
        expected, got = "lines `#  Rank  0 ...`", "none"
        raise ConfigError(ConfigProblem(file, None, "", expected, got, "--num-ranks 8"))
    rows = list(_rows(lines, file, Ran(name, ranks, _ranks_per_host(text))))
    if not rows:
        raise ConfigError(ConfigProblem(file, None, "", f"lines of {_COLUMNS}", "none"))
    return rows


def program_collective(text: str) -> str | None:
    """Return what the first program of a text runs: `all_reduce` for all_reduce_perf."""
    found = _WHAT.search(text)
    return found[1] if found else None


def dtype_named(word: str, file: str, line: int) -> str:
    """Return torch's name of a dtype of nccl-tests.

    Raises:
        ConfigError: It is none.
    """
    dtype = DTYPE_ALIASES.get(word, word)
    if dtype not in DTYPES:
        raise ConfigError(ConfigProblem(file, line, "type", choice_text(DTYPES), word))
    return dtype


def _ranks_per_host(text: str) -> tuple[int, ...]:
    """Return how many ranks each host has, as the output lists them; empty where it does not."""
    hosts = [match[2] for line in text.splitlines() if (match := _RANK.match(line)) and match[2]]
    return tuple(hosts.count(host) for host in dict.fromkeys(hosts))


def _rows(lines: list[tuple[int, str]], file: str, ran: Ran) -> Iterator[MeasuredRow]:
    columns = _COLUMNS.split(", ")
    for number, line in lines:
        if _HEADING.match(line):
            columns = _columns(line, file, number)
        cells = line.split()
        if not cells or not (cells[0].isascii() and cells[0].isdigit()):
            continue  # A comment, a heading, a line of the launcher.
        at = columns.index("time")
        if len(cells) < at + _AFTER_TIME or ("root" in columns and not _is_whole(cells[4])):
            expected = ", ".join(columns[: at + _AFTER_TIME])
            raise ConfigError(ConfigProblem(file, number, "", expected, f"{len(cells)} others"))
        if len(cells[0]) > _MAX_DIGITS or int(cells[0]) > MAX_SIZE_BYTES:
            raise ConfigError(ConfigProblem(file, number, "size", "bytes", f"{cells[0][:20]}..."))
        dtype = dtype_named(cells[2], file, number)
        size_bytes, time_us = int(cells[0]), _time_us(cells[at], file, number)
        if size_bytes > 0:  # nccl-tests prints sizes that are less than an element of each rank.
            yield ran.row(file, size_bytes, dtype, time_us)


def _columns(heading: str, file: str, line: int) -> list[str]:
    """Return the columns that a heading names."""
    columns = heading.lower().lstrip("# ").split()
    if "time" not in columns:
        got = "another heading"
        if "cputime" in columns:
            got = "cputime, which is the host's: run it without -C"
        raise ConfigError(ConfigProblem(file, line, "", "a column time", got))
    return columns


def _is_whole(cell: str) -> bool:
    return cell.removeprefix("-").isdigit()


def _time_us(cell: str, file: str, line: int) -> float:
    try:
        time_us = float(cell)
    except ValueError:
        time_us = 0.0
    if not is_time(time_us):
        expected = "a time in microseconds above 0"
        raise ConfigError(ConfigProblem(file, line, "time", expected, cell))
    return time_us
