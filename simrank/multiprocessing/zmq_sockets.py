"""Models of ZMQ's sockets: messages stay in this process, waits are the engine's.

Which bytes arrive where is as `zmq_socket(3)` says: a pipe for each connection with a limit in each
direction, messages of several frames, round-robin sending, fair queues, envelopes and topics. A
message itself takes no simulated time, as those of `multiprocessing` do not.
"""

from __future__ import annotations

import errno
import itertools
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from simrank.engine import Handle, limits
from simrank.errors import UnsupportedError
from simrank.isolation.locks import catch_up
from simrank.ranks.current import race_order, running_task
from simrank.ranks.ports import node_of, ports_of
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from simrank.device.clocks import Clock
    from simrank.engine import Task
    from simrank.ranks.current import Program
    from simrank.ranks.ports import Holder

    Message = list[bytes]
    Key = tuple[str, int, str]  # Scheme; host, or context of inproc; name or port.

ZMQ = "zmq sockets"  # A kind of shared object, for reports.
PS_PER_MS = PS_PER_S // 1000
# Assumed: a connection of a host to itself and the greetings of both sides. Topics are known to a
# publisher after it, so that a message that is published too early is lost, as on real sockets.
_CONNECT_PS = 100 * 10**6
# Source: zmq_setsockopt(3), ZMQ_RECONNECT_IVL: a connection that was refused is tried again.
_RECONNECT_PS = 100 * 10**9
_ASKED_LATE = ("ROUTING_ID", "SNDHWM", "RCVHWM")  # Options, as a connection is made.

_ONE_WAY = {"PUSH": "recv", "PUB": "recv", "PULL": "send", "SUB": "send"}
_NEVER_BLOCK = ("PUB", "XPUB", "ROUTER", "XSUB")
# Which kinds talk to each other: zmq_socket(3), "Compatible peer sockets".
_PEERS = {
    "PAIR": ("PAIR",), "PUSH": ("PULL",), "PULL": ("PUSH",),
    "PUB": ("SUB", "XSUB"), "XPUB": ("SUB", "XSUB"),
    "SUB": ("PUB", "XPUB"), "XSUB": ("PUB", "XPUB"),
    "REQ": ("REP", "ROUTER"), "REP": ("REQ", "DEALER"),
    "DEALER": ("REP", "DEALER", "ROUTER"), "ROUTER": ("REQ", "DEALER", "ROUTER"),
}  # fmt: skip


def zmq_error(name: str) -> Exception:
    """Return ZMQ's error for the name of an errno."""
    zmq: Any = sys.modules["zmq"]
    made: Exception
    if name == "EAGAIN":
        made = zmq.Again()
    elif name == "ETERM":
        made = zmq.ContextTerminated()
    else:
        made = zmq.ZMQError(getattr(errno, name, None) or getattr(zmq, name))
    return made


class SocketWait(Handle):
    """A wait for a message, or for room for one; reports show the socket and its peers.

    Args:
        what: What is waited for.
        sockets: Any of them ends the wait.
    """

    __slots__ = ("_sockets", "_what")

    def __init__(self, what: str, sockets: Iterable[ModelSocket]) -> None:
        super().__init__()
        self._what, self._sockets = what, list(sockets)

    def describe(self) -> str:
        """Return the sockets and the message that is waited for."""
        return f"{self._what} {', or on '.join(each.text() for each in self._sockets)}"


class Pipe:
    """One end of a connection.

    Attributes:
        socket: Whose end it is.
        other: The other end; None: it is not there yet, or has gone.
        address: As given to `connect` or `bind`.
        is_connecting: Whether this end has connected, so that it does so again.
        inbox: Messages for this end.
        outbox: Messages of this end before the other is there.
        topics: What the other end subscribes to.
        identity: What a ROUTER calls the other end.
        num_missed: Messages of a publisher that came before a subscription did.
    """

    def __init__(self, socket: ModelSocket, address: str, *, is_connecting: bool) -> None:
        self.socket = socket
        self.other: Pipe | None = None
        self.address = address
        self.is_connecting = is_connecting
        self.inbox: deque[Message] = deque()
        self.outbox: deque[Message] = deque()
        self.topics: list[bytes] = []
        self.identity = b""
        self.num_missed = 0

    @property
    def is_writable(self) -> bool:
        """Whether a message has room."""
        own = self.socket.option("SNDHWM")
        if self.other is None:
            return self.is_connecting and (own == 0 or len(self.outbox) < own)
        if self.other.socket.is_over:
            self.other.socket.close()
            return self.is_writable
        theirs = self.other.socket.option("RCVHWM")
        return 0 in (own, theirs) or len(self.other.inbox) < own + theirs

    def push(self, message: Message) -> None:
        """Send a message, which has room."""
        if self.other is None:
            self.outbox.append(message)
        else:
            self.other.take(message)

    def take(self, message: Message) -> None:
        """Receive a message; one without the envelope that its kind needs is dropped."""
        kind = self.socket.kind
        if (kind == "REP" and b"" not in message) or (kind == "REQ" and message[0]):
            return
        if self.socket.options.get("CONFLATE"):
            self.inbox.clear()
        self.inbox.append(list(message))  # Others receive it, too.
        self.socket.changed()

    def meet(self, other: Pipe) -> None:
        """Connect two ends."""
        self.other, other.other = other, self
        for end in (self, other):
            assert end.other is not None, "just met"
            own = end.other.socket.option("ROUTING_ID")
            end.identity = own or end.socket.registry.next_identity()
            for topic in end.socket.topics:
                end.other.subscribe(topic)
        while self.outbox:
            other.take(self.outbox.popleft())
        self.socket.changed()
        other.socket.changed()
        if self.socket.is_closed:  # It has stayed for what it had sent.
            self.socket.drop(self)

    def subscribe(self, topic: bytes) -> None:
        """Note a topic of the other end; an XPUB socket receives it as a message."""
        is_new = topic not in self.topics
        self.topics.append(topic)
        socket = self.socket
        if socket.kind == "XPUB" and (is_new or socket.options.get("XPUB_VERBOSE")):
            self.take([b"\x01" + topic])

    def unsubscribe(self, topic: bytes) -> None:
        """Forget a topic of the other end."""
        if topic in self.topics:
            self.topics.remove(topic)
            if self.socket.kind == "XPUB" and topic not in self.topics:
                self.take([b"\x00" + topic])

    def leave(self) -> None:
        """End the connection; an end that has connected tries again."""
        other, self.other = self.other, None
        if other is None:
            return
        other.other = None
        other.topics.clear()
        if other.is_connecting and not other.socket.is_closed:
            other.socket.registry.connect(other)
        other.socket.changed()


class Registry:
    """The addresses of all ranks of a Context."""

    def __init__(self) -> None:
        self._bound: dict[Key, ModelSocket] = {}
        self._early: dict[Key, list[Pipe]] = {}
        self._being_made: list[Pipe] = []
        self._identities = itertools.count(1)

    def next_identity(self) -> bytes:
        """Return the name of a peer that has none: a zero and a number, as libzmq makes it."""
        return b"\x00" + next(self._identities).to_bytes(4, "big")

    def bind(self, key: Key, socket: ModelSocket) -> None:
        """Serve an address.

        Raises:
            ZMQError: `EADDRINUSE`.
        """
        held = self._bound.get(key)
        if held is not None and held.is_over:
            held.close()
            held = None
        if held is not None:
            raise zmq_error("EADDRINUSE")
        self._bound[key] = socket
        for pipe in self._early.pop(key, ()):
            self._meet_later(pipe, socket, 0 if key[0] == "inproc" else _RECONNECT_PS)

    def connect(self, pipe: Pipe) -> None:
        """Connect to an address, now or once it is bound."""
        key, bound = self._find(pipe)
        if bound is None:
            self._early.setdefault(key, []).append(pipe)
        else:
            self._meet_later(pipe, bound, 0 if key[0] == "inproc" else _CONNECT_PS)

    def _find(self, pipe: Pipe) -> tuple[Key, ModelSocket | None]:
        """Look for a bound socket: on the own host, and of a TCP address on the others."""
        socket = pipe.socket
        own = socket.key(pipe.address)
        found = self._bound.get(own)
        if found is None and own[0] == "tcp" and not is_loopback(pipe.address):
            port = own[-1]
            keys = sorted(key for key in self._bound if key[0] == "tcp" and key[-1] == port)
            own = keys[0] if keys else own
            found = self._bound.get(own)
        if found is not None and found.is_over:
            found.close()
            found = None
        return own, found

    def _meet_later(self, pipe: Pipe, bound: ModelSocket, delay_ps: int) -> None:
        engine = pipe.socket.owner.engine

        def meet() -> None:
            self._being_made.remove(pipe)
            if pipe not in pipe.socket.pipes or pipe.other is not None:
                return
            if bound.is_over:
                bound.close()
                self.connect(pipe)
            elif bound.kind in _PEERS[pipe.socket.kind] and bound.has_room_for_peer():
                end = Pipe(bound, pipe.address, is_connecting=False)
                bound.pipes.append(end)
                pipe.meet(end)

        self._being_made.append(pipe)
        if delay_ps:
            limits.pass_over(engine, "which connections of zmq are made first")
            engine.call_at(engine.now_ps + delay_ps, meet)
        else:
            meet()

    def unbind(self, key: Key) -> None:
        """Serve an address no longer."""
        self._bound.pop(key, None)

    def early(self, keys: Sequence[Key]) -> list[Pipe]:
        """Return the connections to addresses that are being made, of subscribers."""
        return [
            pipe
            for pipe in self._being_made
            if pipe.socket.kind in ("SUB", "XSUB") and self._find(pipe)[0] in keys
        ]

    def is_early(self, pipe: Pipe) -> bool:
        """Return whether no rank has bound the address of a connection."""
        return any(pipe in early for early in self._early.values())

    def forget(self, pipe: Pipe) -> None:
        """Connect no longer."""
        for early in self._early.values():
            if pipe in early:
                early.remove(pipe)


def is_loopback(address: str) -> bool:
    """Return whether a TCP address names its own host."""
    host = address.partition("://")[2].rpartition(":")[0]
    return host in ("127.0.0.1", "localhost", "[::1]")


class ModelSocket:
    """The state of a socket of a rank.

    Args:
        program: The rank.
        kind: "REQ", "PUB" and so on.
        context: The ZMQ context's identity.
        ask: Returns an option of the real socket, which has the defaults and is never connected.

    Attributes:
        kind: As given.
        context: As given.
        owner: The rank's task.
        registry: The addresses.
        pipes: The connections, in order.
        options: Those that were set and that libzmq does not tell.
        topics: What it subscribes to.
        rest: Frames of a message that was received in part.
        last_address: The last that was bound or connected.
        is_closed: Whether it is closed.
        is_ended: Whether its context is being terminated.
        on_change: Called once messages or room may have come.
    """

    def __init__(
        self, program: Program, kind: str, context: int, ask: Callable[[str], Any]
    ) -> None:
        if kind not in _PEERS:
            raise UnsupportedError(
                f"zmq.{kind} sockets of ranks are not supported\n"
                f"  to fix: use one of {', '.join(_PEERS)}"
            )
        task = program.task
        assert task is not None, "it runs"
        self.kind, self.context, self.owner, self.option = kind, context, task, ask
        self._program, self._node, self._ports = program, node_of(program), ports_of(program)
        self.registry: Registry = self._ports.local.setdefault("zmq", Registry())
        self.pipes: list[Pipe] = []
        self.options: dict[str, Any] = {}
        self.topics: list[bytes] = []
        self.rest: Message = []
        self.last_address = ""
        self.is_closed = self.is_ended = False
        self.on_change: list[Callable[[], None]] = []
        self._bound: dict[str, tuple[Key, Holder | None]] = {}
        self._sending: Message = []
        self._waits: list[SocketWait] = []
        self._asked: Pipe | None = None  # REQ: the asked peer; REP: the asking one.
        self._envelope: Message | None = None  # Of the request that a REP socket answers.
        self._order: Clock = {}

    @property
    def is_over(self) -> bool:
        """Whether it is closed, or its rank has ended."""
        return self.is_closed or self.owner.finished

    def has_room_for_peer(self) -> bool:
        """Return whether another peer may connect: a PAIR has one."""
        return self.kind != "PAIR" or not self.pipes

    def text(self) -> str:
        """Return the socket and its peers, for reports."""
        parts = [f"bound to {address}" for address in self._bound]
        for pipe in self.pipes:
            if pipe.is_connecting:
                state = "" if pipe.other is not None else ", which no rank has bound"
                if pipe.num_missed:
                    state += (
                        f", which published {pipe.num_missed} message(s) before it knew of the "
                        "subscription"
                    )
                parts.append(f"connected to {pipe.address}{state}")
        if self._bound:
            parts.append(f"{sum(not pipe.is_connecting for pipe in self.pipes)} peer(s)")
        return f"a zmq.{self.kind} socket{' ' if parts else ''}{', '.join(parts)}"

    # ---- addresses ----

    def key(self, address: str) -> Key:
        """Return the key of an address on this rank's host.

        Raises:
            ZMQError: `EINVAL`, `EPROTONOSUPPORT`.
        """
        scheme, found, rest = address.partition("://")
        if not found:
            raise zmq_error("EINVAL")
        if scheme == "inproc":
            return scheme, self.context, rest
        if scheme == "ipc":
            return scheme, self._node, rest
        if scheme != "tcp":
            raise zmq_error("EPROTONOSUPPORT")
        port = rest.rpartition(":")[2].replace("*", "0")
        if not port.isdecimal():
            raise zmq_error("EINVAL")
        return scheme, self._node, port

    def bind(self, address: str) -> None:
        """Bind to an address; TCP's port 0 or * is any that is free, and so is ipc's *.

        Raises:
            ZMQError: It is in use, or no address.
        """
        scheme, where, name = self.key(address)
        holder = None
        if scheme == "tcp":
            try:
                port, holder = self._ports.take(self._program, int(name), "a zmq socket")
            except OSError as error:
                found = zmq_error("EADDRINUSE")
                for note in error.__notes__:
                    found.add_note(note)
                raise found from None
            name = str(port)
            host = address.partition("://")[2].rpartition(":")[0]
            address = f"tcp://{'0.0.0.0' if host == '*' else host}:{name}"
        elif name == "*":
            name = f"/tmp/{self.registry.next_identity().hex()}"
            address = f"ipc://{name}"
        self.registry.bind((scheme, where, name), self)
        self._bound[address] = (scheme, where, name), holder
        self.last_address = address

    def connect(self, address: str) -> None:
        """Connect to an address, which may be bound later.

        Raises:
            ZMQError: It is no address.
        """
        self.key(address)
        pipe = Pipe(self, address, is_connecting=True)
        self.pipes.append(pipe)
        self.last_address = address
        self.registry.connect(pipe)

    def unbind(self, address: str) -> None:
        """Serve an address no longer; connections stay.

        Raises:
            ZMQError: `ENOENT`: it is not bound to it.
        """
        if address not in self._bound:
            raise zmq_error("ENOENT")
        key, holder = self._bound.pop(address)
        self.registry.unbind(key)
        if holder is not None:
            self._ports.release(self._node, int(key[2]), holder)

    def disconnect(self, address: str) -> None:
        """End a connection.

        Raises:
            ZMQError: `ENOENT`: there is none.
        """
        pipe = next((p for p in self.pipes if p.is_connecting and p.address == address), None)
        if pipe is None:
            raise zmq_error("ENOENT")
        self.drop(pipe)

    def drop(self, pipe: Pipe) -> None:
        """Remove a connection."""
        self.pipes.remove(pipe)
        self.registry.forget(pipe)
        pipe.leave()

    def close(self, linger_ms: int = 0) -> None:
        """End all connections; what has been sent arrives.

        Args:
            linger_ms: How long a connection that is not there yet is still waited for, if something
                is to be sent; negative: without limit.
        """
        if self.is_closed:
            return
        self.is_closed = True
        for address in list(self._bound):
            self.unbind(address)
        for pipe in list(self.pipes):
            if not (pipe.outbox and linger_ms):
                self.drop(pipe)
        kept = {name: self.option(name) for name in _ASKED_LATE} if self.pipes else {}
        self.option = kept.__getitem__  # The real socket is closed by then.
        if self.pipes and linger_ms > 0:
            engine = self.owner.engine
            engine.call_at(engine.now_ps + linger_ms * PS_PER_MS, self.give_up)
        self.changed()

    def give_up(self, *, only_early: bool = False) -> None:
        """Send no more once it is closed; `only_early`: what no rank has bound an address for."""
        for pipe in list(self.pipes):
            if not only_early or self.registry.is_early(pipe):
                self.drop(pipe)
        self.changed()

    def end(self) -> None:
        """Raise `ETERM` in what waits: the context is being terminated."""
        self.is_ended = True
        self.changed()

    # ---- topics ----

    def subscribe(self, topic: bytes) -> None:
        """Receive messages that begin with a topic."""
        self.topics.append(topic)
        for pipe in self._connected():
            pipe.subscribe(topic)

    def unsubscribe(self, topic: bytes) -> None:
        """Receive messages of a topic no longer."""
        if topic in self.topics:
            self.topics.remove(topic)
            for pipe in self._connected():
                pipe.unsubscribe(topic)

    def _connected(self) -> list[Pipe]:
        return [pipe.other for pipe in self.pipes if pipe.other is not None]

    # ---- what may be done now ----

    def changed(self) -> None:
        """Wake what waits for messages, room or the end."""
        waits, self._waits = self._waits, []
        for wait in waits:
            if not wait.complete:
                wait.finish(self.owner.engine)
        for call in self.on_change:
            call()

    @property
    def can_receive(self) -> bool:
        """Whether a message is there, and may be received."""
        if self.rest:
            return True
        if self.kind == "REQ":
            return self._asked is not None and bool(self._asked.inbox)
        return self._envelope is None and any(pipe.inbox for pipe in self.pipes)

    @property
    def can_send(self) -> bool:
        """Whether a message may be sent and has room."""
        if self.kind in ("PULL", "SUB"):
            return False
        if self.kind == "REP":
            return self._envelope is not None
        if self.kind == "REQ" and self._asked is not None and not self.options.get("REQ_RELAXED"):
            return False
        if self.kind in _NEVER_BLOCK:
            drops = self.kind != "XPUB" or not self.options.get("XPUB_NODROP")
            return drops or all(pipe.is_writable for pipe in self.pipes)
        return any(pipe.is_writable for pipe in self.pipes)

    def check(self, verb: str) -> None:
        """Raise unless a call fits the kind and the state.

        Raises:
            ZMQError: `ENOTSOCK`, `ETERM`, `ENOTSUP`, or `EFSM` out of turn.
        """
        if self.is_closed:
            raise zmq_error("ENOTSOCK")
        if self.is_ended:
            raise zmq_error("ETERM")
        if _ONE_WAY.get(self.kind) == verb:
            raise zmq_error("ENOTSUP")
        is_answering, is_asking = self._envelope is not None, self._asked is not None
        out_of_turn = {
            ("REP", "send"): not is_answering,
            ("REP", "recv"): is_answering,
            ("REQ", "send"): is_asking and not self.options.get("REQ_RELAXED"),
            ("REQ", "recv"): not is_asking,
        }
        if out_of_turn.get((self.kind, verb)) and not (verb == "recv" and self.rest):
            raise zmq_error("EFSM")

    # ---- messages ----

    def send(self, frame: bytes, *, waits: bool, has_more: bool) -> None:
        """Send a frame; a message goes with its last one.

        Raises:
            ZMQError: As `check`; `EAGAIN` without room; `EHOSTUNREACH` of a mandatory ROUTER.
        """
        self.check("send")
        if has_more:
            self._sending.append(frame)
            return
        if not self._reach(waits, "send", "room for a message on"):
            raise zmq_error("EAGAIN")
        message, self._sending = [*self._sending, frame], []
        if self.kind == "ROUTER":
            self._route(message)
        elif self.kind in ("PUB", "XPUB"):
            self._publish(message)
        elif self.kind == "XSUB":
            self._send_upstream(message)
        elif self.kind == "REP":
            assert self._envelope is not None, "checked"
            if self._asked is not None and self._asked.other is not None:
                self._push(self._asked, [*self._envelope, b"", *message])
            self._envelope = self._asked = None
        else:
            pipe = next(pipe for pipe in self.pipes if pipe.is_writable)
            self.pipes.remove(pipe)
            self.pipes.append(pipe)  # The next message goes to the next peer.
            if self.kind == "REQ":
                self._asked = pipe
                pipe.inbox.clear()  # Of an earlier request that was given up.
                message = [b"", *message]
            self._push(pipe, message)

    def _push(self, pipe: Pipe, message: Message) -> None:
        if pipe.other is not None and (races := race_order()) is not None:
            races.meet(pipe.other.socket._order)  # noqa: SLF001 - of the same class
        pipe.push(message)

    def _route(self, message: Message) -> None:
        name, *frames = message
        pipe = next((pipe for pipe in self.pipes if pipe.identity == name), None)
        if pipe is not None and pipe.other is not None and pipe.is_writable:
            self._push(pipe, frames)
        elif self.options.get("ROUTER_MANDATORY"):
            raise zmq_error("EHOSTUNREACH" if pipe is None or pipe.other is None else "EAGAIN")

    def _publish(self, message: Message) -> None:
        for pipe in list(self.pipes):
            if any(message[0].startswith(topic) for topic in pipe.topics):
                if pipe.is_writable:
                    self._push(pipe, message)
            elif pipe.other is not None and not pipe.topics:
                pipe.other.num_missed += 1
        for early in self.registry.early([key for key, _ in self._bound.values()]):
            early.num_missed += 1

    def _send_upstream(self, message: Message) -> None:
        first = message[0]
        if first[:1] == b"\x01":
            self.subscribe(first[1:])
        elif first[:1] == b"\x00":
            self.unsubscribe(first[1:])
        else:
            for pipe in self.pipes:
                if pipe.is_writable:
                    self._push(pipe, message)

    def recv(self, *, waits: bool) -> bytes:
        """Receive the next frame.

        Raises:
            ZMQError: As `check`; `EAGAIN` without a message.
        """
        self.check("recv")
        if not self.rest:
            if not self._reach(waits, "recv", "a message on"):
                raise zmq_error("EAGAIN")
            self.rest = self._next_message()
            if (races := race_order()) is not None:
                races.met(self._order)
        return self.rest.pop(0)

    def _next_message(self) -> Message:
        pipe = self._asked if self.kind == "REQ" else None
        if pipe is None:
            pipe = next(pipe for pipe in self.pipes if pipe.inbox)
        is_full = pipe.other is not None and not pipe.other.is_writable
        message = pipe.inbox.popleft()
        if self.kind in ("REQ", "REP"):
            at = message.index(b"")
            self._envelope, message = message[:at], message[at + 1 :]
            self._asked = pipe
            if self.kind == "REQ":
                self._envelope = self._asked = None
        elif self.kind == "ROUTER":
            message = [pipe.identity, *message]
        if pipe in self.pipes:  # The next message is the next peer's.
            self.pipes.remove(pipe)
            self.pipes.append(pipe)
        if is_full and pipe.other is not None:
            pipe.other.socket.changed()
        return message

    def _reach(self, waits: bool, verb: str, what: str) -> bool:
        """Wait until a call can be carried out, as long as the socket's options say."""
        task = running_task()
        assert task is not None, "sockets of the main program are real"
        catch_up(task)
        limits.reach(task, ZMQ, id(self), self)
        timeout_ms = self.option("RCVTIMEO" if verb == "recv" else "SNDTIMEO") if waits else 0
        last_ps = None if timeout_ms < 0 else task.engine.now_ps + timeout_ms * PS_PER_MS

        def is_ready() -> bool:
            self.check(verb)
            return self.can_receive if verb == "recv" else self.can_send

        wait_for(task, what, [self], is_ready, last_ps)
        if not is_ready():
            if not waits:
                limits.poll(task.engine, f"{verb} on {self.text()}", rounds=limits.SLEEP_ROUNDS)
            return False
        return True

    def add_wait(self, wait: SocketWait) -> None:
        """End a wait at the next change."""
        self._waits.append(wait)


def wait_for(
    task: Task,
    what: str,
    sockets: Sequence[ModelSocket],
    is_ready: Callable[[], bool],
    last_ps: int | None,
) -> None:
    """Wait until sockets are ready, or until a simulated time.

    Args:
        task: The rank.
        what: What is waited for, for reports.
        sockets: Any of them may become ready.
        is_ready: Looks.
        last_ps: Picoseconds; None: without limit.
    """
    engine = task.engine
    while not is_ready():
        if last_ps is not None and engine.now_ps >= last_ps:
            return
        wait = SocketWait(what, sockets)
        for socket in sockets:
            socket.add_wait(wait)
        if last_ps is None:
            engine.wait(wait)
        else:
            engine.wait_at_most(wait, last_ps - engine.now_ps)
