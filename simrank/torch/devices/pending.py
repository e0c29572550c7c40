"""Operations in flight on simulated streams, for which torch's operations wait (T6).

torch computes at once. So an operation waits first if one in flight on a simulated stream still
uses its memory, unless both only read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simrank.torch import cuda

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simrank.device import Buffer, Operation, Stream
    from simrank.device.memory import Storage
    from simrank.engine import Engine, Handle
    from simrank.ranks import Program


class _Entry(NamedTuple):
    """An operation in flight; `program` is the rank that waits for it, None for all."""

    operation: Operation
    program: Program | None


class _InFlight:
    """Operations in flight, by number.

    Attributes:
        entries: The operations in flight, by number.
        num_made: The number of entries so far, for the next number.
    """

    def __init__(self) -> None:
        self.entries: dict[int, _Entry] = {}
        self.num_made = 0


_in_flight = _InFlight()


def note(operation: Operation, reads: Sequence[Buffer], writes: Sequence[Buffer]) -> None:
    """Make torch's operations wait for one that still reads or writes tensors."""
    ranges = []
    for buffers, is_write in ((reads, False), (writes, True)):
        for buffer in buffers:
            start, end = buffer.storage.bounds(buffer.array)
            ranges.append((buffer.storage.address + start, end - start, is_write))
    _note(operation, ranges, None)


def note_storages(
    operation: Operation, reads: Iterable[Storage], writes: Iterable[Storage], program: Program
) -> None:
    """Make a rank's torch operations wait for one of its operations that uses memory.

    Only this rank waits: other ranks may have to write this memory before the operation can end.
    """
    ranges = [(storage.address, storage.size_bytes, False) for storage in reads]
    ranges += [(storage.address, storage.size_bytes, True) for storage in writes]
    _note(operation, ranges, program)


def _note(
    operation: Operation, ranges: list[tuple[int, int, bool]], program: Program | None
) -> None:
    if operation.complete:
        return
    _in_flight.num_made += 1
    number = _in_flight.num_made
    _in_flight.entries[number] = _Entry(operation, program)
    for address, size_bytes, is_write in ranges:
        cuda.pending_add(address, size_bytes, writes=is_write, pending_id=number)

    def forget() -> None:
        if _in_flight.entries.pop(number, None) is not None:
            cuda.pending_remove(number)

    operation.on_complete(forget)


def share(address: int, size_bytes: int) -> None:
    """Make operations on memory that other ranks reach run in the order of their streams.

    Such memory is an entry without an operation; its number is minus its address.

    What other ranks do to it before and after is ordered by what this rank's stream waits for:
    signals, collectives, kernels. So a torch operation waits there until its turn would come.
    """
    cuda.pending_remove(-address)
    cuda.pending_add(address, size_bytes, writes=True, pending_id=-address)


def is_shared(number: int) -> bool:
    """Return whether a number names memory that other ranks reach, and not an operation."""
    return number < 0


def wait(program: Program, number: int, stream: Stream) -> None:
    """Wait for an operation in flight, by number; `stream` is the rank's current stream."""
    if is_shared(number):
        tail = stream.tail
        if tail is not None and any(
            entry.operation.rank == program.rank for entry in _in_flight.entries.values()
        ):
            _wait_for_values(program.engine, tail)
        return
    entry = _in_flight.entries.get(number)
    if entry is not None and entry.program in (None, program):
        _wait_for_values(program.engine, entry.operation)


def _wait_for_values(engine: Engine, handle: Handle) -> None:
    """Wait for an operation, although the host would go on (rule T6)."""
    task = engine.current_task()
    if task is None:
        engine.wait(handle)
        return
    task.is_functional = True
    try:
        engine.wait(handle)
    finally:
        task.is_functional = False


def settle(reads: Iterable[Storage], writes: Iterable[Storage]) -> None:
    """Wait, as torch's operations do, until memory may be read and written."""
    written = {storage.address: storage for storage in writes}
    read = {storage.address: storage for storage in reads if storage.address not in written}
    for storages, is_write in ((read, False), (written, True)):
        for storage in storages.values():
            cuda.touch(storage.address, storage.size_bytes, writes=is_write)


def forget_all() -> None:
    """Forget all entries as the devices are turned off."""
    _in_flight.entries.clear()
    _in_flight.num_made = 0
