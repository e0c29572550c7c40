"""Hardware queues: launches of streams that share one reach the device in the order of issue.

CUDA_DEVICE_MAX_CONNECTIONS says how many a process has on each device. What is first in a queue
and may not begin yet (its stream is busy, or waits) holds up all behind it, of other streams too:
a false dependency, which programs that overlap collectives with products ask for on purpose.
Where the variable is not set every stream has a queue of its own: which streams share one of
hardware's eight is not documented.

Source: CUDA C++ Programming Guide 13.0, "CUDA Environment Variables". Assumed: streams take queues
in turn, in the order in which they were made; a wait for an event holds its queue until it is over.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simrank.device.operation import Operation

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
_MOST = 32  # Source: as above.


class HardwareQueue:
    """Operations of one or more streams that have been issued and have not passed."""

    def __init__(self) -> None:
        self._ahead: deque[Operation] = deque()

    @property
    def first(self) -> Operation | None:
        """The operation that goes next."""
        return self._ahead[0] if self._ahead else None

    def issued(self, operation: Operation) -> None:
        """Let an operation stand behind all issued before it."""
        self._ahead.append(operation)

    def passed(self, operation: Operation) -> None:
        """Let the next one go, now that the first has begun, or is over if it only waits."""
        assert self.first is operation, "a queue keeps its order"
        self._ahead.popleft()
        self._go_on()

    def forget(self, operations: Iterable[Operation]) -> None:
        """Take out what will never begin."""
        gone = set(operations)
        first = self.first
        self._ahead = deque(each for each in self._ahead if each not in gone)
        if self.first is not first:
            self._go_on()

    def _go_on(self) -> None:
        first = self.first
        if first is not None and first.stream.head is first:
            first.stream.start(first)


class HardwareQueues:
    """The queues of one program on one device.

    Args:
        num_queues: How many.
    """

    def __init__(self, num_queues: int) -> None:
        self._queues = [HardwareQueue() for _ in range(num_queues)]
        self._num_streams = 0

    @classmethod
    def of_environment(cls) -> HardwareQueues | None:
        """Return those that the running rank asks for, or None: one for each stream.

        Raises:
            ConfigError: The variable is none of CUDA's numbers.
        """
        given = os.environ.get(VARIABLE)
        if not given:
            return None
        if not given.isdigit() or not 1 <= int(given) <= _MOST:
            expected = f"a number from 1 to {_MOST}"
            raise ConfigError(ConfigProblem(VARIABLE, None, "", expected, repr(given)))
        return cls(int(given))

    def next(self) -> HardwareQueue:
        """Return the queue of the next stream."""
        queue = self._queues[self._num_streams % len(self._queues)]
        self._num_streams += 1
        return queue
