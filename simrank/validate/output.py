"""What a worker prints: kept to a bounded length, and shown on demand.

Standard output and standard error of a worker are one pipe from before its interpreter starts, so
banners of C libraries, `NCCL_DEBUG=INFO` and what is printed while modules are imported are here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

MAX_LINES, MAX_CHARS = 200, 4_000  # Shown, as TransformerEngine's pool shows them.
_KEPT_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 16


class Output:
    """The reading end of what a worker prints.

    Args:
        fd: Owned and closed by this; made non-blocking.
        label: Written before each line that is echoed.
        echo: Where lines are copied as they come, or None.
    """

    def __init__(self, fd: int, label: str, echo: TextIO | None) -> None:
        self._fd = fd
        self._label = label
        self._echo = echo
        self._kept = bytearray()
        self._unfinished = b""  # Of the line that is to be echoed.
        os.set_blocking(fd, False)

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._fd

    def drain(self) -> bool:
        """Take what there is, without waiting; return False once nothing can come any more."""
        while self._fd >= 0:
            try:
                piece = os.read(self._fd, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not piece:
                return False
            self._kept += piece
            del self._kept[:-_KEPT_BYTES]
            if self._echo is not None:
                self._show(piece)
        return False

    def _show(self, piece: bytes) -> None:
        assert self._echo is not None, "asked before"
        *lines, self._unfinished = (self._unfinished + piece).split(b"\n")
        self._unfinished = self._unfinished[-_KEPT_BYTES:]
        for line in lines:
            self._echo.write(f"{self._label} {line.decode(errors='replace')}\n")
        self._echo.flush()

    def tail(self) -> str:
        """Return the last lines: at most 200, and at most 4,000 characters."""
        text = self._kept.decode(errors="replace").replace("\0", "")
        return "".join(text.splitlines(keepends=True)[-MAX_LINES:])[-MAX_CHARS:]

    def forget(self) -> None:
        """Start anew: what was printed belongs to a case that is over."""
        self._kept.clear()

    def close(self) -> None:
        """Close the pipe."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
