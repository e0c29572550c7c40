"""Records of programs and of memory for race checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from simrank.device.clocks import Clock
    from simrank.device.memory import Storage
    from simrank.kernels.machine.arrays import Array


IDLE, MIXED = 1, 2


class Shadow:
    """The last store of each byte of a storage: program, epoch, line, value.

    Attributes:
        writers: 0: none; above: a program; below: several that stored the same, see `Alike`.
        finest: Size of the smallest elements that were stored: within one of it all is alike.
        marks: `IDLE` where that store changed nothing: it races with stores only; `MIXED` where its
            program had stored something else in the same epoch.
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
    """A store: by which program, in which epoch of it, at which line."""

    writer: int
    epoch: int
    site: int


class Alike:
    """Stores of the same value that nothing orders, where `Shadow` has room for one.

    They are numbered -1, -2, ...; equal ones have one number.
    """

    def __init__(self) -> None:
        self._stores: list[tuple[Stored, ...]] = [()]
        self._numbers: dict[tuple[Stored, ...], int] = {}

    def number(self, stores: tuple[Stored, ...]) -> int:
        """Return the number of stores."""
        result = self._numbers.get(stores)
        if result is None:
            result = self._numbers[stores] = -len(self._stores)
            self._stores.append(stores)
        return result

    def __getitem__(self, number: int) -> tuple[Stored, ...]:
        """Return the stores that a number means."""
        return self._stores[-number]


def of_rank(rank: int | None) -> str:
    """Return the rank of a program as text; empty for the main program."""
    return "" if rank is None else f" of rank {rank}"


class Name(NamedTuple):
    """The name of a program in reports; operations of streams have no number."""

    number: int | None
    kernel: str
    rank: int | None

    def __str__(self) -> str:
        """Return the text for reports."""
        if self.number is None:
            return f"{self.kernel}{of_rank(self.rank)}"
        return f"program {self.number} of kernel '{self.kernel}'{of_rank(self.rank)}"


class Elements(NamedTuple):
    """Elements of a storage: [n] the first byte of each, and their size."""

    first: Array
    itemsize: int


class Launched(NamedTuple):
    """The vector clock of a launch at its begin.

    Attributes:
        number: Which launch it is.
        num_ended: How many programs had ended.
        stream: What its stream is called in clocks.
        step: Which step of its stream it is.
        run: What its operation is behind: it takes over what its programs do.
    """

    number: int
    num_ended: int
    stream: int
    step: int
    run: Clock

    def clock(self) -> Clock:
        """Return the clock at the begin of its programs, without the launch itself."""
        return {**self.run, self.stream: self.step - 1}
