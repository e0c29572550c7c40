"""Locks that libraries made at import: waits of the engine while ranks are threads."""

import functools
import importlib
import logging
import sys
import threading
import time
from types import ModuleType

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import DeadlockError

US = 1e-6


@pytest.fixture(name="library")
def fixture_library(monkeypatch):
    """Return an installed package with native locks, made before any Context."""
    module = ModuleType("somelib.core")

    class Registry:
        """Has locks of its class."""

        lock = threading.Lock()
        __module__ = "somelib.core"

        @functools.cached_property
        def slow(self):
            """Wait while Python holds the property's lock."""
            time.sleep(US)
            return 3

    module.LOCK, module.AGAIN, module.Registry = threading.Lock(), threading.RLock(), Registry
    module.SAME = module.LOCK
    monkeypatch.setitem(sys.modules, "somelib.core", module)
    return module


def spawn(program, *args, nprocs=3):
    """Run a program on threads."""
    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, args, nprocs=nprocs, share_args=True)
    return ctx


@pytest.mark.parametrize("where", ["LOCK", "AGAIN", "SAME", "Registry.lock"])
def test_a_library_s_lock_held_across_a_wait_stops_nobody(library, where):
    """The others wait in the engine, one after the other; afterwards it is itself again."""
    log = []
    find = functools.partial(functools.reduce, getattr, where.split("."))
    before = find(library)

    def program(rank):
        with find(library):
            log.append(rank)
            time.sleep(US)
            log.append(rank)

    spawn(program)
    assert log == [0, 0, 1, 1, 2, 2]
    assert find(library) is before
    assert before.acquire(False)
    before.release()


def test_two_names_of_one_lock_stay_one(library):
    """Whoever holds it by one name has it by the other."""
    seen = []

    def program(rank):
        with library.LOCK:
            seen.append(library.SAME.locked())

    spawn(program, nprocs=1)
    assert seen == [True]


def test_the_lock_of_a_cached_property_stops_nobody(library):
    """Until Python 3.11 all objects of a class share it."""
    seen = []

    def program(rank):
        seen.append(library.Registry().slow)

    spawn(program)
    assert seen == [3, 3, 3]


@pytest.mark.parametrize("made", ["before", "within"])
def test_a_cached_property_may_wait_for_another_rank_s(library, made):
    """Each rank has the lock for itself, as each process has."""
    found = {}

    def make():
        class Store:
            """Asks the others when somebody first looks."""

            __module__ = "somelib.core"

            def __init__(self, rank):
                self.rank = rank

            @functools.cached_property
            def address(self):
                """Rank 0 tells it; the others wait, who came first."""
                if self.rank == 0:
                    found["event"].set()
                else:
                    found["event"].wait()
                return self.again + 1

            @functools.cached_property
            def again(self):
                """Be asked for within."""
                return 29500

        return Store

    library.Store = make() if made == "before" else None

    def program(rank):
        if rank == 0:
            time.sleep(2 * US)
        found[rank] = library.Store(rank).address

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        found["event"] = threading.Event()
        if made == "within":
            library.Store = make()
        ctx.multiprocessing.spawn(program, nprocs=3, share_args=True)
    assert {found[rank] for rank in range(3)} == {29501}
    outside = library.Store(0)
    found["event"] = threading.Event()
    assert outside.address == 29501


def test_a_library_s_lock_that_is_never_given_back_is_a_deadlock_with_its_holder(library):
    """Instead of a process that sleeps."""

    def program(rank):
        library.LOCK.acquire()

    with pytest.raises(DeadlockError, match="a lock held by rank 0, which has ended"):
        spawn(program)


def test_taking_a_free_lock_of_a_library_never_yields(library):
    """Not even where the rank's own clock is ahead: its caller may be in the midst of anything."""
    log = []

    def program(rank, ctx):
        ctx.engine.charge(5_000_000, "work")
        log.append(rank)
        with library.LOCK:
            pass
        log.append(rank)

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    assert log == [0, 0, 1, 1]


def test_a_handler_of_logging_that_waits_stops_nobody():
    """Its lock was made before the Context."""
    lines = []

    class Slow(logging.Handler):
        """Waits in the midst of a record."""

        def emit(self, record):
            time.sleep(US)
            lines.append(record.getMessage())

    handler, logger = Slow(), logging.getLogger("a library's")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        spawn(lambda rank: logger.warning("of rank %d", rank))
    finally:
        logger.removeHandler(handler)
    assert lines == [f"of rank {rank}" for rank in range(3)]


def test_a_rank_that_waits_in_an_import_stops_nobody_who_imports_the_same(tmp_path, monkeypatch):
    """The others get the whole module, as threads of a process do."""
    text = "import time\nfirst = 1\ntime.sleep(1e-6)\nsecond = 2\n"
    (tmp_path / "waits_in_import.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, "waits_in_import", raising=False)
    seen = []

    def program(rank):
        dist.init_process_group("gloo")
        import waits_in_import

        seen.append((rank, waits_in_import.second))
        dist.barrier()

    spawn(program)
    monkeypatch.delitem(sys.modules, "waits_in_import", raising=False)
    assert sorted(seen) == [(0, 2), (1, 2), (2, 2)]


def test_on_greenlets_locks_of_libraries_are_left_alone(library):
    """There all ranks are one thread."""
    seen = []
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda rank: seen.append(type(library.LOCK)), nprocs=1)
    assert seen == [type(library.LOCK)]
