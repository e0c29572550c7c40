"""Records on disk: tensors in one file, which is mapped and read where it is used."""

from __future__ import annotations

import pickle
from typing import IO, TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_ALIGNED_BYTES = 64


class _Pickler(pickle.Pickler):
    """Writes tensors to a file of their own.

    Args:
        file: For everything else.
        data: For the bytes of the tensors.
    """

    def __init__(self, file: IO[bytes], data: IO[bytes]) -> None:
        super().__init__(file, protocol=5)
        self._data = data

    def persistent_id(self, obj: Any) -> object:  # noqa: ANN401 - of pickle's protocol
        """Return the place of a tensor's bytes; None for other objects."""
        if not isinstance(obj, torch.Tensor):
            return None
        place = -(-self._data.tell() // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self._data.seek(place)
        self._data.write(obj.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        return place, obj.dtype, tuple(obj.shape)


class _Unpickler(pickle.Unpickler):
    """Reads what `_Pickler` has written.

    Args:
        file: As written.
        data: The bytes of all tensors.
    """

    def __init__(self, file: IO[bytes], data: torch.Tensor) -> None:
        super().__init__(file)
        self._data = data

    def persistent_load(self, pid: tuple[int, torch.dtype, Sequence[int]]) -> torch.Tensor:
        """Return a tensor that shares the mapped bytes."""
        place, dtype, shape = pid
        count = torch.Size(shape).numel() * dtype.itemsize
        return self._data[place : place + count].view(dtype).view(shape)


def write(found: object, path: Path) -> None:
    """Write an object with its tensors to `path` and a file beside it."""
    with path.open("wb") as file, path.with_suffix(".data").open("wb") as data:
        _Pickler(file, data).dump(found)
        data.truncate(max(data.tell(), 1))  # An empty file cannot be mapped.


def read(path: Path) -> Any:  # noqa: ANN401 - as written
    """Return an object that `write` wrote; its tensors are read where they are used."""
    beside = path.with_suffix(".data")
    data = torch.from_file(str(beside), size=beside.stat().st_size, dtype=torch.uint8)
    with path.open("rb") as file:
        return _Unpickler(file, data).load()
