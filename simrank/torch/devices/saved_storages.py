"""Files of torch.save in runs without data, which have the sizes of storages without values."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from simrank.torch.cuda.library import native
from simrank.torch.devices.unknown_values import are_known

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.isolation.ledger import Ledger

_LOST_BY_SAVE = b"torch.save in a run without data"

UNKNOWN_RECORD = ".without-values-of-a-shape-only-run"  # torch itself finds no record of the name.


def _writing_no_unknown(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def write_record(self: Any, name: str, data: Any, *rest: Any) -> Any:
        if isinstance(data, torch.UntypedStorage) and not are_known(data.data_ptr(), data.nbytes()):
            return original(self, name + UNKNOWN_RECORD, b"", 0)
        return original(self, name, data, *rest)

    return write_record


def _as_numbers(storage: Any) -> torch.Tensor:
    """Return the bytes of a storage as numbers, which may be unknown on the host, too."""
    made = torch.empty(0, dtype=torch.float8_e5m2, device=storage.device)
    return made.set_(storage)  # type: ignore[no-any-return]


def _copying_unknown(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def copy_(self: Any, src: Any, non_blocking: bool | None = None) -> Any:
        if are_known(src.data_ptr(), src.nbytes()):
            return original(self, src, non_blocking)
        with torch.no_grad():
            _as_numbers(self).copy_(_as_numbers(src), non_blocking=bool(non_blocking))
        return self

    return copy_


def _fetching_unknown(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def cpu(self: Any) -> Any:
        if self.device.type == "cpu" or are_known(self.data_ptr(), self.nbytes()):
            return original(self)
        with torch.no_grad():
            return _as_numbers(self).cpu().untyped_storage()

    return cpu


def _reading_unknown(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_storage_from_record(self: Any, name: str, numel: int, *rest: Any) -> Any:
        if not self.has_record(name + UNKNOWN_RECORD):
            return original(self, name, numel, *rest)
        made = torch.empty(numel, dtype=torch.uint8)
        native().simrank_lose(made.data_ptr(), numel, _LOST_BY_SAVE, -1)
        return made

    return get_storage_from_record


def guard(patches: Ledger) -> None:
    """Wrap the functions of torch that write, read and copy storages as bytes."""
    storage: Any = torch.UntypedStorage
    patches.replace(storage, "copy_", _copying_unknown(storage.copy_))
    patches.replace(storage, "cpu", _fetching_unknown(storage.cpu))
    writer: Any = torch._C.PyTorchFileWriter  # noqa: SLF001 - the class behind torch.save
    reader: Any = torch._C.PyTorchFileReader  # noqa: SLF001 - the class behind torch.load
    patches.replace(writer, "write_record", _writing_no_unknown(writer.write_record))
    patches.replace(
        reader, "get_storage_from_record", _reading_unknown(reader.get_storage_from_record)
    )
