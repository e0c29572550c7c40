"""Races within a launch whose programs neither wait nor publish.

Lockstep is like a barrier behind every line; on a device nothing orders two such programs. A load
of another program's store has no defined value, and neither have two unordered stores of different
values. Atomics may order the programs: then the log is replayed with vector clocks. `pairs` finds
the racing pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.engine import user_site
from simrank.kernels import machine
from simrank.kernels.races.findings import (
    Access,
    Fence,
    ProgramRaceError,
    access_at,
    created_at,
    places_of,
)
from simrank.kernels.races.pairs import pairs, races_with_atomics
from simrank.kernels.races.program_checks import of_rank

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from simrank.device.memory import Storage
    from simrank.device.races import RaceChecker
    from simrank.device.stream import Operation, Stream
    from simrank.engine import CallSite
    from simrank.kernels.machine import Order
    from simrank.kernels.machine.protocols import Array
    from simrank.kernels.races.findings import ProgramRace


class Dependence(NamedTuple):
    """Whether a launch, or its successor, may begin before the preceding launch has ended."""

    is_dependent: bool = False
    lets_begin: bool = False


def dependence_of(source: str, options: Mapping[str, Any]) -> Dependence:
    """Return the traits of a kernel's source and launch options that race checks use."""
    return Dependence(bool(options.get("launch_pdl")), "launch_dependents" in source)


class LaunchAccesses:
    """Log of accesses by the programs of one launch to memory that it may write.

    Args:
        kernel: The kernel's name.
        rank: Rank of the launch.
        watched: Memory that the launch may write; targets of its stores are added.
        shared: Memory that several ranks reach.
        dependence: Programmatic dependent launch traits of the launch.

    Attributes:
        has_dependents: Whether its programs have let dependents begin.
    """

    def __init__(
        self,
        kernel: str,
        rank: int | None,
        watched: Iterable[Storage],
        shared: Container[Storage] = (),
        dependence: Dependence | None = None,
    ) -> None:
        self._kernel = kernel
        self._rank = rank
        self._watched = {storage.history_key for storage in watched}
        self._shared = shared
        self.has_dependents = False
        self._dependence = dependence or Dependence()
        self._waited: set[int] = set()
        self._new: list[Access | Fence] = []
        self._done: list[Access | Fence] = []

    def watches(self, storage: Storage) -> bool:
        """Return whether loads of some memory need to be recorded: a program may write it."""
        if any(self._dependence):
            return True
        key = storage.history_key
        return key in self._watched or key in self._shared

    def loads(self, storage: Storage, index: Array, itemsize: int, owners: Array) -> None:
        """Record a load of elements, and the program of each."""
        self._new.append(self._access(storage, index, itemsize, owners))

    def stores(self, storage: Storage, index: Array, values: Array, owners: Array) -> None:
        """Record a store before it happens, and the program of each element."""
        self._watched.add(storage.history_key)
        flat = index.reshape(-1)
        typed = np.ascontiguousarray(np.broadcast_to(values, index.shape)).reshape(-1)
        raw = typed.view(np.uint8).reshape(len(flat), -1)
        itemsize = raw.shape[1]
        access = self._access(storage, index, itemsize, owners)
        there = storage.array(np.dtype(f"u{itemsize}")).take(flat)
        held = there.view(np.uint8).reshape(len(flat), -1)
        self._new.append(access._replace(raw=raw, held=held))

    def atomics(
        self,
        storage: Storage,
        index: Array,
        itemsize: int,
        owners: Array,
        asked: tuple[Order, bool, bool],
    ) -> None:
        """Record atomics: programs, memory order, whether they write, whether results are used."""
        order, writes, takes = asked
        access = self._access(storage, index, itemsize, owners)
        self._new.append(access._replace(order=order, writes=writes, takes=takes))

    def _access(self, storage: Storage, index: Array, itemsize: int, owners: Array) -> Access:
        places, storage = places_of(index, itemsize), storage.history_key
        ids = machine.now().ids
        is_early = self._dependence.is_dependent and int(ids[0]) not in self._waited
        return Access(storage, places, itemsize, owners, user_site(), ids, is_early=is_early)

    def waited(self, owners: Array) -> None:
        """Record that programs have waited for the end of the preceding launch."""
        self._waited.update(owners.tolist())

    def fence(self, owners: Array) -> None:
        """Record a fence of programs."""
        self._new.append(Fence(owners))

    def drop(self) -> None:
        """Drop the accesses of a batch that is rolled back."""
        self._waited.difference_update(machine.now().ids.tolist() if machine.is_running() else ())
        self._new.clear()

    def commit(self) -> None:
        """Keep the accesses of a completed batch."""
        self._done += self._new
        self._new.clear()

    def check(self, checker: RaceChecker) -> None:
        """Report races within the launch.

        Raises:
            ProgramRaceError: Two programs race, and races are errors.
        """
        for finding in [*pairs(self._done, orders=True), *races_with_atomics(self._done)]:
            first, second = finding.first, finding.second
            error = ProgramRaceError(
                checker.now_ps,
                self._rank,
                access_at(self._name(finding.programs[0]), first.verb, first.site),
                access_at(self._name(finding.programs[1]), second.verb, second.site),
                created_at(second.storage),
            )
            checker.note(error, (self._kernel, first.site, second.site, first.verb, second.verb))

    def check_dependent(self, checker: RaceChecker, operation: Operation) -> None:
        """Report races with the preceding launch, if it need not have ended.

        Raises:
            ProgramRaceError: The launches race, and races are errors.
        """
        done = [access for access in self._done if isinstance(access, Access) and access.size]
        name = f"program {{}} of kernel '{self._kernel}'{of_rank(self._rank)}"
        primary = before(checker, operation) if self._dependence.is_dependent else None
        step = 0 if operation.turn is None else operation.turn.step
        own = Primary(name, step, done) if self.has_dependents else None
        note(checker, operation, own)
        if primary is not None:
            for error, key in races(checker, self._rank, primary, name, done):
                checker.note(error, key)

    def shared(self) -> list[Access]:
        """Return the plain accesses to memory that several ranks reach."""
        plain = [a for a in self._done if isinstance(a, Access) and a.order is None]
        return [access for access in plain if access.storage in self._shared]

    def hints(self) -> list[str]:
        """Return possible races as lines; empty if atomics may order the programs."""
        if any(isinstance(access, Access) and access.order is not None for access in self._done):
            return []
        return [self._hint(*finding) for finding in self.found()]

    def lacking_values(self) -> str:
        """Return the hint that a launch without values is not checked for races."""
        return (
            f"kernel '{self._kernel}': races of its programs are not looked for, since memory that "
            "it uses has no values (data=False)"
        )

    def run_before(self, number: int) -> str:
        """Return the hint that part of a launch is not checked, since programs ran in lockstep."""
        return (
            f"kernel '{self._kernel}': races between its others and the {number} programs that ran "
            "before one stored to another rank are not looked for\n    to fix: mode='tasks'"
        )

    def _hint(self, first: Access, second: Access, programs: tuple[int, int]) -> str:
        one, other = (
            f"{self._name(program)} {access.verb}{_at(access.site)}"
            for program, access in zip(programs, (first, second), strict=True)
        )
        return f"{one} where {other}: nothing orders them; races='report' looks at all of them"

    def found(self) -> list[ProgramRace]:
        """Return the races that exist without any order between programs."""
        return pairs(self._done, orders=False)

    def _name(self, program: int) -> str:
        return f"program {program} of kernel '{self._kernel}'{of_rank(self._rank)}"


def _at(site: CallSite | None) -> str:
    return "" if site is None else f" at {site.line()}"


# ---- Dependent launches ----
# With `launch_pdl=True`, behind a kernel that calls `gdc_launch_dependents`, programs may run
# beside that kernel's until they call `gdc_wait`; their accesses before that are unordered.

_KEY = "launches that let their dependents begin"


class DependentRaceError(ProgramRaceError):
    """A kernel accesses memory of the preceding launch without waiting for its end."""

    def _kind(self) -> str:
        return "launches"

    def _advice(self) -> str:
        return (
            "call tl.extra.cuda.gdc_wait() before the second, or launch without launch_pdl=True: "
            "the first kernel has called gdc_launch_dependents"
        )


class Primary(NamedTuple):
    """A launch that lets its dependents begin early.

    Attributes:
        name: Format of a program's name in reports.
        step: Step of the launch in its stream.
        accesses: Accesses of its programs.
    """

    name: str
    step: int
    accesses: Sequence[Access]


def note(checker: RaceChecker, operation: Operation, primary: Primary | None) -> None:
    """Record the last launch of a stream, if it lets its dependents begin."""
    known: dict[Stream, Primary] = checker.local.setdefault(_KEY, {})
    known.pop(operation.stream, None)
    if primary is not None:
        known[operation.stream] = primary


def before(checker: RaceChecker, operation: Operation) -> Primary | None:
    """Return the directly preceding launch of a stream, if it lets its dependents begin."""
    known: dict[Stream, Primary] = checker.local.get(_KEY, {})
    primary = known.get(operation.stream)
    turn = operation.turn
    is_next = primary is not None and turn is not None and turn.step == primary.step + 1
    return primary if is_next else None


def races(
    checker: RaceChecker, rank: int | None, primary: Primary, name: str, own: Sequence[Access]
) -> Iterator[tuple[DependentRaceError, tuple[object, ...]]]:
    """Yield the races of a dependent launch with the preceding launch, and their keys.

    Args:
        checker: Race checker of the Context.
        rank: Rank of the launch.
        primary: The preceding launch.
        name: Format of a program's name in reports.
        own: Accesses of its programs.
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
    """Return the first program that touches a byte."""
    if access.by_all_programs():
        return int(access.ids[0])
    inside = (access.first <= byte) & (byte < access.first + access.itemsize)
    return int(access.owners[int(inside.argmax())])
