"""Stores without sockets: waits of the engine, limits in simulated time."""

import gc
import os
import socket
import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import simrank
from simrank.distributed.membership import world_of
from simrank.errors import DeadlockError, SpawnException
from simrank.ranks import require_rank


def test_a_get_waits_for_the_key(spawn):
    """And the table is shared by who opens the same name."""
    got = {}

    def program(rank):
        store = dist.TCPStore("localhost", 1234, 2, rank == 0)
        if rank == 0:
            store.set("key", "value")
        got[rank] = store.get("key")
        assert isinstance(store, dist.TCPStore)

    spawn(program)
    assert got == {0: b"value", 1: b"value"}


def test_a_loop_that_asks_a_store_without_a_wait_lets_the_other_ranks_go_on(spawn):
    """A counter that is added to by nothing, and a key that is looked for."""

    def program(rank):
        store = dist.FileStore("/nowhere/at/all", 2)
        store.add("came", 1)
        while store.add("came", 0) < 2:
            pass
        if rank:
            store.set("key", "value")
        while not store.check(["key"]):
            pass

    spawn(program)


def test_numbers_queues_and_comparisons(spawn):
    """Every method of torch's."""

    def program(rank):
        store = dist.FileStore("/nowhere/at/all", 2)
        assert store.add(f"n {rank}", 2) == 2
        assert store.add(f"n {rank}", 3) == 5
        assert store.compare_set(f"c {rank}", "", "first") == b"first"
        assert store.compare_set(f"c {rank}", "no", "second") == b"first"
        store.append(f"a {rank}", "x")
        store.append(f"a {rank}", "y")
        assert store.get(f"a {rank}") == b"xy"
        assert store.check([f"a {rank}"])
        assert not store.check(["nothing"])
        assert store.delete_key(f"a {rank}")
        store.multi_set([f"m {rank}", f"l {rank}"], ["1", "2"])
        assert store.multi_get([f"m {rank}", f"l {rank}"]) == [b"1", b"2"]
        if rank == 0:
            store.queue_push("q", "job")
        else:
            assert store.queue_pop("q") == b"job"
        assert store.queue_len("nothing") == 0
        assert dist.HashStore().num_keys() == 0

    spawn(program)


def test_a_limit_passes_in_simulated_time(spawn):
    """Torch's error, five simulated seconds later."""

    def program(rank):
        store = dist.TCPStore("localhost", 1, 2, rank == 0, timeout=timedelta(seconds=5))
        with pytest.raises(dist.DistStoreError, match="wait timeout after 5000ms, keys: /never"):
            store.get("never")

    assert spawn(program).now_ps >= 5 * 10**12


def test_outside_ranks_stores_are_torchs(tmp_path):
    """A real file."""
    store = dist.FileStore(str(tmp_path / "file"), 1)
    store.set("a", "b")
    assert store.get("a") == b"b"
    assert (tmp_path / "file").exists()


def test_two_servers_on_one_host_that_take_the_same_port_are_told_in_torchs_words(spawn):
    """At the call, in every run: who holds it is in the note."""
    reported = {}

    def program(rank):
        own = None
        if rank == 0:
            own = dist.TCPStore("localhost", 29600, 1, True)
        dist.init_process_group("gloo")
        dist.barrier()
        if rank == 1:
            with pytest.raises(
                dist.DistNetworkError, match="port: 29600, useIpv6: false"
            ) as caught:
                dist.TCPStore("localhost", 29600, 1, True)
            reported[rank] = (str(caught.value), caught.value.__notes__[0])
        dist.barrier()
        del own

    spawn(program)
    assert reported[1][0].endswith("code: -98, name: EADDRINUSE, message: address already in use")
    assert reported[1][1].startswith(
        "simrank: port 29600 is held by a TCPStore of rank 0 at test_st"
    )


def test_ports_that_are_bound_before_they_are_published_never_collide(spawn):
    """Port 0 on every rank: all numbers differ, and whoever reads them connects."""
    ports = {}

    def program(rank):
        server = dist.TCPStore("localhost", 0, 1, True)
        ports[rank] = server.port
        server.set("owner", str(rank))
        dist.init_process_group("gloo")
        listed = [None] * 8
        dist.all_gather_object(listed, server.port)
        neighbour = (rank + 1) % 8
        client = dist.TCPStore("localhost", listed[neighbour], 1, False)
        assert client.get("owner") == str(neighbour).encode()

    spawn(program, 8)
    assert len(set(ports.values())) == 8
    first = dict(ports)
    spawn(program, 8)
    assert ports == first


def test_a_port_is_free_again_once_nobody_has_the_store(spawn):
    """Within the rank that served; while it has the store, it may not serve twice."""

    def program(rank):
        store = dist.TCPStore("localhost", 29601, 1, True)
        with pytest.raises(dist.DistNetworkError, match="29601"):
            dist.TCPStore("localhost", 29601, 1, True)
        store.set("key", "old")
        del store
        store = dist.TCPStore("localhost", 29601, 1, True)
        assert not store.check(["key"])

    spawn(program, 1)


def test_children_take_the_port_of_a_group_that_their_parent_has_destroyed(spawn):
    """None of them finds the old server, whoever comes first; a live one keeps its port."""
    reported = []

    def child(rank, world_size):
        time.sleep(world_size - rank)  # The server comes last.
        try:
            dist.init_process_group(
                "gloo", "tcp://localhost:29609", world_size=world_size, rank=rank
            )
        except dist.DistNetworkError as error:
            reported.append((rank, error.__notes__[0]))
            return
        sums = torch.ones(1)
        dist.all_reduce(sums)
        reported.append((rank, sums.item()))

    def program(rank):
        dist.init_process_group("gloo", "tcp://localhost:29609", world_size=1, rank=0)
        torch.multiprocessing.spawn(child, (1,), 1)
        dist.destroy_process_group()
        torch.multiprocessing.spawn(child, (2,), 2)
        store = dist.PrefixStore("mine", dist.TCPStore("localhost", 29609, 1, True))
        torch.multiprocessing.spawn(child, (1,), 1)
        store.set("key", "value")

    spawn(program, 1)
    held = "simrank: port 29609 is held by a TCPStore of rank 0 at test_stores.py"
    assert [(rank, str(what)[: len(held)]) for rank, what in reported] == [
        (0, held), (0, "2.0"), (1, "2.0"), (0, held),
    ]  # fmt: skip


def test_a_server_that_awaits_others_is_there_for_them_after_its_rank_has_let_it_go(spawn):
    """As the first one would have waited for the last to connect."""

    def program(rank):
        if rank == 0:
            dist.TCPStore("localhost", 29610, 2, True, multi_tenant=True).set("key", "value")
            with pytest.raises(dist.DistNetworkError, match="29610"):
                dist.TCPStore("localhost", 29610, 2, True)
        else:
            time.sleep(1)
            assert dist.TCPStore("localhost", 29610, 2, False).get("key") == b"value"

    spawn(program)


def test_a_server_waits_until_its_workers_have_connected(spawn):
    """It looks every 10 ms, so a worker sets the first key; one that never comes is named."""
    won = []

    def program(rank):
        if rank == 1:
            time.sleep(1.5)
        store = dist.TCPStore("localhost", 29611, 2, rank == 0)
        won.append(store.compare_set("leader", "", str(rank)))

    def alone(rank):
        if rank == 0:
            dist.TCPStore("localhost", 29612, 2, True, timedelta(seconds=5))

    spawn(program)
    assert won == [b"1", b"1"]
    with pytest.raises(SpawnException, match=r"5 seconds waiting for clients\. 1/2 clients"):
        spawn(alone)


def test_stores_behind_a_prefix_have_keys_and_queues(spawn):
    """The default group's is one; values of two processes with gloo."""

    def program(rank):
        dist.init_process_group("gloo")
        if rank == 0:
            base = dist.distributed_c10d._get_default_store()
            store = dist.PrefixStore("a", base)
            inner = dist.PrefixStore("b", store)
            store.set("k", "v")
            inner.set("z", "1")
            store.queue_push("q", "x")
            assert sorted(store.list_keys()) == ["b/z", "k"]
            assert inner.list_keys() == ["z"]
            assert (store.queue_len("q"), base.queue_len("a/q")) == (1, 1)
            assert store.queue_pop("q") == b"x"
            assert (store.delete_key("k"), store.delete_key("k")) == (True, False)

    spawn(program)


def test_tenants_of_one_process_share_a_server_and_others_do_not(spawn):
    """As `init_process_group` does when it is called again."""

    def program(rank):
        if rank == 0:
            first = dist.TCPStore("localhost", 29602, 1, True, multi_tenant=True)
            second = dist.TCPStore("localhost", 29602, 1, True, multi_tenant=True)
            first.set("key", "value")
            assert second.get("key") == b"value"
        dist.init_process_group("gloo")
        if rank == 1:
            with pytest.raises(dist.DistNetworkError, match="29602"):
                dist.TCPStore("localhost", 29602, 1, True, multi_tenant=True)
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group("gloo")

    spawn(program)


def test_two_programs_with_one_master_port_are_told(spawn):
    """The second one's rank 0, in `init_process_group`."""
    reported = []

    def program(rank):
        os.environ["MASTER_PORT"] = "29603"
        try:
            dist.init_process_group("gloo")
            time.sleep(1)
        except dist.DistNetworkError as error:
            reported.append((rank, "EADDRINUSE" in str(error)))

    with simrank.Context("hgx_h100") as ctx:
        for processes in [ctx.multiprocessing.spawn(program, nprocs=1, join=False) for _ in "ab"]:
            processes.join()
    assert reported == [(0, True)]


def test_a_socket_and_a_store_share_the_ports_of_a_host(spawn):
    """A bound socket keeps its port; one that is handed over does not."""

    def program(rank):
        with socket.socket() as sock:
            sock.bind(("localhost", 0))
            port = sock.getsockname()[1]
            with pytest.raises(dist.DistNetworkError, match=f"port: {port}"):
                dist.TCPStore("localhost", port, 1, True)
            store = dist.TCPStore("localhost", port, 1, True, master_listen_fd=sock.fileno())
            assert store.port == port
        with socket.socket() as sock, pytest.raises(OSError, match="in use"):
            dist.TCPStore("localhost", 29604, 1, True)
            other = dist.TCPStore("localhost", 29605, 1, True)
            sock.bind(("localhost", other.port))

    spawn(program, 1)


def test_a_client_without_a_server_waits_for_it_or_is_told(spawn):
    """Its own limit is torch's error; the default is a deadlock, proved at once."""

    def deferred_error(rank):
        if rank == 0:
            time.sleep(5)
        store = dist.TCPStore("localhost", 29606, None, rank == 0)
        store.set(str(rank), "here")
        assert store.get("1") == b"here"

    def limited(rank):
        limit = timedelta(seconds=1)
        with pytest.raises(dist.DistNetworkError, match="timed out after 1000ms while trying to"):
            dist.TCPStore("localhost", 29607, None, False, timeout=limit)

    spawn(deferred_error)
    spawn(limited)
    with pytest.raises(DeadlockError, match="a server at port 29608' of host localhost"):
        spawn(lambda rank: dist.TCPStore("localhost", 29608, None, False))


def test_what_a_spawn_keeps_dies_with_it(spawn):
    """A store knows its ranks, and they their world: nobody else may know the store."""
    worlds = []

    def program(rank):
        dist.FileStore("/nowhere/at/all", 2).set(f"key {rank}", "value")
        worlds.append(weakref.ref(world_of(require_rank("a test"))))

    spawn(program)
    gc.collect()
    assert [world() for world in worlds] == [None, None]


def test_a_class_that_a_rank_derives_from_a_store_has_its_methods(spawn):
    """Of its own, and those that it calls of the class it is derived from."""
    got = {}

    def program(rank):
        class Counting(dist.PrefixStore):
            def __init__(self, prefix, store):
                super().__init__(prefix, store)
                self.num_sets = 0

            def set(self, key, value):
                self.num_sets += 1
                super().set(key, value)

        store = Counting("mine", dist.FileStore("/nowhere/at/all", 2))
        store.set("key", str(rank)) if rank == 0 else store.wait(["key"])
        got[rank] = store.get("key"), store.num_sets
        assert isinstance(store, dist.PrefixStore)
        assert issubclass(Counting, dist.Store)

    spawn(program)
    assert got == {0: (b"0", 1), 1: (b"0", 0)}
