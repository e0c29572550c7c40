"""What each rank has for itself: random numbers, environment, arguments."""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from random import randint

import numpy as np
import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import ProcessExitedException, SpawnException


def test_each_rank_draws_its_own_numbers_and_the_same_in_every_run(run):
    """`random` and numpy's global generator, also under names bound earlier."""
    found = {}

    def program(rank, ctx, turn):
        values = [random.random(), randint(0, 10**9), np.random.rand(), np.random.randint(10**9)]
        ctx.wait(ctx.timer(1000))
        found[turn, rank] = [*values, random.gauss(0, 1), np.random.normal()]

    for turn in range(2):
        run(program, 3, turn)
    assert found[0, 0] == found[1, 0]
    assert len({tuple(values) for values in found.values()}) == 3


def test_another_seed_draws_other_numbers(run):
    """The Context's seed decides."""
    found = []

    def program(rank, ctx):
        found.append((random.random(), np.random.rand()))

    run(program, 1, seed=0)
    run(program, 1, seed=1)
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_ranks_leave_the_process_generators_alone(run):
    """Seeding and drawing in a rank does not move the state outside."""
    random.seed(3)
    np.random.seed(3)
    expected = random.Random(3).random(), np.random.RandomState(3).rand()

    def program(rank, ctx):
        random.seed(7)
        np.random.seed(7)
        assert random.random() == random.Random(7).random()
        assert np.random.rand() == np.random.RandomState(7).rand()

    run(program, 2)
    assert (random.random(), np.random.rand()) == expected


def test_a_generator_without_a_seed_repeats_from_run_to_run(run):
    """numpy.random.default_rng() in a rank; two of them differ."""
    found = []

    def program(rank, ctx):
        found.append([np.random.default_rng().random() for _ in range(2)])

    run(program, 2)
    run(program, 2)
    assert found[:2] == found[2:]
    assert len({value for pair in found for value in pair}) == 4


def test_interleaved_ranks_do_not_disturb_each_others_sequences(run):
    """Each rank's seeded sequence is what it would be alone."""

    def program(rank, ctx):
        random.seed(rank)
        alone = random.Random(rank)
        for _ in range(5):
            assert random.random() == alone.random()
            ctx.wait(ctx.timer(100))

    run(program, 4)


def test_each_rank_has_torchruns_variables():
    """RANK, LOCAL_RANK, WORLD_SIZE and friends, for 12 ranks on two nodes."""
    found = {}

    def program(rank):
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        found[rank] = [int(os.environ[name]) for name in names]

    with simrank.Context({"name": "h100_ib", "nodes": 2}) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=12)
    assert found[0] == [0, 0, 12, 8, 0]
    assert found[11] == [11, 3, 12, 4, 1]


def test_a_rank_changes_only_its_own_environment(run):
    """Setting, deleting and listing; the process and the siblings do not see it."""
    os.environ["SIMRANK_TEST_SHARED"] = "before"

    def program(rank, ctx):
        assert os.environ["SIMRANK_TEST_SHARED"] == "before"
        os.environ["SIMRANK_TEST_SHARED"] = str(rank)
        os.environ["SIMRANK_TEST_OWN"] = "x"
        ctx.wait(ctx.timer(1000))
        assert os.getenv("SIMRANK_TEST_SHARED") == str(rank)
        assert "SIMRANK_TEST_OWN" in list(os.environ)
        del os.environ["SIMRANK_TEST_OWN"]
        assert os.environ.get("SIMRANK_TEST_OWN") is None

    try:
        run(program, 3)
        assert os.environ["SIMRANK_TEST_SHARED"] == "before"
        assert "SIMRANK_TEST_OWN" not in os.environ
        assert "RANK" not in os.environ
    finally:
        del os.environ["SIMRANK_TEST_SHARED"]


def test_what_a_parent_sets_later_is_not_seen_by_those_it_has_started(run):
    """Neither by one that has read the name, nor by one that has changed its own environment."""
    name = "SIMRANK_TEST_LATER"

    def inner(rank):
        if rank == 1:
            os.environ["SIMRANK_TEST_OWN"] = "x"
        assert os.environ.get(name) is None
        time.sleep(2e-6)
        assert os.environ.get(name) is None
        assert name not in list(os.environ)

    def program(rank, ctx):
        started = ctx.multiprocessing.spawn(inner, nprocs=2, join=False)
        time.sleep(1e-6)
        os.environ[name] = f"rank {rank}"
        assert started.join()
        ctx.multiprocessing.spawn(later, (f"rank {rank}",), nprocs=2)

    def later(rank, expected):
        assert os.environ[name] == expected

    run(program, 2)


def test_an_inner_spawn_inherits_the_environment_of_its_parent_rank(run):
    """As a child process would; RANK is its own."""

    def inner(rank):
        assert os.environ["SIMRANK_TEST_PARENT"] == "rank 1"
        assert os.environ["WORLD_SIZE"] == "3"

    def program(rank, ctx):
        os.environ["SIMRANK_TEST_PARENT"] = f"rank {rank}"
        if rank == 1:
            ctx.multiprocessing.spawn(inner, nprocs=3)
        assert os.environ["WORLD_SIZE"] == "2"

    run(program, 2)


def test_each_rank_has_its_own_argv(run):
    """A rank may consume its arguments; the others and the process keep theirs."""
    before = list(sys.argv)

    def program(rank, ctx):
        assert sys.argv == before
        sys.argv.append(f"--rank={rank}")
        ctx.wait(ctx.timer(1000))
        assert sys.argv[-1] == f"--rank={rank}"
        assert len(sys.argv) == len(before) + 1
        assert [*sys.argv][:-1] == before

    run(program, 3)
    assert sys.argv == before
    assert type(sys.argv) is list


def test_an_inner_spawn_inherits_the_command_line_of_its_parent_rank(run):
    """A copy of it."""
    seen = {}

    def inner(rank):
        sys.argv.append(str(rank))
        seen[rank] = sys.argv[-2:]

    def program(rank, ctx):
        sys.argv.append("outer")
        ctx.multiprocessing.spawn(inner, nprocs=2)
        seen["outer"] = sys.argv[-1]

    run(program, 1)
    assert seen == {0: ["outer", "0"], 1: ["outer", "1"], "outer": "outer"}


def test_everything_is_restored_when_the_last_context_exits():
    """The module functions and os.environ's storage are the originals again."""
    originals = (random.random, np.random.rand, os.putenv, os.environ._data)
    with simrank.Context("hgx_h100"), simrank.Context("hgx_h100"):
        assert random.random is not originals[0]
    assert (random.random, np.random.rand, os.putenv, os.environ._data) == originals
    assert os.environ._data is originals[3]


# ---- the current folder is a rank's own, as it is a process's ----


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_each_rank_has_the_folder_that_it_went_to(tmp_path, monkeypatch, carrier):
    """Files with one name are two; the main program stays where it was."""
    monkeypatch.chdir(tmp_path)

    def program(rank):
        if rank < 2:
            os.mkdir(f"of{rank}")
            os.chdir(f"of{rank}")
        time.sleep(1e-3)
        Path("out.txt").write_text(f"by {rank}")
        time.sleep(1e-3)
        assert Path("out.txt").read_text() == f"by {rank}"

    with simrank.Context(carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=3)
        assert Path.cwd() == tmp_path
    assert (tmp_path / "of0" / "out.txt").read_text() == "by 0"
    assert (tmp_path / "of1" / "out.txt").read_text() == "by 1"
    assert (tmp_path / "out.txt").read_text() == "by 2"
    assert ctx.engine.observers == []


def test_a_rank_that_fails_leaves_the_main_program_where_it_was(tmp_path, monkeypatch):
    """Also in another folder, and with the others parked in theirs."""
    monkeypatch.chdir(tmp_path)

    def program(rank):
        os.chdir("/")
        time.sleep(1e-3 * rank)
        raise KeyError(rank)

    with pytest.raises(SpawnException), simrank.Context() as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    assert Path.cwd() == tmp_path
    assert os.chdir.__module__ == "posix"


# ---- Ranks that end as processes do ----

# Names are looked up within the Context, where they differ.
# ruff: noqa: PLW0108


def end(run, how):
    """Let rank 1 of two end itself; return what spawn raised and what ran on."""
    ran_on = []

    def program(rank, ctx):
        ctx.wait(ctx.timer(1000 * (1 + rank)))
        if rank == 1:
            try:
                how()
            finally:
                ran_on.append(rank)

    with pytest.raises(ProcessExitedException) as caught:
        run(program, 2)
    assert ran_on == []
    assert caught.value.error_index == 1
    return caught.value


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_os_exit_ends_the_rank_with_its_status(run, carrier):
    """As torch's: ProcessExitedException, and none of the rank's code runs on."""
    error = end(lambda *args: run(*args, carrier=carrier), lambda: os._exit(7))
    assert (error.exit_code, error.signal_name) == (7, None)


@pytest.mark.parametrize("how", ["kill", "raise_signal", "abort"])
def test_a_signal_that_a_rank_sends_itself_ends_the_rank_alone(run, how):
    """With the signal's name."""
    hows = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "raise_signal": lambda: signal.raise_signal(signal.SIGKILL),
        "abort": lambda: os.abort(),
    }
    error = end(run, hows[how])
    number = signal.SIGABRT if how == "abort" else signal.SIGKILL
    assert (error.exit_code, error.signal_name) == (-number, number.name)


def test_os_exit_with_0_is_success(run):
    """As in a process; the others go on."""
    ended = []

    def program(rank, ctx):
        if rank == 0:
            os._exit(0)
        ctx.wait(ctx.timer(1000))
        ended.append(rank)

    run(program, 2)
    assert ended == [1]


def test_a_signal_that_ends_nothing_ends_nothing(run):
    """0 asks whether the process is there; SIGCHLD has no effect."""

    def program(rank, ctx):
        os.kill(os.getpid(), 0)
        os.kill(os.getpid(), signal.SIGCHLD)

    run(program, 1)


def test_a_rank_has_its_own_handlers(run):
    """What one sets another does not see, and the process never; what it sends itself comes."""
    before, rung = signal.getsignal(signal.SIGTERM), []

    def program(rank, ctx):
        if rank == 1:
            ctx.wait(ctx.timer(1000))
            assert signal.getsignal(signal.SIGTERM) is before
            return
        handler = lambda number, frame: rung.append((number, frame.f_code.co_name))  # noqa: E731
        assert signal.signal(signal.SIGTERM, handler) is before
        assert signal.getsignal(signal.SIGTERM) is handler
        ctx.wait(ctx.timer(2000))
        signal.raise_signal(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(TypeError):
            signal.signal(signal.SIGTERM, "text")

    run(program, 2)
    assert rung == [(signal.SIGTERM, "program")] * 2
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_a_rank_raises_of_a_timers_signal_comes_to_its_own_handler(run):
    """Another rank may have set the process's meanwhile."""
    rung = []

    def program(rank, ctx):
        signal.signal(signal.SIGALRM, lambda *_: rung.append(rank))
        ctx.wait(ctx.timer(1000))
        signal.raise_signal(signal.SIGALRM)

    run(program, 2)
    assert sorted(rung) == [0, 1]


def test_the_handler_of_a_timer_that_a_rank_sets_is_gone_after_the_run(run):
    """The process has one such timer; pytest's own stays what it was."""
    before = signal.getsignal(signal.SIGALRM)
    run(lambda rank, ctx: signal.signal(signal.SIGALRM, lambda *_: None), 2)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_a_rank_sets_handlers_of_signals_as_a_process_does(run, carrier):
    """Also those of timers, which only Python's main thread may set; Ctrl-C keeps its own."""
    seen = []

    def program(rank, ctx):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            before = signal.signal(number, lambda number, _: seen.append((rank, number)))
            assert signal.signal(number, before) is not before
        with pytest.raises(TypeError):
            signal.signal(signal.SIGALRM, "no handler")
        signal.signal(signal.SIGUSR1, lambda number, _: seen.append((rank, number)))
        os.kill(os.getpid(), signal.SIGUSR1)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)]
    run(program, 2, carrier=carrier)
    assert seen == [(0, signal.SIGUSR1), (1, signal.SIGUSR1)]
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)]


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_nothing_waits_for_the_sleep_of_a_rank_that_is_killed(carrier):
    """Time stands where the others end."""
    pids = {}

    def program(rank):
        pids[rank] = os.getpid()
        time.sleep(1 + 1000 * rank)
        os.kill(pids[1], signal.SIGKILL)

    with (
        pytest.raises(ProcessExitedException, match="process 1 terminated with signal SIGKILL"),
        simrank.Context("hgx_h100", carrier=carrier, on_failure="continue") as ctx,
    ):
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
    assert 1e12 <= ctx.now_ps < 2e12


# ---- what ranks remove is gone after what others do at the same time ----


@pytest.mark.parametrize("carrier", ["thread", "greenlet"])
@pytest.mark.parametrize(
    ("make", "remove"),
    [
        (Path.touch, lambda path: os.remove(path)),
        (Path.touch, Path.unlink),
        (Path.mkdir, lambda path: os.rmdir(path)),
        (Path.mkdir, shutil.rmtree),
    ],
)
def test_what_one_rank_removes_behind_a_barrier_the_others_have_seen(
    tmp_path, carrier, make, remove
):
    """Whatever it removes it with."""
    path, seen = tmp_path / "checkpoint", []

    def program(rank):
        dist.init_process_group("gloo")
        if rank == 0:
            make(path)
        dist.barrier()
        assert path.exists()
        seen.append(rank)
        if rank == 0:
            remove(path)
            assert len(seen) == 4

    with simrank.Context("hgx_h100", carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=4, share_args=True)
    assert not path.exists()


def test_a_rank_that_is_aborted_as_it_removes_removes_all_the_same(tmp_path):
    """As a process in whose `finally` it is; its error is the other rank's."""
    path = tmp_path / "file"
    path.write_text("x")

    def program(rank):
        if rank == 0:
            os.remove(path)
            time.sleep(1)
        raise ZeroDivisionError

    with (
        simrank.Context("hgx_h100") as ctx,
        pytest.raises(simrank.errors.SpawnException, match="ZeroDivisionError"),
    ):
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
    assert not path.exists()


def test_outside_ranks_nothing_waits(tmp_path):
    """And what is no file is the error that it is."""
    path = tmp_path / "file"
    path.write_text("x")
    with simrank.Context("hgx_h100") as ctx:
        os.remove(path)
        with pytest.raises(FileNotFoundError):
            os.remove(path)
        assert ctx.now_ps == 0


def test_files_of_the_kernel_about_a_rank_are_those_of_the_process(run):
    """Programs read which processors and memory they may use."""
    found = {}

    def program(rank, ctx):
        pid = os.getpid()
        with open(f"/proc/{pid}/status") as file:
            found[rank] = pid, file.readline(), Path(f"/proc/{pid}/comm").read_text()
        with pytest.raises(FileNotFoundError, match="/proc/999999999/status"):
            Path("/proc/999999999/status").read_text()

    run(program, 2, carrier="thread")
    assert found[0][0] != found[1][0]
    assert found[0][1:] == found[1][1:]
    assert found[0][1].split() == ["Name:", found[0][2].strip()]
