"""Races that a simulation hides: accesses to the same bytes that nothing orders (rule D5).

Every stream, and every rank's host, has a vector clock. Issuing an operation orders it behind the
host and behind its stream; an event, a wait for a Work or a synchronize orders more. Two accesses
to the same bytes, one of them a write, that are ordered by none of these are a race on real
hardware, for any simulated times. A host read counts as a copy on the current stream.

Accesses of different ranks are not compared here: each rank has its own tensors. Those to symmetric
memory, of streams and of programs of kernels, are compared by what happens (`order`, and
`kernels/races/happens_before.py`).

A kernel that waits for flags in memory may order itself behind other streams. It may be waiting for
its writes after the launch; and for what they wrote before it, if they then wrote integers
that the kernel may read (ADR 0016).
"""

from __future__ import annotations

import sys
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from numpy.lib.array_utils import byte_bounds

from simrank.device.clocks import ALL_DEVICES, Agent, OperationTurn, join
from simrank.engine import user_site
from simrank.errors import RaceAccess, RaceError
from simrank.ranks import HOST_CLOCK, current_program, require_program

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from simrank.device.clocks import Clock
    from simrank.device.device import Device
    from simrank.device.memory import Buffer, Storage, Touched
    from simrank.device.stream import Operation, Stream
    from simrank.engine import CallSite, Engine


Array = np.ndarray[Any, Any]
_MAX_WORK = 100_000  # assumed: numpy solves what programs slice in some hundred steps
_KEY = HOST_CLOCK
_new_tuple = tuple.__new__  # What a NamedTuple's constructor calls.
_SMALL_BYTES = 1 << 20  # Source: c10's CUDACachingAllocator, kSmallSize: smaller ones have a pool.
_MAX_ACCESSES = 64  # assumed: a storage with more unordered readers than this forgets the oldest


def _views(touched: Touched) -> Iterator[tuple[Storage, Array, bool]]:
    """Yield storage, view and whether it is written."""
    for buffers, is_write in ((touched.reads, False), (touched.writes, True)):
        for buffer in buffers:
            yield buffer.storage, buffer.array, is_write


class _Accessor(NamedTuple):
    """The actor of an access, in the words of reports."""

    name: str
    stream: str
    site: CallSite | None


class _Access(NamedTuple):
    """One access that a later one may race with; bytes count from the storage's beginning."""

    program: int
    agent: int
    step: int
    low: int
    high: int
    is_write: bool
    accessor: _Accessor
    view: Array
    waits: bool = False
    signals: Clock | None = None  # A write of integers: the clock that its readers acquire.
    waited: bool = False  # It is behind a kernel that waits, and so perhaps behind others.
    turn: OperationTurn | None = None
    holds: bool = False  # Its memory stays until it has been waited for.


class _InUse(NamedTuple):
    """An access to a block whose last reference died before anything was known to be behind it."""

    storage: Storage
    access: _Access
    freed: _Accessor


class _Step(NamedTuple):
    """An access in the order of its agent, on behalf of a program."""

    agent: Agent
    number: int
    program: int
    is_write: bool
    turn: OperationTurn | None = None
    holds: bool = False


def share_bytes(view: Array, other: Array) -> bool:
    """Return whether two views have a byte in common, strides included."""
    try:
        return np.shares_memory(view, other, max_work=_MAX_WORK)  # type: ignore[arg-type]  # Any int.
    except np.exceptions.TooHardError:
        return _share_marks(view, other)


def _share_marks(view: Array, other: Array) -> bool:
    """Return whether two views share bytes, by marks: exact for all strides."""
    low = min(byte_bounds(view)[0], byte_bounds(other)[0])
    marks = np.zeros(max(byte_bounds(view)[1], byte_bounds(other)[1]) - low, dtype=bool)
    marks_of = [_same_place(marks, low, each) for each in (view, other)]
    marks_of[0][...] = True
    return bool(marks_of[1].any())


def _same_place(marks: Array, low: int, view: Array) -> Array:
    """Return the marks of a view's bytes, shaped as it is, with an axis of bytes."""
    offset = view.__array_interface__["data"][0] - low
    shape, strides = (*view.shape, view.itemsize), (*view.strides, 1)
    return np.ndarray(shape, bool, marks, offset, strides)


class RaceChecker:
    """Finds races on the devices of one Context.

    Args:
        engine: Its engine.
        raises: Whether a race is raised where its second access is issued, or only collected.
        max_operations: Operations that are looked at; None: all.

    Attributes:
        races: The races so far, each pair of accesses once.
        proved: Those of them that do not rest on an assumption.
        on_stop: Called once no further operations are looked at.
        was_stopped: Whether they are not.
        order: What is behind what as things happen.
        conditions: What all hosts that wait for a condition are behind.
        local: What layers above keep of it, by name.
    """

    def __init__(self, engine: Engine, *, raises: bool, max_operations: int | None = None) -> None:
        self.races: list[RaceError] = []
        self.proved: list[RaceError] = []
        self.on_stop: list[Callable[[], None]] = []
        self.was_stopped = False
        self._num_left = max_operations
        self.order = RunOrder()
        self.conditions: Clock = {}
        self._engine = engine
        self.local: dict[str, Any] = {}
        self._raises = raises
        self._numbers = count(1)  # Of agents.
        self._waiting: dict[int, int] = {}  # By agent: the first step that was a waiting kernel.
        self._history: WeakKeyDictionary[object, list[_Access]] = WeakKeyDictionary()
        self._pairs: set[tuple[object, ...]] = set()
        self._in_use: dict[tuple[int, bool], list[_InUse]] = {}

    # ---- what orders ----

    def issued(self, operation: Operation) -> None:
        """Order an operation behind its host and its stream, and check what it touches.

        Raises:
            RaceError: It races, and races are errors.
        """
        if self._num_left is not None:
            self._num_left -= 1
            if self._num_left <= 0:
                self.stop()
                return
        stream = operation.stream
        agent, host = self._of_stream(stream), self._host()
        join(agent.clock, host.clock)
        step = agent.step()
        operation.clock = dict(agent.clock)
        self.order.issued(operation, agent, host)
        touched = operation.touched
        if touched is not None:
            accessor = _new_tuple(_Accessor, (operation.name, stream.name, operation.issued_at))
            waits, holds, turn = touched.waits_for_flags, operation.holds_memory, operation.turn
            looked_at = {storage for storage, _, _ in _views(touched)} if waits else None
            reads, writes = touched.reads, touched.writes
            for buffer in reads:
                for written in writes:
                    if written.array is buffer.array:
                        break  # What races with the read races with the write.
                else:
                    each = _new_tuple(_Step, (agent, step, host.number, False, turn, holds))
                    self._check(buffer.storage, buffer.array, each, accessor, looked_at)
            for buffer in writes:
                each = _new_tuple(_Step, (agent, step, host.number, True, turn, holds))
                self._check(buffer.storage, buffer.array, each, accessor, looked_at)
            if waits:
                self._waiting.setdefault(agent.number, step)

    def stop(self) -> None:
        """Look at no further operations."""
        self.was_stopped = True
        for notify in self.on_stop:
            notify()

    @property
    def is_limited(self) -> bool:
        """Whether only the first operations are looked at, and no kernels."""
        return self._num_left is not None

    def began(self, operation: Operation) -> None:
        """Note that an operation begins; a race is raised in its rank."""
        try:
            self.order.began(operation, self._of_stream(operation.stream))
        except RaceError as error:
            operation.raise_in_rank(error)

    def ended(self, operation: Operation) -> None:
        """Note that an operation ends."""
        self.order.ended(operation, self._of_stream(operation.stream))

    def stream_waits(self, stream: Stream, operation: Operation) -> None:
        """Order what a stream does from now on behind an operation (an event, a Work)."""
        agent = self._of_stream(stream)
        join(agent.clock, operation.clock or {})
        if operation.complete:
            join(agent.next, operation.run or {})

    def stream_waits_for_stream(self, stream: Stream, other: Stream) -> None:
        """Order what a stream does from now on behind all that another was given."""
        agent, waited_for = self._of_stream(stream), self._of_stream(other)
        join(agent.clock, waited_for.clock)
        join(agent.next, waited_for.run)

    def host_waits(self, operation: Operation) -> None:
        """Order what the running program does from now on behind an operation."""
        host = self._host()
        join(host.clock, operation.clock or {})
        join(host.run, operation.run or {})

    def host_waits_for_stream(self, stream: Stream) -> None:
        """Order what the running program does from now on behind all that a stream was given."""
        host, agent = self._host(), self._of_stream(stream)
        join(host.clock, agent.clock)
        join(host.run, agent.run)

    def host_reads(self, buffer: Buffer, stream: Stream) -> None:
        """Check a host read: on hardware it is a copy on the current stream that is waited for.

        Raises:
            RaceError: Something that the stream is not ordered behind still writes the buffer.
        """
        agent, host = self._of_stream(stream), self._host()
        join(agent.clock, host.clock)
        accessor = _Accessor("host read", stream.name, user_site())
        step = _Step(agent, agent.step(), host.number, is_write=False)
        self._check(buffer.storage, buffer.array, step, accessor)
        join(host.clock, agent.clock)
        if buffer.storage.history_key in self.order.shared and self.order.listener is not None:
            join(agent.run, host.run)
            agent.run[agent.key] = agent.run.get(agent.key, 0) + 1
            self.order.listener.host_reads(buffer, stream, dict(agent.run))
        join(host.run, agent.run)
        if stream.tail is not None:  # It waits for all of its stream, which goes on meanwhile.
            host.unseen[stream] = stream.tail

    def host_touches(self, buffer: Buffer, *, is_write: bool) -> None:
        """Check that the host may read or write host memory: nothing in flight uses it.

        The host's own accesses are not recorded: its later operations are ordered behind them.

        Raises:
            RaceError: An operation that the host has not waited for writes it, or reads what is
                written over.
        """
        history = self._history.get(buffer.storage.history_key)
        if not history:
            return
        host, (low, high) = self._host(), buffer.storage.bounds(buffer.array)
        accessor = _Accessor("host write" if is_write else "host read", "host", user_site())
        own = _Access(host.number, host.number, 0, low, high, is_write, accessor, buffer.array)
        for other in list(history):
            is_ordered = host.clock.get(other.agent, 0) >= other.step
            if is_ordered or other.program != host.number or not (is_write or other.is_write):
                continue
            if share_bytes(buffer.array, other.view):
                self._report(buffer.storage, other, own)

    def is_behind(self, ended: Operation | Stream) -> bool:
        """Return whether the running program comes after the end of an operation, or stream."""
        stream: Any = getattr(ended, "stream", ended)
        over: Any = ended
        is_over = over.head is None if stream is ended else over.complete
        agent = self._of_stream(stream)
        clock = getattr(ended, "clock", None) or agent.clock
        return is_over and self._host().clock.get(agent.number, 0) >= clock.get(agent.number, 0)

    def meet(self, clock: Clock) -> None:
        """Add the running program's clock to the clock of a meeting."""
        join(clock, self._host().run)

    def met(self, clock: Clock) -> None:
        """Add the clock of a meeting to the running program's."""
        join(self._host().run, clock)

    # ---- blocks of an allocator (D7) ----

    def freed(self, storage: Storage, stream: Stream, recorded: Iterable[Stream]) -> None:
        """Note that the last reference to a block has died, which belongs to a stream.

        The next allocation of that stream may get it, and must come behind what other
        streams do to it. Of memory that ranks share their own accesses are compared elsewhere.

        Args:
            storage: The block.
            stream: Whose it is.
            recorded: Streams whose use of it was recorded: the block waits for them.
        """
        if storage.history_key in self.order.shared:
            self._history.pop(storage.history_key, None)
            return
        own = self._of_stream(stream)
        known = {own.number, *(self._of_stream(other).number for other in recorded)}
        site = user_site()
        pool = own.number, storage.size_bytes <= _SMALL_BYTES
        for access in self._history.pop(storage.history_key, ()):
            if access.agent not in known and not access.holds:
                freed = _Accessor("the last reference", stream.name, site)
                self._in_use.setdefault(pool, []).append(_InUse(storage, access, freed))

    def allocated(self, stream: Stream, size_bytes: int) -> None:
        """Check that a stream which takes memory is behind what others do to what it gave back.

        Raises:
            RaceError: It is not, and races are errors.
        """
        own = self._of_stream(stream)
        left = self._in_use.pop((own.number, size_bytes <= _SMALL_BYTES), ())
        if not left:
            return
        host = self._host()
        for storage, access, freed in left:
            step = max(own.clock.get(access.agent, 0), host.clock.get(access.agent, 0))
            if step < access.step:
                self._report_freed(storage, access, freed)

    def _report_freed(self, storage: Storage, access: _Access, freed: _Accessor) -> None:
        used = access.accessor
        file, line = (None, None) if freed.site is None else freed.site.line()
        made = storage.site()
        error = RaceError(
            self._engine.now_ps,
            require_program("a race check").rank,
            _as_fact(access),
            RaceAccess(freed.name, "dies", freed.stream, file, line),
            None if made is None else str(made.line()),
            what=f"memory of {{whose}} is given out again while stream '{used.stream}' uses it",
            cure=f"tensor.record_stream() with stream '{used.stream}', or let stream "
            f"'{freed.stream}' wait for it before it allocates",
        )
        self.note(error, (used.name, used.site, freed.name, freed.site))

    def _of_stream(self, stream: Stream) -> Agent:
        if stream.race_agent is None:
            stream.race_agent = Agent(next(self._numbers))
        return stream.race_agent

    def _host(self) -> Agent:
        program = current_program() or require_program("a race check")
        agent: Agent | None = program.local.get(_KEY)
        if agent is None:
            agent = program.local[_KEY] = Agent(next(self._numbers))
            above = None if program.parent is None else program.parent.local.get(_KEY)
            if above is not None:
                agent.run = dict(above.run)
        return agent

    # ---- what conflicts ----

    def _check(
        self,
        storage: Storage,
        view: Array,
        step: _Step,
        accessor: _Accessor,
        looked_at: set[Storage] | None = None,
    ) -> None:
        """Compare an access with those before it; `looked_at` is where a waiting kernel may look.

        Raises:
            RaceError: It races, and races are errors.
        """
        agent, number, program, is_write, turn, holds = step
        low, high = storage.bounds(view)
        signals = dict(agent.clock) if is_write and view.dtype.kind in "iu" else None
        waits = looked_at is not None
        has_waited = bool(self._waiting) and self._has_waited(agent)
        access = _new_tuple(_Access, (
            program, agent.number, number, low, high, is_write, accessor, view, waits, signals,
            has_waited, turn, holds,
        ))  # fmt: skip
        history = self._history.setdefault(storage.history_key, [])
        kept: list[_Access] = []
        clock, is_dense = agent.clock, view.flags.c_contiguous
        for other in history:
            if clock.get(other.agent, 0) >= other.step or other.program != program:
                covered = is_dense and low <= other.low and other.high <= high
                # What is ordered before a write that covers it can race with nothing new.
                if covered and (is_write or not other.is_write):
                    continue
            elif (
                (is_write or other.is_write)
                and other.low < high
                and low < other.high
                and share_bytes(view, other.view)
                and not (other.waits and is_write)
                and not self._is_signalled(other, looked_at or ())
            ):
                found = self._doubt if has_waited or other.waited else self._report
                found(storage, other, access)
            kept.append(other)
        del kept[:-_MAX_ACCESSES]
        kept.append(access)
        history[:] = kept

    def _has_waited(self, agent: Agent) -> bool:
        """Return whether what an agent does is behind a kernel that waits for flags."""
        return any(agent.clock.get(n, 0) >= step for n, step in self._waiting.items())

    def _doubt(self, storage: Storage, first: _Access, second: _Access) -> None:
        """Defer the comparison of two accesses: a kernel may have waited for one of them."""
        if first.turn is not None and second.turn is not None:
            doubt = Doubt(storage.history_key, first.turn, second.turn)
            self.order.doubt(doubt, lambda: self._report(storage, first, second))

    def _is_signalled(self, other: _Access, looked_at: Iterable[Storage]) -> bool:
        """Whether integers were written behind an access, where a kernel may look at them."""
        flags = (
            flag for storage in looked_at for flag in self._history.get(storage.history_key, ())
        )
        return any(
            flag.signals and flag.signals.get(other.agent, 0) >= other.step for flag in flags
        )

    @property
    def now_ps(self) -> int:
        """Simulated time in picoseconds."""
        return self._engine.now_ps

    def note(self, error: RaceError, pair: tuple[object, ...], *, is_proved: bool = True) -> None:
        """Keep a race, or raise it; once for each pair of accesses.

        Raises:
            RaceError: Races are errors, and this one is proved.
        """
        if pair in self._pairs:
            return
        self._pairs.add(pair)
        self.races.append(error)
        if is_proved:
            self.proved.append(error)
        if self._raises and is_proved:
            raise error

    def _report(self, storage: Storage, first: _Access, second: _Access) -> None:
        pair = (
            first.accessor.name,
            first.accessor.site,
            second.accessor.name,
            second.accessor.site,
        )
        program = require_program("a race check")
        made = storage.site()
        error = RaceError(
            self._engine.now_ps,
            program.rank,
            _as_fact(first),
            _as_fact(second),
            None if made is None else str(made.line()),
        )
        self.note(error, pair)


def checker_of(device: Device) -> RaceChecker | None:
    """Return the race checker of a device's Context; None where races are not looked for."""
    return cast("RaceChecker | None", device.races)


def _as_fact(access: _Access) -> RaceAccess:
    file, line = (None, None) if access.accessor.site is None else access.accessor.site.line()
    verb = "writes" if access.is_write else "reads"
    return RaceAccess(access.accessor.name, verb, access.accessor.stream, file, line)


# ---- Order of events across ranks, as they happen ----
# An operation is behind what its host knew when it was issued, behind its stream, and behind
# what its stream waits for. Members of a collective are behind each other, a receiver is
# behind its sender, a waiter is behind the signal's sender, and hosts are behind each other
# where they meet. That something ended earlier in simulated time orders nothing: on another day
# it is late.
#
# Accesses to memory that ranks share are compared by these clocks; see `SharedAccesses`.

_MAX_PUTS = 8  # assumed: the last operations that wrote integers, which may be read
_ROOT_GIVES = ("broadcast", "scatter")
_ROOT_TAKES = ("reduce", "gather")


class SharedAccesses(Protocol):
    """Compares accesses to memory that ranks share."""

    def began(self, operation: Operation, doubted: Collection[Storage]) -> None:
        """Compare what an operation touches with what others have touched.

        Args:
            operation: It begins.
            doubted: Memory that no other rank reaches, but that is to be looked at.
        """

    def ended(self, operation: Operation) -> None:
        """Note that an operation has ended."""

    def met(self, operation: Operation, reads: Sequence[Buffer], writes: Sequence[Buffer]) -> None:
        """Check an operation's accesses after it has synchronized with other ranks.

        Args:
            operation: It runs.
            reads: What it reads of memory that ranks share.
            writes: What it writes there.
        """

    def host_reads(self, buffer: Buffer, stream: Stream, run: Clock) -> None:
        """Check a host read: a copy on a stream.

        Args:
            buffer: The memory.
            stream: The current one.
            run: What the copy is behind, itself included.
        """

    def flagged(self, storage: Storage, first: int) -> None:
        """Note that a stream has set a flag, or set it back."""


class _Put(NamedTuple):
    """Integers that an operation wrote; a reader of them is ordered behind it."""

    low: int
    high: int
    clock: Clock


class Doubt(NamedTuple):
    """Two operations of one rank that only a kernel that waits may have ordered."""

    storage: Storage
    first: OperationTurn
    second: OperationTurn


class RunOrder:
    """The clocks of what happens in one Context.

    Attributes:
        shared: Memory that several ranks reach.
        flags: What was handed to each flag, by storage, byte and the device that sees it.
        listener: The part that compares accesses, or None.
        is_active: Whether anything is kept: some memory is shared, or there may be kernels. What
            was issued before is in front of all.
    """

    def __init__(self) -> None:
        self.shared: WeakSet[Storage] = WeakSet()
        self.flags: WeakKeyDictionary[Storage, dict[int, dict[int, Clock]]] = WeakKeyDictionary()
        self.listener: SharedAccesses | None = None
        self.is_active = False
        self._puts: WeakKeyDictionary[Storage, list[_Put]] = WeakKeyDictionary()
        self._doubts: WeakKeyDictionary[OperationTurn, list[tuple[Doubt, Callable[[], None]]]] = (
            WeakKeyDictionary()
        )

    def share(self, storage: Storage) -> None:
        """Look at accesses to some memory from now on: other ranks will reach it."""
        self.is_active = True
        self.shared.add(storage.history_key)

    # ---- operations ----

    def issued(self, operation: Operation, stream: Agent, host: Agent) -> None:
        """Note what a new operation is behind, once ranks may share memory."""
        if not self.is_active:
            self.is_active = "triton" in sys.modules  # Its kernels reach any memory.
            if not self.is_active:
                return
        for key, other in list(host.unseen.items()):
            if other.complete:
                join(host.run, other.run or {})
                del host.unseen[key]
        operation.run = dict(host.run)
        operation.turn = OperationTurn(stream.key, tells_accesses=operation.tells_accesses)
        join(operation.run, stream.next)
        stream.next = {}
        operation.unseen = tuple(host.unseen.values())

    def began(self, operation: Operation, stream: Agent) -> None:
        """Add the clock of its stream to an operation that begins."""
        if operation.run is None:
            return  # Issued before anybody looked.
        unseen, operation.unseen = operation.unseen, ()
        for other in unseen:
            join(operation.run, other.run or {})
        join(operation.run, stream.run)
        operation.run[stream.key] = stream.run.get(stream.key, 0) + 1
        if operation.turn is not None:
            operation.turn.step = operation.run[stream.key]
        stream.run = dict(operation.run)
        if all(other.complete for other in unseen):
            doubted = self._decide(operation)
            if self.listener is not None:
                self.listener.began(operation, doubted)

    def ended(self, operation: Operation, stream: Agent) -> None:
        """Add the clock of an operation that ended to its stream."""
        if operation.run is None:
            return
        join(stream.run, operation.run)
        for buffer in () if operation.touched is None else operation.touched.writes:
            if buffer.storage.device is not None and buffer.array.dtype.kind in "iu":
                low, high = buffer.storage.bounds(buffer.array)
                puts = self._puts.setdefault(buffer.storage.history_key, [])
                puts.append(_Put(low, high, dict(operation.run)))
                del puts[:-_MAX_PUTS]
        if self.listener is not None:
            self.listener.ended(operation)

    # ---- doubts ----

    def doubt(self, doubt: Doubt, report: Callable[[], None]) -> None:
        """Compare two operations as the later one begins; `report` if nothing orders them."""
        for turn in (doubt.first, doubt.second):
            self._doubts.setdefault(turn, []).append((doubt, report))

    def _decide(self, operation: Operation) -> set[Storage]:
        """Compare an operation that begins with others that have.

        Returns:
            Memory whose accesses the programs of kernels record themselves.
        """
        result: set[Storage] = set()
        turn = operation.turn
        if turn is None or operation.run is None:
            return result
        for doubt, report in self._doubts.pop(turn, ()):
            other = doubt.first if turn is doubt.second else doubt.second
            if not other.step or turn.tells_accesses:
                continue  # The other one decides; or its programs do.
            if other.tells_accesses:
                result.add(doubt.storage)
            elif operation.run.get(other.stream, 0) < other.step:
                report()
        return result

    # ---- ranks ----

    def gather(
        self, ending: Iterable[Operation], arrived: Iterable[Operation], op: str, root: object
    ) -> None:
        """Add the clocks of the members that each member of a collective depends on.

        Args:
            ending: The members' parts that end.
            arrived: The operations that have begun, of all ranks.
            op: What the collective is called.
            root: The part of its root, or None.
        """
        together: Clock = {}
        for part in arrived:
            if op not in _ROOT_GIVES or part is root:
                join(together, part.run or {})
        for operation in ending:
            if op in _ROOT_GIVES:
                join(operation.run or {}, together)
            elif op not in _ROOT_TAKES or operation is root:
                operation.run = together  # Its own is among them.

    def give(self, storage: Storage, first: int, clock: Clock | None) -> None:
        """Hand a clock to a flag that all devices see."""
        storage = storage.history_key
        by_scope = self.flags.setdefault(storage, {}).setdefault(first, {})
        join(by_scope.setdefault(ALL_DEVICES, {}), clock or {})
        if self.listener is not None:
            self.listener.flagged(storage, first)

    def take(self, storage: Storage, first: int, clock: Clock | None) -> None:
        """Take over what a flag carries."""
        storage = storage.history_key
        given = self.flags.get(storage, {}).get(first, {}).get(ALL_DEVICES, {})
        join({} if clock is None else clock, given)
        if self.listener is not None:
            self.listener.flagged(storage, first)
        self.take_put(storage, first, {} if clock is None else clock)

    def take_put(self, storage: Storage, first: int, clock: Clock) -> None:
        """Take over what operations have that wrote a byte."""
        for low, high, given in self._puts.get(storage, ()):
            if low <= first < high:
                join(clock, given)
