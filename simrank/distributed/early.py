"""Messages that leave before their receivers come, as far as NCCL's buffers hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.distributed.p2p import Message


class Pair(NamedTuple):
    """Whose buffer it is.

    Attributes:
        src: Group rank of the sender.
        dst: Group rank of the receiver.
        batched: Whether it is that of batches, which have a communicator of their own.
    """

    src: int
    dst: int
    batched: bool


class _Buffer:
    """One pair's: what lies in it and what waits for room, in order, with their bytes."""

    def __init__(self) -> None:
        self.held: dict[Message, int] = {}
        self.waiting: dict[Message, int] = {}
        self.held_bytes = 0


class EarlyMessages:
    """The buffers of all pairs; messages of a pair find room in their order.

    Args:
        room_bytes: Size of a pair's buffer; -1: no message leaves without its receiver.
    """

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._buffers: dict[Pair, _Buffer] = {}

    def admit(self, pair: Pair, message: Message, size_bytes: int) -> Iterator[Message]:
        """Yield a message if it may leave now; else it waits for room, or for its receiver."""
        if self._room_bytes < 0:
            return
        buffer = self._buffers.get(pair)
        if buffer is None:
            buffer = self._buffers[pair] = _Buffer()
        buffer.waiting[message] = size_bytes
        yield from self._leaving(buffer)

    def drop(self, pair: Pair, message: Message) -> Iterator[Message]:
        """Forget a message, which its receiver takes; yield those that may leave now."""
        buffer = self._buffers.get(pair)
        if buffer is None:
            return
        buffer.waiting.pop(message, None)
        buffer.held_bytes -= buffer.held.pop(message, 0)
        yield from self._leaving(buffer)
        if not buffer.held and not buffer.waiting:
            self._buffers.pop(pair, None)

    def _leaving(self, buffer: _Buffer) -> Iterator[Message]:
        while buffer.waiting:
            message, size_bytes = next(iter(buffer.waiting.items()))
            if buffer.held_bytes + size_bytes > self._room_bytes:
                return
            del buffer.waiting[message]
            buffer.held[message] = size_bytes
            buffer.held_bytes += size_bytes
            yield message
