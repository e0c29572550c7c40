"""Who knows torch's memory by address, and arranges what ranks share of it; told by `devices`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from simrank.device import Stream
    from simrank.device.memory import Storage
    from simrank.torch.cuda import Rendezvous


class SharedAccess(NamedTuple):
    """What an operation of torch did to memory that other ranks reach."""

    address: int
    size_bytes: int
    is_write: bool


class Arranger(Protocol):
    """Arranges what ranks share."""

    def find(self, address: int) -> Storage | None:
        """Return the storage at an address of torch's memory."""

    def rendezvous(self, address: int, group: str) -> Rendezvous:
        """Answer `Callbacks.on_rendezvous`."""

    def signal(
        self, address: int, group: str, what: int, peer: int, channel: int, timeout_ms: int
    ) -> None:
        """Answer `Callbacks.on_signal`."""

    def enabled(self, context: Any) -> None:
        """Note that a Context's devices were turned on."""

    def disabled(self) -> None:
        """Note that they were turned off."""

    def touched(self, stream: Stream, accesses: list[SharedAccess]) -> None:
        """Note what a rank's torch did to shared memory; `stream` is its current one."""


class _Nobody:
    """Arranges nothing: each rank has its memory for itself."""

    rendezvous = signal = None

    def find(self, _address: int) -> None:
        """Return None."""

    def enabled(self, _context: object) -> None:
        """Do nothing."""

    def disabled(self) -> None:
        """Do nothing."""

    def touched(self, _stream: object, _accesses: object) -> None:
        """Do nothing."""


_registered: list[Any] = [_Nobody()]


def register(arranger: Arranger) -> None:
    """Let somebody arrange what is shared, from the next time on that devices are turned on."""
    _registered[:] = [arranger]


def arranger() -> Any:
    """Return who arranges what is shared."""
    return _registered[0]
