"""Bugs of order are found, shrunk and replayed; programs that are right in any order pass."""

import fcntl
import importlib.util
import queue
import threading
import time
from pathlib import Path

import pytest

import simrank
import simrank.distributed as dist
from simrank import explore
from simrank.engine.delays import SHARED, Delays
from simrank.multiprocessing import Manager, Value
from tests.quick import slow_after

_spec = importlib.util.spec_from_file_location("planted", Path(__file__).parent / "planted.py")
planted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(planted)


def runner(make):
    """Return what runs a program of `planted` once, under some delays."""

    def run(delays):
        with simrank.Context(delays=delays, races="off") as ctx:
            program, nprocs = make(ctx)
            ctx.multiprocessing.spawn(program, nprocs=nprocs)

    return run


def failure_of(run, delays):
    """Return what a run raised, with the notes that tell when."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the planted bug raises
        run(delays)
    error = caught.value
    roots = getattr(error, "errors", {0: error}).values()
    return [(type(root).__name__, str(root), getattr(root, "__notes__", [])) for root in roots]


@pytest.mark.parametrize("name", slow_after(4, planted.BUGS))
def test_a_planted_bug_passes_without_delays_is_found_within_200_seeds_and_replays(name):
    """The shrunk delays, written as text and read again, give the same failure twice."""
    run = runner(getattr(planted, name))
    run(None)
    failure = explore.search(run, 200)
    assert failure is not None
    assert explore._kind(failure.error) == planted.BUGS[name]
    assert len(failure.applied) <= 4
    text = str(failure.delays)
    first = failure_of(run, Delays.parse(text))
    assert first == failure_of(run, Delays.parse(text))
    assert first[0][0] == planted.BUGS[name] or planted.BUGS[name] in str(type(failure.error))


class Unshared(Delays):
    """Delays of anything but calls on what ranks share."""

    def draw(self, kind, rank, site):
        return 0 if kind == SHARED else super().draw(kind, rank, site)


@pytest.mark.parametrize("name", planted.OF_SHARED)
def test_a_call_on_a_shared_object_must_be_late_to_find_its_bug(name, monkeypatch):
    """No other delay finds it, among as many seeds as the search needs with them."""
    run = runner(getattr(planted, name))
    failure = explore.search(run, 200)
    assert {delay.point.kind for delay in failure.applied} == {SHARED}
    for seed in range(1, failure.num_seeds + 1):
        run(Unshared(seed))


def all_reduce_steps(ctx):
    """A training loop as it should be."""

    def program(rank):
        dist.init_process_group("nccl")
        x = ctx.full((64,), float(rank))
        side = ctx.Stream()
        for _ in range(5):
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            side.wait_stream(ctx.current_stream())
            with ctx.stream(side):
                y = x.clone()
            ctx.current_stream().wait_stream(side)
            x.mul_(0.25)
        assert y[0].item() == 6.0
        dist.destroy_process_group()

    return program, 4


def ring_of_sends(ctx):
    """Even ranks send first, odd ones receive first."""

    def program(rank):
        dist.init_process_group("nccl")
        own, got = ctx.full((4,), float(rank)), ctx.zeros(4)
        calls = [dist.P2POp(dist.isend, own, (rank + 1) % 4)]
        calls.append(dist.P2POp(dist.irecv, got, (rank - 1) % 4))
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        assert got[0].item() == (rank - 1) % 4

    return program, 4


def guarded_counter(ctx):
    """Ranks add to a counter under its lock."""
    counter, lock = Value("i", 0), threading.Lock()

    def program(rank):
        for _ in range(3):
            with lock:
                seen = counter.value
                time.sleep(1e-5)
                counter.value = seen + 1
        dist.init_process_group("gloo")
        dist.barrier()
        assert counter.value == 12

    return program, 4


def guarded_objects(ctx):
    """Ranks share objects under locks, and hand over through a queue and a condition."""
    lock, ready, mail = threading.RLock(), threading.Condition(), queue.Queue(1)
    shared, came = Manager().dict(n=0), []

    def program(rank):
        with lock, lock:
            shared["n"] += 1
        if rank:
            mail.put(rank)
        else:
            assert sorted(mail.get() for _ in range(2)) == [1, 2]
        with ready:
            came.append(rank)
            ready.notify_all()
            ready.wait_for(lambda: len(came) == 3)
        assert shared["n"] == 3

    return program, 3


def guarded_file(ctx, name="lockf"):
    """Ranks count in a file under its lock."""
    path = planted.tempfile.mkdtemp() + "/count"
    with open(path, "w") as file:
        file.write("0")

    def program(rank):
        take = getattr(fcntl, name)
        with open(path, "r+") as file:
            take(file, fcntl.LOCK_EX)
            count = int(file.read())
            time.sleep(1e-4)
            file.seek(0)
            file.write(str(count + 1))
            file.flush()
            take(file, fcntl.LOCK_UN)
        dist.init_process_group("gloo")
        dist.barrier()
        with open(path) as file:
            assert file.read() == "3"

    return program, 3


def test_ranks_exclude_each_other_with_a_lock_of_a_part_of_a_file(tmp_path):
    """`lockf` is a process's own; a rank that does not wait gets the error of a process."""
    (tmp_path / "part").write_bytes(b"0123")
    seen = []

    def program(rank):
        with open(tmp_path / "part", "r+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 2, 0)
            except BlockingIOError:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 2, 2)  # The other half is free.
                seen.append(rank)
            time.sleep(1e-3)

    with simrank.Context() as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    assert seen == [1]


@pytest.mark.parametrize("make", [guarded_objects, guarded_file])
def test_a_program_that_guards_what_it_shares_passes_every_seed(make):
    """Late calls on locks, queues, values and files change no result."""
    assert explore.search(runner(make), 10) is None


@pytest.mark.parametrize("make", slow_after(1, [guarded_counter, all_reduce_steps, ring_of_sends]))
def test_a_program_that_is_right_in_any_order_passes_every_seed(make):
    """No delay makes it fail."""
    assert explore.search(runner(make), 60) is None


def test_progress_is_told_for_seeds_and_for_shrinking():
    """A caller can show how far the search is."""
    seen = []
    run = runner(planted.any_source_order)
    explore.search(run, 200, on_progress=lambda *facts: seen.append(facts))
    assert seen[0] == ("seeds", 0, 200)
    assert ("shrinking", 0, explore.MAX_SHRINK_RUNS) in seen


def test_a_failure_names_what_is_late_and_where():
    """The report has the seed, the number of delays, and the user's line of each."""
    failure = explore.search(runner(planted.missing_event), 200)
    assert f"seed {failure.delays.seed} fails" in str(failure)
    assert "planted.py:" in str(failure)
    assert "rank " in str(failure)


def test_a_failure_that_does_not_repeat_is_said_to_depend_on_something_outside():
    """Then the first error is shown, with a note, and all of its delays."""
    num_runs = []

    def run(delays):
        num_runs.append(1)
        delays.draw("h", 0, lambda: None)
        if len(num_runs) == 1:
            raise ValueError("only once")

    failure = explore.search(run, 5)
    assert "outside the simulation" in failure.error.__notes__[-1]


def test_what_fails_without_any_delay_shrinks_to_none():
    """Another order of equal times is enough, or nothing is needed at all."""

    def run(delays):
        for _ in range(50):
            delays.draw("h", 0, lambda: None)
        raise ValueError("always")

    failure = explore.search(run, 5)
    assert failure.applied == ()
    assert "to none" in str(failure)


def test_many_delays_that_are_all_needed_end_within_the_budget():
    """A program that needs every delay is not shrunk for ever."""
    num_runs = []

    def run(delays):
        num_runs.append(1)
        for _ in range(1000):
            delays.draw("h", 0, lambda: None)
        if len(delays.applied) >= 40:
            raise ValueError("many")

    failure = explore.search(run, 200)
    assert len(num_runs) <= 200 + explore.MAX_SHRINK_RUNS + 1
    assert 40 <= len(failure.applied) <= failure.num_delays
    assert "more" in str(failure)
