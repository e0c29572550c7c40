"""tqdm's bars: each rank has its own."""

import sys
import threading
import time
from types import ModuleType
from weakref import WeakSet

import pytest

import simrank


@pytest.fixture(name="tqdm")
def fixture_tqdm(monkeypatch):
    """Return a class that keeps a lock and its bars as tqdm's does."""
    module = ModuleType("tqdm.std")
    module.tqdm = type("tqdm", (), {"_instances": WeakSet()})
    monkeypatch.setitem(sys.modules, "tqdm.std", module)
    return module.tqdm


def test_a_lock_that_one_rank_takes_away_stays_for_the_others(tqdm):
    """`thread_map` deletes the lock that it has made, and none that was there."""

    def program(rank):
        had = getattr(tqdm, "_lock", None)
        if had is None:
            tqdm._lock = threading.RLock()
        with tqdm._lock:
            time.sleep(1e-6)
        if had is None:
            del tqdm._lock
        time.sleep(1e-6)
        assert isinstance(tqdm._lock.acquire(), bool)
        tqdm._lock.release()

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=3)
        assert ctx.now_ps >= 3e6, "one after the other"
    assert not hasattr(tqdm, "_lock")


def test_each_rank_counts_its_own_bars(tqdm):
    """So that the first of each is on the first line."""
    outside = tqdm()
    tqdm._instances.add(outside)

    def program(rank):
        bars = [tqdm() for _ in range(rank + 1)]
        for bar in bars:
            tqdm._instances.add(bar)
        time.sleep(1e-6)
        assert len(tqdm._instances) == rank + 1
        assert set(tqdm._instances) == set(bars)
        assert outside not in tqdm._instances
        tqdm._instances.remove(bars[0])
        with pytest.raises(KeyError):
            tqdm._instances.remove(bars[0])
        assert len(tqdm._instances) == rank

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
        assert set(tqdm._instances) == {outside}
    assert type(tqdm._instances) is WeakSet


def test_the_thread_that_looks_after_bars_finds_its_ranks_own(tqdm):
    """It copies the set before it goes through it."""

    def program(rank):
        bar = type("Bar", (), {})()
        tqdm._instances.add(bar)
        time.sleep(1e-6)
        found = []
        monitor = threading.Thread(target=lambda: found.extend(tqdm._instances.copy()))
        monitor.start()
        monitor.join()
        assert found == [bar]

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
