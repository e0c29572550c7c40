"""Multiprocessing in ranks: processes are further threads, what they share is simulated."""

# Names are looked up within the Context, where they differ.

import concurrent.futures.process
import multiprocessing
import os
import signal
import sys
import threading
import time

import pytest

import simrank
from simrank.errors import DeadlockError, SpawnException, UnsupportedError


@pytest.fixture(name="spawn")
def fixture_spawn():
    """Return what runs a program on threads."""

    def spawn(program, nprocs=2):
        with simrank.Context("hgx_h100", carrier="thread") as ctx:
            ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs, share_args=True)
        return ctx

    return spawn


def write(number, results, given):
    """Sleep, tell what there is, and end as the number says."""
    time.sleep(0.5)
    given.append(number)
    results.put((number, len(given)))
    if number == 1:
        raise SystemExit(4)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_rank_waits_for_its_processes_in_simulated_time(spawn, method):
    """They run beside each other, on copies of their arguments, and end with an exit code."""
    seen = []

    def program(rank, ctx):
        made = multiprocessing.get_context(method)
        results, given = made.Queue(), []
        children = [made.Process(target=write, args=(n, results, given)) for n in range(2)]
        for child in children:
            child.start()
        assert children[0].is_alive()
        assert sorted(results.get() for _ in children) == [(0, 1), (1, 1)]
        for child in children:
            child.join()
        assert ([child.exitcode for child in children], given) == ([0, 4], [])
        seen.append([child.pid for child in children])

    ctx = spawn(program)
    assert 0.5e12 <= ctx.now_ps < 0.6e12
    assert len({pid for pids in seen for pid in pids}) == 4


def test_a_process_that_ends_as_it_is_asked_for_keeps_its_exit_code(spawn):
    """Starting the next one asks, and asking lets it go on."""

    def program(rank, ctx):
        children = [multiprocessing.Process(target=int) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0, 0]

    spawn(program, 1)


def fail():
    """Raise."""
    raise ValueError("no such folder")


def test_a_process_that_raises_tells_so_and_has_an_exit_code(spawn, capsys):
    """As there: the rank goes on."""

    def program(rank, ctx):
        child = multiprocessing.Process(target=fail, name="writer")
        child.start()
        child.join()
        assert child.exitcode == 1

    spawn(program, 1)
    reported = capsys.readouterr().err
    assert "Process writer:" in reported
    assert "ValueError: no such folder" in reported


def test_a_process_is_terminated_at_its_wait(spawn):
    """One that is a daemon ends with its rank."""

    def program(rank, ctx):
        child = multiprocessing.Process(target=time.sleep, args=(1000,))
        child.start()
        child.join(1)
        assert child.exitcode is None
        child.terminate()
        child.join()
        assert (child.exitcode, child.is_alive()) == (-15, False)
        multiprocessing.Process(target=time.sleep, args=(1000,), daemon=True).start()

    assert spawn(program).now_ps < 2e12


def test_a_process_that_waits_for_ever_is_in_the_report(spawn):
    """By its name and line."""

    def program(rank, ctx):
        queue = multiprocessing.Queue()
        multiprocessing.Process(target=queue.get, name="reader").start()

    with pytest.raises(DeadlockError, match="reader"):
        spawn(program, 1)


def test_each_rank_numbers_its_processes_from_one_in_every_run(ctx):
    """As a process does: the names of two ranks, and of two runs, are the same."""
    names = []

    def program(rank):
        names.append([multiprocessing.Process(target=int).name for _ in range(2)])

    for _ in range(2):
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
    assert names == [["Process-1", "Process-2"]] * 4


def test_managers_are_of_ranks(spawn):
    """With the names of multiprocessing."""

    def program(rank, ctx):
        queue = multiprocessing.Manager().Queue()
        queue.put(rank)
        assert queue.get() == rank

    spawn(program)


def test_pools_of_futures_in_processes_are_refused_by_name(spawn):
    """Those of threads stand for them."""

    def program(rank, ctx):
        concurrent.futures.process.ProcessPoolExecutor()

    with pytest.raises(SpawnException) as caught:
        spawn(program, 1)
    assert type(caught.value.errors[0]) is UnsupportedError


def test_the_main_program_has_real_ones():
    """Whether a Context is entered or not."""
    with simrank.Context("hgx_h100"):
        assert type(multiprocessing.Lock()).__module__ == "multiprocessing.synchronize"


def leave(how):
    """End as the word says, in an environment and with arguments of its own."""
    os.environ["OF_CHILD"] = sys.argv[0] = "here"
    assert os.getpid() != os.getppid()
    if how == "exit":
        os._exit(5)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1000 if how == "sleep" else 0)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_ends_alone_and_keeps_its_environment_to_itself(spawn, method):
    """By `os._exit`, and by signals of its own or of its rank, which waits for it."""

    def program(rank, ctx):
        os.environ["OF_RANK"] = "there"
        made = multiprocessing.get_context(method)
        ways = ("exit", "signal", "sleep", "sleep", "return")
        children = [made.Process(target=leave, args=(how,)) for how in ways]
        for child in children:
            child.start()
        time.sleep(1)
        os.kill(children[2].pid, signal.SIGKILL)
        children[3].kill()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [5, -15, -9, -9, 0]
        assert "OF_CHILD" not in os.environ
        assert sys.argv[0] != "here"

    assert 1e12 <= spawn(program).now_ps < 2e12


def see_rank(results):
    """Tell what a process inherits."""
    results.put((os.environ["RANK"], os.environ["OF_RANK"]))
    threading.Thread(target=time.sleep, args=(2,)).start()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_inherits_what_its_rank_has_and_waits_for_its_own_threads(spawn, method):
    """As it starts."""

    def program(rank, ctx):
        made = multiprocessing.get_context(method)
        results = made.SimpleQueue()
        os.environ["OF_RANK"] = str(rank)
        child = made.Process(target=see_rank, args=(results,))
        child.start()
        os.environ["OF_RANK"] = "later"
        assert results.get() == (str(rank), str(rank))
        child.join()
        assert (child.exitcode, time.monotonic() >= 2) == (0, True)

    assert spawn(program).now_ps >= 2e12
