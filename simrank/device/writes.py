"""What in flight still writes a storage, found without walking what is in flight (rules C7, D4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from simrank.device.operation import Operation
    from simrank.device.stream import Stream

_new_tuple = tuple.__new__  # What a NamedTuple's constructor calls.
_PRUNE_FROM = 16  # assumed: below it a look at every entry costs less than keeping count


class _Write(NamedTuple):
    """An operation in flight, and the bytes of the storage that it writes."""

    operation: Operation
    low: int
    high: int

    @property
    def is_open(self) -> bool:
        """Whether what it writes is not there: it has not ended, or has failed."""
        return not self.operation.complete or self.operation.error is not None

    def is_within(self, other: _Write) -> bool:
        """Return whether another one covers all that this one writes."""
        return other.low <= self.low and self.high <= other.high


class PendingWrites:
    """The operations in flight that write one storage.

    A stream ends its operations in order, so that of writes of one stream that cover each other
    the last one stands for all. What is left of entries that have ended is thrown out whenever
    their number has doubled: a note costs the same, however much is in flight.
    """

    __slots__ = ("_prune_at", "_writes")

    def __init__(self) -> None:
        self._writes: list[_Write] = []
        self._prune_at = _PRUNE_FROM

    def __bool__(self) -> bool:
        """Return whether anything is remembered."""
        return bool(self._writes)

    def note(self, operation: Operation, low: int, high: int) -> None:
        """Remember that an operation will write the bytes from `low` to `high`, exclusive."""
        writes = self._writes
        write = _new_tuple(_Write, (operation, low, high))
        if writes:
            last = writes[-1]
            if last.operation.stream is operation.stream and low <= last.low and last.high <= high:
                writes[-1] = write
                return
            if len(writes) >= self._prune_at:
                self._prune()
        self._writes.append(write)

    def overlapping(self, low: int, high: int) -> list[Operation]:
        """Return the operations that write some of these bytes and have not ended, or failed."""
        writes = self._writes
        operations = [
            write.operation
            for index, write in enumerate(writes)
            if write.low < high and low < write.high and write.is_open
            # A failed write that a later one covers is forgotten.
            if not (write.operation.complete and any(map(write.is_within, writes[index + 1 :])))
        ]
        if not operations:
            self.settle()
        return operations

    def write_over(self, low: int, high: int) -> None:
        """Forget failed writes of bytes that the host writes now."""
        self._writes = [
            write
            for write in self._writes
            if not (write.operation.complete and low <= write.low and write.high <= high)
        ]

    def settle(self) -> None:
        """Forget writes that have ended: an operation that keeps its tensors refers back."""
        writes = self._writes
        while writes:  # They nearly always end in order.
            operation = writes[0].operation
            if not operation.complete or operation.error is not None:
                return
            del writes[0]

    def _prune(self) -> None:
        """Keep what is open and not covered later, by its own stream or after it has failed."""
        kept: list[_Write] = []
        last_of: dict[Stream, _Write] = {}
        for index in range(len(self._writes) - 1, -1, -1):
            write = self._writes[index]
            last = last_of.setdefault(write.operation.stream, write)
            later = self._writes[index + 1 :] if write.operation.complete else (last,)
            is_stood_for = any(other is not write and write.is_within(other) for other in later)
            if write.is_open and not is_stood_for:
                kept.append(write)
        self._writes = kept[::-1]
        self._prune_at = max(_PRUNE_FROM, 2 * len(kept))
