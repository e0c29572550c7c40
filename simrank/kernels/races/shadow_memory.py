"""Records of programs and memory for race detection between programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from simrank.device.memory import Storage
    from simrank.device.races import Clock
    from simrank.kernels.machine.arrays import Array


IDLE, MIXED = 1, 2


class Shadow:
    """The last store of each byte of a storage: program, epoch, source line and value.

    Attributes:
        writers: 0: not stored yet; > 0: a program; < 0: several programs that stored the same
            value, see `Alike`.
        finest: Size of the smallest elements that were stored; all bytes of one have the same
            record.
        marks: `IDLE` where the store changed nothing, so that it races with stores only; `MIXED`
            where the same program had stored another value in the same epoch.
    """

    __slots__ = ("epochs", "finest", "marks", "sites", "values", "writers")

    def __init__(self, storage: Storage) -> None:
        size = storage.size_bytes
        self.finest = max(size, 1)
        self.writers = np.zeros(size, np.int32)
        self.epochs = np.zeros(size, np.int32)
        self.sites = np.zeros(size, np.int32)
        self.marks = np.zeros(size, np.uint8)
        self.values = storage.array(np.dtype(np.uint8))[:size].copy()


class Stored(NamedTuple):
    """A store: its program, the program's epoch, and the number of its source line."""

    writer: int
    epoch: int
    site: int


class Alike:
    """Unordered stores of the same value, for which `Shadow` has a single slot per byte.

    Sets of stores are numbered -1, -2, ...; equal sets have one number.
    """

    def __init__(self) -> None:
        self._stores: list[tuple[Stored, ...]] = [()]
        self._numbers: dict[tuple[Stored, ...], int] = {}

    def number(self, stores: tuple[Stored, ...]) -> int:
        """Return the number of a set of stores."""
        result = self._numbers.get(stores)
        if result is None:
            result = self._numbers[stores] = -len(self._stores)
            self._stores.append(stores)
        return result

    def __getitem__(self, number: int) -> tuple[Stored, ...]:
        """Return the stores with a number."""
        return self._stores[-number]


def of_rank(rank: int | None) -> str:
    """Return the rank of a program as text; empty for the main program."""
    return "" if rank is None else f" of rank {rank}"


class Name(NamedTuple):
    """Name of a program in reports; `number` is None for an operation of a stream."""

    number: int | None
    kernel: str
    rank: int | None

    def __str__(self) -> str:
        """Return the text for reports."""
        if self.number is None:
            return f"{self.kernel}{of_rank(self.rank)}"
        return f"program {self.number} of kernel '{self.kernel}'{of_rank(self.rank)}"


class Elements(NamedTuple):
    """Elements of a storage: the first byte of each, [n], and the element size in bytes."""

    first: Array
    itemsize: int


class Launched(NamedTuple):
    """Launch state at its start: the events that it is ordered after.

    Attributes:
        number: Number of the launch.
        num_ended: Number of programs that had ended.
        stream: Key of its stream in clocks.
        step: Step of the launch in its stream.
        run: Clock of its operation; the clocks of its programs are joined into it.
    """

    number: int
    num_ended: int
    stream: int
    step: int
    run: Clock

    def clock(self) -> Clock:
        """Return the initial clock of its programs, without this launch, which has not ended."""
        return {**self.run, self.stream: self.step - 1}
