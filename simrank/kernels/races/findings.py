"""Errors that report two accesses of programs of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.errors import RaceAccess, RaceError, at_text, us_text
from simrank.kernels.races.accesses import ATOMIC

if TYPE_CHECKING:
    from simrank.device.memory import Storage
    from simrank.engine import CallSite


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
