"""Stores without sockets: waits of the engine, limits in simulated time."""

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402


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
