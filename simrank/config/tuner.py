"""Choices for NCCL's example tuner plugin, as CSV; start with `load_tuner`.

```csv
# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
allreduce,0,65536,tree,ll,0,2,16,-1,0
```

Format: NVIDIA/nccl plugins/tuner/example, README.md and plugin.cc. The last two columns may be left
out, -1 is any. Where the plugin takes an unknown name for another, or leaves a short row out, that
is an error here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simrank.config.project import ANY
from simrank.config.quantity import NCCL_ALGORITHMS, choice_text, hint
from simrank.config.yaml_source import read_text
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS = (
    "collective_type",
    "min_bytes",
    "max_bytes",
    "algorithm",
    "protocol",
    "channels",
    "nNodes",
    "nRanks",
    "numPipeOps",
    "regBuff",
)
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
ALGORITHMS = NCCL_ALGORITHMS
PROTOCOLS = ("ll", "ll128", "simple")
# NCCL's own number of channels. The plugin documents -1, but then asks for one channel: its code
# starts at 1 and leaves that alone; of 0, NCCL's src/enqueue.cc says that there is no wish.
OWN_CHANNELS = 0
MAX_BYTES = (1 << 64) - 1
_MAX_COUNT = (1 << 31) - 1
_NUM_NEEDED = 8


@dataclass(frozen=True, slots=True)
class TunerRow:
    """A choice for some sizes of a collective.

    Attributes:
        file: Where the row stands.
        line: Its 1-based line.
        collective: For example all_reduce.
        min_bytes: The least size S of nccl-tests.
        max_bytes: The largest.
        algorithm: tree, ring, nvls, ...
        protocol: ll, ll128 or simple.
        channels: How many to use; 0 or -1: as many as NCCL would.
        num_nodes: On how many nodes; -1: any.
        num_ranks: On how many ranks; -1: any.
        num_ops: How many calls NCCL has fused; -1: any.
        registered: 1 for registered buffers, 0 for others; -1: any.
    """

    file: str
    line: int
    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int = OWN_CHANNELS
    num_nodes: int = ANY
    num_ranks: int = ANY
    num_ops: int = ANY
    registered: int = ANY


def load_tuner(path: str | Path) -> tuple[TunerRow, ...]:
    """Read a file of the plugin.

    Raises:
        ConfigError: It cannot be read, or a row is wrong; with lines.
    """
    return parse_tuner(read_text(Path(path)), str(path))


def parse_tuner(text: str, file: str) -> tuple[TunerRow, ...]:
    """Read the text of a file of the plugin.

    Args:
        text: CSV; lines of `#`, empty lines and a heading are left out.
        file: Name for messages.

    Raises:
        ConfigError: A row is wrong; with every problem, in file order.
    """
    rows: list[TunerRow] = []
    problems: list[ConfigProblem] = []
    for line, written in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        cells = [cell.strip() for cell in written.split(",")]
        if not written.strip() or written.lstrip().startswith("#") or cells[0] == COLUMNS[0]:
            continue
        try:
            rows.append(_row(cells, file, line))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return tuple(rows)


def tuner_text(rows: Iterable[TunerRow]) -> str:
    """Return the text of a file of the plugin."""
    names = {name: written for written, name in COLLECTIVES.items()}
    lines = [f"# {','.join(COLUMNS)}"]
    lines += [
        f"{names[row.collective]},{row.min_bytes},{row.max_bytes},{row.algorithm},{row.protocol},"
        f"{row.channels},{row.num_nodes},{row.num_ranks},{row.num_ops},{row.registered}"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _row(cells: list[str], file: str, line: int) -> TunerRow:
    if not _NUM_NEEDED <= len(cells) <= len(COLUMNS):
        expected = f"{_NUM_NEEDED} to {len(COLUMNS)} cells: {', '.join(COLUMNS)}"
        raise ConfigError(ConfigProblem(file, line, "", expected, f"{len(cells)}"))
    cells = cells + ["-1"] * (len(COLUMNS) - len(cells))
    by_name = dict(zip(COLUMNS, cells, strict=True))

    def word(column: str, choices: Iterable[str]) -> str:
        return _word(by_name, column, tuple(choices), (file, line))

    def whole(column: str, least: int, most: int = _MAX_COUNT) -> int:
        return _whole(by_name, column, (least, most), (file, line))

    min_bytes = whole("min_bytes", 0, MAX_BYTES)
    return TunerRow(
        file,
        line,
        COLLECTIVES[word("collective_type", COLLECTIVES)],
        min_bytes,
        whole("max_bytes", min_bytes, MAX_BYTES),
        word("algorithm", ALGORITHMS),
        word("protocol", PROTOCOLS),
        whole("channels", ANY),
        whole("nNodes", ANY),
        whole("nRanks", ANY),
        whole("numPipeOps", ANY),
        whole("regBuff", ANY, 1),
    )


def _word(
    cells: dict[str, str], column: str, choices: tuple[str, ...], where: tuple[str, int]
) -> str:
    word = cells[column]
    if word in choices:
        return word
    to_fix = hint(word.lower(), choices)
    got = word or "nothing"
    raise ConfigError(ConfigProblem(*where, column, choice_text(choices), got, to_fix))


def _whole(
    cells: dict[str, str], column: str, bounds: tuple[int, int], where: tuple[str, int]
) -> int:
    text, (least, most) = cells[column], bounds
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_BYTES)):
        number = int(text)
        if least <= number <= most:
            return number
    expected = f"a whole number from {least} to {most}"
    raise ConfigError(ConfigProblem(*where, column, expected, text or "nothing"))
