"""What a kernel does that other programs can see: whether it waits, publishes, reads."""

from __future__ import annotations


class Effects:
    """What a kernel does that other programs can see, what it calls included.

    Attributes:
        waits: It may wait for another program.
        publishes: It may show something to another program while it runs.
        reads: It reads memory: a loop that calls it may wait.
        threads: It asks which of its program's threads it is.
        times: It reads a clock: each of its programs has a time of its own.
    """

    __slots__ = ("publishes", "reads", "threads", "times", "waits")

    def __init__(
        self,
        *,
        waits: bool = False,
        publishes: bool = False,
        reads: bool = False,
        threads: bool = False,
        times: bool = False,
    ) -> None:
        self.waits = waits
        self.publishes = publishes
        self.reads = reads
        self.threads = threads
        self.times = times

    def add(self, other: Effects) -> None:
        """Add what another function does."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) or getattr(other, name))
