"""Signals that waits have taken: one that ends a wait of a later launch too was never reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from simrank.kernels.races.findings import ProgramFindingError, access_at, created_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device.memory import Storage
    from simrank.engine import CallSite


class StaleSignalError(ProgramFindingError):
    """A wait was over at once: its flag still had the value that an earlier launch had waited for.

    Suspected, as a flag may be meant to be set once for all launches; it is reported, never raised.

    Attributes:
        time_ps: Simulated time of the second wait.
        rank: Whose program waited.
        first, second: The waits; `name` says which program of which rank.
        created_at: Where the flag was allocated, as `file.py:line`, or None.
    """

    def _head(self, time: str) -> str:
        return (
            f"stale signal (suspected) at t={time}: a signal that an earlier launch had taken "
            "ended a wait"
        )

    def _advice(self) -> str:
        return "set the flag back after the wait, or wait for a value that grows with every launch"


class Waiter(NamedTuple):
    """A program that has waited.

    Attributes:
        launch: Number of its launch.
        kernel: The kernel's name.
        name: Which program of which rank, for reports.
        site: Where it waited.
    """

    launch: int
    kernel: str
    name: str
    site: CallSite | None


class _Taken(NamedTuple):
    value: bytes
    waiter: Waiter


class Signals:
    """The flags of one Context whose signals have been taken, until their values change."""

    def __init__(self) -> None:
        self._taken: WeakKeyDictionary[Storage, dict[tuple[int, int], _Taken]] = WeakKeyDictionary()
        # Who has written a flag since, if only what it was.
        self._rewritten: WeakKeyDictionary[Storage, dict[tuple[int, int], tuple[int, int]]] = (
            WeakKeyDictionary()
        )

    def __contains__(self, storage: Storage) -> bool:
        """Return whether a signal of some memory has been taken."""
        return bool(self._taken.get(storage))

    def take(
        self,
        storage: Storage,
        extent: tuple[int, int],
        waiter: Waiter,
        was_behind: Callable[[int, int], bool],
    ) -> Waiter | None:
        """Note that a wait for a value of some bytes is over.

        Args:
            storage: Where.
            extent: The first byte, and the one behind the last.
            waiter: Who waited.
            was_behind: Whether it was behind a program, or a stream, at an epoch before.

        Returns:
            Who took the same signal in an earlier launch of the same kernel at the same line.
        """
        flags = self._taken.setdefault(storage, {})
        before, again = flags.get(extent), self._rewritten.get(storage, {}).pop(extent, None)
        flags[extent] = _Taken(_bytes(storage, *extent), waiter)
        if before is None or before.waiter.launch == waiter.launch:
            return None
        if again is not None and was_behind(*again):
            return None
        is_same = (before.waiter.kernel, before.waiter.site) == (waiter.kernel, waiter.site)
        return before.waiter if is_same else None

    def wrote(self, storage: Storage, low: int, high: int) -> None:
        """Forget signals among the bytes from `low` to `high` whose values have changed."""
        storage = storage.history_key
        flags = self._taken.get(storage)
        if not flags:
            return
        for first, last in [key for key in flags if key[0] < high and key[1] > low]:
            if _bytes(storage, first, last) != flags[first, last].value:
                del flags[first, last]

    def rewrote(self, storage: Storage, low: int, high: int, by: tuple[int, int]) -> None:
        """Note that bytes were written again, whatever they were, and by whom at which epoch."""
        flags, rewritten = self._taken.get(storage), self._rewritten.setdefault(storage, {})
        for key in flags or ():
            if low <= key[0] and key[1] <= high:
                rewritten[key] = by


def stale(
    time_ps: int, rank: int | None, waiters: tuple[Waiter, Waiter], storage: Storage
) -> StaleSignalError:
    """Return the finding that two waits took one signal."""
    before, after = waiters
    first = access_at(before.name, "waited", before.site)
    second = access_at(after.name, "waits", after.site)
    return StaleSignalError(time_ps, rank, first, second, created_at(storage))


def _bytes(storage: Storage, low: int, high: int) -> bytes:
    raw: Any = storage.array(np.dtype(np.uint8))
    result: bytes = raw[low:high].tobytes()
    return result
