"""Operations: what streams run, one after the other; each takes effect at its end (rule D6)."""

from __future__ import annotations

from sys import _getframe
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.clocks import join
from simrank.engine import Activity, Handle
from simrank.engine.callsite import site_of_frame
from simrank.errors.travel import add_note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device.clocks import Clock
    from simrank.device.order import Turn
    from simrank.device.races import Touched
    from simrank.device.stream import Stream
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

    clock: Clock | None  # This and those below only where races are looked for.
    run: Clock | None  # What it is behind as things happen; see `order`.
    turn: Turn | None
    unseen: tuple[Operation, ...]
    details: dict[str, Any] | None
    rank: int | None
    __slots__ = (
        "_site", "_task", "clock", "details", "effect", "issue_ps", "name", "rank", "run",
        "start_ps", "stream", "touched", "turn", "unseen",
    )  # fmt: skip
    kind = "operation"
    is_launch = True
    is_implied = False
    orders_threads = False
    holds_memory = False  # Whether what it touches stays until somebody has waited for it.
    holds_queue = False  # Whether it holds its stream's hardware queue until it is over.
    tells_accesses = False  # Whether it tells race checks itself what it does to shared memory.
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
        self.clock = self.run = self.turn = self.details = None
        self.unseen = ()
        engine = stream.device.engine
        self._task = task = engine.current_task()
        self.rank = None if task is None else task.rank
        is_named = not self.is_implied or engine.delays is not None  # Delays are drawn per line.
        self._site = site_of_frame(_getframe(self.depth)) if is_named else None

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
        if self.start_ps >= 0 or head is None:
            return self
        if head is not self:
            return head.blocker()
        queue = self.stream.hardware_queue
        first = self if queue is None else queue.first
        return self if first is self or first is None else first.blocker()

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
                ended by anybody who is not told of the error.
        """
        add_note(error, f"simrank: raised by {self.name}, when it ran on the stream")
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
    holds_queue = True

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
