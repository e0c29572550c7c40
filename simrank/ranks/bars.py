"""tqdm's bars of progress: each rank counts its own, as each process does.

Its class keeps the bars that are there, which decides on which line the next one is, and a lock.
`thread_map` takes that lock away after itself, also from another rank that is in the midst of it.
"""

from __future__ import annotations

import threading  # noqa: TID251 - simulated while a Context is entered
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def stand_ins(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return what stands in `tqdm.std` while a Context is entered."""
    kind: Any = module.__dict__["tqdm"]
    return [(kind, "_lock", threading.RLock()), (kind, "_instances", _BarsOfRank(kind._instances))]  # noqa: SLF001 - there is no public way


class _BarsOfRank:
    """The set of bars of who asks."""

    def __init__(self, outside: WeakSet[Any]) -> None:
        self._outside = outside

    def _own(self) -> WeakSet[Any]:
        program = rank_program()
        if program is None:
            return self._outside
        own: WeakSet[Any] = program.local.setdefault("bars of tqdm", WeakSet())
        return own

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())

    def __contains__(self, bar: object) -> bool:
        return bar in self._own()

    def add(self, bar: object) -> None:
        """Add a bar."""
        self._own().add(bar)

    def remove(self, bar: object) -> None:
        """Remove a bar; KeyError if it is not there."""
        self._own().remove(bar)

    def copy(self) -> WeakSet[Any]:
        """Return the bars, for the thread that looks every 10 s whether one stands still."""
        return self._own().copy()
