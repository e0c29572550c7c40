"""Race checks of stream operations on memory that ranks share.

Copies, products, collectives and launches in lockstep each count as one program, whose initial
clock is that of its operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from simrank.device.races import checker_of
from simrank.engine import user_site
from simrank.kernels.races.happens_before import races_of
from simrank.ranks import current_program

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from simrank.device.clocks import Clock
    from simrank.device.memory import Buffer, Storage
    from simrank.device.races import RaceChecker
    from simrank.device.stream import Operation, Stream
    from simrank.kernels.machine.protocols import Array
    from simrank.kernels.races.findings import Access
    from simrank.kernels.races.happens_before import ProgramClock, ProgramRaces
    from simrank.kernels.races.launch_log import LaunchAccesses


class StreamAccesses:
    """Checks accesses of operations to shared memory; see `device.order.SharedAccesses`."""

    def __init__(self, known: ProgramRaces) -> None:
        self._known = known
        self._operations: WeakKeyDictionary[Operation, ProgramClock] = WeakKeyDictionary()

    def began(self, operation: Operation, doubted: Collection[Storage] = ()) -> None:
        """Check the accesses of an operation to shared memory, Triton kernels excepted.

        Args:
            operation: The starting operation.
            doubted: Memory of one rank that is checked as well.

        Raises:
            ProgramRaceError: The operation races, and races are errors.
        """
        if operation.touched is None or operation.rank is None or operation.tells_accesses:
            return
        shared, touched = self._known.checker.order.shared, operation.touched
        reads, writes = (
            [
                buffer
                for buffer in buffers
                if buffer.storage.history_key in shared or buffer.storage.history_key in doubted
            ]
            for buffers in (touched.reads, touched.writes)
        )
        if reads or writes:
            self._compare(operation, reads, writes, is_doubted=bool(doubted))

    def met(self, operation: Operation, reads: Sequence[Buffer], writes: Sequence[Buffer]) -> None:
        """Check the accesses of an operation after its arrival joined those of other ranks.

        Raises:
            ProgramRaceError: The operation races, and races are errors.
        """
        if operation.run is not None and operation.rank is not None:
            self._compare(operation, reads, writes)

    def host_reads(self, buffer: Buffer, stream: Stream, run: Clock) -> None:
        """Check a host read of memory that ranks share; flags may be read at any time.

        Raises:
            ProgramRaceError: It races, and races are errors.
        """
        program, agent = current_program(), stream.race_agent
        assert program is not None, "a rank reads"
        assert agent is not None, "on its stream"
        launched = self._known.launched_at(program.rank, agent.key, run)
        self._known.over(launched)
        device = stream.device.index
        clock = self._known.start("host read", None, program.rank, device, launched)
        index, itemsize = elements_of(buffer)
        flags = [*self._known.flags.get(buffer.storage.history_key, ())]
        index = index[~np.isin(index * itemsize, flags)]
        if len(index):
            with self._known.at(user_site()):
                clock.loads(buffer.storage, index, itemsize)
        clock.end()

    def _compare(
        self,
        operation: Operation,
        reads: Sequence[Buffer],
        writes: Sequence[Buffer],
        *,
        is_doubted: bool = False,
    ) -> None:
        clock = self._clock_of(operation, is_doubted=is_doubted)
        with self._known.at(operation.issued_at):
            for buffer in reads:
                clock.loads(buffer.storage, *elements_of(buffer))
            for buffer in writes:
                clock.overwrites(buffer.storage, *elements_of(buffer))

    def ended(self, operation: Operation) -> None:
        """End the program of an operation, and record the values that it has written."""
        self._note_rewrites(operation)
        clock = self._operations.pop(operation, None)
        if clock is None or operation.touched is None:
            return
        clock.end()
        for buffer in operation.touched.writes:
            shadow = self._known.shadows.get(buffer.storage.history_key)
            if shadow is not None:
                first, itemsize = elements_of(buffer)
                index = first[:, None] * itemsize + np.arange(itemsize)
                shadow.values[index] = buffer.storage.array(np.dtype(np.uint8))[index]

    def _note_rewrites(self, operation: Operation) -> None:
        """Record that an operation has rewritten flags."""
        signals, agent = self._known.signals, operation.stream.race_agent
        if operation.touched is None or operation.run is None or agent is None:
            return
        for buffer in operation.touched.writes:
            storage = buffer.storage.history_key
            low, high = buffer.storage.bounds(buffer.array)
            self._known.values.forget(storage, low, high)
            if storage in signals and buffer.array.flags.c_contiguous:
                signals.rewrote(storage, low, high, (agent.key, operation.run[agent.key]))

    def flagged(self, storage: Storage, first: int) -> None:
        """Drop the history of a flag that a stream has set or reset."""
        self._known.values.forget(storage, first, first + 1)

    def lockstep(self, operation: Operation, accesses: Iterable[Access]) -> None:
        """Check the accesses of a launch in lockstep to shared memory.

        Raises:
            ProgramRaceError: The launch races, and races are errors.
        """
        clock: ProgramClock | None = None
        for access in accesses:
            if access.storage not in self._known.checker.order.shared or operation.rank is None:
                continue
            clock = self._clock_of(operation) if clock is None else clock
            with self._known.at(access.site):
                if access.raw is None:
                    clock.loads(access.storage, access.first // access.itemsize, access.itemsize)
                else:
                    changed = access.first[(access.raw != access.held).any(axis=1)]
                    clock.overwrites(access.storage, changed // access.itemsize, access.itemsize)

    def _clock_of(self, operation: Operation, *, is_doubted: bool = False) -> ProgramClock:
        launched = self._known.launched(operation)
        self._known.over(launched)
        if is_doubted:  # Ended programs order nothing here.
            launched = launched._replace(num_ended=-1)
        device = operation.stream.device.index
        clock = self._known.start(operation.name, None, operation.rank, device, launched)
        self._operations[operation] = clock
        return clock


def elements_of(buffer: Buffer) -> tuple[Array, int]:
    """Return the elements of its storage that a buffer contains, and their size in bytes."""
    view = buffer.array
    low, _ = buffer.storage.bounds(view)
    offsets = np.zeros(1, np.int64)
    for size, stride in zip(view.shape, view.strides, strict=True):
        offsets = (offsets[:, None] + np.arange(size) * stride).reshape(-1)
    if offsets.size:
        offsets -= int(offsets.min())
    if low % view.itemsize or any(stride % view.itemsize for stride in view.strides):
        return (low + offsets[:, None] + np.arange(view.itemsize)).reshape(-1), 1
    return (low + offsets) // view.itemsize, view.itemsize


def accesses_of(checker: RaceChecker) -> StreamAccesses:
    """Return the operation checker of a Context, created and registered at first use."""
    result = checker.order.listener
    if result is None:
        result = checker.order.listener = StreamAccesses(races_of(checker))
    assert isinstance(result, StreamAccesses), "it is the only listener"
    return result


def look_within(operation: Operation, log: LaunchAccesses, *, has_values: bool) -> None:
    """Report races within a launch; without a race checker they are hints.

    Raises:
        ProgramRaceError: Two programs race, and races are errors.
    """
    device = operation.stream.device
    checker, hints = checker_of(device), device.memory.space.hints
    if checker is None:
        hints.update(dict.fromkeys(log.hints()))
    elif not has_values:
        hints[log.lacking_values()] = None
    else:
        log.check(checker)
        log.check_dependent(checker, operation)
        if shared := log.shared():
            accesses_of(checker).lockstep(operation, shared)


def look_before(operation: Operation, log: LaunchAccesses, num_run: int) -> None:
    """Report races among programs that ran in lockstep before one of their launch published.

    Args:
        operation: The launch; its remaining programs run as tasks.
        log: Accesses of the programs.
        num_run: Number of the programs.

    Raises:
        ProgramRaceError: Two programs race, and races are errors.
    """
    if num_run:
        operation.stream.device.memory.space.hints[log.run_before(num_run)] = None
        look_within(operation, log, has_values=True)
