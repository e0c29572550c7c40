"""Loops that read what ranks share, or take a lock, until another rank changes something (E8)."""

import threading
import time

import pytest

import simrank.multiprocessing as mp
from simrank.errors import LivelockError

PS_PER_S = 10**12


SHARED = {
    "value": (lambda: mp.Value("i", 0), lambda v: v.value, lambda v: setattr(v, "value", 1)),
    "array": (lambda: mp.Array("i", 2), lambda a: a[1], lambda a: a.__setitem__(1, 1)),
    "whole array": (lambda: mp.Array("i", 2), sum, lambda a: a.__setitem__(1, 1)),
    "dict": (mp.Manager().dict, lambda d: d.get("go"), lambda d: d.update(go=1)),
    "key": (mp.Manager().dict, lambda d: "go" in d, lambda d: d.setdefault("go", 1)),
    "list": (mp.Manager().list, len, lambda seen: seen.append(1)),
    "namespace": (
        lambda: mp.Manager().Namespace(go=0),
        lambda n: n.go,
        lambda n: setattr(n, "go", 1),
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_loop_that_reads_what_is_shared_goes_on_when_it_changes(run, name):
    """On three ranks and in the time that the fourth takes; nobody waits for the processor."""
    make, read, change = SHARED[name]
    shared = make()

    def program(rank):
        if rank == 3:
            time.sleep(0.01)
            change(shared)
        while not read(shared):
            pass

    ctx = run(lambda rank, ctx: program(rank), 4)
    assert 0.01 * PS_PER_S <= ctx.now_ps < 0.013 * PS_PER_S


def test_a_loop_that_reads_two_values_in_turn_goes_on_too(run):
    """What is read again is what counts, not that it is read in a row."""
    first, second = mp.Value("i", 0), mp.Value("i", 0)

    def program(rank, ctx):
        if rank == 1:
            time.sleep(0.01)
            first.value = second.value = 1
        while not (first.value and second.value):
            _ = second.value

    run(program, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_a_loop_that_reads_what_nobody_changes_is_a_livelock(run, name):
    """Suspected, with the line; it does not hang."""
    make, read, _ = SHARED[name]
    shared = make()

    def program(rank, ctx):
        while not read(shared):
            pass

    with pytest.raises(
        LivelockError, match=r"ranks 0-3: .* that no rank changes at test_shared_reads.py"
    ):
        run(program, 4)


@pytest.mark.slow
def test_a_loop_that_pops_what_never_comes_is_a_livelock(run):
    """An attempt that fails is a read."""
    shared = mp.Manager().dict()

    def program(rank, ctx):
        while True:
            try:
                shared.pop("go")
            except KeyError:
                continue

    with pytest.raises(LivelockError, match="a ManagedDict that no rank changes"):
        run(program, 2)


def test_a_loop_that_takes_a_lock_to_look_goes_on_when_another_rank_has_changed_what_it_reads(run):
    """Nobody else ever holds the lock at the same time, so it never has to wait."""
    lock, seen = mp.Lock(), []

    def program(rank, ctx):
        if rank == 1:
            time.sleep(0.001)
            seen.append(rank)
        while True:
            with lock:
                if seen:
                    break

    run(program, 2)


def test_the_main_program_may_read_what_its_ranks_change(ctx):
    """Its loop drives the ranks."""
    value = mp.Value("i", 0)

    def program(rank):
        time.sleep(1)
        value.value = 1

    processes = ctx.multiprocessing.spawn(program, nprocs=1, join=False)
    while not value.value:
        pass
    processes.join()
    assert ctx.now_ps == PS_PER_S


def test_counting_and_looking_now_and_then_takes_no_time(run):
    """A write is something done; a few reads are no loop that waits; a lock may be taken often."""
    value, seen, lock = mp.Value("i", 0), mp.Manager().dict(), threading.RLock()

    def program(rank, ctx):
        for number in range(200):
            with value.get_lock():
                value.value += 1
            seen[number] = rank
        for number in range(200):
            assert seen[number] == rank
        for _ in range(900):
            with lock:
                pass

    assert run(program, 1).now_ps == 0
    assert value.value == 200


def test_a_loop_that_tries_a_semaphore_goes_on_when_it_is_released(run):
    """As any attempt in vain; that nobody releases it is a livelock."""
    semaphore = mp.Semaphore(0)

    def program(rank, ctx, releases):
        if rank == 1 and releases:
            time.sleep(0.01)
            semaphore.release()
            return
        while not semaphore.acquire(blocking=False):
            pass

    run(program, 2, True)
    with pytest.raises(LivelockError, match=r"Semaphore\.acquire\(\)"):
        run(program, 2, False)
