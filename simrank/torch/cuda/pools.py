"""Memory pools of a program: `torch.cuda.MemPool` and what `torch.cuda.use_mem_pool` calls."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from simrank.errors import UnsupportedError
from simrank.torch.cuda.bindings import global_device
from simrank.torch.cuda.library import native
from simrank.torch.cuda.streams import graph_pool_handle

SYMMETRIC = object()  # The allocator of symmetric memory.
Name = tuple[int, int]
_pools: weakref.WeakValueDictionary[Name, MemPool] = weakref.WeakValueDictionary()


class MemPool:
    """Replacement of torch's class.

    Args:
        allocator: None, or that of torch's symmetric memory: what the pool gives out is symmetric
            memory then, which stays until the simulation ends.
        use_on_oom: False; True is refused.
        no_split: Whether each segment holds one tensor at a time.

    Raises:
        UnsupportedError: The allocator is another one, or `use_on_oom` is True.
    """

    def __init__(
        self, allocator: object = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        if allocator not in (None, SYMMETRIC):
            raise UnsupportedError(
                "torch.cuda.MemPool with an allocator of its own on simulated CUDA devices\n"
                "  to fix: give none, or that of torch.distributed._symmetric_memory"
            )
        if use_on_oom:
            raise UnsupportedError("torch.cuda.MemPool(use_on_oom=True) on simulated CUDA devices")
        self.allocator = allocator
        self.id: Name = graph_pool_handle()
        self.is_split = not no_split
        self.num_users = 1
        _pools[self.id] = self
        weakref.finalize(self, _drop, self.id[1]).atexit = False

    def use_count(self) -> int:
        """Return the number of users, the pool itself included."""
        return self.num_users

    def snapshot(self, include_traces: bool = True) -> Any:
        """Return the pool's segments, as `torch.cuda.memory_snapshot` does."""
        del include_traces  # They are not of a pool.
        segments: Any = torch.cuda.memory_snapshot()
        return [segment for segment in segments if segment["segment_pool_id"] == self.id]


def _drop(number: int) -> None:
    native().simrank_pool_drop(number)


def _begin(device: int, name: Name) -> None:
    """Make the calling thread allocate from a pool; a graph's pool has no object."""
    pool = _pools.get(name)
    is_split = pool is None or pool.is_split
    is_symmetric = pool is not None and pool.allocator is SYMMETRIC
    if pool is not None:
        pool.num_users += 1
    native().simrank_pool_begin(global_device(device), name[1], is_split, is_symmetric)


def _end(device: int, name: Name) -> None:
    native().simrank_pool_end(global_device(device), name[1])


def _release(_device: int, name: Name) -> None:
    pool = _pools.get(name)
    if pool is not None:
        pool.num_users -= 1


def functions() -> dict[str, object]:
    """Return the replacements of names of `torch.cuda.memory`."""
    return {
        "MemPool": MemPool,
        "_cuda_beginAllocateCurrentThreadToPool": _begin,
        "_cuda_beginAllocateToPool": _begin,
        "_cuda_endAllocateToPool": _end,
        "_cuda_releasePool": _release,
    }
