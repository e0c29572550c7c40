"""Value history of flags, and the clock that each value carried.

When a wait ends, the flag may have ended it earlier: at the first value of the last run of values
that satisfy the wait. Only what was released to the flag by then is ordered for certain.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from simrank.device.races import join
from simrank.device.watch import end_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device.memory import Storage
    from simrank.device.races import Clock
    from simrank.engine import CallSite

_MAX_VALUES = 128  # Per flag; the history before them is dropped.
_ENDS = {
    "Lt": operator.ge, "LtE": operator.gt, "Gt": operator.le, "GtE": operator.lt,
    "NotEq": operator.eq, "Eq": operator.ne,
}  # fmt: skip


class Wait(NamedTuple):
    """The condition of a wait loop: comparison (name of the `ast` operator) and bound."""

    comparison: str
    bound: int

    def is_over(self, value: int) -> bool:
        """Return whether a value ends the wait."""
        return bool(_ENDS[self.comparison](value, self.bound))

    def end_text(self) -> str:
        """Return the values that end the wait, for reports."""
        return end_text(self.comparison, self.bound)


class Look(NamedTuple):
    """A read of a flag by a wait.

    Attributes:
        storage: Memory of the flag.
        first: First byte of the flag.
        values: Known values of the flag.
        before: Clock of the program before the read.
        scopes: Scopes of released clocks that the program acquires.
        is_relaxed: Whether the read orders nothing before the next fence.
    """

    storage: Storage
    first: int
    values: Sequence[_Value]
    before: Clock
    scopes: Sequence[int]
    is_relaxed: bool


class _Value(NamedTuple):
    """A value of a flag, and the clock that it carried in each scope."""

    value: int
    clocks: dict[int, Clock]


class Passed(NamedTuple):
    """A wait that a program has passed.

    Attributes:
        look: The last read of its flag.
        wait: Its condition.
        site: Its source line.
        began: Value of the flag when the launch first touched it; None if unknown.
    """

    look: Look
    wait: Wait
    site: CallSite | None
    began: int | None

    def cure(self, *, has_signalled: bool) -> str | None:
        """Return the cure for a wait that did not order a program after another, or None.

        Args:
            has_signalled: Whether the other program has released its accesses to the flag.
        """
        site = self.look.storage.site()
        made = "" if site is None else f" (allocated at {site.line()})"
        at = "" if self.site is None else f" at {self.site.line()}"
        kind = "flag" if self.wait.comparison in ("NotEq", "Eq") else "counter"
        flag = f"the {kind} at byte {self.look.first} of a buffer{made}"
        if self.began is not None and self.wait.is_over(self.began):
            return (
                f"set back {flag} before the next launch, or wait for a value that grows with "
                f"every launch: it held {self.began} as this launch began, so the wait{at} for "
                f"{self.wait.end_text()} was over before it began"
            )
        if has_signalled and not self.look.is_relaxed:
            return (
                f"let the wait{at} count all signals: it ends at {self.wait.end_text()}, which "
                f"{flag} may hold before the first of the two programs has signalled"
            )
        return None


class FlagValues:
    """Value histories of the flags of one Context."""

    def __init__(self) -> None:
        self._began: dict[tuple[int, int, int], int] = {}
        self._known: WeakKeyDictionary[Storage, dict[int, list[_Value]]] = WeakKeyDictionary()

    def of(self, storage: Storage, first: int) -> Sequence[_Value]:
        """Return the known values of a flag, given its first byte."""
        return tuple(self._known.get(storage, {}).get(first, ()))

    def touched(self, launch: int, storage: Storage, first: int, value: int) -> None:
        """Record the value of a flag at the first access of a launch."""
        self._began.setdefault((launch, storage.address, first), value)

    def began(self, launch: int, storage: Storage, first: int) -> int | None:
        """Return the first value of a flag in a launch, or None if it is unknown."""
        return self._began.get((launch, storage.address, first))

    def launch_ended(self, launch: int) -> None:
        """Drop the first values of a launch that has ended."""
        self._began = {key: value for key, value in self._began.items() if key[0] != launch}

    def forget(self, storage: Storage, low: int, high: int) -> None:
        """Drop the history of flags within bytes that were written without a known order."""
        flags = self._known.get(storage)
        for first in [first for first in flags or () if low <= first < high]:
            del self._known[storage][first]

    def note(
        self, storage: Storage, first: int, value: tuple[int, int], clocks: dict[int, Clock]
    ) -> None:
        """Record a write of a flag: values before and after it, and the carried clocks."""
        values = self._known.setdefault(storage, {}).setdefault(first, [])
        if not values or values[-1].value != value[0]:  # An unrecorded write came between.
            values[:] = [_Value(value[0], _copied(clocks) if values else {})]
        values.append(_Value(value[1], _copied(clocks)))
        if len(values) > _MAX_VALUES:
            del values[:-1]


def sure(look: Look, wait: Wait) -> Clock | None:
    """Return the clock that a flag carried when it first satisfied a wait, or None if unknown."""
    if not look.values or not wait.is_over(look.values[-1].value):
        return None
    clocks: dict[int, Clock] = {}
    for value, carried in reversed(look.values):
        if not wait.is_over(value):
            break
        clocks = carried
    result: Clock = {}
    for scope in look.scopes:
        join(result, clocks.get(scope, {}))
    return result


def _copied(clocks: dict[int, Clock]) -> dict[int, Clock]:
    return {scope: dict(clock) for scope, clock in clocks.items()}
