"""GOAL, the text form of LogGOPSim's schedules; start with `read_goal`.

```text
num_ranks 2
rank 0 {
l1: calc 1500          // nanoseconds
l2: send 8b to 1 tag 0
l2 requires l1         // l2 begins when l1 is over; irequires: when it has begun
}
rank 1 { ... recv 8b from 0 tag 0 ... }
```

A source of -1 stands for any; tags of -1 are refused: torch's backends have no such thing. `cpu`
says which calcs run one after the other; `nic` is left out: the cluster says which card is used.

Source:
    spcl/LogGOPSim, `src/LogGOPSim/txt2bin.re`: which words may follow each other.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from simrank import units
from simrank.config.yaml_source import read_text
from simrank.errors import ConfigError, ConfigProblem
from simrank.formats.operations import ANY, CALC, RECV, SEND, Trace, TraceNode, in_cycle

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_RANKS = 1 << 16  # Assumed: more are no trace that one replays node by node.
_MAX_BYTES = 1 << 50  # Assumed: larger messages are a mistake.
_MAX_NS = 10**15  # Assumed: eleven days.
_MAX_TAG = 2**31 - 1  # Of torch.distributed.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBER = r"(-?\d{1,18})"
_LABEL = r"([A-Za-z][A-Za-z0-9_]*)"
_HEAD = re.compile(rf"num_ranks\s+{_NUMBER}", re.ASCII)
_RANK = re.compile(rf"rank\s+{_NUMBER}\s*(\{{)?", re.ASCII)
_TASK = re.compile(
    rf"(?:{_LABEL}\s*:\s*)?(?:calc\s+{_NUMBER}|(send|recv)\s+{_NUMBER}\s*b\s+(to|from)\s+{_NUMBER}"
    rf"(?:\s+tag\s+{_NUMBER})?)(?:\s+cpu\s+{_NUMBER})?(?:\s+nic\s+{_NUMBER})?",
    re.ASCII,
)
_ORDER = re.compile(rf"{_LABEL}\s+(i?requires)\s+{_LABEL}", re.ASCII)
_FORMS = (
    "`l1: send 8b to 1 tag 0`, `l2: recv 8b from 0 tag 0`, `l3: calc 100`, "
    "`l3 requires l1`, `l3 irequires l1` or `}`"
)


def is_goal(text: str) -> bool:
    """Return whether a text is a GOAL schedule."""
    return _HEAD.match(_COMMENT.sub("", text).lstrip()) is not None


def read_goal(path: str | Path) -> Trace:
    """Read a schedule.

    Raises:
        ConfigError: The file is none, with the line of what is wrong.
    """
    return parse_goal(read_text(Path(path)), str(path))


def parse_goal(text: str, file: str) -> Trace:
    """Read a schedule from its text; as `read_goal`."""
    return _Reader(file).trace(_lines(text))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the words of each line that has any, without comments."""
    bare = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(bare.split("\n"), 1):
        for part in re.split(r"(?<=\{)|(?=\})|;", line):  # Some write a rank on one line.
            if part.strip():
                yield number, part.strip()


class _Reader:
    """Reads line by line: which rank is open, and its labels."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._line = 0
        self._ranks: list[list[TraceNode] | None] = []
        self._open: list[TraceNode] | None = None
        self._labels: dict[str, int] = {}
        self._rank = -1

    def trace(self, lines: Iterator[tuple[int, str]]) -> Trace:
        """Return the trace of all lines."""
        for number, text in lines:
            self._line = number
            if not self._ranks:
                self._head(text)
            elif self._open is None:
                self._begin(text)
            elif text == "}":
                self._end()
            elif self._rank < 0:
                self._fail("`{` after the rank", text)
            else:
                self._statement(text)
        if not self._ranks or self._open is not None:
            expected = "`}` at the end of a rank" if self._ranks else "`num_ranks` and a number"
            self._fail(expected, "the end of the file")
        return Trace(self._file, tuple(tuple(nodes or ()) for nodes in self._ranks))

    def _head(self, text: str) -> None:
        match = _HEAD.fullmatch(text)
        if match is None:
            self._fail("`num_ranks` and a number", text)
        self._ranks = [None] * self._number(match[1], "num_ranks", 1, MAX_RANKS)

    def _begin(self, text: str) -> None:
        match = _RANK.fullmatch(text)
        if match is None or match[2] is None:
            self._fail("`rank 0 {`", text)
        self._rank = self._number(match[1], "rank", 0, len(self._ranks) - 1)
        if self._ranks[self._rank] is not None:
            self._fail("each rank once", f"rank {self._rank} again")
        self._open = self._ranks[self._rank] = []
        self._labels = {}

    def _end(self) -> None:
        assert self._open is not None
        stuck = in_cycle(self._open)
        if stuck is not None:
            expected = f"an order in which the nodes of rank {self._rank} can run"
            self._fail(expected, f"a cycle with {stuck.describe()}")
        self._open = None

    def _statement(self, text: str) -> None:
        assert self._open is not None
        order = _ORDER.fullmatch(text)
        if order is not None:
            self._order(*order.groups())
            return
        match = _TASK.fullmatch(text)
        if match is None:
            self._fail(_FORMS, text)
        label = match[1] or f"node {len(self._open)}"
        if match[1] and match[1] in self._labels:
            self._fail("a label of its own", f"{label} again")
        self._labels[label] = len(self._open)
        self._open.append(self._task(match, label))

    def _task(self, match: re.Match[str], label: str) -> TraceNode:
        _, calc, kind, size, way, peer, tag, cpu, nic = match.groups()
        place = f"{Path(self._file).name}:{self._line}"
        stream = self._number(cpu or "0", "cpu", 0, 255)
        self._number(nic or "0", "nic", 0, 255)
        if calc is not None:
            duration_ps = self._number(calc, "calc", 0, _MAX_NS) * units.PS_PER_NS
            return TraceNode(label, CALC, place, duration_ps=duration_ps, stream=stream)
        if (kind, way) not in ((SEND, "to"), (RECV, "from")):
            self._fail("`send ... to` or `recv ... from`", f"{kind} ... {way}")
        least = ANY if kind == RECV else 0
        other = self._number(peer, way, least, len(self._ranks) - 1)
        if other == self._rank:
            self._fail("another rank", f"{kind} {way} {other}, its own")
        return TraceNode(
            label,
            kind,
            place,
            size_bytes=self._number(size, kind, 0, _MAX_BYTES),
            peer=other,
            tag=self._number(tag or "0", "tag", 0, _MAX_TAG),
            stream=stream,
        )

    def _order(self, label: str, word: str, other: str) -> None:
        assert self._open is not None
        for each in (label, other):
            if each not in self._labels:
                self._fail(f"a label of rank {self._rank} that was defined before", each)
        number, first = self._labels[label], self._labels[other]
        node = self._open[number]
        if word == "requires":
            self._open[number] = replace(node, requires=(*node.requires, first))
        else:
            self._open[number] = replace(node, irequires=(*node.irequires, first))

    def _number(self, text: str, what: str, least: int, most: int) -> int:
        value = int(text)
        if not least <= value <= most:
            self._fail(f"a number from {least} to {most}", text, what)
        return value

    def _fail(self, expected: str, got: str, what: str = "") -> NoReturn:
        raise ConfigError(ConfigProblem(self._file, self._line or 1, what, expected, got))
