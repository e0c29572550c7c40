"""Published tables of measured collectives, as CSV, with the machine that was measured.

```yaml
cluster: h200_ib      # a built-in cluster, or a file
nodes: 2
num_ranks: 16         # left out where the table has several
nics_used: 1          # of each node; left out: those beside the ranks
library: NCCL 2.28.7
gpus_per_thread: 8    # as nccl-tests -g 8: one host thread launches on eight GPUs; left out: 1
algorithms: [nvls]    # NCCL_ALGO; left out: NCCL chose
protocols: [Simple]   # NCCL_PROTO; left out: NCCL chose
cuda_graph: true      # nccl-tests -G: calls were launched as a graph; left out: they were not
launch: processes     # of a rank each, as mpirun and torchrun; threads: as nccl-tests -t 8
in_place: true        # left out: out of place
site: azure           # tables of one site are left out together
mode: back_to_back    # or torch, xla: loops of a framework, with its overhead around each call
```
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simrank.config.model import Model, validate
from simrank.config.quantity import (
    COLLECTIVE_ALIASES,
    COLLECTIVES,
    DTYPE_ALIASES,
    DTYPES,
    AlgorithmNames,
    Count,
    Flag,
    ProtocolNames,
    Text,
    one_of,
)
from simrank.config.yaml_source import read_text, read_yaml
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from simrank.config.yaml_source import Source

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
        launch: What runs a rank: processes or threads; "": not said.
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
    launch: str = ""


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


def published_by(rows: Iterable[MeasuredRow]) -> str:
    """Return the machine and the source of measured rows: `8xA100 NVLink3, github.com/...`."""
    return "; ".join(dict.fromkeys(f"{row.system}, {row.source}" for row in rows))


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


# ---- the measured machine of a published table: a YAML file beside it; see `load_machine` ----

MODES = ("back_to_back", "torch", "xla")
PROCESSES, THREADS = LAUNCHES = ("processes", "threads")


class MachineConfig(Model):
    """The machine and the method of a measured table.

    Attributes:
        cluster: The cluster that describes the machine.
        nodes: Nodes that took part.
        num_ranks: Ranks that took part; None: several numbers of them, each in its rows.
        nics_used: Network cards of a node that carried data; None: those beside the ranks.
        library: NCCL or RCCL with its version, as far as it was published.
        gpus_per_thread: GPUs that a host thread launches on, one after the other.
        mode: How calls followed each other: as nccl-tests', or in loops of a framework.
        site: Where it was measured; tables of one site are left out together.
        algorithms: What was forced (NCCL_ALGO); None: NCCL chose.
        protocols: Likewise (NCCL_PROTO).
        cuda_graph: Whether calls were launched as a CUDA graph, so that host launches cost nothing.
        in_place: Whether the results were written over the operands.
        launch: What runs a rank, a process or a thread of one; None: not known.
        remark: What else a reader of the errors has to know.
    """

    cluster: Text
    nodes: Count
    num_ranks: Count | None = None
    nics_used: Count | None = None
    gpus_per_thread: Count = 1
    library: Text
    mode: Annotated[str, one_of(MODES, {})]
    site: Text | None = None
    algorithms: AlgorithmNames = None
    protocols: ProtocolNames = None
    cuda_graph: Flag = False
    in_place: Flag = False
    launch: Annotated[str, one_of(LAUNCHES, {})] | None = None
    remark: Text | None = None


def load_machine(table: Path) -> MachineConfig | None:
    """Read the machine file beside a table.

    Args:
        table: The CSV file of the table.

    Returns:
        None where no file stands beside it.

    Raises:
        ConfigError: With every problem of the file, in file order.
    """
    beside = table.with_suffix(".yaml")
    return machine_from_source(read_yaml(beside)) if beside.is_file() else None


def machine_from_source(source: Source) -> MachineConfig:
    """Return the machine of a table, from the data of its file.

    Raises:
        ConfigError: With every problem of the file, in file order.
    """
    return validate(MachineConfig, source)
