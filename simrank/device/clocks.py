"""Vector clocks for race checks: the steps of other agents that an agent is ordered behind."""

from __future__ import annotations

from typing import Any


class Agent:
    """Something that does one thing after another: a stream, or a program's host.

    Attributes:
        number: Which.
        clock: What it is ordered behind, as far as it has issued.
        run: What it is ordered behind, as far as things have happened.
        next: What the next operation of a stream is behind besides.
        unseen: What a host is behind that had not ended when it went on, by stream.
    """

    __slots__ = ("clock", "next", "number", "run", "unseen")

    def __init__(self, number: int) -> None:
        self.number = number
        self.clock: Clock = {}
        self.run: Clock = {}
        self.next: Clock = {}
        self.unseen: dict[object, Any] = {}

    @property
    def key(self) -> int:
        """Return its key in clocks of events; keys above zero are programs."""
        return -self.number

    def step(self) -> int:
        """Count a step, and return its number."""
        number, clock = self.number, self.clock
        found = clock[number] = clock.get(number, 0) + 1
        return found


class OperationTurn:
    """An operation's turn in its stream; it keeps none of what the operation keeps.

    Attributes:
        stream: What the stream is called in clocks.
        step: Which step of it, once it has begun; 0 before.
        tells_accesses: As the operation has it.
    """

    __slots__ = ("__weakref__", "step", "stream", "tells_accesses")

    def __init__(self, stream: int, *, tells_accesses: bool) -> None:
        self.stream = stream
        self.step = 0
        self.tells_accesses = tells_accesses


Clock = dict[int, int]  # Number of another -> how many of its steps are known to be over.


ALL_DEVICES = -1  # Among the devices that see what was handed to a flag.


def join(clock: Clock, other: Clock) -> None:
    """Order what a clock is of behind all that another one is behind."""
    for number, step in other.items():
        if clock.get(number, 0) < step:
            clock[number] = step


def is_behind(races: Any, ended: Any) -> bool:  # noqa: ANN401 - a RaceChecker, an operation or stream
    """Return whether race checks know the running program to come after an end, in any timing."""
    return races is not None and bool(races.is_behind(ended))
