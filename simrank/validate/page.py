"""A page of shared memory with a worker's state, which its parent may read at any time.

Nothing is sent: a rank that hangs in C code, is stopped, or has died can still be asked. The writer
counts up before and after, so a reader that sees an odd or changed count reads again.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
from typing import Any

SIZE_BYTES = 1 << 14
_HEAD = struct.Struct("QI")  # version, length
_TRIES = 100


def memory_file(name: str) -> int:
    """Return the descriptor of a file without a name on any disk, for parent and worker."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Page:
    """The page, mapped.

    Args:
        fd: Of a memory file; it may be closed afterwards.
    """

    def __init__(self, fd: int) -> None:
        if os.fstat(fd).st_size < SIZE_BYTES:
            os.ftruncate(fd, SIZE_BYTES)
        self._map = mmap.mmap(fd, SIZE_BYTES)
        self._version = 0

    def write(self, record: dict[str, Any]) -> None:
        """Publish a record of plain data; the longest values are dropped if it does not fit."""
        body = json.dumps(record).encode()
        while len(body) > SIZE_BYTES - _HEAD.size:
            record = dict(record)
            del record[max(record, key=lambda key: len(json.dumps(record[key])))]
            body = json.dumps(record).encode()
        self._version += 2
        _HEAD.pack_into(self._map, 0, self._version - 1, 0)
        self._map[_HEAD.size : _HEAD.size + len(body)] = body
        _HEAD.pack_into(self._map, 0, self._version, len(body))

    def read(self) -> dict[str, Any]:
        """Return the last record; empty if its writer died during the write."""
        for _ in range(_TRIES):
            version, length = _HEAD.unpack_from(self._map, 0)
            body = self._map[_HEAD.size : _HEAD.size + length]
            if version % 2 == 0 and _HEAD.unpack_from(self._map, 0)[0] == version:
                found: dict[str, Any] = json.loads(body) if body else {}
                return found
        return {}

    def close(self) -> None:
        """Unmap it."""
        self._map.close()
