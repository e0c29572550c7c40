"""Ranges of memory that operations in flight still read or write.

An operation or a host read that touches such a range calls `Callbacks.on_pending` first, unless
both only read. While no range is in flight that costs one load and one branch.
"""

from __future__ import annotations

from simrank.torch.cuda.native import native, raise_kept


def pending_add(address: int, size_bytes: int, *, writes: bool, pending_id: int) -> None:
    """Mark a range; one id may have several."""
    native().simrank_pending_add(address, size_bytes, int(writes), pending_id)


def pending_remove(pending_id: int) -> None:
    """Unmark all ranges of an id."""
    native().simrank_pending_remove(pending_id)


def touch(address: int, size_bytes: int, *, writes: bool) -> None:
    """Do what an operation of torch does before it touches a range: call `on_pending` if needed."""
    if native().simrank_touch(address, size_bytes, int(writes)):
        raise_kept()
