"""Streams run operations in order, beside each other (rule D1); events mark points in them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self

from simrank.device.current import current_stream, parse_device, streams_of, use_stream
from simrank.device.loading import load_before
from simrank.device.operation import MarkOperation, Operation, WaitOperation
from simrank.engine import Handle, limits
from simrank.engine.delays import STREAM
from simrank.errors import UnsupportedError
from simrank.ranks import require_program
from simrank.units import PS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from simrank.device.device import Device
    from simrank.device.hardware_queues import HardwareQueue
    from simrank.device.order import Agent


class Stream:
    """Operations in order, beside the other streams of a device.

    Attributes:
        device: Where it runs.
        name: For timelines.
        head: The operation that runs, or waits at its turn; None when idle.
        tail: The operation issued last, or None if everything has ended.
        hardware_queue: What it shares with other streams of its program; None: nothing.
        cuda_stream: Its number on the device, which stands for CUDA's pointer: 0 is a program's
            default stream, as in CUDA.

    Args:
        device: None is the current one; else a device, its index or its name.
        name: None: after its number.
        priority: Kept for torch's signature.
        is_counted: Whether it is one of the running program's; False: its maker says whose it is.
    """

    def __init__(
        self,
        device: Device | str | int | None = None,
        name: str | None = None,
        priority: int = 0,
        *,
        is_counted: bool = True,
    ) -> None:
        del priority  # On hardware it decides what starts first where all is full.
        chosen = parse_device(device)
        if chosen is None:
            raise UnsupportedError("the host has no streams; name a device")
        self.cuda_stream = 0
        self.device = device = chosen
        self.head: Operation | None = None
        self.race_agent: Agent | None = None  # Set where races are looked for.
        self.hardware_queue: HardwareQueue | None = None
        if is_counted:
            streams_of(chosen, require_program("Stream")).add(self)
        self.name = name or f"stream {self.cuda_stream}"
        if device.streams is not None:
            device.streams[self] = None
        self._advancing = False
        self._queue: deque[Operation] = deque()
        self._entered: list[AbstractContextManager[Stream]] = []  # Blocks that it is current in.

    def __enter__(self) -> Self:
        """Make it the current stream, and its device the current one, within a block."""
        block = use_stream(self)
        block.__enter__()
        self._entered.append(block)
        return self

    def __exit__(self, *raised: object) -> None:
        """Make the stream and the device current that were so before the block."""
        self._entered.pop().__exit__(None, None, None)

    def submit(self, operation: Operation, cost_ps: int | None = None) -> None:
        """Issue an operation: stamp it with the host clock after the launch was charged.

        The host waits first if the device's launch queue is full (D1).

        Args:
            operation: Made for this stream.
            cost_ps: Host time of the launch in picoseconds; default: the device's.
        """
        device = self.device
        engine, launches, is_launch = device.engine, device.launches, operation.is_launch
        if is_launch and launches.num_outstanding >= launches.capacity:
            launches.wait_for_room(self)
        if device.loaded is not None:
            load_before(self, operation)
        if device.races is not None:
            device.races.issued(operation)
        if cost_ps is None:
            cost_ps = device.launch_overhead_ps
        shown = f"launch {operation.name}" if engine.observers else operation.name
        operation.issue_ps = engine.charge(cost_ps, shown)
        engine.progress += 1
        if is_launch:  # Only now: a race or a kill may have been raised above.
            launches.num_outstanding += 1
        if self.hardware_queue is not None:
            self.hardware_queue.issued(operation)
        if self.head is None:
            self.head = operation
            self.start(operation)
        else:
            self._queue.append(operation)

    def make_room(self) -> None:
        """Block the host until the device's launch queue has room."""
        launches = self.device.launches
        if launches.num_outstanding >= launches.capacity:
            launches.wait_for_room(self)

    def start(self, operation: Operation) -> None:
        """Begin the operation at the head, unless others are before it in the hardware's queue."""
        if self.hardware_queue is not None and self.hardware_queue.first is not operation:
            return  # Its turn comes.
        engine = self.device.engine
        start_ps, now_ps = operation.issue_ps, engine.now_ps
        if engine.delays is not None:
            late_ps = engine.delays.draw(STREAM, operation.rank, lambda: operation.issued_at)
            start_ps = max(start_ps, now_ps) + late_ps
        if start_ps > now_ps:
            engine.fire_at(start_ps, operation)
        else:
            operation.fire()

    def ended(self, operation: Operation) -> None:
        """Go on with the next operation."""
        assert self.head is operation, "a stream runs its operations in order"
        self.head = None
        if self.hardware_queue is not None and operation.holds_queue:
            self.hardware_queue.passed(operation)
        if operation.is_launch:
            launches = self.device.launches
            launches.num_outstanding -= 1
            if launches.waiting:
                launches.let_go_on(1)
        queue = self._queue
        if not queue or self._advancing:  # One that took no time: the loop below goes on.
            return
        self._advancing = True
        engine = self.device.engine
        has_turns = self.hardware_queue is not None or engine.delays is not None
        try:
            while self.head is None and queue:
                self.head = following = queue.popleft()
                if has_turns or following.issue_ps > engine.now_ps:
                    self.start(following)
                else:  # As `start` does.
                    following.fire()
        finally:
            self._advancing = False

    @property
    def tail(self) -> Operation | None:
        """Return the operation issued last that has not ended, or None."""
        return self._queue[-1] if self._queue else self.head

    def fail(self, operation: Operation, error: BaseException) -> None:
        """Let an operation fail, and all that was issued after it so far."""
        if self.head is operation:
            operation.drop()
            failed = [operation, *self._queue]
            self.head = None
            self._queue.clear()
        elif operation in self._queue:
            num_failed = len(self._queue) - self._queue.index(operation)
            failed = [self._queue.pop() for _ in range(num_failed)][::-1]
        else:
            return
        self._leave(failed)
        for each in failed:
            each.fail(error)

    def drop(self) -> None:
        """Forget everything issued: the ranks that use this stream were aborted."""
        if self.head is not None:
            self.head.drop()
            self._leave([self.head, *self._queue])
        self.head = None
        self._queue.clear()
        launches = self.device.launches
        launches.let_go_on(len(launches.waiting))  # One of them may have died with its turn.

    def _leave(self, operations: Sequence[Operation]) -> None:
        """Make room in the queues for what will never end by itself."""
        if self.hardware_queue is not None:
            self.hardware_queue.forget(operations)
        num_launches = sum(operation.is_launch for operation in operations)
        self.device.launches.num_outstanding -= num_launches
        self.device.launches.let_go_on(num_launches)

    def wait_for(self, handle: Handle) -> None:
        """Hold later operations of this stream until `handle` is complete; free for the host."""
        if self.device.races is not None and isinstance(handle, Operation):
            self.device.races.stream_waits(self, handle)
        if not handle.complete and handle is not self.tail:
            self.submit(WaitOperation(self, handle), cost_ps=0)

    def wait_event(self, event: Event) -> None:
        """Hold later operations until `event`, as last recorded, has happened."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Hold later operations until everything issued to `stream` so far has ended."""
        if self.device.races is not None:
            self.device.races.stream_waits_for_stream(self, stream)
        tail: Handle | None = stream.tail
        if type(tail) is WaitOperation and stream.head is tail:
            tail = tail.target  # All that is left there is to wait for this.
        if tail is not None:
            self.wait_for(tail)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event here and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Return whether everything issued has ended; a negative answer is a charged poll (E8)."""
        if self.head is not None:
            limits.poll(self.device.engine, f"query of stream '{self.name}'")
        if self.head is None and self.device.races is not None:
            self.device.races.host_waits_for_stream(self)
        return self.head is None

    def synchronize(self) -> None:
        """Block the host until everything issued so far has ended."""
        tail = self.tail
        if tail is not None:
            self.device.engine.wait(tail)
        if self.device.races is not None:
            self.device.races.host_waits_for_stream(self)


class Event:
    """A point in a stream's order, as torch.cuda.Event.

    Args:
        enable_timing: Kept for torch's signature; every simulated event has its time.
        blocking: Kept for torch's signature; a host that waits costs nothing.
        interprocess: Refused: ranks share no events.
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise UnsupportedError("events between processes are not supported")
        self.enable_timing = enable_timing
        self.blocking = blocking
        self._mark: MarkOperation | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Record it on a stream (default: the current one)."""
        if stream is None:
            stream = current_stream()
        self._mark = MarkOperation(stream, "event")
        stream.submit(self._mark, cost_ps=0)

    def wait(self, stream: Stream | None = None) -> None:
        """Hold later operations of a stream (default: the current one) until it has happened."""
        if self._mark is None:
            return  # As in CUDA: an event never recorded holds nobody.
        if stream is None:
            stream = current_stream()
        stream.wait_for(self._mark)

    def query(self) -> bool:
        """Return whether it has happened; a negative answer is a charged poll (E8)."""
        mark = self._mark
        if mark is None:
            return True
        if not mark.complete:
            limits.poll(mark.stream.device.engine, "query of an event")
        if mark.complete:
            mark.host_ordered()
        return mark.complete

    def synchronize(self) -> None:
        """Block the host until it has happened."""
        if self._mark is not None:
            self._mark.stream.device.engine.wait(self._mark)
            self._mark.host_ordered()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the simulated milliseconds from this event to `end_event`.

        Raises:
            RuntimeError: One of them was not recorded, or has not happened yet.
        """
        first, last = self._mark, end_event._mark
        if first is None or last is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (first.complete and last.complete):
            raise RuntimeError(
                "Both events must be completed before calculating elapsed time.\n"
                "  to fix: call end_event.synchronize() first"
            )
        return (last.complete_ps - first.complete_ps) / PS_PER_MS
