"""Whether steps of an MSCCL program touch one chunk in an order that nothing decides.

One order of a program's steps is enough to know what it computes only if every order gives the
same. It does where each two steps that touch a chunk, one of them writing, are ordered by thread
blocks, dependences and messages. That is found with a vector clock per thread block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from simrank.collectives.msccl.order import describe
from simrank.collectives.msccl.program import BUFFERS
from simrank.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.collectives.msccl.order import Node, Order
    from simrank.collectives.schedule import IntArray

_Chunk: TypeAlias = tuple[int, str, int]


def check_races(order: Order) -> None:
    """Refuse a program whose result depends on which of two steps comes first.

    Raises:
        ScheduleError: Two steps touch a chunk, one of them writes it, and nothing orders them.
    """
    num_lanes = 1 + max((node.lane for node in order.nodes), default=0)
    clocks = np.zeros((num_lanes, num_lanes), np.int32)
    told = _Told(order)
    readers: dict[_Chunk, dict[int, int]] = {}
    writers: dict[_Chunk, int] = {}
    for number in order.sequence:
        node = order.nodes[number]
        clock = clocks[node.lane]
        told.hear(number, clock)
        for chunk, is_write in _accesses(order, node):
            others = [writers[chunk]] if chunk in writers else []
            if is_write:
                others += readers.get(chunk, {}).values()
            for other in others:
                earlier = order.nodes[other]
                if earlier.lane != node.lane and clock[earlier.lane] <= earlier.step.number:
                    raise _race(order, chunk, earlier, node)
            if is_write:
                writers[chunk] = number
                readers.pop(chunk, None)
            else:
                readers.setdefault(chunk, {})[node.lane] = number
        clock[node.lane] = node.step.number + 1
        told.tell(number, clock)


class _Told:
    """What steps know when they end, until the last step that waits for them has heard of it."""

    def __init__(self, order: Order) -> None:
        self._sources: dict[int, list[int]] = {}
        for later, earlier in order.signals.items():
            self._sources.setdefault(later, []).append(earlier)
        for earlier, later in order.messages.items():
            self._sources.setdefault(later, []).append(earlier)
        self._listeners: dict[int, int] = {}
        for sources in self._sources.values():
            for source in sources:
                self._listeners[source] = self._listeners.get(source, 0) + 1
        self._kept: dict[int, IntArray] = {}

    def hear(self, number: int, clock: IntArray) -> None:
        """Learn what the steps knew that a step waits for."""
        for source in self._sources.get(number, ()):
            np.maximum(clock, self._kept[source], out=clock)
            self._listeners[source] -= 1
            if not self._listeners[source]:
                del self._kept[source]

    def tell(self, number: int, clock: IntArray) -> None:
        """Keep what a step knows, if any waits for it."""
        if number in self._listeners:
            self._kept[number] = clock.copy()


def _accesses(order: Order, node: Node) -> Iterator[tuple[_Chunk, bool]]:
    """Yield the chunks that a step touches, and whether it writes them: reads come first."""
    kind = node.step.kind
    ends = []
    if kind.reads:
        ends.append((node.step.src, False))
    if kind.writes:
        ends.append((node.step.dst, True))
    for (buffer, first), is_write in ends:
        for number in range(first, first + node.step.count):
            place = order.program.place(node.rank, (buffer, number))
            yield (node.rank, *place), is_write


def _race(order: Order, chunk: _Chunk, one: Node, other: Node) -> ScheduleError:
    rank, buffer, number = chunk
    program = order.program
    what = (
        f"{program.file}: nothing orders two steps that touch {BUFFERS[buffer]} chunk {number} "
        f"of gpu {rank}"
    )
    return ScheduleError(what, describe(program, one), describe(program, other))
