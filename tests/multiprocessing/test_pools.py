"""Workers of a pool in a rank are processes of the rank."""

import functools
import multiprocessing
import multiprocessing.pool
import os
import time

import pytest

import simrank
from simrank.errors import DeadlockError, SpawnException


def spawn(program, nprocs=2):
    """Run a program on threads."""
    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs, share_args=True)
    return ctx


def begin(word):
    """Prepare a worker of a pool."""
    os.environ["OF_POOL"] = word


def grown(values):
    """Change an argument, and say where."""
    values.append(os.environ["OF_POOL"])
    return values, os.getpid()


def lose(value):
    """Raise, or end the process."""
    if value:
        os._exit(value)
    raise KeyError("mine")


def pools():
    """Return the constructors of pools: of the module, of its contexts, and the class."""
    contexts = [multiprocessing.get_context(method) for method in ("fork", "spawn", "forkserver")]
    by_class = functools.partial(multiprocessing.pool.Pool, context=contexts[1])
    return [multiprocessing.Pool, *(each.Pool for each in contexts), by_class]


@pytest.mark.parametrize("number", range(5))
def test_workers_of_pools_are_processes_of_the_rank(number):
    """With an environment of their own, copies of arguments, and errors that come back."""

    def program(rank, ctx):
        given = [0]
        with pools()[number](2, begin, (f"of {rank}",)) as pool:
            found = pool.map(grown, [given] * 4, chunksize=1)
            assert [values for values, _ in found] == [[0, f"of {rank}"]] * 4
            assert os.getpid() not in {pid for _, pid in found}
            assert (given, "OF_POOL" in os.environ) == ([0], False)
            assert list(pool.imap(abs, [-1, -2])) == pool.starmap(pow, [(1, 1), (2, 1)]) == [1, 2]
            with pytest.raises(KeyError, match="mine"):
                pool.apply(lose, (0,))
            assert pool.map_async(abs, [-3]).get(1) == [3]

    spawn(program)


def test_a_worker_that_ends_is_replaced():
    """By itself, or after as many tasks as were given; what it did is lost, as in a process."""

    def program(rank, ctx):
        with multiprocessing.get_context("spawn").Pool(1, begin, ("",), 1) as pool:
            assert len({pid for _, pid in pool.map(grown, [[], [], []], chunksize=1)}) == 3
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            with pytest.raises(multiprocessing.TimeoutError):
                pool.apply_async(lose, (3,)).get(2)
            assert pool.apply(abs, (-1,)) == 1

    spawn(program)


def test_pools_end_with_their_rank():
    """Workers that are at work are ended, and those of a rank that fails."""

    def program(rank, ctx):
        pool = multiprocessing.get_context("spawn").Pool(2)
        pool.map_async(time.sleep, [1000, 1000])
        kept.append(pool)
        if rank:
            raise ValueError("mine")

    kept = []
    with pytest.raises(SpawnException, match="mine"):
        spawn(program)
    assert spawn(program, 1).now_ps < 1e12


def test_a_pool_whose_workers_wait_for_ever_is_in_the_report():
    """By the names of the workers."""

    def program(rank, ctx):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(multiprocessing.Queue().get)

    with pytest.raises(DeadlockError, match="SpawnPoolWorker"):
        spawn(program, 1)
