"""Effects of kernels on other programs, and the memory order of atomics."""

from __future__ import annotations


class Effects:
    """The effects of a kernel that other programs can see, called functions included.

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
        """Add the effects of another function."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) or getattr(other, name))


# ---- How an atomic, or a store that others wait for, orders memory ----

_SEMS = ("acquire", "release", "acq_rel", "relaxed")
_SCOPES = ("gpu", "cta", "sys")


class Order:
    """The memory order of an atomic.

    Attributes:
        acquires: What others published before is seen after it.
        releases: Earlier writes are visible to programs that acquire it.
        scope: "cta", "gpu" or "sys".
    """

    __slots__ = ("acquires", "releases", "scope")

    def __init__(self, sem: str | None, scope: str | None, *, default: str = "acq_rel") -> None:
        sem, scope = sem or default, scope or "gpu"
        if sem not in _SEMS:
            raise ValueError(f"Memory semantic {sem} not supported")
        if scope not in _SCOPES:
            raise ValueError(f"Memory semantic {scope} not supported")
        self.acquires = sem in ("acquire", "acq_rel")
        self.releases = sem in ("release", "acq_rel")
        self.scope = scope
