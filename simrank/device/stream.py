"""Streams run their operations in order; an operation takes effect at its end (rules D1, D6)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.clocks import join
from simrank.device.current import current_stream
from simrank.device.loading import load_before
from simrank.engine import Activity, Handle, limits, user_site
from simrank.engine.delays import STREAM
from simrank.units import PS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from simrank.device.clocks import Clock
    from simrank.device.device import Device
    from simrank.device.order import Agent, Turn
    from simrank.device.races import Touched
    from simrank.engine import CallSite, Resource


class Operation(Handle):
    """What a stream runs; it is its own completion.

    Subclasses say in `begin` how it takes time, and call `end` at its end.

    Attributes:
        kind: "kernel", "copy", "collective", "event" or "wait", for timelines.
        name: In the user's words.
        stream: The stream it was issued on.
        rank: The rank that issued it, or None.
        issue_ps: The host clock when it was issued; it does not begin before.
        touched: What it reads and writes, until it has ended; None where nobody needs to know.
        start_ps: When it began, in picoseconds; -1 before.
        is_launch: Whether it takes room in the device's launch queue.
        is_implied: Whether it follows from another call: reports name that one's line.
        details: Facts for timelines (bytes, algorithm); empty unless somebody filled it.
    """

    __slots__ = (
        "_site", "_task", "clock", "details", "effect", "issue_ps", "name", "rank", "run",
        "start_ps", "stream", "touched", "turn", "unseen",
    )  # fmt: skip
    kind = "operation"
    is_launch = True
    is_implied = False
    tells_accesses = False  # Whether it tells race checks itself what it does to shared memory.

    def __init__(
        self,
        stream: Stream,
        name: str,
        effect: Callable[[], None] | None = None,
        touched: Touched | None = None,
    ) -> None:
        super().__init__()
        self.stream = stream
        self.name = name
        self.effect = effect
        self.touched = touched  # Tensors stay alive until the operation has ended.
        self.start_ps = -1
        self.issue_ps = 0
        self.clock: Clock | None = None  # This and those below only where races are looked for.
        self.run: Clock | None = None  # What it is behind as things happen; see `order`.
        self.turn: Turn | None = None
        self.unseen: tuple[Operation, ...] = ()
        self.details: dict[str, Any] | None = None
        engine = stream.device.engine
        self._task = engine.current_task()
        self.rank: int | None = None if self._task is None else self._task.rank
        is_named = not self.is_implied or engine.delays is not None  # Delays are drawn per line.
        self._site = user_site() if is_named else None

    @property
    def module(self) -> str | None:
        """Return what code of the device it runs, or None: copies and events need none."""
        return None

    @property
    def issued_at(self) -> CallSite | None:
        """Return where the user's program issued it."""
        return self._site

    def describe(self) -> str:
        """Return what blocks it: itself once it has begun, else the head of its stream."""
        blocker = self.blocker()
        return self.name if blocker is self else blocker.describe()

    def site(self) -> CallSite | None:
        """Return where the user's program issued what blocks it."""
        blocker = self.blocker()
        return self._site if blocker is self else blocker.site()

    def blocker(self) -> Handle:
        """Return what this operation really waits for."""
        head = self.stream.head
        if self.start_ps >= 0 or head is None or head is self:
            return self
        return head.blocker()

    def host_ordered(self) -> None:
        """Note that the running program has seen this operation's end (for race checks)."""
        if self.stream.device.races is not None:
            self.stream.device.races.host_waits(self)

    def fire(self) -> None:
        """Begin, unless the stream was dropped since; the engine calls it at the start."""
        stream = self.stream
        if stream.head is self:
            self.start_ps = stream.device.engine.now_ps
            if self.run is not None and stream.device.races is not None:
                stream.device.races.began(self)
            self.begin()

    def begin(self) -> None:
        """Start to take time; called at the simulated start."""
        raise NotImplementedError

    def end(self) -> None:
        """Take effect, complete, and let the stream go on. Called from the hub at the end."""
        engine = self.stream.device.engine
        if self.effect is not None:
            try:
                with np.errstate(all="ignore"):  # As on a device: inf and NaN.
                    self.effect()
            except Exception as error:  # noqa: BLE001 - raised in the rank that issued it
                self.raise_in_rank(error)
            self.effect = None
        watchers = self.stream.device.memory.space.watchers
        if watchers is not None and self.touched is not None:
            watchers.operation_wrote(engine, self.touched)
        if self.run is not None and self.stream.device.races is not None:
            self.stream.device.races.ended(self)
        self.touched = None
        self.finish(engine)
        if engine.observers:
            for observer in engine.observers:
                observer.on_operation(self)
        self.stream.ended(self)

    def raise_in_rank(self, error: BaseException, first: Callable[[], None] | None = None) -> None:
        """Raise in the rank that issued this, where it waits; without one, in the main program.

        Args:
            error: What is raised.
            first: What happens just before; an operation that ends there is not seen to have
                ended by anybody who is not told of the error.
        """
        error.add_note(f"simrank: raised by {self.name}, when it ran on the stream")
        engine, task = self.stream.device.engine, self._task

        def surface() -> None:
            if first is not None:
                first()
            if task is None or task.finished:
                raise error
            task.thrown = error
            engine.resume(task)

        engine.call_at(engine.now_ps, surface)

    def fail(self, error: BaseException) -> None:
        """Complete with an error: who waits gets it, and what should be written is unknown."""
        for buffer in () if self.touched is None else self.touched.writes:
            buffer.storage.lose_values()
        self.effect = self.touched = None
        self.finish(self.stream.device.engine, error)

    def drop(self) -> None:
        """Let go of what it holds, without an end: its rank was aborted."""


class KernelOperation(Operation):
    """Work on the device's SMs and memory, shared with whatever else runs there (E11)."""

    __slots__ = ("_activity", "demands", "duration_ps")
    kind = "kernel"

    def __init__(
        self,
        stream: Stream,
        name: str,
        effect: Callable[[], None] | None = None,
        touched: Touched | None = None,
        *,
        duration_ps: int,
        demands: Sequence[tuple[Resource, float]],
    ) -> None:
        super().__init__(stream, name, effect, touched)
        self.duration_ps = duration_ps
        self.demands = demands
        self._activity: Activity | None = None

    @property
    def module(self) -> str | None:
        """Return its name: a kernel's code; copies within a device need none, they are memcpys."""
        return None if self.name == "copy_" else self.name

    def begin(self) -> None:
        """Share the device from now on."""
        device = self.stream.device
        work_ps = self.duration_ps * device.slowdown
        activity = Activity(work_ps, self.demands, self.end, max_rate=1.0)
        self._activity = activity
        device.pool.start(activity)

    def end(self) -> None:
        """Let go of the activity, which refers back, and complete."""
        self._activity = None
        super().end()

    def drop(self) -> None:
        """Stop using the device."""
        if self._activity is not None:
            self.stream.device.pool.drop(self._activity)


class MarkOperation(Operation):
    """Takes no time: it completes when its turn in the stream comes (an event's record)."""

    __slots__ = ()
    kind = "event"
    is_launch = False

    def begin(self) -> None:
        """End at once."""
        self.end()


class WaitOperation(Operation):
    """Holds its stream until something else is complete.

    Attributes:
        target: What that is.
    """

    __slots__ = ("target",)
    kind = "wait"
    is_launch = False
    is_implied = True

    def __init__(self, stream: Stream, target: Handle) -> None:
        super().__init__(stream, "wait")
        self.target = target

    def begin(self) -> None:
        """End when the target is complete."""
        self.target.on_complete(self._ended)

    def _ended(self) -> None:
        if self.stream.head is not self:  # Its stream was dropped meanwhile.
            return
        if self.target.error is None:
            if self.run is not None and isinstance(self.target, Operation):
                join(self.run, self.target.run or {})
            self.end()
        else:
            self.stream.fail(self, self.target.error)

    def blocker(self) -> Handle:
        """Return what the target really waits for."""
        target = self.target
        return target.blocker() if isinstance(target, Operation) else target


class Stream:
    """Operations in order, beside the other streams of a device.

    Attributes:
        device: Where it runs.
        name: For timelines.
        head: The operation that runs, or waits at its turn; None when idle.
        tail: The operation issued last, or None if everything has ended.
    """

    def __init__(self, device: Device, name: str) -> None:
        self.device = device
        self.name = name
        self.head: Operation | None = None
        self.race_agent: Agent | None = None  # Set where races are looked for.
        if device.loaded is not None:
            device.streams[self] = None
        self._advancing = False
        self._queue: deque[Operation] = deque()

    def submit(self, operation: Operation, cost_ps: int | None = None) -> None:
        """Issue an operation: stamp it with the host clock after the launch was charged.

        The host waits first if the device's launch queue is full (D1).

        Args:
            operation: Made for this stream.
            cost_ps: Host time of the launch in picoseconds; default: the device's.
        """
        engine = self.device.engine
        if operation.is_launch:
            launches = self.device.launches
            if launches.num_outstanding >= launches.capacity:
                launches.wait_for_room(self)
        if self.device.loaded is not None:
            load_before(self, operation)
        if self.device.races is not None:
            self.device.races.issued(operation)
        if cost_ps is None:
            cost_ps = self.device.launch_overhead_ps
        shown = f"launch {operation.name}" if engine.observers else operation.name
        operation.issue_ps = engine.charge(cost_ps, shown)
        engine.progress += 1
        if operation.is_launch:  # Only now: a race or a kill may have been raised above.
            self.device.launches.num_outstanding += 1
        if self.head is None:
            self.head = operation
            self._start(operation)
        else:
            self._queue.append(operation)

    def make_room(self) -> None:
        """Block the host until the device's launch queue has room."""
        launches = self.device.launches
        if launches.num_outstanding >= launches.capacity:
            launches.wait_for_room(self)

    def _start(self, operation: Operation) -> None:
        engine = self.device.engine
        start_ps, now_ps = operation.issue_ps, engine.now_ps
        if engine.delays is not None:
            late_ps = engine.delays.draw(STREAM, operation.rank, lambda: operation.issued_at)
            start_ps = max(start_ps, now_ps) + late_ps
        if start_ps > now_ps:
            engine.fire_at(start_ps, operation)
        else:
            operation.start_ps = now_ps
            if operation.run is not None and self.device.races is not None:
                self.device.races.began(operation)
            operation.begin()

    def ended(self, operation: Operation) -> None:
        """Go on with the next operation."""
        assert self.head is operation, "a stream runs its operations in order"
        self.head = None
        if operation.is_launch:
            launches = self.device.launches
            launches.num_outstanding -= 1
            if launches.waiting:
                launches.let_go_on(1)
        if self._advancing:  # An operation that took no time: the loop below goes on.
            return
        self._advancing = True
        try:
            while self.head is None and self._queue:
                self.head = self._queue.popleft()
                self._start(self.head)
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

    def _leave(self, operations: Iterable[Operation]) -> None:
        """Make room in the launch queue for what will never end by itself."""
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
    """

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
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
