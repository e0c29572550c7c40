"""Ports that are bound before anybody hears of them, and who holds one that is taken."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from simrank.errors import PortInUseError

_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp
_BACKLOG = 128


def bound(port: int = 0) -> socket.socket:
    """Return a socket that listens on this machine; whoever gets it by descriptor owns the port.

    Args:
        port: 0: a free one.

    Raises:
        PortInUseError: Somebody listens there.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # What closed lately is free.
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
    except BaseException as error:
        listener.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUseError(port, holder(port)) from error
        raise
    return listener


def holder(port: int) -> str | None:
    """Return who listens on a port, as `name (pid N)`; None if the system does not tell."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not sockets:
        return None
    for process in sorted(Path("/proc").glob("[0-9]*")):
        try:
            fds = list((process / "fd").iterdir())
            name = (process / "comm").read_text().strip()
        except OSError:  # It has ended, or is somebody else's.
            continue
        if any(_target(fd) in sockets for fd in fds):
            return f"{name} (pid {process.name})"
    return None


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except OSError:  # Closed since.
        return ""


def _inodes(port: int) -> list[str]:
    found: list[str] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        found += [
            columns[9]
            for columns in map(str.split, lines)
            if columns[3] == _LISTENS and int(columns[1].rpartition(":")[2], 16) == port
        ]
    return found
