"""What is kept of programs and of memory, to find races between programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from simrank.device.clocks import Clock
    from simrank.device.memory import Storage
    from simrank.kernels.machine.arrays import Array


class Shadow:
    """Who stored each byte of a storage last: program, epoch, line of the source, and what.

    Attributes:
        finest: Size of the smallest elements that were stored: within one of it all is alike.
        idle: Where that store changed nothing: it races with stores only.
    """

    __slots__ = ("epochs", "finest", "idle", "sites", "values", "writers")

    def __init__(self, storage: Storage) -> None:
        size = storage.size_bytes
        self.finest = max(size, 1)
        self.writers = np.zeros(size, np.int32)  # 0: nobody.
        self.epochs = np.zeros(size, np.int32)
        self.sites = np.zeros(size, np.int32)
        self.idle = np.zeros(size, np.bool_)
        self.values = storage.array(np.dtype(np.uint8))[:size].copy()


class Name(NamedTuple):
    """What a program is called in reports; an operation of a stream has no number."""

    number: int | None
    kernel: str
    rank: int | None

    def __str__(self) -> str:
        """Return all of it."""
        if self.number is None:
            return f"{self.kernel} of rank {self.rank}"
        return f"program {self.number} of kernel '{self.kernel}' of rank {self.rank}"


class Elements(NamedTuple):
    """Elements of a storage: [n] the first byte of each, and their size."""

    first: Array
    itemsize: int


class Launched(NamedTuple):
    """What a launch is ordered behind, as it begins.

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
        """Return what its programs begin behind: not their own launch, which has not ended."""
        return {**self.run, self.stream: self.step - 1}
