"""Device memory that ranks keep in globals after their end; a process would free it.

What a rank hands to its parent stays allocated too, and is meant to; so only tensors that are
reached from the globals of the program's own modules count.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from simrank.device.tensors.tensor import Tensor
from simrank.errors import RankState
from simrank.ranks.program_modules import is_programs_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from simrank.device.device import Device

_MAX_DEPTH = 4  # assumed: a cache is a container, an object, or one in the other
_MAX_OBJECTS = 100_000  # assumed: enough for any cache of tensors, and looked at in a second


def held_memory(devices: Iterable[Device], running: set[int | None]) -> list[RankState]:
    """Return the device memory that ended ranks still hold, by global variable.

    Args:
        devices: Devices that have been used.
        running: Ranks that have not ended.
    """
    used = {id(device): device for device in devices if device.memory.used_bytes}
    if not used:
        return []
    bytes_by_line: dict[tuple[str, str | None, int | None], dict[int, int]] = {}
    seen: set[int] = set()
    for name, tensor in _global_tensors():
        storage = tensor.storage
        device = storage.device
        if device is None or id(device) not in used or id(storage) in seen:
            continue
        seen.add(id(storage))
        rank = device.memory.owner(storage.address)
        if rank is None or rank in running:
            continue
        site = storage.site()
        file, line = (None, None) if site is None else site.line()
        by_rank = bytes_by_line.setdefault((name, file, line), {})
        by_rank[rank] = by_rank.get(rank, 0) + storage.size_bytes
    states = []
    for (name, file, line), by_rank in bytes_by_line.items():
        for size in sorted(set(by_rank.values())):
            ranks = tuple(sorted(rank for rank, held in by_rank.items() if held == size))
            text = f"{size} bytes of device memory still held by the global {name}, allocated"
            states.append(RankState(ranks, text, file, line, waits=False))
    return sorted(states, key=lambda state: (state.ranks, state.state))


def _global_tensors() -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that the globals of the program's own modules reach, and which global."""
    seen: set[int] = set()
    for module_name, module in sys.modules.copy().items():
        if not is_programs_own(module):
            continue
        for name, value in list(vars(module).items()):
            if name[:2] != "__":
                yield from ((f"{module_name}.{name}", t) for t in _tensors_in(value, seen))


def _tensors_in(value: object, seen: set[int]) -> Iterator[Tensor]:
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        following: list[Any] = []
        for each in level:
            if isinstance(each, Tensor):
                yield each
            elif id(each) not in seen and len(seen) < _MAX_OBJECTS:
                seen.add(id(each))
                following += _parts(each)
        level = following


def _parts(value: object) -> list[Any]:
    """Return the members of a container, or of an object of the program."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return []
    home = sys.modules.get(type(value).__module__)
    return list(vars(value).values()) if home is not None and is_programs_own(home) else []
