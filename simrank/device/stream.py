"""Operations, the streams that run them in order (rule D1), events, and the current stream."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from sys import _getframe
from typing import TYPE_CHECKING, Any, Protocol, Self, cast
from weakref import WeakValueDictionary

import numpy as np

from simrank.device.clocks import is_behind, join
from simrank.engine import Activity, Handle, Resource, limits
from simrank.engine.callsite import site_of_frame
from simrank.engine.delays import STREAM
from simrank.errors import SimrankError, UnsupportedError
from simrank.errors.base import add_note
from simrank.ranks import Program, current_program, require_program
from simrank.units import PS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from simrank.device.clocks import Agent, Clock, OperationTurn
    from simrank.device.device import Device, HardwareQueue
    from simrank.device.memory import Touched
    from simrank.engine import CallSite


class Operation(Handle):
    """An operation of a stream; it is the handle of its own completion.

    Subclasses say in `begin` how it takes time, and call `end` at its end.

    Attributes:
        kind: "kernel", "copy", "collective", "event" or "wait", for timelines.
        name: In the user's words.
        stream: The stream it was issued on.
        rank: The rank that issued it, or None.
        issued_at: The line of the program that issued it, or None.
        issue_ps: The host clock when it was issued; it does not begin before.
        touched: What it reads and writes, until it has ended; None if not tracked.
        start_ps: When it began, in picoseconds; -1 before.
        is_launch: Whether it takes room in the device's launch queue.
        is_implied: Whether it follows from another call: reports name that one's line.
        details: Facts for timelines (bytes, algorithm); empty by default.
        phase: Of a training step: forward, backward, recomputation or optimizer; empty if unknown.
        flops: Floating-point operations of its products, 0 by default.
        basis: What its time rests on, if on less than others; see `simrank.hardware.roofline`.
    """

    clock: Clock | None  # This and those below only where races are looked for.
    run: Clock | None  # What it is behind as things happen; see `order`.
    turn: OperationTurn | None
    unseen: tuple[Operation, ...]
    details: dict[str, Any] | None
    rank: int | None
    __slots__ = (
        "clock", "details", "effect", "issue_ps", "issued_at", "name", "phase", "rank",
        "run", "start_ps", "stream", "task", "touched", "turn", "unseen",
    )  # fmt: skip
    kind = "operation"
    is_launch = True
    is_implied = False
    orders_threads = False
    completes_by_wait = False  # Whether polls say so only once it was waited for.
    starts_in_order = False  # Whether it starts before all that its rank issues later.
    holds_memory = False  # Whether its memory stays until it has been waited for.
    holds_queue = False  # Whether it holds its stream's hardware queue until it is over.
    tells_accesses = False  # Whether it tells race checks itself what it does to shared memory.
    flops: float = 0.0
    basis = ""
    depth = 1  # How many frames of simrank's lie between its constructor and the user's line.

    def __init__(
        self,
        stream: Stream,
        name: str,
        effect: Callable[[], None] | None = None,
        touched: Touched | None = None,
    ) -> None:
        self.complete = False  # As a handle does: one call less for each operation.
        self.complete_ps = self.start_ps = -1
        self.error = self._waiters = self._callbacks = None
        self.stream = stream
        self.name = name
        self.effect = effect
        self.touched = touched  # Tensors stay alive until the operation has ended.
        self.issue_ps = 0
        self.phase = ""
        self.clock = self.run = self.turn = self.details = None
        self.unseen = ()
        engine = stream.device.engine
        self.task = task = engine.current_task()
        self.rank = None if task is None else task.rank
        is_named = not self.is_implied or engine.delays is not None  # Delays are drawn per line.
        self.issued_at = site_of_frame(_getframe(self.depth)) if is_named else None

    @property
    def module(self) -> str | None:
        """Return the name of the kernel code that it runs; None for copies and events."""
        return None

    def describe(self) -> str:
        """Return the name of the blocking operation: itself once begun, else its stream's head."""
        blocker = self.blocker()
        return self.name if blocker is self else blocker.describe()

    def site(self) -> CallSite | None:
        """Return the call site of the blocking operation."""
        blocker = self.blocker()
        return self.issued_at if blocker is self else blocker.site()

    def blocker(self) -> Handle:
        """Return the operation or handle that blocks this one."""
        head = self.stream.head
        if self.start_ps >= 0 or head is None:
            return self
        if head is not self:
            return head.blocker()
        queue = self.stream.hardware_queue
        first = self if queue is None else queue.first
        return self if first is self or first is None else first.blocker()

    def wait_on_host(self) -> None:
        """Block the host until it has ended; an error of it is an end, too."""
        try:
            self.stream.device.engine.wait(self)
        finally:
            self.host_ordered()

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
            if stream.hardware_queue is not None and not self.holds_queue:
                stream.hardware_queue.passed(self)

    def begin(self) -> None:
        """Start to take time; called at the simulated start."""
        raise NotImplementedError

    def end(self) -> None:
        """Take effect, complete, and let the stream go on. Called from the hub at the end."""
        if self.effect is not None:
            try:
                with np.errstate(all="ignore"):  # As on a device: inf and NaN.
                    self.effect()
            except Exception as error:  # noqa: BLE001 - raised in the rank that issued it
                self.raise_in_rank(error)
            self.effect = None
        self.conclude()

    def conclude(self) -> None:
        """Complete, and let the stream go on: what there was to do is done."""
        stream = self.stream
        device = stream.device
        engine = device.engine
        if self.touched is not None:
            watchers = device.memory.space.watchers
            if watchers is not None:
                watchers.operation_wrote(engine, self.touched)
        if self.run is not None and device.races is not None:
            device.races.ended(self)
        self.touched = None
        assert not self.complete, "an operation ends once"
        assert self.start_ps >= 0, "an operation begins before it ends (D1)"
        if self._callbacks is None and self._waiters is None:  # As `finish` does: a call less.
            self.complete = True
            self.complete_ps = engine.now_ps
            engine.progress += 1
        else:
            self.finish(engine)
        if engine.observers:
            for observer in engine.observers:
                observer.on_operation(self)
        stream.ended(self)

    def raise_in_rank(self, error: BaseException, first: Callable[[], None] | None = None) -> None:
        """Raise in the rank that issued this, where it waits; without one, in the main program.

        Args:
            error: What is raised.
            first: What happens just before; an operation that ends there is not seen to have
                ended by a caller that does not get the error.
        """
        add_note(error, f"simrank: raised by {self.name}, when it ran on the stream")
        engine, task = self.stream.device.engine, self.task

        def surface() -> None:
            if first is not None:
                first()
            if task is None or task.finished:
                raise error
            task.thrown = error
            engine.resume(task)

        engine.call_at(engine.now_ps, surface)

    def fail(self, error: BaseException) -> None:
        """Complete with an error for all waiters; the values of its targets are unknown."""
        for buffer in () if self.touched is None else self.touched.writes:
            buffer.storage.lose(buffer.array)
        self.effect = self.touched = None
        self.finish(self.stream.device.engine, error)

    def drop(self) -> None:
        """Release its resources without an end: its rank was aborted."""


class KernelOperation(Operation):
    """Work on the device's SMs and memory, shared with other work on the device (E11)."""

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
        """Drop the activity, which refers back, and complete."""
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
        is_awaited: Whether another wait is for this one.
    """

    __slots__ = ("is_awaited", "target")
    kind = "wait"
    is_launch = False
    is_implied = True
    holds_queue = True

    def __init__(self, stream: Stream, target: Handle) -> None:
        super().__init__(stream, "wait")
        self.target = target
        self.is_awaited = False
        if type(target) is WaitOperation:
            target.is_awaited = True

    def begin(self) -> None:
        """End when the target is complete."""
        self.target.on_complete(self._ended)

    def extend(self, target: Handle) -> bool:
        """Wait for a later operation of the target's stream instead, unless something waits."""
        if self.is_awaited or self._waiters is not None or self._callbacks is not None:
            return False
        self.target = target
        return True

    def _ended(self) -> None:
        if self.stream.head is not self:  # Its stream was dropped meanwhile.
            return
        if not self.target.complete:  # It was extended.
            self.target.on_complete(self._ended)
        elif self.target.error is None:
            if self.run is not None and isinstance(self.target, Operation):
                join(self.run, self.target.run or {})
            self.end()
        else:
            self.stream.fail(self, self.target.error)

    def blocker(self) -> Handle:
        """Return the operation or handle that blocks the target."""
        target = self.target
        return target.blocker() if isinstance(target, Operation) else target


# ---- Streams and events ----


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

    is_by_host = False  # Whether the host does its work, as gloo does.

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
        self._follows: Stream | None = None  # All that is under way here waits for it, and no more.
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
        assert operation.stream is self, "an operation is issued to its own stream (D1)"
        device = self.device
        engine, launches, is_launch = device.engine, device.launches, operation.is_launch
        if is_launch and launches.num_outstanding >= launches.capacity:
            launches.wait_for_room(self)
        if device.loaded is not None:
            device.load_before(operation)
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
        if self._follows is not None and type(operation) is not WaitOperation:
            self._follows = None
        if self.head is None:
            self.head = operation
            self.start(operation)
        else:
            self._queue.append(operation)

    def make_room(self) -> None:
        """Block the host until the device's launch queue has room."""
        if (launches := self.device.launches).num_outstanding >= launches.capacity:
            launches.wait_for_room(self)

    def start(self, operation: Operation) -> None:
        """Begin the operation at the head, unless others are before it in the hardware's queue."""
        if self.hardware_queue is not None and self.hardware_queue.first is not operation:
            return  # Its turn comes.
        engine = self.device.engine
        start_ps, now_ps = operation.issue_ps, engine.now_ps
        if engine.delays is not None and not operation.starts_in_order:
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
            assert launches.num_outstanding >= 0, "a launch ends once (D1)"
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
        """Fail an operation, and all operations that were issued after it."""
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
        tail = self._queue[-1] if self._queue else self.head
        if handle.complete or handle is tail:
            return
        awaited = handle.stream if isinstance(handle, Operation) else None
        if tail is None:
            self._follows = awaited
        elif self._follows is not awaited:
            self._follows = None
        elif (
            type(tail) is WaitOperation
            and awaited is not None
            and awaited.tail is handle
            and self.device.races is None
            and not self._has_turns()
            and tail.extend(handle)
        ):
            return  # Nothing was issued between the two waits.
        self.submit(WaitOperation(self, handle), cost_ps=0)

    def wait_event(self, event: Event) -> None:
        """Hold later operations until `event`, as last recorded, has happened."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Hold later operations until everything issued to `stream` so far has ended."""
        if self.device.races is not None:
            self.device.races.stream_waits_for_stream(self, stream)
        elif stream._follows is self and stream.head is not None and not self._has_turns():
            return  # What is under way there waits for what is under way here.
        tail: Handle | None = stream.tail
        if type(tail) is WaitOperation and stream.head is tail:
            tail = tail.target  # All that is left there is to wait for this.
        if tail is not None:
            self.wait_for(tail)

    def _has_turns(self) -> bool:
        """Whether more than the order of its operations decides when one begins."""
        return self.hardware_queue is not None or self.device.engine.delays is not None

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event here and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Return whether everything issued has ended; a negative answer is a charged poll (E8)."""
        what, races = f"query of stream '{self.name}'", self.device.races
        known = lambda: is_behind(races, self)  # noqa: E731 - as below
        done = limits.ask(self.device.engine, what, lambda: self.head is None, known, self)
        if done and races is not None:
            races.host_waits_for_stream(self)
        return done

    def synchronize(self) -> None:
        """Block the host until everything issued so far has ended."""
        if (tail := self.tail) is not None:
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
        stream = current_stream() if stream is None else stream
        self._mark = MarkOperation(stream, "event")
        stream.submit(self._mark, cost_ps=0)

    def wait(self, stream: Stream | None = None) -> None:
        """Hold later operations of a stream (default: the current one) until it has happened."""
        if self._mark is None:
            return  # As in CUDA: an event without a record blocks no stream.
        (current_stream() if stream is None else stream).wait_for(self._mark)

    def query(self) -> bool:
        """Return whether it has happened; a negative answer is a charged poll (E8)."""
        mark = self._mark
        if mark is None:
            return True
        device = mark.stream.device
        known = lambda: is_behind(device.races, mark)  # noqa: E731 - one line of many
        done = limits.ask(device.engine, "query of an event", lambda: mark.complete, known, mark)
        if done:
            mark.host_ordered()
        return done

    def synchronize(self) -> None:
        """Block the host until it has happened."""
        if self._mark is not None:
            self._mark.wait_on_host()

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
        elapsed_ps, delays = last.complete_ps - first.complete_ps, last.stream.device.engine.delays
        return elapsed_ps * (1 if delays is None else delays.clock_scale) / PS_PER_MS


# ---- The current device and stream of the running program ----


_KEY = "current_stream"
_NONE: Mapping[int, ProgramStreams] = {}


class ContextOfDevices(Protocol):
    """The part of a Context that this layer uses."""

    @property
    def devices(self) -> Sequence[Device]:
        """Return the devices of the cluster, by index."""


def devices_of(program: Program) -> Sequence[Device]:
    """Return the devices of a program's cluster."""
    return cast("ContextOfDevices", program.context).devices


def current_device(program: Program | None = None) -> Device:
    """Return the device that the running program uses by default."""
    program = program or require_program("current_device")
    return devices_of(program)[program.device_index]


def parse_device(device: Any) -> Device | None:  # noqa: ANN401 - torch's spellings
    """Return the device named by None (the current one), "cpu", "cuda", "cuda:3", 3 or itself.

    Raises:
        SimrankError: There is no such device.
    """
    if hasattr(device, "memory"):
        return cast("Device", device)
    if device in ("cpu", "cpu:0"):
        return None
    program = current_program() or require_program("a tensor factory")
    if device is None or device == "cuda":
        return current_device(program)
    if isinstance(device, str) and device.startswith("cuda:") and device[5:].isdigit():
        device = int(device[5:])
    if isinstance(device, int):
        devices = devices_of(program)
        if not 0 <= device < len(devices):
            raise SimrankError(f"device {device} does not exist: the cluster has {len(devices)}")
        return devices[device]
    raise UnsupportedError(f"device {device!r}: expected 'cpu', 'cuda', 'cuda:N' or N")


class ProgramStreams:
    """A program's streams on one device.

    Each program has its own, as each process has: one of them that ends takes only its own along.
    Unreferenced streams without operations in flight are dropped.

    Attributes:
        default: The default stream, as in CUDA.
    """

    def __init__(self, device: Device) -> None:
        self.default = Stream(device, "default", is_counted=False)
        self._queues = device.hardware_queues()
        if self._queues is not None:
            self.default.hardware_queue = self._queues.next()
        self._others: WeakValueDictionary[int, Stream] | None = None  # Most have none.
        self._num_made = 0

    def new(self, name: str | None, *, by_host: bool = False) -> Stream:
        """Return another stream; one of work that the host does shares nothing of the device."""
        stream = self.default.device.new_stream(name or f"stream {self._num_made + 1}")
        self.add(stream, by_host=by_host)
        return stream

    def add(self, stream: Stream, *, by_host: bool = False) -> int:
        """Count a stream as one of the program's; return its number."""
        self._num_made += 1
        if self._others is None:
            self._others = WeakValueDictionary()
        self._others[self._num_made] = stream
        stream.cuda_stream = self._num_made
        stream.is_by_host = by_host
        if self._queues is not None and not by_host:
            stream.hardware_queue = self._queues.next()
        return self._num_made

    def __iter__(self) -> Iterator[Stream]:
        """Yield the default stream, then the others in the order they were made."""
        yield self.default
        if self._others is not None:
            yield from [*self._others.values()]


def streams_of(device: Device, program: Program) -> ProgramStreams:
    """Return a program's streams on a device."""
    by_device: dict[int, ProgramStreams] = program.local.setdefault("streams", {})
    streams = by_device.get(device.index)
    if streams is None:
        streams = by_device[device.index] = ProgramStreams(device)
    return streams


def new_stream(device: Device, name: str | None = None, *, by_host: bool = False) -> Stream:
    """Return a new stream of the running program on a device, or of its host's work for it."""
    return streams_of(device, require_program("Stream")).new(name, by_host=by_host)


def current_stream(program: Program | None = None) -> Stream:
    """Return the running program's current stream: its device's default stream, unless set."""
    program = program or current_program() or require_program("current_stream")
    local = program.local
    chosen: Stream | None = local.get(_KEY)
    if chosen is not None:
        return chosen
    streams: ProgramStreams | None = local.get("streams", _NONE).get(program.device_index)
    return (streams or streams_of(current_device(program), program)).default


def stream_on(device: Device) -> Stream:
    """Return the stream that the running program's operations on `device` go to."""
    program = current_program() or require_program("an operation on a device")
    stream = current_stream(program)
    return stream if stream.device is device else streams_of(device, program).default


def synchronize(device: Device) -> None:
    """Block the host until everything the running program issued to a device has ended."""
    for stream in streams_of(device, require_program("synchronize")):
        stream.synchronize()


def drop_streams(program: Program) -> None:
    """Forget everything that a program has in flight: it was aborted."""
    for streams in program.local.get("streams", {}).values():
        for stream in streams:
            stream.drop()


def set_stream(program: Program, stream: Stream | None) -> None:
    """Make `stream` the current stream of a program, and its device the current one.

    None: the default stream of the current device.
    """
    program.local[_KEY] = stream
    if stream is not None:
        program.device_index = stream.device.index


@contextmanager
def use_stream(stream: Stream) -> Iterator[Stream]:
    """Make `stream` the current stream within the block, and its device the current one."""
    program = require_program("stream")
    before, device_index = program.local.get(_KEY), program.device_index
    set_stream(program, stream)
    try:
        yield stream
    finally:
        program.local[_KEY] = before
        program.device_index = device_index
