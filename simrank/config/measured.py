"""Published tables of measured collectives, as CSV; start with `load_measured`."""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from simrank.config.names import COLLECTIVE_ALIASES, COLLECTIVES, DTYPE_ALIASES, DTYPES
from simrank.config.yaml_source import read_text
from simrank.errors import ConfigError, ConfigProblem

COLUMNS = (
    "system",
    "op",
    "nranks",
    "bytes",
    "dtype",
    "time_us",
    "algbw_GBps",
    "busbw_GBps",
    "source",
)

GEMM_COLUMNS = ("dtype", "b", "m", "n", "k", "time_us")
_TOO_LARGE = 1 << 62  # Neither bytes nor microseconds: a slip that arrays of integers cannot hold.


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured size of one collective.

    Attributes:
        system: The machine, as its publisher describes it.
        collective: For example all_reduce.
        num_ranks: Ranks that took part.
        size_bytes: nccl-tests size, in bytes: for all_gather and reduce_scatter the total.
        dtype: torch's name of the dtype.
        time_us: Mean time of one call, in microseconds.
        algbw_GBps: size / time, in 10^9 bytes per second.
        busbw_GBps: algbw times nccl-tests' factor for the collective.
        source: Where it was published.
        ranks_per_host: Ranks of each host, where the source says it.
        gpus_per_thread: GPUs that a host thread launches on, one after the other.
        algorithms: What NCCL had to choose from (NCCL_ALGO); empty: everything.
        protocols: Likewise (NCCL_PROTO).
        is_graph: Whether calls were launched as a CUDA graph.
    """

    system: str
    collective: str
    num_ranks: int
    size_bytes: int
    dtype: str
    time_us: float
    algbw_GBps: float  # noqa: N815 - the column's name, as everywhere in nccl-tests
    busbw_GBps: float  # noqa: N815
    source: str
    ranks_per_host: tuple[int, ...] = ()
    gpus_per_thread: int = 1
    algorithms: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    is_graph: bool = False


def load_measured(path: str | Path) -> list[MeasuredRow]:
    """Read a measured table.

    Args:
        path: A CSV file with the columns `COLUMNS`, in any order.

    Returns:
        Its rows in file order.

    Raises:
        ConfigError: The file cannot be read, lacks a column or has a bad number; with lines.
    """
    return parse_measured(read_text(Path(path)), str(path))


def parse_measured(text: str, file: str) -> list[MeasuredRow]:
    """Read the text of a measured table.

    Args:
        text: CSV with the columns `COLUMNS`, in any order.
        file: Name for messages.

    Raises:
        ConfigError: It lacks a column or has a bad number; with lines.
    """
    rows: list[MeasuredRow] = []
    problems: list[ConfigProblem] = []
    for line, row in _read_rows(text, file, COLUMNS, problems):
        _append_row(rows, problems, row, (file, line))
    if problems:
        raise ConfigError(*problems)
    return rows


def check_gemm_table(path: Path) -> None:
    """Look whether a table of matrix products can be read.

    Raises:
        ConfigError: The file cannot be read, lacks a column or has a bad number; with lines.
    """
    problems: list[ConfigProblem] = []
    for line, row in _read_rows(read_text(path), str(path), GEMM_COLUMNS, problems):
        for column in GEMM_COLUMNS[1:]:
            _number(row, column, (str(path), line), problems, whole=column != "time_us")
    if problems:
        raise ConfigError(*problems)


def _read_rows(
    text: str, file: str, columns: tuple[str, ...], problems: list[ConfigProblem]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line and cells of each row of a CSV file.

    Raises:
        ConfigError: It lacks a column.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        missing = [name for name in columns if name not in header]
        if missing:
            expected = "the columns " + ", ".join(columns)
            got = "no " + ", ".join(missing) if header else "an empty file"
            raise ConfigError(ConfigProblem(file, 1, "", expected, got))
        for cells in reader:
            if cells and len(cells) != len(header):
                expected, got = f"{len(header)} cells", f"{len(cells)}"
                problems.append(ConfigProblem(file, reader.line_num, "", expected, got))
            elif cells:
                yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        line = max(reader.line_num, 1)
        problems.append(ConfigProblem(file, line, "", "valid CSV", str(error)))


def _number(
    row: Mapping[str, str],
    column: str,
    line: tuple[str, int],
    problems: list[ConfigProblem],
    *,
    whole: bool,
) -> float:
    """Return the number in a cell; 1, and a problem, where there is none."""
    try:
        value = int(row[column]) if whole else float(row[column])
        if 0 < value < _TOO_LARGE:
            return value
    except ValueError:
        pass
    expected = "a whole number above 0" if whole else "a number above 0"
    problems.append(ConfigProblem(*line, column, expected, row[column] or "nothing"))
    return 1


def _append_row(
    rows: list[MeasuredRow],
    problems: list[ConfigProblem],
    row: dict[str, str],
    line: tuple[str, int],
) -> None:
    """Append one row, or the problems of its cells."""
    num_problems = len(problems)

    def number(column: str, *, whole: bool) -> float:
        return _number(row, column, line, problems, whole=whole)

    def word(column: str, choices: tuple[str, ...], aliases: dict[str, str]) -> str:
        spelled = aliases.get(row[column], row[column])
        if spelled not in choices:
            expected = "one of " + ", ".join(choices)
            problems.append(ConfigProblem(*line, column, expected, row[column] or "nothing"))
        return spelled

    measured = MeasuredRow(
        system=row["system"],
        collective=word("op", COLLECTIVES, COLLECTIVE_ALIASES),
        num_ranks=int(number("nranks", whole=True)),
        size_bytes=int(number("bytes", whole=True)),
        dtype=word("dtype", DTYPES, DTYPE_ALIASES),
        time_us=number("time_us", whole=False),
        algbw_GBps=number("algbw_GBps", whole=False),
        busbw_GBps=number("busbw_GBps", whole=False),
        source=row["source"],
    )
    if len(problems) == num_problems:
        rows.append(measured)
