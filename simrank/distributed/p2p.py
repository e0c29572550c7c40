"""Point-to-point: sends and receives of a pair matched in order, their bytes on the links."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device import Accesses, Operation
from simrank.errors import CallVariant, CollectiveMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.device import Stream, Tensor
    from simrank.distributed.group import ProcessGroup
    from simrank.engine import CallSite

Array = np.ndarray[Any, Any]


class PeerOperation(Operation):
    """One end of a message: a send or a receive.

    Attributes:
        message: What it is an end of.
        is_send: Which end.
        peer_rank: Global rank of the other end.
        tensor: What is sent, or filled.
    """

    __slots__ = ("is_send", "message", "peer_rank", "tensor")
    kind = "collective"
    is_collective = False

    def __init__(self, stream: Stream, mailbox: Mailbox, tensor: Tensor, *, is_send: bool) -> None:
        ranks = mailbox.group.ranks
        own, peer = (mailbox.src, mailbox.dst) if is_send else (mailbox.dst, mailbox.src)
        self.peer_rank = ranks[peer]
        verb = "send to" if is_send else "recv from"
        name = f"{verb} rank {self.peer_rank} on group '{mailbox.group.name}'"
        touched = Accesses((tensor,), ()) if is_send else Accesses((), (tensor,))
        super().__init__(stream, name, None, touched)
        self.rank = ranks[own]
        self.is_send = is_send
        self.tensor = tensor
        self.details = {"bytes": tensor.nbytes}
        self.message: Message | None = None

    def begin(self) -> None:
        """Be ready for the other end."""
        assert self.message is not None, "issued operations belong to a message"
        self.message.ready(self)

    def end(self) -> None:
        """Complete, and leave the report of what is pending."""
        self.message = None  # It refers back: let reference counts free both.
        self.stream.device.engine.pending.pop(self, None)
        super().end()

    def pending_ranks(self) -> Iterator[tuple[int, str, CallSite | None]]:
        """Yield this end, for the deadlock report."""
        if self.rank is not None:
            yield self.rank, self.name, self._site

    def absent_ranks(self) -> Iterator[tuple[int, str]]:
        """Yield the peer if it has not called, for the deadlock report."""
        if self.message is not None and len(self.message.ends) == 1 and self.rank is not None:
            verb = "a recv from" if self.is_send else "a send to"
            yield self.peer_rank, f"{verb} rank {self.rank}"


class Message:
    """One send and the receive it belongs to.

    A message up to the protocol's buffer is eager: it leaves when its sender is ready and waits in
    the buffer. A larger one starts when both ends are ready.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.ends: dict[bool, PeerOperation] = {}
        self._ready: set[bool] = set()
        self._started = False
        self._arrived: Array | None = None
        self._in_buffer = False

    def ready(self, operation: PeerOperation) -> None:
        """Note that an end's stream has reached it."""
        self._ready.add(operation.is_send)
        send = self.ends.get(True)
        if self._in_buffer:
            self._deliver()
        elif not self._started and send is not None and True in self._ready:
            eager = send.tensor.nbytes <= self._mailbox.eager_bytes
            if eager or False in self._ready:
                self._start(send)

    def _start(self, send: PeerOperation) -> None:
        self._started = True
        group, engine = self._mailbox.group, self._mailbox.group.engine
        launch_ps = group.world.cluster.collectives.launch_latency_ps
        route = int(group.devices[self._mailbox.src]), int(group.devices[self._mailbox.dst])

        def leave() -> None:
            group.world.network.transfer(*route, send.tensor.nbytes, self._sent)

        engine.call_at(engine.now_ps + launch_ps, leave)

    def _sent(self) -> None:
        send = self.ends[True]
        if send.stream.head is not send:
            return  # Aborted meanwhile.
        if send.tensor.storage.has_values:
            self._arrived = send.tensor.array.reshape(-1).copy()
        self._in_buffer = True
        with self._mailbox.group.engine.one_wakeup():
            send.end()
            self._deliver()

    def _deliver(self) -> None:
        receive = self.ends.get(False)
        if receive is None or False not in self._ready or receive.stream.head is not receive:
            return
        if self._arrived is None:
            receive.tensor.storage.lose_values()
        elif receive.tensor.storage.has_values:
            receive.tensor.array.reshape(-1)[...] = self._arrived
        receive.end()


class Mailbox:
    """The messages from one member of a group to another, matched in order.

    Attributes:
        group: The group.
        src: Group rank of the sender.
        dst: Group rank of the receiver.
        eager_bytes: The largest message that leaves without its receiver.
    """

    def __init__(self, group: ProcessGroup, src: int, dst: int) -> None:
        self.group = group
        self.src = src
        self.dst = dst
        costs = group.world.cluster.collectives
        self.eager_bytes = costs.buffer_bytes * costs.num_channels
        self._waiting: dict[bool, deque[Message]] = {True: deque(), False: deque()}
        self._num = {True: 0, False: 0}

    def post(self, operation: PeerOperation) -> None:
        """Match an end with the oldest unmatched end of the other kind, or let it wait.

        Raises:
            CollectiveMismatchError: The two differ in dtype or element count.
        """
        is_send = operation.is_send
        self._num[is_send] += 1
        others = self._waiting[not is_send]
        if others:
            message = others[0]
            self._check(operation, message.ends[not is_send])
            others.popleft()
        else:
            message = Message(self)
            self._waiting[is_send].append(message)
        message.ends[is_send] = operation
        operation.message = message
        self.group.engine.pending[operation] = None

    def _check(self, operation: PeerOperation, other: PeerOperation) -> None:
        ours, theirs = operation.tensor, other.tensor
        if ours.dtype is theirs.dtype and ours.numel() == theirs.numel():
            return
        variants = [_variant(other), _variant(operation)]
        raise CollectiveMismatchError(
            self.group.engine.now_ps, self.group.name, self._num[operation.is_send], variants, ()
        )

    def drop(self) -> None:
        """Forget every message: the ranks were aborted."""
        for operation in [o for o in self.group.engine.pending if isinstance(o, PeerOperation)]:
            if operation.message is not None and operation.message._mailbox is self:  # noqa: SLF001
                self.group.engine.pending.pop(operation)
        for waiting in self._waiting.values():
            waiting.clear()


def _variant(operation: PeerOperation) -> CallVariant:
    tensor = operation.tensor
    columns = {
        "op": operation.name.partition(" on ")[0],
        "dtype": tensor.dtype.name,
        "count": str(tensor.numel()),
    }
    site = operation._site  # noqa: SLF001 - the report's reader of it
    file, line = (None, None) if site is None else site.line()
    return CallVariant((operation.rank or 0,), columns, file, line)


def mailbox(group: ProcessGroup, src: int, dst: int) -> Mailbox:
    """Return the mailbox of a pair, made at first use."""
    key = (src, dst)
    if key not in group.mailboxes:
        group.mailboxes[key] = Mailbox(group, src, dst)
    return group.mailboxes[key]
