"""Which allocated block an address lies in, and whose it is."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from simrank.torch.cuda.native import native


class Block(NamedTuple):
    """An allocated block: its device among those of all nodes, first address and size."""

    device: int
    address: int
    size_bytes: int


def find_block(address: int) -> Block | None:
    """Return the block that holds an address, or None where nothing is allocated."""
    start, size = ctypes.c_uint64(), ctypes.c_uint64()
    if not native().simrank_find_block(address, ctypes.byref(start), ctypes.byref(size)):
        return None
    return Block(native().simrank_device_of(address), start.value, size.value)


def find_pinned(address: int) -> Block | None:
    """Return the pinned memory of the host that holds an address; its device is -1."""
    start, size = ctypes.c_uint64(), ctypes.c_uint64()
    if not native().simrank_find_pinned(address, ctypes.byref(start), ctypes.byref(size)):
        return None
    return Block(-1, start.value, size.value)


def device_of(address: int) -> int | None:
    """Return the device, among those of all nodes, to whose span an address belongs."""
    device = native().simrank_device_of(address)
    return None if device < 0 else device


def hold(addresses: list[int]) -> None:
    """Keep symmetric allocations that meet until each member has its handle, which keeps them."""
    native().simrank_hold((ctypes.c_uint64 * len(addresses))(*addresses), len(addresses))


def signal_pad(address: int) -> int:
    """Return the signal pad's address of a symmetric allocation, or 0 if it is none."""
    return int(native().simrank_signal_pad(address))
