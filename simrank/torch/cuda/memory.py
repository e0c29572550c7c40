"""Statistics and snapshots of the devices' memory, in the shapes that torch reads."""

from __future__ import annotations

import ctypes
from typing import Any

from simrank.torch.cuda.native import native

_POOLS = ("all", "small_pool", "large_pool")
_FIELDS = ("current", "peak", "allocated", "freed")
# In the order of simrank_memory_stats.
MEMORY_STATS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_COUNTS = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")
_STATES = ("inactive", "active_awaiting_free", "active_allocated")
_BLOCK_WORDS = 4
_ACTIONS = ("alloc", "free_requested", "free_completed")


def memory_stats(global_device: int) -> dict[str, Any]:
    """Return what `torch._C._cuda_memoryStats` returns."""
    words = iter(native().simrank_memory_stats(global_device)[: len(MEMORY_STATS) * 12 + 6])
    stats: dict[str, Any] = {
        kind: {pool: {field: next(words) for field in _FIELDS} for pool in _POOLS}
        for kind in MEMORY_STATS
    }
    stats.update({name: next(words) for name in _COUNTS})
    none = dict.fromkeys(_FIELDS, 0)
    return stats | {
        "oversize_allocations": none,
        "oversize_segments": none,
        "num_sync_all_streams": 0,
        "max_split_size": -1,
    }


def memory_info(global_device: int) -> tuple[int, int]:
    """Return free and total bytes, as `cudaMemGetInfo` does."""
    words = native().simrank_memory_stats(global_device)
    reserved, total = words[len(MEMORY_STATS) * 12 + 4], words[len(MEMORY_STATS) * 12 + 5]
    return max(0, total - reserved), total


def memory_segments(global_device: int, device: int) -> list[dict[str, Any]]:
    """Return the segments of `torch.cuda.memory_snapshot` for one device."""
    num_words = ctypes.c_int64()
    pointer = native().simrank_memory_snapshot(global_device, ctypes.byref(num_words))
    words = pointer[: num_words.value]
    segments, position = [], 0
    while position < len(words):
        address, size, stream, is_small, pool, num_blocks = words[position : position + 6]
        position += 6
        blocks = [_block(words[p : p + _BLOCK_WORDS]) for p in _starts(position, num_blocks)]
        position += _BLOCK_WORDS * num_blocks
        place = (address, size, stream, pool)
        segments.append(_segment(device, place, blocks, is_small=bool(is_small)))
    return segments


def memory_trace(global_device: int) -> list[dict[str, Any]]:
    """Return the events of one device since tracing began, in their order, without stacks."""
    num_words = ctypes.c_int64()
    pointer = native().simrank_memory_trace(global_device, ctypes.byref(num_words))
    words = iter(pointer[: num_words.value] if num_words.value else [])
    return [
        {
            "action": _ACTIONS[action],
            "addr": address,
            "size": size,
            "stream": stream,
            "time_us": order,  # Time passes in the simulator above only.
            "frames": [],
        }
        for order, (action, address, size, stream) in enumerate(
            zip(words, words, words, words, strict=True)
        )
    ]


def _starts(position: int, num_blocks: int) -> range:
    return range(position, position + _BLOCK_WORDS * num_blocks, _BLOCK_WORDS)


def _block(words: list[int]) -> dict[str, Any]:
    address, size, requested, state = words
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": _STATES[state],
        "frames": [],
    }


def _segment(
    device: int, place: tuple[int, int, int, int], blocks: list[dict[str, Any]], *, is_small: bool
) -> dict[str, Any]:
    address, size, stream, pool = place
    held = [block for block in blocks if block["state"] == "active_allocated"]
    active = [block for block in blocks if block["state"] != "inactive"]
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "stream": stream,
        "segment_type": "small" if is_small else "large",
        "allocated_size": sum(block["size"] for block in held),
        "active_size": sum(block["size"] for block in active),
        "requested_size": sum(block["requested_size"] for block in held),
        "segment_pool_id": (0, pool),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
