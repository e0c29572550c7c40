"""Traces: the nodes of each rank, and their dependencies."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simrank import units

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SEND, RECV, CALC, COLLECTIVE = "send", "recv", "calc", "collective"
ANY = -1  # Of a peer.


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One thing that a rank does.

    Attributes:
        label: What the trace calls it.
        kind: send, recv, calc or collective.
        place: File and line, for messages.
        size_bytes: Of a message, of a collective as its trace counts it, or what a calc moves.
        peer: The rank at its other end; `ANY`: the first sender.
        tag: Of a message.
        duration_ps: How long a calc takes; 0: what `num_ops` and `size_bytes` take, if any.
        stream: Calcs of one stream run one after the other.
        requires: Nodes of the rank, by their positions, that are over before it begins.
        irequires: Nodes that have begun before it begins.
        num_ops: Arithmetic of a calc.
        collective: Which one.
        group: The ranks that take part in a collective.
    """

    label: str
    kind: str
    place: str
    size_bytes: int = 0
    peer: int = ANY
    tag: int = 0
    duration_ps: int = 0
    stream: int = 0
    requires: tuple[int, ...] = ()
    irequires: tuple[int, ...] = ()
    num_ops: int = 0
    collective: str = ""
    group: tuple[int, ...] = ()

    def describe(self) -> str:
        """Return `l2: recv 8 B from rank 1 with tag 3 (trace.goal:7)`."""
        if self.kind == CALC:
            what = f"calc {units.format_time(self.duration_ps)}"
        elif self.kind == COLLECTIVE:
            size = units.format_size(self.size_bytes)
            what = f"{self.collective} of {size} on ranks {', '.join(map(str, self.group))}"
        else:
            way = "to" if self.kind == SEND else "from"
            who = "any rank" if self.peer == ANY else f"rank {self.peer}"
            size = units.format_size(self.size_bytes)
            what = f"{self.kind} {size} {way} {who} with tag {self.tag}"
        return f"{self.label}: {what} ({self.place})"


@dataclass(frozen=True, slots=True)
class Trace:
    """The nodes of all ranks.

    Attributes:
        file: Where it stands, for messages.
        ranks: Of each rank its nodes, in the trace's order.
    """

    file: str
    ranks: tuple[tuple[TraceNode, ...], ...]

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The groups of all collectives."""
        return sorted({node.group for nodes in self.ranks for node in nodes if node.group})

    @property
    def num_nodes(self) -> int:
        """Nodes of all ranks."""
        return sum(len(nodes) for nodes in self.ranks)


class Progress:
    """The ready nodes of a rank, updated as nodes begin and end.

    Args:
        nodes: What the rank does.
    """

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        self._missing = [len(set(node.requires)) + len(set(node.irequires)) for node in nodes]
        self._after_end: list[list[int]] = [[] for _ in nodes]
        self._after_begin: list[list[int]] = [[] for _ in nodes]
        for number, node in enumerate(nodes):
            for other in set(node.requires):
                self._after_end[other].append(number)
            for other in set(node.irequires):
                self._after_begin[other].append(number)
        self._ready = [number for number, missing in enumerate(self._missing) if not missing]

    def begun(self) -> Iterator[int]:
        """Yield the nodes that may begin, the first of the trace first; they have begun then."""
        while self._ready:
            number = heapq.heappop(self._ready)
            yield number
            self._release(self._after_begin[number])

    def end(self, number: int) -> None:
        """Note that a node is over."""
        self._release(self._after_end[number])

    def _release(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._missing[number] -= 1
            if not self._missing[number]:
                heapq.heappush(self._ready, number)


def in_cycle(nodes: Sequence[TraceNode]) -> TraceNode | None:
    """Return the first node of a cycle of dependencies, or None."""
    progress = Progress(nodes)
    left = set(range(len(nodes)))
    while begun := list(progress.begun()):
        left.difference_update(begun)
        for number in begun:
            progress.end(number)
    return nodes[min(left)] if left else None
