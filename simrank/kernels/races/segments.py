"""What programs in lockstep are behind, played again with a vector clock for each.

A segment is what one program does while it learns of nobody and hands nothing on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.device.clocks import join
from simrank.kernels.races.accesses import Fence

if TYPE_CHECKING:
    from simrank.device.clocks import Clock
    from simrank.device.memory import Storage
    from simrank.kernels.machine.arrays import Array
    from simrank.kernels.races.accesses import Access


class Lanes(NamedTuple):
    """The lanes of an atomic: [n] the first byte of each, its program, and its segment."""

    first: Array
    owner: Array
    segment: Array


class _Segment(NamedTuple):
    program: int
    epoch: int
    clock: Clock


class _Program:
    """A program: what it is behind, what it hands on with relaxed signals, what it has seen.

    Its clock is replaced, never changed: segments have it.
    """

    def __init__(self, number: int) -> None:
        self.clock: Clock = {number: 1}
        self.fenced: Clock = {}
        self.seen: Clock = {}
        self.segment: int | None = None  # What it is in, once something was done in that.


class Segments:
    """The segments of all programs of a launch, as far as its log has been gone through.

    Args:
        has_clocks: Whether atomics order programs; else each has one segment, of its own number.
    """

    def __init__(self, *, has_clocks: bool) -> None:
        self.has_clocks = has_clocks
        self._all: list[_Segment] = []
        self._programs: dict[int, _Program] = {}
        self._flags: dict[tuple[Storage, int], Clock] = {}

    def of(self, owners: Array) -> Array:
        """Return the segments in which programs are."""
        if not self.has_clocks:
            return owners
        programs, inverse = np.unique(owners, return_inverse=True)
        numbers: Array = np.array([self._segment(number) for number in programs.tolist()], np.int64)
        return numbers[inverse]

    def _segment(self, number: int) -> int:
        program = self._program(number)
        if program.segment is None:
            program.segment = len(self._all)
            self._all.append(_Segment(number, program.clock[number], program.clock))
        return program.segment

    def _program(self, number: int) -> _Program:
        if number not in self._programs:
            self._programs[number] = _Program(number)
        return self._programs[number]

    def are_ordered(self, before: Array, after: Array) -> Array:
        """Return where one segment is in front of what is done in another."""
        keys = before * np.int64(len(self._all)) + after
        unique, inverse = np.unique(keys, return_inverse=True)
        ordered: Array = np.array(
            [self._is_ordered(*divmod(key, len(self._all))) for key in unique.tolist()], np.bool_
        )
        return ordered[inverse]

    def _is_ordered(self, before: int, after: int) -> bool:
        program, epoch, _ = self._all[before]
        return self._all[after].clock.get(program, 0) >= epoch

    # ---- the log ----

    def pass_by(self, done: Access | Fence) -> Lanes | None:
        """Let atomics and fences order what comes behind them.

        Returns:
            Of an atomic, where each lane is, of which program, and in which segment; else None.
        """
        if not self.has_clocks:
            return None
        if isinstance(done, Fence):
            self._fence(done.owners)
            return None
        return self._atomic(done)

    def _atomic(self, access: Access) -> Lanes:
        """Let each lane take over what its flag carries, and hand over."""
        order = access.order
        assert order is not None, "it is an atomic"
        first, owners = access.first, access.owners
        if access.by_all_programs():
            first, owners = np.tile(first, len(access.ids)), np.repeat(access.ids, len(first))
        if order.scope == "cta":  # No two programs are in one.
            return Lanes(first, owners, self.of(owners))
        numbers = []
        for begin, owner in zip(first.tolist(), owners.tolist(), strict=True):
            program = self._program(owner)
            flag = self._flags.setdefault((access.storage, begin), {})
            carried = dict(flag)
            if access.writes:
                join(flag, program.clock if order.releases else program.fenced)
            if access.takes and order.acquires:
                self._goes_on(program, carried)
            elif access.takes:
                join(program.seen, carried)
            numbers.append(self._segment(owner))
            if order.releases:
                self._goes_on(program, {owner: program.clock[owner] + 1})
        return Lanes(first, owners, np.array(numbers, np.int64))

    def _fence(self, owners: Array) -> None:
        """Order what programs signal after this behind all before."""
        for owner in owners.tolist():
            program = self._program(owner)
            self._goes_on(program, program.seen)
            program.fenced = program.clock
            self._goes_on(program, {owner: program.clock[owner] + 1})

    @staticmethod
    def _goes_on(program: _Program, behind: Clock) -> None:
        """Let a program begin a new segment, which is behind something more."""
        program.clock = dict(program.clock)
        join(program.clock, behind)
        program.segment = None
