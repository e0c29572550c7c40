"""Point-to-point: sends and receives matched in order, their bytes on the links.

With nccl a call is matched when it is issued: in order per pair, batches apart from single calls
(they use other communicators), tags ignored. With gloo a call is matched when it starts, by tag,
and a receive from any source takes the message that came first.
"""

from __future__ import annotations

import itertools
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.device import Accesses, Operation
from simrank.device.clocks import join
from simrank.device.memory import give_values
from simrank.distributed.arrivals import LastArrivals
from simrank.distributed.backends import NCCL
from simrank.distributed.findings import mismatch
from simrank.distributed.mismatched_calls import MadeCall, same_device
from simrank.errors import (
    CollectiveMismatchError,
    FoldingError,
    PeerDiedError,
    RankInactiveError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.device import Buffer, Stream
    from simrank.device.clocks import Clock
    from simrank.distributed.group import ProcessGroup
    from simrank.engine import CallSite

Array = np.ndarray[Any, Any]
_MAX_NAMED = 4
_numbers = itertools.count()


class Envelope(NamedTuple):
    """The facts on which the two ends of a message must agree.

    Attributes:
        src: Group rank of the sender; None: any.
        dst: Group rank of the receiver.
        tag: 0 where the backend has no tags.
        batched: Whether it belongs to a batch, where those have a communicator of their own.
    """

    src: int | None
    dst: int
    tag: int = 0
    batched: bool = False


class End:
    """One end of a message: a send or a receive.

    Attributes:
        operation: What it is part of.
        route: Where the message goes.
        is_send: Which end.
        tensor: What is sent, or filled.
        message: What it is an end of, once it is posted.
        arrived: Values that came, until the operation ends.
        done: Whether its part is over.
        number: Of the calls in their order.
    """

    __slots__ = ("arrived", "done", "is_send", "message", "number", "operation", "route", "tensor")

    def __init__(self, route: Envelope, tensor: Buffer, *, is_send: bool) -> None:
        self.route = route
        self.tensor = tensor
        self.is_send = is_send
        self.operation: PeerOperation | None = None
        self.message: Message | None = None
        self.arrived: Array | None = None
        self.done = False
        self.number = next(_numbers)

    def describe(self, ranks: Sequence[int]) -> str:
        """Return `send to rank 3`."""
        peer = self.route.dst if self.is_send else self.route.src
        who = "any rank" if peer is None else f"rank {ranks[peer]}"
        tag = f" with tag {self.route.tag}" if self.route.tag else ""
        return f"{'send to' if self.is_send else 'recv from'} {who}{tag}"

    @property
    def peer(self) -> int | None:
        """Return the group rank at the other end, or None if any will do."""
        return self.route.dst if self.is_send else self.route.src

    def needs(self, group_rank: int) -> bool:
        """Return whether this end can only complete with a member's help."""
        if self.done or self.peer != group_rank:
            return False
        return self.message is None or not self.message.has_left(to_buffer=not self.is_send)

    def live_message(self) -> Message:
        """Return the message, which a posted end has."""
        assert self.message is not None, "it is posted"
        return self.message

    def live(self) -> PeerOperation:
        """Return the operation, which an end under way has."""
        assert self.operation is not None, "issued ends belong to an operation"
        return self.operation


def calls_text(ends: Sequence[End], ranks: Sequence[int]) -> str:
    """Return `send to rank 3`, or the calls of a batch."""
    if len(ends) > _MAX_NAMED:
        return f"batch of {len(ends)} sends and recvs"
    texts = [end.describe(ranks) for end in ends]
    return texts[0] if len(ends) == 1 else f"batch of {len(ends)} ({', '.join(texts)})"


class PeerOperation(Operation):
    """One call: a send, a receive, or a batch of them, which starts and ends as one.

    Attributes:
        group: The group.
        boxes: Where its messages are matched.
        ends: What it consists of.
        is_on_host: Whether the host runs it, and waits for it (gloo).
        source_rank: Group rank that a single receive got its message from; None before.
        ready_ps: When the last of its messages left.
    """

    __slots__ = (
        "_last_peer", "_num_left", "boxes", "ends", "group", "is_launch", "is_on_host", "ready_ps",
        "source_rank",
    )  # fmt: skip
    kind = "collective"
    orders_threads = True  # The peer may have heard of the calls of another thread.
    holds_memory = True
    is_collective = False

    def __init__(
        self, stream: Stream, boxes: Mailboxes, ends: Sequence[End], rank: int, name: str
    ) -> None:
        sent: list[Buffer] = []
        filled: list[Buffer] = []
        size_bytes = 0
        for end in ends:
            (sent if end.is_send else filled).append(end.tensor)
            size_bytes += end.tensor.nbytes
            end.operation = self
        super().__init__(stream, name, None, Accesses(sent, filled))
        self.group = boxes.group
        self.boxes = boxes
        self.is_on_host = not boxes.posts_early
        self.is_launch = boxes.posts_early
        self.rank = rank
        self.ends = ends
        self.source_rank: int | None = None
        self.details = {"bytes": size_bytes}
        self._num_left = len(ends)
        self.ready_ps = 0
        self._last_peer = LastArrivals((), ())

    @property
    def completes_by_wait(self) -> bool:  # type: ignore[override]
        """Whether polls say so only once it was waited for, as with gloo."""
        return self.is_on_host

    @property
    def starts_in_order(self) -> bool:  # type: ignore[override]
        """Whether it is posted as it is issued: gloo keeps the order of a pair's messages."""
        return self.is_on_host

    def last_arrivals(self) -> LastArrivals:
        """Return the peer that let the last of its messages leave."""
        return self._last_peer

    def message_left(self, end: End, other: End | None) -> None:
        """Note that a message has left, and its other end, if that was posted."""
        peer = None if other is None else other.live()
        self.ready_ps = self.stream.device.engine.now_ps
        ranks = () if end.peer is None else (int(self.group.ranks[end.peer]),)
        site = None if peer is None else peer.issued_at
        self._last_peer = LastArrivals(ranks, () if site is None else (site,))

    def begin(self) -> None:
        """Become ready for the other ends."""
        if self.boxes.answers_itself:
            for end in self.ends:
                self.end_done(end)
            return
        for end in self.ends:
            if not self.boxes.posts_early:
                try:
                    self.boxes.post(end)
                except CollectiveMismatchError as error:
                    self.raise_in_rank(error)
                    return
        for end in self.ends:
            if end.message is not None:
                end.message.ready(end)

    def fail(self, error: BaseException) -> None:
        """Fail, and leave the mailboxes and the report of what is pending."""
        for end in self.ends:
            self.boxes.withdraw(end)
        self.ends = ()
        self.stream.device.engine.pending.pop(self, None)
        super().fail(error)
        if not isinstance(error, PeerDiedError | RankInactiveError):
            self.group.lose(self.rank, error)

    def end_done(self, end: End) -> None:
        """Note that one end is over; the last one ends the call."""
        end.done = True
        self._num_left -= 1
        if not self._num_left:
            self.end()

    def end(self) -> None:
        """Write what came, and leave the report of what is pending."""
        for end in self.ends:
            if not end.is_send:
                self.source_rank = end.route.src
                give_values(end.tensor, end.arrived)
        self.ends = ()  # They refer back: let reference counts free them.
        self.stream.device.engine.pending.pop(self, None)
        super().end()

    def pending_ranks(self) -> Iterator[tuple[int, str, CallSite | None]]:
        """Yield this call, for the deadlock report."""
        if self.rank is not None:
            yield self.rank, self.name, self.issued_at

    def awaited_ranks(self) -> Iterator[int]:
        """Yield the peers whose end is missing or not ready, if it has begun itself."""
        for end in self.ends if self.start_ps >= 0 else ():
            if not end.done and end.peer is not None:
                yield int(self.group.ranks[end.peer])

    def absent_ranks(self) -> Iterator[tuple[int, str]]:
        """Yield the peers that have not called, for the deadlock report."""
        for end in self.ends:
            peer = end.route.dst if end.is_send else end.route.src
            alone = end.message is None or len(end.message.ends) == 1
            if not end.done and alone and peer is not None:
                verb = "a recv from" if end.is_send else "a send to"
                yield int(self.group.ranks[peer]), f"{verb} rank {self.rank}"


class Message:
    """One send and the receive it belongs to.

    With nccl a message is eager while the protocol's buffer has room for it, beside those that are
    not received yet: it leaves when its sender is ready and waits there. One that is larger than
    the buffer, and every one of gloo's, starts when both ends are ready.
    """

    __slots__ = (
        "__weakref__", "_arrived", "_boxes", "_group", "_has_receiver", "_has_sender", "_in_buffer",
        "_order", "_started", "ends",
    )  # fmt: skip

    def __init__(self, boxes: Mailboxes) -> None:
        self._boxes = boxes
        self._group = boxes.group
        self.ends: dict[bool, End] = {}
        self._has_sender = self._has_receiver = False  # Whether their streams have reached it.
        self._started = False
        self._arrived: Array | None = None
        self._in_buffer = False
        self._order: Clock | None = None  # What the sender was behind, for race checks.

    def ready(self, end: End) -> None:
        """Note that an end's stream has reached it."""
        if end.is_send:
            self._has_sender = True
        else:
            self._has_receiver = True
        if self._in_buffer:
            self._deliver()
        elif not self._started and self._has_sender:
            send = self.ends[True]
            if self._has_receiver:
                self._start(send)
                self._give_room()
            else:
                self._go_on(self._boxes.early.admit(self._pair(), self, send.tensor.nbytes))

    def _pair(self) -> Pair:
        """Return whose buffer it may wait in."""
        route = self.ends[True].route
        assert route.src is not None, "a sender knows itself"
        return Pair(route.src, route.dst, route.batched)

    def _give_room(self) -> None:
        """Start buffered messages that find room, now that one was received."""
        early = self._boxes.early
        if not early.is_empty:
            self._go_on(early.drop(self._pair(), self))

    @staticmethod
    def _go_on(messages: Sequence[Message]) -> None:
        for message in messages:
            message._start(message.ends[True])  # noqa: SLF001 - of this class

    def has_left(self, *, to_buffer: bool) -> bool:
        """Return whether it is on its way, or even in the receiver's buffer."""
        return self._in_buffer if to_buffer else self._started

    def _start(self, send: End) -> None:
        self._started = True
        for is_send, end in self.ends.items():
            end.live().message_left(end, self.ends.get(not is_send))
        group = self._group
        network, size_bytes = group.world.network, send.tensor.nbytes
        src, dst = self._device(is_sender=True), self._device(is_sender=False)
        level = self._boxes.level
        # Without a batch, a pair has a communicator of its own.
        num_members = group.size() if send.route.batched else 2
        pace = None if level is None else level.message((src, dst), size_bytes, num_members)
        if pace is not None:
            network.transfer(src, dst, size_bytes, self._sent, pace)
            return

        def leave() -> None:
            network.transfer(src, dst, size_bytes, self._sent)

        launch_ps = group.world.cluster.collectives.launch_latency_ps
        group.engine.call_at(group.engine.now_ps + launch_ps, leave)

    def _device(self, *, is_sender: bool) -> int:
        """Return the device of an end, or of a receiver that is not known yet."""
        end = self.ends.get(is_sender)
        if end is not None and end.tensor.cuda_device is not None:
            return end.tensor.cuda_device.index
        route = self.ends[True].route
        member = route.src if is_sender else route.dst
        assert member is not None, "a sender knows itself"
        return int(self._group.devices[member])

    def _sent(self) -> None:
        send = self.ends[True]
        operation = send.operation
        if operation is None or operation.stream.head is not operation:
            return  # Aborted meanwhile.
        if send.tensor.storage.knows(send.tensor.array):
            self._arrived = send.tensor.array.reshape(-1).copy()
        self._in_buffer = True
        self._order = operation.run
        if False not in self.ends:
            leaks = self._group.world.comm_library.leaks
            route, ranks = send.route, self._group.ranks
            leaks.buffered(self, operation.name, operation.issued_at, _ends(route, ranks))
        with self._group.engine.one_wakeup():
            operation.end_done(send)
            self._deliver()

    def _deliver(self) -> None:
        receive = self.ends.get(False)
        if receive is None or not self._has_receiver or receive.done:
            return
        operation = receive.operation
        if operation is None or operation.stream.head is not operation:
            return
        receive.arrived = self._arrived
        self._group.world.comm_library.leaks.received(self)
        join(operation.run or {}, self._order or {})
        self._give_room()
        self.ends = {}  # They refer back: let reference counts free them.
        operation.end_done(receive)


class Mailboxes:
    """The messages of a group on one backend under way.

    Attributes:
        group: The group.
        posts_early: Whether calls are matched when they are issued.
        early: Messages that leave without their receivers.
        level: What NCCL makes of a message; None: another library sends them, as links let it.
        answers_itself: Whether the one rank that runs represents the other ends, too.
    """

    def __init__(self, group: ProcessGroup, backend: str) -> None:
        self.group = group
        self.posts_early = backend == NCCL
        costs = group.world.cluster.collectives
        is_eager = self.posts_early and group.world.comm_library.buffers_sends
        self.level = group.world.comm_library.chooser.nccl if self.posts_early else None
        folding = group.world.folding
        self.answers_itself = folding is not None and folding.answers_messages
        self.early = EarlyMessages(costs.buffer_bytes * costs.num_channels if is_eager else -1)
        self._waiting: dict[tuple[Envelope, bool], deque[End]] = {}
        self._any: dict[tuple[int, int], deque[End]] = {}
        self._num: dict[tuple[Envelope, bool], int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no send or receive waits for its other end."""
        return not any(self._waiting.values()) and not any(self._any.values())

    def issue(self, operation: PeerOperation) -> None:
        """Enter a call that is about to be given to its stream.

        Raises:
            CollectiveMismatchError: The other end has another dtype or element count.
        """
        if self.group.roster is not None:
            self.group.roster.check(operation)
        for end in operation.ends if self.group.dead else ():
            if (peer := end.peer) is not None:
                self.group.check_alive(operation.name, peer, self.group.group_rank(operation.rank))
        if self.group.represented and not self.answers_itself:
            self._check_run(operation)
        if self.posts_early and not self.answers_itself:
            for end in operation.ends:
                self.post(end)
        if (choices := self.group.engine.choices) is not None:
            choices.called(operation)
        self.group.engine.pending[operation] = None

    def _check_run(self, operation: PeerOperation) -> None:
        """Check that the peers of a call run.

        Raises:
            FoldingError: One does not.
        """
        folding, ranks = self.group.world.folding, self.group.ranks
        for end in operation.ends:
            peer = None if end.peer is None else int(ranks[end.peer])
            if folding is not None and peer is not None and not folding.runs(peer):
                raise FoldingError(
                    f"{end.describe(ranks)} of rank {operation.rank}: rank {peer} does not run, "
                    f"rank {folding.representative(peer)} is its representative\n"
                    "  to fix: leave the axis unfolded along which messages go"
                )

    def lose(self, group_rank: int, peer: int, error: BaseException) -> None:
        """Fail every call that needs a member that has died.

        Args:
            group_rank: The member.
            peer: Its global rank.
            error: What it raised.
        """
        engine = self.group.engine
        for operation in self.pending():
            if operation.rank == peer:
                engine.pending.pop(operation, None)
            elif any(end.needs(group_rank) for end in operation.ends):
                shown = self.group.world.shown(peer)
                own = PeerDiedError(engine.now_ps, operation.name, shown, error)
                operation.stream.fail(operation, own)

    def post(self, end: End) -> None:
        """Match an end with the oldest unmatched end of the other kind, or let it wait.

        Raises:
            CollectiveMismatchError: The two differ in dtype or element count.
            DistBackendError: Both lie on the same device, which NCCL refuses.
        """
        choices = self.group.engine.choices
        other = self._find(end) if choices is None else self._find_for_choice(end)
        if other is None:
            self._let_wait(end)
            if choices is not None and end.route.src is None:
                choices.receive(end.live(), partial(self._sources, end), partial(self._take, end))
            return
        self._match(end, other)

    def _let_wait(self, end: End) -> None:
        end.message = Message(self)
        end.message.ends[end.is_send] = end
        if end.route.src is None:
            self._any.setdefault((end.route.dst, end.route.tag), deque()).append(end)
        else:
            self._waiting.setdefault((end.route, end.is_send), deque()).append(end)

    def _match(self, end: End, other: End) -> None:
        for one, peer in ((end, other), (other, end)):
            if one.route.src is None:
                one.route = one.route._replace(src=peer.route.src)
                if (delays := self.group.engine.delays) is not None:
                    key = id(self), one.route.dst, one.route.tag
                    delays.orders.note("messages", key, peer.route.src, self)
        kind = end.route, end.is_send
        number = self._num[kind] = self._num.get(kind, 0) + 1
        self._check(end, other, number)
        message = other.message
        assert message is not None, "it waits"
        message.ends[end.is_send] = end
        end.message = message

    # ---- receives from any source whose source is a choice ----

    def _find_for_choice(self, end: End) -> End | None:
        """Return the end that matches in every timing, taken out of its queue.

        A receive from any source takes none before it is chosen. What was posted after it gets no
        message that it could take.
        """
        route, waiting = end.route, self._waiting.get((end.route, not end.is_send))
        before = self._any.get((route.dst, route.tag))
        if route.src is None or not waiting or (before and not end.is_send):
            return None
        if before and waiting[0].number > before[0].number:
            return None
        return waiting.popleft()

    def _sources(self, end: End) -> list[int]:
        """Return the sources that a receive from any may take: of the oldest, those that sent."""
        key = end.route.dst, end.route.tag
        if self._any[key][0] is not end:
            return []
        return sorted(
            sent.src for (sent, is_send), queue in self._waiting.items()
            if is_send and queue and sent.src is not None and (sent.dst, sent.tag) == key
        )  # fmt: skip

    def _take(self, end: End, src: int) -> None:
        """Give a receive from any source the first message of a source, and the rest to others."""
        key = end.route.dst, end.route.tag
        self._any[key].popleft()
        sent = next(
            queue.popleft() for (route, is_send), queue in self._waiting.items()
            if is_send and queue and route.src == src and (route.dst, route.tag) == key
        )  # fmt: skip
        self._match(end, sent)
        sent.live_message().ready(end)
        following = self._any[key][0].number if self._any[key] else None
        for (route, is_send), receives in list(self._waiting.items()):
            if is_send or (route.dst, route.tag) != key:
                continue
            sends = self._waiting.get((route, True))
            while receives and sends and (following is None or receives[0].number < following):
                receive, matching = receives.popleft(), sends.popleft()
                self._match(receive, matching)
                matching.live_message().ready(receive)

    def withdraw(self, end: End) -> None:
        """Take out an end that has not been matched: its call has failed."""
        route = end.route
        waiting = self._waiting.get((route, end.is_send))
        anybody = self._any.get((route.dst, route.tag))
        for queue in (waiting, anybody):
            if queue and end in queue:
                queue.remove(end)

    def _find(self, end: End) -> End | None:
        """Return the end that matches, taken out of its queue."""
        route = end.route
        if route.src is not None and not self._any:  # Nearly always.
            queue = self._waiting.get((route, not end.is_send))
            return queue.popleft() if queue else None
        if route.src is None:
            queues = [
                queue for (sent, is_send), queue in self._waiting.items()
                if is_send and (sent.dst, sent.tag) == (route.dst, route.tag)
            ]  # fmt: skip
        else:
            queues = [self._waiting.get((route, not end.is_send), deque())]
            if end.is_send:
                queues.append(self._any.get((route.dst, route.tag), deque()))
        queues = [queue for queue in queues if queue]
        if not queues:
            return None
        # The one that came first; equal times in the order of their ranks' queues.
        return min(queues, key=lambda queue: queue[0].live().start_ps).popleft()

    def _check(self, end: End, other: End, number: int) -> None:
        ours, theirs = end.tensor, other.tensor
        own, peer = end.live(), other.live()
        is_same = own.stream.device is peer.stream.device and own.rank != peer.rank
        if self.posts_early and is_same and not self.group.world.shares_devices:
            raise same_device(peer, own)
        if ours.dtype is theirs.dtype and ours.numel() == theirs.numel():
            return
        raise mismatch(self.group, number, [_made(other), _made(end)], ())

    def pending(self) -> list[PeerOperation]:
        """Return the calls under way."""
        operations = [o for o in self.group.engine.pending if isinstance(o, PeerOperation)]
        return [operation for operation in operations if operation.boxes is self]


def _ends(route: Envelope, ranks: Sequence[int]) -> tuple[int, int]:
    """Return the global ranks of a message's sender and receiver."""
    assert route.src is not None, "a sender knows itself"
    return int(ranks[route.src]), int(ranks[route.dst])


def _made(end: End) -> MadeCall:
    operation, tensor = end.live(), end.tensor
    what = end.describe(operation.group.ranks)
    columns = {"op": what, "dtype": tensor.dtype.name, "count": tensor.numel()}
    return MadeCall(operation.rank or 0, columns, operation.issued_at)


def boxes_of(group: ProcessGroup, backend: str) -> Mailboxes:
    """Return the messages of a group on a backend, made at first use."""
    boxes = group.mailboxes.get(backend)
    if boxes is None:
        boxes = group.mailboxes[backend] = Mailboxes(group, backend)
    return boxes


# ---- Messages that leave before their receivers come, as far as NCCL's buffers hold them ----


class Pair(NamedTuple):
    """Whose buffer it is.

    Attributes:
        src: Group rank of the sender.
        dst: Group rank of the receiver.
        batched: Whether it is that of batches, which have a communicator of their own.
    """

    src: int
    dst: int
    batched: bool


class _EagerBuffer:
    """One pair's: what lies in it and what waits for room, in order, with their bytes."""

    def __init__(self) -> None:
        self.held: dict[Message, int] = {}
        self.waiting: dict[Message, int] = {}
        self.held_bytes = 0


class EarlyMessages:
    """The buffers of all pairs; messages of a pair find room in their order.

    Args:
        room_bytes: Size of a pair's buffer; -1: no message leaves without its receiver.
    """

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._buffers: dict[Pair, _EagerBuffer] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no message is in a buffer, or waits for room."""
        return not self._buffers

    def admit(self, pair: Pair, message: Message, size_bytes: int) -> Sequence[Message]:
        """Return a message if it may leave now; else it waits for room, or for its receiver."""
        if self._room_bytes < 0:
            return ()
        buffer = self._buffers.get(pair)
        if buffer is None:
            buffer = self._buffers[pair] = _EagerBuffer()
        buffer.waiting[message] = size_bytes
        return self._leaving(buffer)

    def drop(self, pair: Pair, message: Message) -> Sequence[Message]:
        """Forget a message, which its receiver takes; return those that may leave now."""
        buffer = self._buffers.get(pair)
        if buffer is None:
            return ()
        buffer.waiting.pop(message, None)
        buffer.held_bytes -= buffer.held.pop(message, 0)
        if not buffer.held and not buffer.waiting:
            del self._buffers[pair]
        return self._leaving(buffer)

    def _leaving(self, buffer: _EagerBuffer) -> Sequence[Message]:
        leaving = []
        for message, size_bytes in buffer.waiting.items():
            if buffer.held_bytes + size_bytes >= self._room_bytes:  # Assumed of a full one.
                break
            leaving.append(message)
            buffer.held[message] = size_bytes
            buffer.held_bytes += size_bytes
        for message in leaving:
            del buffer.waiting[message]
        return leaving
