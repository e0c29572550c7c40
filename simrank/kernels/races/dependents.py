"""Dependent launches: a kernel begins before the one in front of it in its stream has ended.

Launched with `launch_pdl=True` behind a kernel that calls `gdc_launch_dependents`, its programs may
run beside that kernel's until they call `gdc_wait`; what they touch before that is unordered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.kernels.races.findings import ProgramRaceError, access_at, created_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.device.races import RaceChecker
    from simrank.device.stream import Operation, Stream
    from simrank.kernels.machine.arrays import Array
    from simrank.kernels.races.accesses import Access

_KEY = "launches that let their dependents begin"


class DependentRaceError(ProgramRaceError):
    """A kernel touches memory of the launch in front of it, and has not waited for that to end."""

    def _kind(self) -> str:
        return "launches"

    def _advice(self) -> str:
        return (
            "call tl.extra.cuda.gdc_wait() before the second, or launch without launch_pdl=True: "
            "the first kernel has called gdc_launch_dependents"
        )


class Primary(NamedTuple):
    """A launch that lets its dependents begin.

    Attributes:
        name: What reports call a program of it, with a place for its number.
        step: Which step of its stream it was.
        accesses: What its programs did.
    """

    name: str
    step: int
    accesses: Sequence[Access]


def note(checker: RaceChecker, operation: Operation, primary: Primary | None) -> None:
    """Remember the last launch of a stream, if it lets its dependents begin."""
    known: dict[Stream, Primary] = checker.local.setdefault(_KEY, {})
    known.pop(operation.stream, None)
    if primary is not None:
        known[operation.stream] = primary


def before(checker: RaceChecker, operation: Operation) -> Primary | None:
    """Return the launch right in front of an operation in its stream that lets it begin."""
    known: dict[Stream, Primary] = checker.local.get(_KEY, {})
    primary = known.get(operation.stream)
    turn = operation.turn
    is_next = primary is not None and turn is not None and turn.step == primary.step + 1
    return primary if is_next else None


def races(
    checker: RaceChecker, rank: int | None, primary: Primary, name: str, own: Sequence[Access]
) -> Iterator[tuple[DependentRaceError, tuple[object, ...]]]:
    """Yield the races of a dependent launch with the one in front, and their keys.

    Args:
        checker: Of the Context.
        rank: Whose launch it is.
        primary: The launch in front.
        name: What reports call a program, with a place for its number.
        own: What its programs did.
    """
    for later in own:
        if not later.is_early:
            continue
        for earlier in primary.accesses:
            changes = any(access.raw is not None or access.writes for access in (earlier, later))
            if earlier.storage is not later.storage or not changes:
                continue
            shared = np.intersect1d(_bytes(earlier), _bytes(later))
            if shared.size:
                one, other = (_owner(access, int(shared[0])) for access in (earlier, later))
                error = DependentRaceError(
                    checker.now_ps,
                    rank,
                    access_at(primary.name.format(one), earlier.verb, earlier.site),
                    access_at(name.format(other), later.verb, later.site),
                    created_at(later.storage),
                )
                yield error, ("dependent launch", earlier.site, later.site, later.verb)


def _bytes(access: Access) -> Array:
    result: Array = (access.first[:, None] + np.arange(access.itemsize)).reshape(-1)
    return result


def _owner(access: Access, byte: int) -> int:
    """Return a program that touches a byte."""
    if access.by_all_programs():
        return int(access.ids[0])
    inside = (access.first <= byte) & (byte < access.first + access.itemsize)
    return int(access.owners[int(inside.argmax())])
