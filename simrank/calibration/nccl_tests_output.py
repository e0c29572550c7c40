"""nccl-tests' printed output as rows of a measured table; start with `parse_nccl_tests`.

Format: one line per size with size, count, type, redop, root, and for each of out-of-place and
in-place time, algbw, busbw and errors; lines of `#` say what ran and on which ranks. Older versions
print no root, and no redop where nothing is reduced; launchers put the rank before each line.
Source: NVIDIA/nccl-tests src/common.cu and its releases. Out-of-place times are taken.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from simrank.collectives.bounds import busbw_factor
from simrank.collectives.nccl.environment import parse_algorithms, parse_protocols
from simrank.config.json_parts import is_time
from simrank.config.measured import PROCESSES, THREADS, MeasuredRow
from simrank.config.quantity import (
    COLLECTIVE_ALIASES,
    COLLECTIVES,
    DTYPE_ALIASES,
    DTYPES,
    choice_text,
)
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# ---- facts of a run that all of its measured rows share ----

MAX_RANKS = 1 << 20
MAX_SIZE_BYTES = 1 << 60
_ROUNDED, _OF_TIME = 1e-9, 5e-4  # Times are printed with four digits.


class Bandwidths(NamedTuple):
    """The bandwidths of a line, in GB/s.

    Attributes:
        time_us: The time that they follow from, in microseconds.
        algbw: Bytes over time.
        busbw: That times nccl-tests' factor of the collective.
        resolution: The unit of the last digit printed.
    """

    time_us: float
    algbw: float
    busbw: float
    resolution: float = 0.0


class RowPosition(NamedTuple):
    """The position of a row in its file.

    Attributes:
        file: Name for messages.
        line: Line, or None where there is none.
    """

    file: str
    line: int | None = None


class CollectiveRun(NamedTuple):
    """A collective on some ranks.

    Attributes:
        collective: For example all_reduce.
        num_ranks: Ranks that took part.
        ranks_per_host: Ranks of each host, where the source says it.
        gpus_per_thread: GPUs that a host thread launches on, one after the other.
        algorithms: What NCCL had to choose from (NCCL_ALGO); empty: everything.
        protocols: Likewise (NCCL_PROTO).
        is_graph: Whether calls were launched as a CUDA graph.
        launch: What runs a rank: processes or threads; "": the source does not say.
    """

    collective: str
    num_ranks: int
    ranks_per_host: tuple[int, ...] = ()
    gpus_per_thread: int = 1
    algorithms: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    is_graph: bool = False
    launch: str = ""

    def row(self, file: str, size_bytes: int, dtype: str, time_us: float) -> MeasuredRow:
        """Return a measured size; its bandwidths follow from its time."""
        algbw = size_bytes / time_us / 1e3
        return MeasuredRow(
            system=file,
            collective=self.collective,
            num_ranks=self.num_ranks,
            size_bytes=size_bytes,
            dtype=dtype,
            time_us=time_us,
            algbw_GBps=algbw,
            busbw_GBps=algbw * busbw_factor(self.collective, self.num_ranks),
            source=file,
            ranks_per_host=self.ranks_per_host,
            gpus_per_thread=self.gpus_per_thread,
            algorithms=self.algorithms,
            protocols=self.protocols,
            is_graph=self.is_graph,
            launch=self.launch,
        )

    def check_bandwidth(self, size_bytes: int, printed: Bandwidths, place: RowPosition) -> None:
        """Hold the bus bandwidth of a line against the ranks and the collective of the run.

        A log lists fewer ranks than ran where lines were cut off, and the times of 1,024 ranks
        are no times of 100.

        Raises:
            ConfigError: It is that of another number of ranks, or of another collective.
        """
        if self._explains(printed, size_bytes, self.num_ranks):
            return
        factor = busbw_factor(self.collective, self.num_ranks)
        expected = f"{factor:.4g} times algbw, as {self.collective} has on {self.num_ranks} ranks"
        got = f"{printed.busbw / max(printed.algbw, printed.resolution):.4g} times"
        fits = [n for n in _SOME_RANKS if self._explains(printed, size_bytes, n)]
        if fits:
            got += f", as on {' to '.join(dict.fromkeys([f'{fits[0]:,}', f'{fits[-1]:,}']))} ranks"
        to_fix = "set --num-ranks and --collective"
        if printed.busbw == 0:
            got, to_fix = f"{got}, as of a rank alone", "build nccl-tests with MPI=1"
        raise ConfigError(ConfigProblem(place.file, place.line, "busbw", expected, got, to_fix))

    def _explains(self, printed: Bandwidths, size_bytes: int, num_ranks: int) -> bool:
        """Return whether the bus bandwidth is that of so many ranks, but for the digits left out.

        Releases before 2.10 printed as algbw of some collectives what is busbw: then the time
        says it.
        """
        factor, unsure = busbw_factor(self.collective, num_ranks), printed.resolution / 2
        of_time = size_bytes / printed.time_us / 1e3
        if abs(printed.busbw - printed.algbw * factor) <= unsure * (1 + factor) + _ROUNDED:
            return True
        return abs(printed.busbw - of_time * factor) <= unsure + _OF_TIME * printed.busbw


# To name: all that are small, then powers of two.
_SOME_RANKS = (*range(2, 129), *(1 << power for power in range(8, 13)))


def collective_named(word: str | None, file: str, line: int | None = None) -> str:
    """Return the collective of a word.

    Raises:
        ConfigError: Missing or unknown collective.
    """
    name = None if word is None else COLLECTIVE_ALIASES.get(word, word)
    if name not in COLLECTIVES:
        expected, got = f"a collective: {choice_text(COLLECTIVES)}", word or "none"
        raise ConfigError(ConfigProblem(file, line, "", expected, got, "--collective all_reduce"))
    return name


# ---- nccl-tests' printed output as rows of a measured table; start with `parse_nccl_tests` ----

_COLUMNS = "size, count, type, redop, root, time, algbw, busbw, #wrong"
_AFTER_TIME = 3  # With the time: algbw and busbw; where nothing is checked, pages leave errors out.
# Some sites lose the `#` on the way; a line of ranks then still says Pid.
_RANK = re.compile(
    r"^\s*(?:#\s+|(?=Rank\s.*\bPid\b))Rank\s+(\d+)\b"
    r"(?:.*?\bPid\s+(?P<pid>\d+))?(?:.*\bon\s+(?P<host>\S+)\s+device\b)?",
    re.IGNORECASE,
)
_HEADING = re.compile(r"^\s*#?\s*size\s+count\s+type\b.*time\b", re.IGNORECASE)
_LINE = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\w*\s+\S+\s", re.ASCII | re.MULTILINE)
# What the heading, a command line, its environment or NCCL's own log say of a run.
_SET = r"(?:=|\s+set by environment to\s+)['\"]?([\w^:;,/]+)"
_SAID = {
    "gpus": re.compile(r"\bnThreads?\s+\d+\s+nGpus\s+(\d{1,6})\b", re.ASCII),
    "graph": re.compile(r"\bgraph:?\s+(\d{1,6})\b", re.ASCII),
    "-g": re.compile(r"_perf(?:_mpi)?\b.*?\s(?:-g|--ngpus)[ =]?(\d{1,6})\b", re.ASCII),
    "-G": re.compile(r"_perf(?:_mpi)?\b.*?\s(?:-G|--cudagraph)[ =]?(\d{1,6})\b", re.ASCII),
    "algorithms": re.compile(r"\bNCCL_ALGO" + _SET, re.ASCII),
    "protocols": re.compile(r"\bNCCL_PROTO" + _SET, re.ASCII),
}
_MAX_DIGITS = 19
_UNSIGNED = {"uint32": "int32", "uint64": "int64"}  # Of `-d all`: as many bytes, the same sums.
_WHAT = re.compile(r"\b([a-z]\w*?)_perf(?:_mpi)?\b")
# What launchers put before a line: `[1,0]<stdout>:` (mpirun --tag-output), `[host:0]` and `[0] `
# (hydra), `0: ` (srun --label), a time (logs of containers). hydra marks every piece that is
# flushed, also within a line.
_MARK = re.compile(
    r"^[ \t]*(?:\[[\w.:@,/-]+\](?:<\w+>)?:?|\d+:|\d{4}-\d\d-\d\dT[\d:.]+Z)[ \t]?", re.MULTILINE
)
_MARK_WITHIN = re.compile(r"\[\d+(?:,\d+)?\](?:<\w+>:)?")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CUT = "run it with NCCL_DEBUG_FILE=FILE if NCCL_DEBUG=INFO wrote into the line, or leave it out"
_TWICE = "keep one run; if each process says that it is rank 0, build nccl-tests with MPI=1"


def without_marks(text: str) -> str:
    """Return a text as it was before launchers and terminals added to it, line by line."""
    return _MARK.sub("", _COLOURS.sub("", text))


def is_nccl_tests(text: str) -> bool:
    """Return whether a text is nccl-tests' output, and not a CSV table."""
    first = text.lstrip().partition("\n")[0]
    return first.startswith("#") or "," not in first or _LINE.search(text) is not None


def parse_nccl_tests(
    text: str, file: str, collective: str | None = None, num_ranks: int | None = None
) -> list[MeasuredRow]:
    """Read nccl-tests' output.

    Args:
        text: The output, from any line on.
        file: Name for messages.
        collective: What ran, where the output does not say it.
        num_ranks: On how many ranks, where the output does not list them.

    Raises:
        ConfigError: A line has too few columns or a bad number, or nothing says what ran on how
            many ranks; with the line.
    """
    lines = list(enumerate(text.splitlines(), 1))
    name = collective_named(collective or program_collective(text), file)
    ran = _ran(name, lines, file, num_ranks)
    rows = list(_rows(lines, file, ran))
    if not rows:
        raise ConfigError(ConfigProblem(file, None, "", f"lines of {_COLUMNS}", "none"))
    return rows


def program_collective(text: str) -> str | None:
    """Return the collective of a text's first program: `all_reduce` for all_reduce_perf."""
    found = _WHAT.search(text)
    return found[1] if found else None


def dtype_named(word: str, file: str, line: int) -> str:
    """Return torch's name of a dtype of nccl-tests.

    Raises:
        ConfigError: It is unknown.
    """
    dtype = _UNSIGNED.get(word) or DTYPE_ALIASES.get(word, word)
    if dtype not in DTYPES:
        raise ConfigError(ConfigProblem(file, line, "type", choice_text(DTYPES), word))
    return dtype


def _ran(
    name: str, lines: list[tuple[int, str]], file: str, num_ranks: int | None
) -> CollectiveRun:
    """Return the ranks of a run: as given, else as many as the output lists."""
    found = [match for _, line in lines if (match := _RANK.match(line))]
    listed = [int(match[1]) for match in found]
    if len(set(listed)) < len(listed):
        expected, got = "the output of one run", f"rank {listed[0]} twice"
        raise ConfigError(ConfigProblem(file, None, "", expected, got, _TWICE))
    if num_ranks is None and max(listed, default=0) >= len(listed):
        ranks = max(listed, default=7) + 1
        expected = f"lines `#  Rank  0 ...` to {ranks - 1}" if listed else "lines `#  Rank  0 ...`"
        got = f"{len(listed)} of them" if listed else "none"
        raise ConfigError(ConfigProblem(file, None, "", expected, got, f"--num-ranks {ranks}"))
    hosts = [match["host"] for match in found if match["host"]]
    per_host = tuple(hosts.count(host) for host in dict.fromkeys(hosts))
    if num_ranks is not None and num_ranks != sum(per_host):
        per_host = ()  # Part of the list was cut off, or another number is asked for.
    said = {name: _first(pattern, lines) for name, pattern in _SAID.items()}
    launched = int(said["gpus"] or said["-g"] or 1)
    ranks = num_ranks or len(listed)
    return CollectiveRun(
        name,
        ranks,
        per_host,
        max(1, min(launched, ranks)),
        _left(parse_algorithms, said["algorithms"], name, file),
        _left(parse_protocols, said["protocols"], name, file),
        int(said["graph"] or said["-G"] or 0) > 0,
        _launch([(match["host"], match["pid"]) for match in found]),
    )


def _launch(processes: list[tuple[str | None, str | None]]) -> str:
    """Return whether ranks that are listed with hosts and Pids are processes or threads."""
    if len(processes) < 2 or any(pid is None for _, pid in processes):
        return ""
    return PROCESSES if len(set(processes)) == len(processes) else THREADS


def _left(
    parse: Callable[[str, str], frozenset[str] | None], said: str | None, name: str, file: str
) -> tuple[str, ...]:
    """Return the names that a variable leaves to choose from; empty: it is not set.

    Raises:
        ConfigError: Its value is none of NCCL's.
    """
    try:
        return () if said is None else tuple(sorted(parse(said, name) or ()))
    except ConfigError as error:
        first = error.problems[0]
        wrong = ConfigProblem(file, None, first.file, first.expected, first.got, first.to_fix)
        raise ConfigError(wrong) from None


def _first(pattern: re.Pattern[str], lines: list[tuple[int, str]]) -> str | None:
    """Return the first group of the first line in which a pattern is found, or None."""
    return next((found[1] for _, line in lines if (found := pattern.search(line))), None)


def _rows(lines: list[tuple[int, str]], file: str, ran: CollectiveRun) -> Iterator[MeasuredRow]:
    columns = _COLUMNS.split(", ")
    for number, line in lines:
        if _HEADING.match(line):
            columns = _columns(line, file, number)
        cells = _MARK_WITHIN.sub(" ", line).split()
        if not all(cell.isascii() and cell.isdigit() for cell in cells[:2] or [""]):
            continue  # A comment, a heading, a line of the launcher.
        at = columns.index("time")
        root = columns.index("root") if "root" in columns else 0
        if len(cells) < at + _AFTER_TIME or not _is_whole(cells[root]):
            expected = ", ".join(columns[: at + _AFTER_TIME])
            got = f"{len(cells)} others"
            raise ConfigError(ConfigProblem(file, number, "", expected, got, _CUT))
        if len(cells[0]) > _MAX_DIGITS or int(cells[0]) > MAX_SIZE_BYTES:
            raise ConfigError(ConfigProblem(file, number, "size", "bytes", f"{cells[0][:20]}..."))
        dtype = dtype_named(cells[2], file, number)
        size_bytes, time_us = int(cells[0]), _time_us(cells[at], file, number)
        if size_bytes > 0:  # nccl-tests prints sizes that are less than an element of each rank.
            printed = _bandwidths(cells[at + 1 : at + _AFTER_TIME], time_us)
            if printed is not None:
                ran.check_bandwidth(size_bytes, printed, RowPosition(file, number))
            yield ran.row(file, size_bytes, dtype, time_us)


def _bandwidths(cells: list[str], time_us: float) -> Bandwidths | None:
    """Return algbw and busbw; None where a site prints something else there."""
    try:
        algbw, busbw = map(float, cells)
    except ValueError:
        return None
    num_digits = min(len(cell.partition(".")[2]) for cell in cells)
    return Bandwidths(time_us, algbw, busbw, 10.0**-num_digits)


def _columns(heading: str, file: str, line: int) -> list[str]:
    """Return the columns that a heading names."""
    columns = heading.lower().lstrip("# ").split()
    if "time" not in columns:
        got = "another heading"
        if "cputime" in columns:
            got = "cputime, the time of the host: run it without -C"
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
