"""What one rank of a replay does: it begins each node as soon as the trace lets it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import simrank.distributed as dist
from simrank.device.operation import KernelOperation
from simrank.engine import Handle
from simrank.errors import CollectiveMismatchError
from simrank.errors.travel import add_note
from simrank.replay.trace import ANY, CALC, SEND, Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.context import Context
    from simrank.device import Stream, Tensor
    from simrank.replay.trace import Node

_MAX_SHOWN = 4


class _Outstanding(Handle):
    """The end of whichever node of a rank ends next; reports show which ones are awaited."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__()
        self.nodes = nodes

    def describe(self) -> str:
        """Return the nodes that are under way, messages first: a calc ends by itself."""
        awaited = [node.describe() for node in self.nodes if node.kind != CALC]
        awaited = awaited or [node.describe() for node in self.nodes]
        more = f", and {len(awaited) - _MAX_SHOWN} more" if len(awaited) > _MAX_SHOWN else ""
        return f"{', '.join(awaited[:_MAX_SHOWN])}{more}"


class Player:
    """One rank.

    Args:
        rank: Its number.
        nodes: What it does.
        context: The Context that it runs in.

    Attributes:
        end_ps: When its last node so far was over.
    """

    def __init__(self, rank: int, nodes: Sequence[Node], context: Context) -> None:
        self._rank = rank
        self._nodes = nodes
        self._context = context
        self._streams: dict[int, Stream] = {}
        self._buffers: dict[tuple[str, int], Tensor] = {}
        self._under_way: dict[int, Node] = {}
        self._over: list[int] = []
        self._awaited: _Outstanding | None = None
        self.end_ps = 0

    def play(self) -> None:
        """Do everything; returns when all of it is over."""
        dist.init_process_group("gloo")  # The backend with tags, and receives from any rank.
        progress = Progress(self._nodes)
        while True:
            for number in progress.begun():
                self._under_way[number] = self._nodes[number]
                self._begin(number).on_complete(partial(self._end, number))
            if not self._over and not self._under_way:
                return
            if not self._over:
                self._awaited = _Outstanding(tuple(self._under_way.values()))
                self._wait()
            over, self._over = self._over, []
            for number in over:
                progress.end(number)

    def _wait(self) -> None:
        """Wait until a node is over; what goes wrong with a message names its nodes."""
        assert self._awaited is not None
        try:
            self._context.wait(self._awaited)
        except CollectiveMismatchError as error:
            add_note(error, f"simrank: rank {self._rank} was at {self._awaited.describe()}")
            raise

    def _end(self, number: int) -> None:
        """Note that a node is over; the hub calls it."""
        del self._under_way[number]
        self._over.append(number)
        engine = self._context.engine
        self.end_ps = engine.now_ps
        if self._awaited is not None and not self._awaited.complete:
            self._awaited.finish(engine)

    def _begin(self, number: int) -> Handle:
        """Start a node; returns its end."""
        node = self._nodes[number]
        if node.kind == CALC:
            stream = self._stream(node.stream)
            calc = KernelOperation(stream, node.label, duration_ps=node.duration_ps, demands=())
            stream.submit(calc, cost_ps=0)
            return calc
        data = self._buffer(node)
        if node.kind == SEND:
            work = dist.isend(data, node.peer, tag=node.tag)
        else:
            work = dist.irecv(data, None if node.peer == ANY else node.peer, tag=node.tag)
        assert work is not None, "every rank is in the default group"
        return work.handle

    def _buffer(self, node: Node) -> Tensor:
        """Return where a message is sent from, or comes to: nobody looks at what is there."""
        key = node.kind, max(node.size_bytes, 1)
        if key not in self._buffers:
            self._buffers[key] = self._context.empty(key[1], dtype=self._context.uint8)
        return self._buffers[key]

    def _stream(self, number: int) -> Stream:
        if number not in self._streams:
            device = self._context.devices[self._rank]
            self._streams[number] = device.new_stream(f"cpu {number}")
        return self._streams[number]
