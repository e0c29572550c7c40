"""Memory in reach of a transport: host, device, or fabric memory, which peers may map.

A buffer that a transport does not reach is an error at the call. On hardware, what is tagged as
device memory and lies on the host is written to in vain, and its readers wait forever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.errors import IllegalTransportError

if TYPE_CHECKING:
    from simrank.device.memory import Storage

HOST, DEVICE, FABRIC = "host", "device", "fabric"
PEER_ACCESS, NCCL = "peer access", "nccl"
# By transport: the kinds of memory that it reads and writes on a peer. Source: CUDA maps memory of
# a peer that was made to be shared; NCCL takes addresses of devices (its user guide).
REACHES = {PEER_ACCESS: (FABRIC,), NCCL: (DEVICE, FABRIC)}


def kind_of(storage: Storage, *, is_symmetric: bool = False) -> str:
    """Return the kind of memory that bytes lie in."""
    if storage.device is None:
        return HOST
    return FABRIC if is_symmetric else DEVICE


def check_transport(
    what: str, transport: str, storage: Storage, *, is_symmetric: bool = False
) -> None:
    """Check that a transport reaches a buffer.

    Args:
        what: The call and why it fails, in the words that programs know.
        transport: One of `REACHES`.
        storage: Where the buffer lies.
        is_symmetric: Whether it was allocated for peers.

    Raises:
        IllegalTransportError: It does not.
    """
    kind = kind_of(storage, is_symmetric=is_symmetric)
    if kind not in REACHES[transport]:
        site = storage.site()
        line = None if site is None else str(site.line())
        raise IllegalTransportError(what, storage.size_bytes, kind, transport, line)
