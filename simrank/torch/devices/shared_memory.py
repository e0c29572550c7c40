"""Interface between devices and symmetric memory, which registers itself here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from simrank.device import Stream
    from simrank.device.memory import Storage
    from simrank.torch.cuda import Rendezvous


class SharedAccess(NamedTuple):
    """An access of a torch operation to memory that other ranks reach."""

    address: int
    size_bytes: int
    is_write: bool


class SharedMemoryOwner(Protocol):
    """Owner of memory that ranks share."""

    def find(self, address: int) -> Storage | None:
        """Return the storage at an address of torch's memory."""

    def rendezvous(self, address: int, group: str) -> Rendezvous:
        """Answer `Callbacks.on_rendezvous`."""

    def signal(
        self, address: int, group: str, what: int, peer: int, channel: int, timeout_ms: int
    ) -> None:
        """Answer `Callbacks.on_signal`."""

    def enabled(self, context: Any) -> None:
        """Follow a Context's devices, which are on."""

    def disabled(self) -> None:
        """Forget a Context's devices, which are off."""

    def touched(self, stream: Stream, accesses: list[SharedAccess]) -> None:
        """Record accesses of a rank's torch operations; `stream` is its current stream."""


class _NoOwner:
    """Owner of no memory: ranks share none."""

    rendezvous = signal = None

    def find(self, _address: int) -> None:
        """Return None."""

    def enabled(self, _context: object) -> None:
        """Do nothing."""

    def disabled(self) -> None:
        """Do nothing."""

    def touched(self, _stream: object, _accesses: object) -> None:
        """Do nothing."""


_registered: list[Any] = [_NoOwner()]


def register(shared_memory_owner: SharedMemoryOwner) -> None:
    """Register the owner of shared memory, for devices that are turned on later."""
    _registered[:] = [shared_memory_owner]


def shared_memory_owner() -> Any:
    """Return the owner of shared memory."""
    return _registered[0]
