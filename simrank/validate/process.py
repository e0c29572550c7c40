"""One worker as its pool sees it: keeper process, channel, output, published state."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from simrank.validate.channel import WorkerChannel
from simrank.validate.current_call import Page, memory_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

_KEEPER = str(Path(__file__).with_name("keeper.py"))
_STACKS_S, _LOOK_S = 1.0, 0.01  # assumed: how long stacks may take, and how often to look
_MAX_STACKS_CHARS = 8_000


class Process:
    """A worker's process, started when this is made.

    Attributes:
        rank: Its rank.
        channel: The pool's end of its channel.
        output: What it prints.
        page: What it says that it is doing.
        pid: The worker's process id, once it has said it; 0 before.
        ended: How it ended, for example `killed by SIGSEGV`; empty while it runs.
        ended_s: When that was seen, on the monotonic clock.
    """

    def __init__(
        self,
        rank: int,
        environment: Mapping[str, str],
        *,
        listener: socket.socket | None,
        echo: TextIO | None,
    ) -> None:
        self.rank = rank
        self.pid = 0
        self.ended = ""
        self.ended_s = 0.0
        self._status = b""
        with ExitStack() as on_error, ExitStack() as theirs:
            ours, channel = socket.socketpair()
            self._lifeline, lifeline = socket.socketpair()
            reading, writing = os.pipe()
            page, self._stacks = memory_file("page"), memory_file("stacks")
            for end in (channel, lifeline):
                theirs.enter_context(end)
            theirs.callback(os.close, writing)
            theirs.callback(os.close, page)
            fcntl.fcntl(self._stacks, fcntl.F_SETFL, os.O_APPEND)
            self.channel = WorkerChannel(ours)
            self.output = WorkerOutput(reading, f"[rank {rank}]", echo)
            self.page = Page(page)
            on_error.callback(self.close)
            fds = [channel.fileno(), page, self._stacks]
            fds += [] if listener is None else [listener.fileno()]
            config = {
                "lifeline": lifeline.fileno(),
                "channel": channel.fileno(),
                "page": page,
                "stacks": self._stacks,
                "listener": None if listener is None else listener.fileno(),
                "worker_fds": fds,
                "path": [path or os.getcwd() for path in sys.path],
                "parent": os.getpid(),
            }
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing starts its own
            self._keeper = subprocess.Popen(
                [sys.executable, *flags, "-P", _KEEPER, json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=dict(environment),
                pass_fds=[*fds, lifeline.fileno()],
                start_new_session=True,
            )
            self._lifeline.setblocking(False)
            on_error.pop_all()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the worker has ended."""
        return self._lifeline.fileno()

    def has_ended(self) -> bool:
        """Look whether it has ended, without waiting; `ended` then says how."""
        while not self.ended:
            try:
                piece = self._lifeline.recv(16)
            except BlockingIOError:
                return False
            except OSError:  # The keeper was killed, and the worker with it.
                piece = b""
            self._status += piece
            if not piece:
                self.ended = _ended(self._status)
                self.ended_s = time.monotonic()
                self.output.drain()
        return True

    def ask_stacks(self, number: int) -> None:
        """Request the stacks of all threads, which are written without the interpreter's lock.

        Of the process that runs the case: the worker, or its fork.
        """
        os.ftruncate(self._stacks, 0)
        pid = self.page.read().get("pid", self.pid)
        if pid and not self.has_ended():
            with suppress(OSError):
                os.kill(pid, number)

    def stacks(self) -> str:
        """Return the stacks that were requested or written by a crash; empty without any."""
        deadline, text = time.monotonic() + (0.0 if self.ended else _STACKS_S), ""
        while True:
            found = os.pread(self._stacks, 1 << 20, 0).replace(b"\0", b"").decode(errors="replace")
            is_whole = bool(found) and found == text
            text = found
            if is_whole or time.monotonic() >= deadline:
                return text[-_MAX_STACKS_CHARS:]
            select.select([], [], [], _LOOK_S)

    def release(self) -> None:
        """Close the lifeline: the keeper kills the worker and its descendants."""
        with suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_WR)

    def reap(self, deadline_s: float) -> None:
        """Wait for the keeper's end, until a time of the monotonic clock; then kill it.

        The worker dies with its keeper, in any state.
        """
        while not self.has_ended():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._lifeline], [], [], left_s)[0]:
                self._keeper.kill()
                break
        self._keeper.wait()
        self.has_ended()

    def close(self) -> None:
        """Close all that the pool holds of it."""
        self.output.drain()
        self.output.close()
        self.channel.close()
        self.page.close()
        self._lifeline.close()
        if self._stacks >= 0:
            os.close(self._stacks)
            self._stacks = -1


def _ended(status: bytes) -> str:
    """Return the text of a process's end from its wait status."""
    if len(status) < 4:
        return "killed, and its keeper with it"
    code = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


# ---- What a worker prints: kept to a bounded length, and shown on demand ----
# Standard output and standard error of a worker are one pipe from before its interpreter
# starts, so banners of C libraries, `NCCL_DEBUG=INFO` and what is printed while modules are
# imported are here.

MAX_LINES, MAX_CHARS = 200, 4_000  # Shown, as TransformerEngine's pool shows them.
_KEPT_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 16


class WorkerOutput:
    """The output of a worker.

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
        """Read available output without waiting; return False at its end."""
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
        """Drop the output of a finished case."""
        self._kept.clear()

    def close(self) -> None:
        """Close the pipe."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
