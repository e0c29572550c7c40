"""Sockets of ranks say what sockets of processes say: each scenario runs on real ones, too."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid

import pytest

import simrank
from simrank.errors import DeadlockError, SpawnException
from simrank.timings.search import TimingEnd, search

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed")
zmq_asyncio = pytest.importorskip("zmq.asyncio", reason="pyzmq is not installed")


class Meeting:
    """A barrier of the parts of a scenario, and addresses of its own."""

    def __init__(self, num_parts):
        self.barrier = threading.Barrier(num_parts, timeout=20)
        self.word = uuid.uuid4().hex
        self.found = {}

    def ipc(self, name):
        return f"ipc:///tmp/{self.word}-{name}"

    def wait(self):
        self.barrier.wait()


def request_and_reply(part, meeting, context):
    """Two clients in turn; the frames of a message stay together."""
    if part == 0:
        with context.socket(zmq.REP) as socket:
            meeting.found["port"] = socket.bind_to_random_port("tcp://127.0.0.1")
            meeting.wait()
            for _ in range(4):
                frames = socket.recv_multipart()
                socket.send_multipart([*frames, b"ok"])
            meeting.wait()
            return []
    meeting.wait()
    with context.socket(zmq.REQ) as socket:
        socket.connect(f"tcp://127.0.0.1:{meeting.found['port']}")
        found = []
        for number in range(2):
            socket.send_multipart([b"%d" % part, b"", b"%d" % number])
            found.append(socket.recv_multipart())
        meeting.wait()
        return found


def out_of_turn(part, meeting, context):
    """Calls that do not fit the kind or the state of a socket are errors."""
    found = []

    def attempt(call, *args, **kwargs):
        try:
            found.append(call(*args, **kwargs))
        except zmq.ZMQError as error:
            found.append((type(error).__name__, error.errno))

    if part == 0:
        for kind, verb in [
            (zmq.REQ, "recv"), (zmq.REP, "send"), (zmq.PUSH, "recv"), (zmq.PULL, "send"),
            (zmq.SUB, "send"), (zmq.PUB, "recv"), (zmq.DEALER, "send"), (zmq.PAIR, "recv"),
        ]:  # fmt: skip
            with context.socket(kind) as socket:
                attempt(
                    *([socket.send, b""] if verb == "send" else [socket.recv]), flags=zmq.NOBLOCK
                )
        with context.socket(zmq.REQ) as socket:
            attempt(socket.bind, "nowhere")
            attempt(socket.connect, "what://there")
            attempt(socket.unbind, "tcp://127.0.0.1:1")
            attempt(socket.set, zmq.SUBSCRIBE, b"")
            socket.rcvtimeo = 5
            socket.connect(meeting.ipc("unbound"))
            attempt(socket.send, b"", flags=zmq.NOBLOCK)
            attempt(socket.send, b"", flags=zmq.NOBLOCK)
            attempt(socket.recv)
            socket.linger = 0
        attempt(socket.recv)
        attempt(socket.bind, meeting.ipc("closed"))
    meeting.wait()
    return found


def publish(part, meeting, context):
    """Subscribers get their topics, in order, once the publisher knows of them."""
    if part == 0:
        with context.socket(zmq.XPUB) as socket:
            socket.setsockopt(zmq.XPUB_VERBOSE, True)
            socket.bind(meeting.ipc("pub"))
            meeting.wait()
            topics = sorted(socket.recv() for _ in range(3))
            for topic in (b"ab", b"a", b"b", b"cd"):
                socket.send_multipart([topic, topic * 2])
            meeting.wait()
            return topics
    meeting.wait()
    with context.socket(zmq.SUB) as socket:
        socket.connect(meeting.ipc("pub"))
        for topic in [b"a"] if part == 1 else [b"", b"c"]:
            socket.subscribe(topic)
        found = [socket.recv_multipart() for _ in range(part * 2)]
        meeting.wait()
        return found


def route(part, meeting, context):
    """A router knows its peers by their names, and does not reach others."""
    if part == 0:
        with context.socket(zmq.ROUTER) as socket:
            socket.router_mandatory = 1
            socket.bind(meeting.ipc("router"))
            meeting.wait()
            found = sorted(socket.recv_multipart() for _ in range(2))
            for name, text in found:
                socket.send_multipart([name, text + b"!"])
            try:
                socket.send_multipart([b"stranger", b""])
            except zmq.ZMQError as error:
                found.append(error.errno)
            meeting.wait()
            return found
    meeting.wait()
    with context.socket(zmq.DEALER) as socket:
        socket.identity = b"peer%d" % part
        socket.connect(meeting.ipc("router"))
        socket.send(b"from %d" % part)
        found = socket.recv()
        meeting.wait()
        return found


def push_in_turn(part, meeting, context):
    """Messages go to the peers in turn, and several sockets are polled."""
    if part == 0:
        with context.socket(zmq.PUSH) as socket:
            meeting.wait()
            for peer in (1, 2):
                socket.connect(meeting.ipc(f"pull{peer}"))
            assert socket.poll(1000, zmq.POLLOUT) == zmq.POLLOUT
            for number in range(6):
                socket.send(b"%d" % number)
            meeting.wait()
            return None
    with context.socket(zmq.PULL) as socket, context.socket(zmq.PAIR) as idle:
        socket.bind(meeting.ipc(f"pull{part}"))
        idle.connect(meeting.ipc("idle"))
        meeting.wait()
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(idle, zmq.POLLIN)
        found = []
        for _ in range(3):
            assert dict(poller.poll(1000)) == {socket: zmq.POLLIN}
            found.append(socket.recv())
        meeting.wait()
        return [*found, poller.poll(5)]


def late_bind(part, meeting, context):
    """What is sent before the address is bound arrives; frames and buffers are received as such."""
    if part == 1:
        with context.socket(zmq.PUSH) as socket:
            socket.connect(meeting.ipc("late"))
            socket.send_multipart([b"one", b"two"], copy=False)
            socket.send(bytearray(b"three"))
            socket.send_pyobj({"four": 4})
            socket.send_string("five")
            meeting.wait()
            meeting.wait()
            return None
    meeting.wait()
    with context.socket(zmq.PULL) as socket:
        socket.bind(meeting.ipc("late"))
        first, second = socket.recv_multipart(copy=False)
        buffer = bytearray(4)
        size = socket.recv_into(buffer)
        found = [first.bytes, first.more, second.bytes, second.more, size, bytes(buffer)]
        found += [socket.recv_pyobj(), socket.recv_string(), socket.get(zmq.RCVMORE)]
        meeting.wait()
        return found


def full(part, meeting, context):
    """A queue has a limit for each side; then a send raises Again, and the receiver makes room."""
    if part == 0:
        with context.socket(zmq.PUSH) as socket:
            socket.sndhwm = 2
            socket.sndtimeo = 50
            socket.connect(f"inproc://{meeting.word}")
            found = []
            for number in range(4):
                try:
                    socket.send(b"%d" % number)
                except zmq.Again:
                    found.append(number)
            with context.socket(zmq.PULL) as other:
                other.rcvhwm = 2
                other.bind(f"inproc://{meeting.word}")
                found += [other.recv() for _ in range(2)]
                socket.send(b"last")
                found.append(other.recv())
            meeting.wait()
            return found
    meeting.wait()
    return None


def with_asyncio(part, meeting, context):
    """Coroutines wait for messages beside each other."""

    async def ask(socket, text):
        await socket.send_string(text)
        return await socket.recv_string()

    async def serve(socket):
        for _ in range(2):
            name, text = await socket.recv_multipart()
            await socket.send_multipart([name, text.upper()])

    async def main():
        own = zmq_asyncio.Context()
        try:
            if part == 0:
                with own.socket(zmq.ROUTER) as socket:
                    socket.bind(meeting.ipc("async"))
                    await serve(socket)
                    while not meeting.found.get("done"):
                        await asyncio.sleep(0.001)
                return None
            with own.socket(zmq.DEALER) as first, own.socket(zmq.DEALER) as second:
                for socket in (first, second):
                    socket.connect(meeting.ipc("async"))
                found = await asyncio.gather(ask(first, "a"), ask(second, "b"))
                nothing = await first.poll(5)
                meeting.found["done"] = True
                return [*found, nothing]
        finally:
            own.term()

    del context
    return asyncio.run(main())


def send_and_close(part, meeting, context):
    """What has been sent before a connection was made arrives, though the sender has closed."""
    if part == 0:
        with context.socket(zmq.PULL) as socket:
            meeting.found["port"] = socket.bind_to_random_port("tcp://127.0.0.1")
            socket.unbind(f"tcp://127.0.0.1:{meeting.found['port']}")
        meeting.wait()
        meeting.wait()
        with context.socket(zmq.PULL) as socket:
            socket.bind(f"tcp://127.0.0.1:{meeting.found['port']}")
            return [socket.recv(), socket.recv()]
    meeting.wait()
    port = meeting.found["port"]
    with context.socket(zmq.PUSH) as socket:
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send(b"first")
        socket.send(b"second")
    with context.socket(zmq.PUSH) as socket:
        socket.linger = 0
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send(b"dropped")
    meeting.wait()
    return []


SCENARIOS = {
    request_and_reply: 3, out_of_turn: 1, publish: 3, route: 3, push_in_turn: 3, late_bind: 2,
    full: 1, send_and_close: 2, with_asyncio: 2,
}  # fmt: skip


def on_real_sockets(scenario, num_parts):
    """Run the parts of a scenario on threads outside of ranks."""
    meeting, results = Meeting(num_parts), {}

    def run(part):
        with zmq.Context() as context:
            results[part] = scenario(part, meeting, context)

    threads = [threading.Thread(target=run, args=(part,)) for part in range(num_parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[part] for part in range(num_parts)]


def on_ranks(scenario, num_parts, **settings):
    """Run the parts of a scenario on simulated ranks."""
    results = {}
    with simrank.Context("hgx_h100", carrier="thread", **settings) as ctx:
        meeting = Meeting(num_parts)

        def run(rank):
            with zmq.Context() as context:
                results[rank] = scenario(rank, meeting, context)

        ctx.multiprocessing.spawn(run, nprocs=num_parts, share_args=True)
    return [results[part] for part in range(num_parts)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_ranks_get_what_real_sockets_get(scenario):
    """Messages, order, and errors."""
    num_parts = SCENARIOS[scenario]
    expected = on_real_sockets(scenario, num_parts)
    assert on_ranks(scenario, num_parts) == expected
    assert on_ranks(scenario, num_parts, seed=3) == expected


def test_a_search_says_that_it_does_not_follow_connections():
    """Which sender's message comes first depends on them, and simulated time decides it."""

    def push_and_pull(part, meeting, context):
        with context.socket(zmq.PUSH if part else zmq.PULL) as socket:
            if part:
                socket.connect("tcp://127.0.0.1:5555")
                return socket.send(b"%d" % part)
            socket.bind("tcp://127.0.0.1:5555")
            return [socket.recv(), socket.recv()]

    def run(timing):
        on_ranks(push_and_pull, 3, timing=timing)
        return TimingEnd("returned", {})

    problems = search(run, 20).problems
    assert any("which connections of zmq are made first" in each for each in problems)


def raised(program, nprocs=2, **settings):
    """Return the error of a program on ranks."""
    context = simrank.Context("hgx_h100", carrier="thread", **settings)
    with pytest.raises((DeadlockError, SpawnException)) as caught, context as ctx:
        ctx.multiprocessing.spawn(program, nprocs=nprocs, share_args=True)
    return caught.value


def test_a_message_that_never_comes_is_a_deadlock_with_the_socket_and_its_address():
    """In place of a run that hangs."""

    def program(rank):
        with zmq.Context.instance().socket(zmq.PULL) as socket:
            if rank == 0:
                socket.bind("tcp://*:5555")
            else:
                socket.connect("tcp://127.0.0.1:6666")
            socket.recv()

    text = str(raised(program))
    assert "a message on a zmq.PULL socket bound to tcp://0.0.0.0:5555, 0 peer(s)" in text
    assert "socket connected to tcp://127.0.0.1:6666, which no rank has bound" in text


def test_a_message_that_was_published_too_early_is_named():
    """The slow joiner: the subscription comes after the message, on real sockets most times."""

    def program(rank):
        with zmq.Context.instance().socket(zmq.SUB if rank else zmq.PUB) as socket:
            if rank:
                socket.connect("tcp://127.0.0.1:5555")
                socket.subscribe(b"")
                socket.recv()
            else:
                socket.bind("tcp://127.0.0.1:5555")
                time.sleep(0.00005)  # Shorter than a connection takes.
                socket.send(b"lost")
                time.sleep(1)

    assert "published 1 message(s) before it knew of the subscription" in str(raised(program))


def test_a_port_that_another_rank_has_is_in_use():
    """With the holder and its line."""

    def program(rank):
        with zmq.Context.instance().socket(zmq.PULL) as socket:
            time.sleep(rank * 0.001)
            socket.bind("tcp://127.0.0.1:5555")
            time.sleep(1)

    text = str(raised(program))
    assert "Address already in use (addr=" in text
    assert "port 5555 is held by a zmq socket of rank 0 at " in text


def test_hosts_have_addresses_of_their_own():
    """The same ipc path or loopback port of two nodes is two addresses."""
    found = {}

    def program(rank):
        context = zmq.Context.instance()
        node = rank // 8
        if rank % 8 == 0:
            with context.socket(zmq.PUSH) as socket:
                socket.bind("tcp://127.0.0.1:5555")
                socket.bind("ipc:///tmp/name")
                for _ in range(2):
                    socket.send(b"%d" % node)
        elif rank % 8 < 3:
            with context.socket(zmq.PULL) as socket:
                socket.connect(["", "tcp://127.0.0.1:5555", "ipc:///tmp/name"][rank % 8])
                found[rank] = socket.recv()

    with simrank.Context.for_ranks(16, carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=16, share_args=True)
    assert found == {1: b"0", 2: b"0", 9: b"1", 10: b"1"}
