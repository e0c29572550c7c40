"""The private channel of a worker: frames of a known length, over a socket of its own.

A frame is a mark, its kind, the number of the request it belongs to, and the length of what
follows. A reader that gets half a frame keeps it and goes on: no read waits for the rest of a line.
What libraries print never comes here: the socket is made before the process, and is not
standard output.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from simrank.errors import ChannelError

if TYPE_CHECKING:
    import socket

_HEAD = struct.Struct("!4sBQQ")  # mark, kind, request, length
_MARK = b"srk1"
_CHUNK_BYTES = 1 << 16


class FrameKind(IntEnum):
    """Kinds of frames; the first three go to a worker, the rest come from one."""

    SETUP = 1
    RUN = 2
    SHUTDOWN = 3
    READY = 4
    REFUSED = 5
    RETURNED = 6
    RAISED = 7


_KINDS = frozenset(FrameKind)


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Attributes:
        kind: What it is.
        request: The request that it belongs to; 0 for none.
        body: A pickle, or nothing.
    """

    kind: FrameKind
    request: int
    body: bytes = b""

    def __bytes__(self) -> bytes:
        """Return the encoded frame."""
        return _HEAD.pack(_MARK, self.kind, self.request, len(self.body)) + self.body


class Assembler:
    """Puts frames together from pieces of any size."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> list[Frame]:
        """Take a piece and return the frames that it completes.

        Raises:
            ChannelError: It does not begin as a frame does.
        """
        self._held += piece
        frames = []
        while (frame := self._take()) is not None:
            frames.append(frame)
        return frames

    @property
    def is_between_frames(self) -> bool:
        """Whether no frame is incomplete."""
        return not self._held

    def _take(self) -> Frame | None:
        if not _MARK.startswith(bytes(self._held[: len(_MARK)])):
            raise ChannelError(f"a frame begins with {bytes(self._held[:32])!r}, not {_MARK!r}")
        if len(self._held) < _HEAD.size:
            return None
        _, kind, request, length = _HEAD.unpack_from(self._held)
        if kind not in _KINDS:
            raise ChannelError(f"a frame of unknown kind {kind}")
        end = _HEAD.size + length
        if len(self._held) < end:
            return None
        body = bytes(memoryview(self._held)[_HEAD.size : end])
        del self._held[:end]
        return Frame(FrameKind(kind), request, body)


class WorkerChannel:
    """One end of a worker's channel.

    Args:
        end: A connected stream socket; the channel owns it.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._assembler = Assembler()
        self._waiting: list[Frame] = []

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, frame: Frame, timeout_s: float | None = None) -> None:
        """Send a frame whole.

        Raises:
            TimeoutError: The other end did not take it in time.
            OSError: The other end is closed.
        """
        self._socket.settimeout(timeout_s)
        self._socket.sendall(bytes(frame))

    def receive(self) -> Frame:
        """Wait for the next frame.

        Raises:
            EOFError: The other end is closed.
        """
        while not self._waiting:
            self._socket.settimeout(None)
            self._waiting = self._read()
        return self._waiting.pop(0)

    def arrived(self) -> list[Frame]:
        """Return the frames that are complete, without waiting.

        Raises:
            EOFError: The other end is closed.
            ChannelError: What came is no frame.
        """
        self._socket.settimeout(0)
        try:
            return self._read()
        except BlockingIOError:
            return []

    def _read(self) -> list[Frame]:
        try:
            piece = self._socket.recv(_CHUNK_BYTES)
        except ConnectionResetError:
            piece = b""
        if not piece:
            raise EOFError("the channel is closed")
        return self._assembler.feed(piece)

    def close(self) -> None:
        """Close this end; a second time does nothing."""
        self._socket.close()
