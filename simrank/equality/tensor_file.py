"""Large tensors of records in a file, read where they are used.

A record has the tensors of all ranks and steps, of which one is looked at after the other. Those
that are equal to the byte, as of replicas, are in the file once.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import defaultdict
from os import close, preadv, pwrite  # As they are outside of ranks.
from pathlib import Path
from tempfile import gettempdir, mkstemp
from typing import Any
from weakref import finalize, ref
from zlib import adler32

import numpy as np
import torch

from simrank.errors import SimrankError

_LARGE_BYTES = 1 << 16  # Smaller tensors stay in memory; assumed.
_PIECE_BYTES = 1 << 20  # Are compared at once; assumed.
_MAX_ARENAS = -8  # Of glibc: M_ARENA_MAX.


class TensorFile:
    """A file of tensors; can be sent to other processes, which read it.

    Args:
        path: The file; None: one without a name, for this process.
        is_new: Whether it is made, or one that is there is read.
    """

    def __init__(self, path: Path | None = None, *, is_new: bool = True) -> None:
        self._path = None if path is None else str(path)
        if path is None:
            self._descriptor, name = mkstemp(prefix="simrank-")
            Path(name).unlink()
        else:
            making = os.O_RDWR | os.O_CREAT | os.O_TRUNC
            self._descriptor = os.open(path, making if is_new else os.O_RDONLY, 0o600)
        finalize(self, close, self._descriptor)
        self._end = 0
        self._known: dict[object, list[TensorInFile]] = defaultdict(list)

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the file again in another process, to read it."""
        assert self._path is not None, "a file of one process"
        return _opened, (self._path,)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor | TensorInFile:
        """Write a tensor, if it is large, and return its place; else the tensor.

        Raises:
            SimrankError: The disk is full.
        """
        is_plain = type(tensor) is torch.Tensor  # A fake one has no elements.
        if not is_plain or tensor.numel() * tensor.itemsize < _LARGE_BYTES:
            return tensor
        flat = _bytes_of(tensor)
        alike = self._known[tensor.dtype, tensor.shape, adler32(flat.data)]
        for each in alike:
            if self._has(each.place, flat):
                return each
        made = TensorInFile(self, self._end, tensor.dtype, tensor.shape)
        left = memoryview(flat)
        try:
            while left:
                count = pwrite(self._descriptor, left, self._end)
                left, self._end = left[count:], self._end + count
        except OSError as error:
            raise SimrankError(
                f"tensors could not be recorded in {gettempdir()}: {error}\n"
                "  to fix: set TMPDIR to a folder of a disk with more room"
            ) from None
        alike.append(made)
        return made

    def _has(self, place: int, flat: Any) -> bool:  # noqa: ANN401 - an array of numpy
        """Return whether the file has some bytes at a place."""
        piece = np.empty(_PIECE_BYTES, np.uint8)
        for start in range(0, len(flat), _PIECE_BYTES):
            wanted = flat[start : start + _PIECE_BYTES]
            got = piece[: len(wanted)]
            self.read_into(place + start, got)
            if not np.array_equal(got, wanted):
                return False
        return True

    def read_into(self, place: int, flat: Any) -> None:  # noqa: ANN401 - an array of numpy
        """Fill an array with the bytes from a place on.

        Raises:
            OSError: The file has been cut short.
        """
        left = memoryview(flat)
        while left:
            count = preadv(self._descriptor, [left], place)
            if not count:
                raise OSError(f"{self._path or 'a temporary file'} has been cut short")
            left, place = left[count:], place + count


def _opened(path: str) -> TensorFile:
    return TensorFile(Path(path), is_new=False)


class TensorInFile:
    """A tensor in a file.

    Args:
        file: The file.
        place: As below.
        dtype: The tensor's type.
        shape: Its shape.

    Attributes:
        place: Of its first byte.
    """

    __slots__ = ("_dtype", "_file", "_last", "_shape", "place")

    def __init__(self, file: TensorFile, place: int, dtype: torch.dtype, shape: torch.Size) -> None:
        self._file, self.place, self._dtype, self._shape = file, place, dtype, shape
        self._last: ref[torch.Tensor] | None = None  # While anything else holds it.

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out what has been read."""
        return TensorInFile, (self._file, self.place, self._dtype, self._shape)

    def read(self) -> torch.Tensor:
        """Return the tensor: that of the last call while it is in use, or else a new one."""
        found = None if self._last is None else self._last()
        if found is None:
            with torch._C.DisableTorchFunction():  # noqa: SLF001 - the types are those recorded
                found = torch.empty(self._shape, dtype=self._dtype)
            self._file.read_into(self.place, _bytes_of(found))
            self._last = ref(found)
        return found


def _bytes_of(tensor: torch.Tensor) -> Any:  # noqa: ANN401 - an array of numpy
    """Return the bytes of a tensor in host memory, as an array."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - as above
        return tensor.detach().contiguous().flatten().view(torch.uint8).numpy()


def use_one_heap() -> None:
    """Make one heap of the C library that of all threads: each rank is one.

    Otherwise what a rank frees is kept for that rank alone.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        ctypes.CDLL(None).mallopt(_MAX_ARENAS, 1)


def release_free_memory() -> None:
    """Give free memory of the heap back to the system, where its C library can."""
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
