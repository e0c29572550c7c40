"""Sockets that ranks bind: free ports are the same in every run, and none is given twice."""

import errno
import socket

import pytest

import simrank


@pytest.fixture
def on_ranks():
    """Return what runs a program on ranks and gives what they returned."""

    def run(program, nprocs=2, **options):
        returned = {}

        def body(rank):
            returned[rank] = program(rank)

        with simrank.Context("hgx_h100", **options) as ctx:
            ctx.multiprocessing.spawn(body, nprocs=nprocs)
        return returned

    return run


def find_free_port():
    """Return a port as many programs look for one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]


def test_helpers_that_look_for_a_free_port_find_the_same_ones_in_every_run(on_ranks):
    """And never the same twice: the ranks of a host share its ports."""
    found = on_ranks(lambda rank: [find_free_port() for _ in range(3)], 4)
    ports = [port for listed in found.values() for port in listed]
    assert len(set(ports)) == len(ports) == 12
    assert found == on_ranks(lambda rank: [find_free_port() for _ in range(3)], 4)


def test_a_port_that_is_bound_is_in_use_for_others_and_free_once_closed(on_ranks):
    """The system's own error, with who holds it."""

    def program(rank):
        first, second = socket.socket(), socket.socket()
        first.bind(("127.0.0.1", 18000 + rank))
        assert first.getsockname() == ("127.0.0.1", 18000 + rank)
        with pytest.raises(OSError, match="Address already in use") as caught:
            second.bind(("", 18000 + rank))
        assert caught.value.errno == errno.EADDRINUSE
        (note,) = caught.value.__notes__
        first.close()
        second.bind(("", 18000 + rank))
        second.close()
        return note

    notes = on_ranks(program)
    assert notes[1].startswith("simrank: port 18001 is held by a socket of rank 1 at test_sockets")


def test_a_port_is_free_when_its_rank_has_ended(on_ranks):
    """As that of a process; an open socket is closed by the system."""
    kept = []

    def program(rank):
        sock = socket.socket()
        sock.bind(("", 18100))
        kept.append(sock)

    with simrank.Context("hgx_h100") as ctx:
        for _ in range(2):
            ctx.multiprocessing.spawn(program, nprocs=1)
    for sock in kept:
        sock.close()
    assert len(kept) == 2


def test_hosts_have_ports_of_their_own():
    """Ranks 0 and 8 are on different nodes."""

    def program(rank):
        if rank % 8 == 0:
            sock = socket.socket()
            sock.bind(("", 18200))
            simrank.distributed.init_process_group("gloo")
            sock.close()

    with simrank.Context({"name": "h100_ib", "nodes": 2}) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=9)


def test_reuse_shares_a_port_until_somebody_listens(on_ranks):
    """SO_REUSEADDR, as Linux has it; tcp and udp have ports of their own."""

    def program(rank):
        first, second, third = (socket.socket() for _ in range(3))
        for sock in (first, second, third):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.bind(("127.0.0.1", 18300))
        second.bind(("127.0.0.1", 18300))
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", 18300))
        second.listen()
        with pytest.raises(OSError, match="in use"):
            third.bind(("127.0.0.1", 18300))
        for sock in (first, second, third, datagrams):
            sock.close()

    on_ranks(program, 1)


def test_a_server_in_a_rank_is_real(on_ranks):
    """It answers at the address that it says."""

    def program(rank):
        server = socket.create_server(("127.0.0.1", 0))
        with socket.create_connection(server.getsockname()) as client:
            answer, _ = server.accept()
            client.sendall(b"hello")
            assert answer.recv(5) == b"hello"
        answer.close()
        server.close()

    on_ranks(program, 1)


def test_outside_ranks_sockets_are_the_systems():
    """Two that bind the same port there are told by the system."""
    with simrank.Context("hgx_h100"), socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        with pytest.raises(OSError, match="in use") as caught:
            second.bind(("127.0.0.1", port))
        assert not hasattr(caught.value, "__notes__")
