"""Statistics and snapshots of device memory, in torch's formats."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from simrank.torch.cuda.library import native, operators

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Return the statistics of `torch._C._cuda_memoryStats`."""
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


def peak_bytes(global_device: int) -> tuple[int, int]:
    """Return the most bytes allocated and reserved, whenever the program has reset its peaks."""
    stats = memory_stats(global_device)
    words = native().simrank_memory_stats(global_device)
    before = words[len(MEMORY_STATS) * 12 + 6], words[len(MEMORY_STATS) * 12 + 7]
    since = (stats[f"{kind}_bytes"]["all"]["peak"] for kind in ("allocated", "reserved"))
    allocated, reserved = map(max, since, before)
    return allocated, reserved


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


# ---- Which allocated block an address lies in, and whose it is ----


class Block(NamedTuple):
    """An allocated block: its device among those of all nodes, first address and size."""

    device: int
    address: int
    size_bytes: int


_start, _size = ctypes.c_uint64(), ctypes.c_uint64()
_of_start, _of_size = ctypes.byref(_start), ctypes.byref(_size)


def find_block(address: int) -> Block | None:
    """Return the allocated block that holds an address, or None."""
    library = native()
    if not library.simrank_find_block(address, _of_start, _of_size):
        return None
    return Block(library.simrank_device_of(address), _start.value, _size.value)


def find_pinned(address: int) -> Block | None:
    """Return the pinned memory of the host that holds an address; its device is -1."""
    start, size = ctypes.c_uint64(), ctypes.c_uint64()
    if not native().simrank_find_pinned(address, ctypes.byref(start), ctypes.byref(size)):
        return None
    return Block(-1, start.value, size.value)


def device_of(address: int) -> int | None:
    """Return the device, numbered over all nodes, whose span holds an address."""
    device = native().simrank_device_of(address)
    return None if device < 0 else device


def hold(addresses: list[int]) -> None:
    """Keep symmetric allocations alive until each member has its handle."""
    native().simrank_hold((ctypes.c_uint64 * len(addresses))(*addresses), len(addresses))


def signal_pad(address: int) -> int:
    """Return the address of a symmetric allocation's signal pad; 0 for other memory."""
    return int(native().simrank_signal_pad(address))


# ---- Storages and legacy tensor types, which torch makes only for devices that were built in ----

LEGACY_TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


def resizer(before: Callable[..., Any]) -> Callable[..., Any]:
    """Return `UntypedStorage.resize_` that also resizes storages of simulated devices."""

    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if self.device.type != "cuda":
            before(self, size)
        else:
            with torch._C.DisableTorchFunction():  # noqa: SLF001 - no mode of the program sees it
                whole = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
                operators.resize_storage(whole, int(size))
        return self

    return resize_


def maker(before: Callable[..., Any]) -> Callable[..., Any]:
    """Return `UntypedStorage.__new__` that also makes storages on simulated devices."""

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None:
            return before(cls, *args, **kwargs)
        if torch.device(device).type != "cuda":
            return before(cls, *args, device=device, **kwargs)
        content = args[0] if args else 0
        if isinstance(content, int):
            return torch.empty(content, dtype=torch.uint8, device=device).untyped_storage()
        return torch.tensor(list(content), dtype=torch.uint8, device=device).untyped_storage()

    return new


class _LegacyMeta(type):
    """Metaclass of legacy types: `isinstance` compares device and dtype."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype
        )

    def __repr__(cls) -> str:
        return f"<class '{cls.__name__}'>"


def legacy_type(name: str) -> type:
    """Return the replacement of a legacy type such as `torch.cuda.FloatTensor`."""
    dtype = LEGACY_TYPES[name]

    def new(_cls: type, *args: Any, device: Any = "cuda") -> torch.Tensor:
        if args and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=dtype, device=device)
        return torch.empty(args, dtype=dtype, device=device)

    body = {"dtype": dtype, "is_cuda": True, "__new__": new, "__module__": "torch.cuda"}
    # `tensor.type` reads this name in C++.
    return _LegacyMeta(f"torch.cuda.{name}", (), body | {"__qualname__": name})
