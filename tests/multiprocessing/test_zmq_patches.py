"""What pyzmq's objects do in ranks: contexts, proxies, and what is refused."""

from __future__ import annotations

import threading
import time

import pytest

import simrank
from simrank.errors import SpawnException, UnsupportedError

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed")


def test_each_rank_has_a_context_instance_and_the_main_program_a_real_one():
    """As processes have; sockets outside of ranks stay as they are."""
    found = {}

    def program(rank):
        found[rank] = zmq.Context.instance()
        assert zmq.Context.instance() is found[rank]

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
        with zmq.Context() as real, real.socket(zmq.PAIR) as one, real.socket(zmq.PAIR) as other:
            one.bind("inproc://main")
            other.connect("inproc://main")
            one.send(b"real")
            assert other.recv() == b"real"
    assert len({id(each) for each in found.values()}) == 2
    assert "recv" not in vars(zmq.Socket), "as it was"


def test_the_end_of_a_context_interrupts_its_sockets_and_waits_until_they_are_closed():
    """As libzmq: ETERM in who waits, then the wait for close."""
    order = []

    def program(rank):
        context = zmq.Context()

        def receive():
            with context.socket(zmq.PULL) as socket:
                try:
                    socket.recv()
                except zmq.ContextTerminated:
                    order.append("interrupted")
                    time.sleep(1)
                    order.append("closes")

        thread = threading.Thread(target=receive)
        thread.start()
        time.sleep(0.1)
        context.term()
        order.append("terminated")
        thread.join()

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=1, share_args=True)
    assert order == ["interrupted", "closes", "terminated"]


def test_a_proxy_forwards_in_both_directions():
    """Subscriptions one way, messages the other."""
    found = []

    def program(rank):
        context = zmq.Context.instance()
        if rank == 0:
            front, back = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
            front.bind("tcp://127.0.0.1:5001")
            back.bind("tcp://127.0.0.1:5002")
            threading.Thread(target=zmq.proxy, args=(front, back), daemon=True).start()
            time.sleep(1)
        elif rank == 1:
            with context.socket(zmq.XPUB) as socket:
                socket.connect("tcp://127.0.0.1:5001")
                assert socket.recv() == b"\x01news"
                socket.send_multipart([b"news", b"good"])
        else:
            with context.socket(zmq.SUB) as socket:
                socket.connect("tcp://127.0.0.1:5002")
                socket.subscribe(b"news")
                found.append(socket.recv_multipart())

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=3, share_args=True)
    assert found == [[b"news", b"good"]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda context: context.socket(zmq.STREAM), "zmq.STREAM sockets of ranks"),
        (lambda context: context.socket(zmq.XPUB).set(zmq.XPUB_MANUAL, 1), "zmq.XPUB_MANUAL"),
        (lambda context: context.socket(zmq.PULL).get_monitor_socket(), "monitor of a zmq.PULL"),
    ],
)
def test_what_has_no_model_is_refused_by_name(call, words):
    """Not wrong in silence."""

    def program(rank):
        with zmq.Context() as context:
            try:
                call(context)
            finally:
                context.destroy()

    context = simrank.Context("hgx_h100", carrier="thread")
    with pytest.raises(SpawnException, match=words) as caught, context as ctx:
        ctx.multiprocessing.spawn(program, nprocs=1)
    assert isinstance(caught.value.__cause__, UnsupportedError)
