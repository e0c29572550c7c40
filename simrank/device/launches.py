"""The bounded launch queue of a device: a host that runs further ahead waits (rule D1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.engine import Handle

if TYPE_CHECKING:
    from simrank.device.stream import Stream
    from simrank.engine import CallSite, Engine


class LaunchQueue:
    """The kernels, copies and collectives of a device that have been launched and not ended.

    Attributes:
        capacity: How many there may be before the host waits for one of them to end.
        num_outstanding: How many there are.
        waiting: Hosts that wait for room.
    """

    def __init__(self, engine: Engine, capacity: int) -> None:
        self.capacity = capacity
        self.num_outstanding = 0
        self._engine = engine
        self.waiting: list[Room] = []  # A few; an empty deque takes 600 bytes.

    def wait_for_room(self, stream: Stream) -> None:
        """Block the host until a launch to `stream` would not be one too many.

        What the engine itself launches, from the hub, goes ahead: nobody is there to wait.
        """
        while self.num_outstanding >= self.capacity:
            if self._engine.is_hub() and self._engine.is_driving:
                return
            room = Room(stream, self.capacity)
            self.waiting.append(room)
            try:
                self._engine.wait(room)
            finally:
                if not room.complete:  # The rank was aborted.
                    self.waiting.remove(room)
                elif self.num_outstanding < self.capacity:
                    self.let_go_on(1)  # The next one looks too: this host may end without a launch.

    def let_go_on(self, num_hosts: int) -> None:
        """Let hosts go on: as many launches have ended or were dropped."""
        for _ in range(min(num_hosts, len(self.waiting))):
            self.waiting.pop(0).finish(self._engine)


class Room(Handle):
    """A wait for room in a launch queue."""

    __slots__ = ("_capacity", "_stream")

    def __init__(self, stream: Stream, capacity: int) -> None:
        super().__init__()
        self._stream = stream
        self._capacity = capacity

    def describe(self) -> str:
        """Return what must end first, as the host waits for it."""
        head = self._stream.head
        behind = "" if head is None else f", behind {head.describe()}"
        return f"room in the launch queue ({self._capacity:,} launches){behind}"

    def site(self) -> CallSite | None:
        """Return None: where the program waits says it."""
        return None
