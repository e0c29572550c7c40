"""Python's garbage collector while a simulation runs."""

import gc
import subprocess
import sys
import threading
import time
import types
import weakref
from importlib.machinery import ExtensionFileLoader, ModuleSpec

import pytest

import simrank
import simrank.distributed as dist
from simrank.engine import collector
from simrank.engine.collector import calm_collector


def test_the_collector_is_calm_within_a_run_and_restored_after():
    """Also after an error; a collector that is off stays off."""
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), calm_collector():
        assert gc.get_threshold()[0] >= 100_000
        raise ZeroDivisionError

    assert gc.get_threshold() == before


def test_ranks_on_threads_find_garbage_as_early_as_a_process_does():
    """What one of them holds in a cycle, others may have lost."""
    seen, before = [], gc.get_threshold()

    def program(rank):
        seen.append(gc.get_threshold())

    for carrier in ("thread", "greenlet"):
        with simrank.Context("hgx_h100", carrier=carrier) as ctx:
            ctx.multiprocessing.spawn(program, nprocs=1, share_args=True)
    assert seen[0][:2] == before[:2]
    assert seen[1][0] > before[0]


@pytest.mark.parametrize("carrier", ["thread", "greenlet"])
@pytest.mark.parametrize("act", [time.perf_counter, lambda: time.sleep(1e-6)])
def test_what_the_collector_calls_may_read_the_clock_anywhere(carrier, act):
    """A program that measures its collector: it is called between lines of the engine's own."""
    num_looks = []
    threshold = gc.get_threshold()[0]

    def measured(phase, info):
        num_looks.append(act() is None)

    def program(rank):
        dist.init_process_group("nccl")
        gc.callbacks.append(measured)
        gc.set_threshold(1)
        try:
            total = 0
            for _ in range(4):
                mine = simrank.ones(1)
                dist.all_reduce(mine)
                total += mine.tolist()[0]
                time.sleep(1e-6)
            assert total == 8
        finally:
            gc.set_threshold(threshold)
            gc.callbacks.remove(measured)

    with simrank.Context("hgx_h100", carrier=carrier, private=["a_package"]) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
    assert len(num_looks) > 10


def test_the_collector_rests_while_a_thread_is_looked_at():
    """The interpreter is locked meanwhile: what it calls would stop the process, or end it."""
    callers, ends, threshold = set(), threading.Event(), gc.get_threshold()[0]

    def deep(level):
        return ends.wait() if level == 0 else deep(level - 1)

    def seen(phase, info):
        callers.add(sys._getframe(1).f_code.co_name)

    thread = threading.Thread(target=deep, args=(50,))
    thread.start()
    gc.callbacks.append(seen)
    gc.set_threshold(1)
    try:
        frames = [collector.frame_of_thread(thread.ident) for _ in range(20)]
        made = [[] for _ in range(20)]
    finally:
        gc.set_threshold(threshold)
        gc.callbacks.remove(seen)
        ends.set()
        thread.join()
    assert len(made) == len(frames)
    assert all(frames)
    assert callers
    assert "frame_of_thread" not in callers
    assert collector.frame_of_thread(thread.ident) is None is collector.frame_of_thread(None)


@pytest.fixture(name="thawed")
def fixture_thawed(monkeypatch):
    """What this session of tests has frozen is the collector's within a test."""
    monkeypatch.setattr(collector, "_is_programs", False)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_what_was_there_before_a_simulation_is_not_looked_at_within_it():
    """The program's own freeze stays as it is."""
    with simrank.Context("hgx_h100"):
        assert gc.get_freeze_count() > 10_000
        gc.collect()
    assert gc.get_freeze_count() == 0

    gc.freeze()
    num_before = gc.get_freeze_count()
    with simrank.Context("hgx_h100"):
        made = [[] for _ in range(20_000)]
    assert num_before / 2 < gc.get_freeze_count() < num_before + len(made) / 2


class Cycle:
    """Garbage, once nobody holds it."""

    def __init__(self):
        self.me = self


@pytest.mark.usefixtures("thawed")
def test_garbage_that_ranks_leave_is_found_as_their_simulation_ends():
    """However long they have lived."""
    seen = []

    def program(rank):
        mine = Cycle()
        seen.append(weakref.ref(mine))
        gc.collect(1)  # Old from here on.
        gc.collect(0)
        for _ in range(8):
            gc.collect(0)

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
        gc.collect(0)
        assert all(thing() is not None for thing in seen)
    assert all(thing() is None for thing in seen)


@pytest.mark.usefixtures("thawed")
def test_all_garbage_is_found_by_a_look_at_all():
    """Also what was set aside; it is set aside again."""
    with simrank.Context("hgx_h100"):
        before = gc.get_freeze_count()
        old = Cycle()
        died = weakref.ref(old)
        gc.freeze()
        del old
        gc.collect()
        assert died() is not None
        collector.look_at_all()
        assert died() is None
        assert gc.get_freeze_count() > before / 2


@pytest.mark.usefixtures("thawed")
def test_what_hundreds_of_ranks_leave_is_not_looked_at_for_that():
    """As their simulation ends: it is alive, and a look takes a tenth of the simulation's time."""
    kept, looks = [], []

    def seen(phase, info):
        looks.append(info)

    def program(rank):
        kept.append([[] for _ in range(120)])
        if rank == 999:
            looks.clear()

    gc.callbacks.append(seen)
    try:
        with simrank.Context({"name": "h100_ib", "nodes": 125}, carrier="greenlet") as ctx:
            ctx.multiprocessing.spawn(program, nprocs=1000, share_args=True)
            assert gc.get_count()[0] < 10_000
    finally:
        gc.callbacks.remove(seen)
    assert not looks
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
def test_a_process_does_not_look_at_what_thousands_of_ranks_have_left_as_it_ends():
    """Their Context is often a global of a script; Python looks at it several times."""
    program = """if True:
        import atexit, gc, simrank
        atexit.register(lambda: print(gc.get_freeze_count() > 60_000))
        with simrank.Context({"name": "h100_ib", "nodes": 125}, data=False) as ctx:
            ctx.multiprocessing.spawn(lambda rank: simrank.empty(1), nprocs=1000)
    """
    for nodes, is_large in ((375, True), (1, False)):
        source = program.replace("125", str(nodes)).replace("1000", str(8 * nodes))
        done = subprocess.run(
            [sys.executable, "-c", source], check=True, capture_output=True, text=True
        )
        assert done.stdout == f"{is_large}\n", done.stderr


@pytest.mark.usefixtures("thawed")
def test_garbage_of_a_program_that_simulates_again_and_again_is_found(monkeypatch):
    """What it leaves between two Contexts is set aside young, but not for good."""
    monkeypatch.setattr(collector, "_MOST_UNSEEN", 10_000)
    died = []

    def leave_garbage():
        ours = Cycle()
        ours.parts = [[] for _ in range(600)]
        weakref.finalize(ours, died.append, True)

    for _ in range(24):
        leave_garbage()
        with simrank.Context("hgx_h100"):
            pass
    assert len(died) > 5


@pytest.mark.usefixtures("thawed")
def test_a_collector_that_is_off_is_left_alone():
    """It looks at nothing, and nothing is set aside for it."""
    gc.disable()
    try:
        with simrank.Context("hgx_h100", carrier="thread") as ctx:
            ctx.multiprocessing.spawn(lambda rank: None, nprocs=1)
            assert gc.get_freeze_count() == 0
    finally:
        gc.enable()


@pytest.mark.usefixtures("thawed")
def test_who_asks_for_objects_sees_those_too_that_were_there_before():
    """Tools that look for leaks do, also in a rank."""
    old = Cycle()
    holder = [old]
    seen = []

    def program(rank):
        seen.append(any(each is holder for each in gc.get_referrers(old)))

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
    with simrank.Context("hgx_h100"):
        assert any(each is holder for each in gc.get_objects())
    assert seen == [True, True]
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("thawed")
def test_libraries_that_tell_of_what_is_left_find_nothing_left(monkeypatch):
    """Those made with nanobind, as Triton's, print what lives as the process ends."""
    made = types.ModuleType("made_with_nanobind")
    made.__spec__ = ModuleSpec(made.__name__, ExtensionFileLoader(made.__name__, "none.so"))
    monkeypatch.setitem(sys.modules, made.__name__, made)
    assert collector._is_extension(made)
    monkeypatch.setattr(collector, "_is_extension", lambda module: module is made)
    collector._end_of_process()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    made.function = type("nb_func", (), {"__module__": "nanobind"})()
    collector._end_of_process()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("thawed")
@pytest.mark.slow
def test_garbage_of_many_runs_does_not_add_up():
    """What a run of many ranks leaves is old at once, and looked at when it has become much."""

    class Loop:
        def __init__(self):
            self.me = self

    def body(rank):
        for _ in range(170):
            Loop()

    left = []
    with simrank.Context({"name": "h100_ib", "nodes": 125}) as ctx:
        for _ in range(4):
            ctx.multiprocessing.spawn(body, nprocs=1000)
            left.append(sum(type(each).__name__ == "Loop" for each in gc.get_objects()))
    assert max(left) <= 2 * 170_000
