"""Records of accesses by programs of kernels, and errors that report two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.errors import RaceAccess, RaceError, at_text, us_text
from simrank.kernels.machine import ALL_PROGRAMS

if TYPE_CHECKING:
    from simrank.device.memory import Storage
    from simrank.engine import CallSite
    from simrank.kernels.machine import Order
    from simrank.kernels.machine.protocols import Array


# ---- records of memory accesses by programs in lockstep ----

ATOMIC = "updates atomically"


class Fence(NamedTuple):
    """A fence of some programs: it orders their later signals after their earlier accesses."""

    owners: Array


class Access(NamedTuple):
    """One access, of one source line, by all programs of a batch.

    Attributes:
        storage: The memory.
        places: First byte of each element, [n]; a range if contiguous.
        itemsize: Size of an element in bytes.
        spread: Program of each element, in any shape, mostly a broadcast view; `ALL_PROGRAMS` if
            all programs access the same elements.
        site: The source line.
        ids: Programs of the batch, which `ALL_PROGRAMS` means.
        raw: Bytes that a store writes, [n, itemsize]; None for loads and atomics.
        held: Bytes before a store, [n, itemsize].
        order: Memory order of an atomic; None for loads and stores.
        writes: Whether an atomic writes.
        takes: Whether the result of an atomic is used; only then does the atomic acquire.
        is_early: Whether its programs have not waited for the preceding launch.
    """

    storage: Storage
    places: Array | range
    itemsize: int
    spread: Array
    site: CallSite | None
    ids: Array
    raw: Array | None = None
    held: Array | None = None
    order: Order | None = None
    writes: bool = False
    takes: bool = True
    is_early: bool = False

    @property
    def is_plain(self) -> bool:
        """Return whether it races with other programs' atomics: plain, or atomic in scope cta."""
        return self.order is None or self.order.scope == "cta"

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self.places)

    @property
    def first(self) -> Array:
        """First byte of each element, [n]."""
        return np.asarray(self.places, np.int64)

    @property
    def owners(self) -> Array:
        """Program of each element, [n]; `ALL_PROGRAMS` if all access the same elements."""
        return self.spread.reshape(-1)

    def by_all_programs(self) -> bool:
        """Return whether all programs of the batch access the same elements."""
        return self.spread.size > 0 and self.spread.flat[0] == ALL_PROGRAMS

    def units(self, unit_bytes: int) -> Array:
        """Return the units of aligned elements, [n, itemsize / unit_bytes]."""
        first = self.first // unit_bytes
        if self.itemsize == unit_bytes:
            return first[:, None]
        result: Array = first[:, None] + np.arange(self.itemsize // unit_bytes)
        return result

    def differs(self, unit_bytes: int) -> Array:
        """Return a mask of the units that a store changes, [n, itemsize / unit_bytes]."""
        assert self.raw is not None, "it is a store"
        assert self.held is not None, "it is a store"
        unit = np.dtype(f"u{unit_bytes}")
        result: Array = self.raw.view(unit) != self.held.view(unit)
        return result

    def is_aligned(self, unit_bytes: int) -> bool:
        """Return whether all elements consist of whole units, whose size is a power of two."""
        places = self.places
        if isinstance(places, range):
            low_bits = places.start | self.itemsize
        else:
            low_bits = int(np.bitwise_or.reduce(places, initial=0)) | self.itemsize
        return low_bits & (unit_bytes - 1) == 0

    @property
    def verb(self) -> str:
        """Verb for reports."""
        if self.order is not None:
            return ATOMIC
        return "reads" if self.raw is None else "writes"


def places_of(index: Array, itemsize: int) -> Array | range:
    """Return the first byte of each element; a range if contiguous."""
    flat = index.reshape(-1)
    num = len(flat)
    if num and flat[-1] - flat[0] == num - 1 and (flat[1:] - flat[:-1] == 1).all():
        begin = int(flat[0]) * itemsize
        return range(begin, begin + num * itemsize, itemsize)
    return flat * itemsize


class ProgramRace(NamedTuple):
    """Two accesses of two programs that nothing orders."""

    first: Access
    second: Access
    programs: tuple[int, int]


# ---- errors that report two accesses ----


class ProgramFindingError(RaceError):
    """Two programs of kernels may fail on hardware; the text has a line for each program.

    Attributes:
        time_ps: Simulated time of the second access.
        rank: Rank of the second program.
        first, second: The accesses; `name` gives program and rank.
        created_at: Where the memory was allocated, as `file.py:line`, or None.
        cure: A specific fix, if one is known.
    """

    def __init__(
        self,
        time_ps: int,
        rank: int | None,
        first: RaceAccess,
        second: RaceAccess,
        created_at: str | None,
        cure: str | None = None,
    ) -> None:
        super().__init__(time_ps, rank, first, second, created_at)
        self.cure = cure
        made = "" if created_at is None else f" (allocated at {created_at})"
        done = [f"  {a.name} {a.verb}{at_text(a.file, a.line)}" for a in (first, second)]
        lines = [
            f"{self._head(us_text(time_ps))}{made}",
            *done,
            f"  to fix: {cure or self._advice()}",
        ]
        self.args = ("\n".join(lines),)

    def _head(self, time: str) -> str:
        """Return the first line of the text, for a time."""
        raise NotImplementedError

    def _advice(self) -> str:
        """Return the general fix."""
        raise NotImplementedError


class ProgramRaceError(ProgramFindingError):
    """Two programs of kernels touched the same bytes, and nothing orders them.

    Operations of streams count as programs on memory that ranks share.

    Attributes:
        time_ps: Simulated time of the second access.
        rank: Rank of the second program.
        first, second: The accesses; `name` gives program and rank.
        created_at: Where the memory was allocated, as `file.py:line`, or None.
    """

    def _head(self, time: str) -> str:
        return f"race (proved) at t={time}: nothing orders two {self._kind()}"

    def _kind(self) -> str:
        are_programs = all(" program " in f" {a.name}" for a in (self.first, self.second))
        return "programs" if are_programs else "ranks"

    def _advice(self) -> str:
        if self._kind() == "ranks":
            return "let a barrier, a signal or a collective of both ranks stand between"
        if ATOMIC in (self.first.verb, self.second.verb):
            return _atomic_cure(self.first.verb, self.second.verb)
        if "reads" not in (self.first.verb, self.second.verb):
            return "let one program store there, use an atomic, or order them by a signal"
        if (self.first.file, self.first.line) == (self.second.file, self.second.line):
            return "update with an atomic, for example tl.atomic_add, or give each program its own"
        verb = "store" if self.second.verb == "reads" else "load"
        return (
            f'signal with sem="release" after the {verb} and wait with sem="acquire"; '
            'between devices with scope="sys"'
        )


def _atomic_cure(*verbs: str) -> str:
    """Return the fix for an atomic that races with another access."""
    if verbs == (ATOMIC, ATOMIC):
        return 'atomics of several programs need scope="gpu", or "sys" between devices'
    verb = "store" if "writes" in verbs else "load"
    return (
        f"{verb} before or after the launch, or let a signal order the two: an atomic orders what "
        "is behind it only by a result that the program looks at"
    )


def access_at(name: str, verb: str, site: CallSite | None) -> RaceAccess:
    """Return an access of a program, as an attribute of a finding."""
    file, line = (None, None) if site is None else site.line()
    return RaceAccess(name, verb, "", file, line)


def created_at(storage: Storage) -> str | None:
    """Return the call site of an allocation as `file.py:line`, or None."""
    site = storage.site()
    return None if site is None else str(site.line())
