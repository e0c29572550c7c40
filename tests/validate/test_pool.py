"""A pool of real processes: what a case returns or raises, and that no rank can hold up the rest.

`tests/origins/README.md` says which of them answer a behaviour of another pool.
"""

from __future__ import annotations

import functools
import gc
import io
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from simrank.errors import (
    ChannelError,
    InfrastructureError,
    PoolError,
    PoolStartError,
    RanksPartedError,
    RanksRaisedError,
    RequestError,
    ResultError,
    WorkerDiedError,
    WorkerTimeoutError,
)
from simrank.validate import Limits, Options, WorkerPool

from . import cases
from .conftest import TOKEN, none_left


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_come_back_by_rank(pool):
    """One per worker, in order, whoever answers first."""
    assert pool.run(cases.rank_and, "x") == [(0, "x"), (1, "x"), (2, "x"), (3, "x")]
    assert pool.run(cases.answer_in_reverse) == [0, 1, 2, 3]


def test_an_answer_to_another_request_is_not_taken_for_one_to_this(pool):
    """A late one, say: requests have numbers, and answers theirs."""
    assert pool.run(cases.answer_another_request_first) == [0, 1, 2, 3]


def test_workers_stay_from_case_to_case(pool):
    """The same processes; started when they are first needed."""
    pool.run(cases.add, 1, 2)
    pids = pool.pids
    pool.run(cases.add, 1, 2)
    assert pool.pids == pids
    assert len(set(pids)) == 4
    assert WorkerPool(2, None).pids == []


def test_arguments_are_copies(pool):
    """A case that changes them changes nobody's: not the caller's, nor those of a later case."""
    config = {"steps": [1]}
    assert pool.run(cases.add_a_step, config) == [[1, 2]] * 4
    assert pool.run(cases.add_a_step, config) == [[1, 2]] * 4
    assert config == {"steps": [1]}


def test_a_subset_runs_and_the_others_keep_their_place(pool):
    """Mooncake's inactive ranks: skipped, and asked again later."""
    pids = pool.run(os.getppid)
    assert pool.run(cases.rank_and, 1, ranks=[2, 0]) == [(0, 1), (2, 1)]
    assert pool.run(os.getppid, ranks=[3]) == pids[3:]
    assert pool.run(os.getppid) == pids


@pytest.mark.parametrize("ranks", [[], [4], [-1], [0, 9]])
def test_ranks_that_are_none_are_refused(pool, ranks):
    """Before anything is sent."""
    with pytest.raises(ValueError, match="expected some of 0 to 3"):
        pool.run(cases.add, 1, 2, ranks=ranks)


def test_every_traceback_of_every_rank_that_raised_is_there(pool):
    """Not the lowest rank's alone; own types are kept."""
    with pytest.raises(RanksRaisedError) as caught:
        pool.run(cases.raise_alone, [1, 3])
    error = caught.value
    assert sorted(error.errors) == [1, 3]
    assert all(type(found) is ValueError for found in error.errors.values())
    assert "boom 1" in error.tracebacks[1]
    assert "boom 3" in error.tracebacks[3]
    assert "in raise_on" in error.tracebacks[3]
    assert "boom 1" in str(error)
    assert "boom 3" in str(error)
    assert "keeper.py" not in str(error), "own frames are left out"


def test_ranks_that_raise_one_after_the_other_are_all_told():
    """A busy machine may keep a rank for a second: the pool waits longer than that here."""
    options = Options(limits=Limits(settle_s=15.0))
    with (
        WorkerPool(4, None, 20, options=options) as patient,
        pytest.raises(RanksRaisedError) as caught,
    ):
        patient.run(cases.raise_one_after_the_other)
    assert sorted(caught.value.errors) == [0, 1, 2, 3], "all is gathered before it is told"


def test_workers_that_all_answered_stay_although_some_raised(pool):
    """Nothing is out of step, so nobody has to be killed."""
    pool.run(cases.add, 1, 2)
    pids = pool.pids
    with pytest.raises(RanksRaisedError):
        pool.run(cases.raise_alone, [0])
    pool.run(cases.add, 1, 2)
    assert pool.pids == pids


def test_a_rank_that_raises_is_reported_though_its_peers_sit_in_a_collective(pool):
    """TransformerEngine's gap a: its pool waits for its time limit, twice, and loses the text."""
    pool.start()
    started = time.monotonic()
    with pytest.raises(RanksRaisedError, match="boom 2") as caught:
        pool.run(cases.raise_on, [2])
    assert time.monotonic() - started < 5, "a fraction of the case's 20 s"
    assert caught.value.facts[0].doing == "all_reduce #1 on group 'workers'"
    assert caught.value.facts[0].file.endswith("cases.py")
    assert caught.value.facts[2].doing == "raised ValueError: boom 2"
    assert "the workers were killed; the next case has fresh ones" in str(caught.value)
    assert pool.run(cases.add, 1, 2) == [3] * 4


def test_a_rank_that_raises_is_reported_though_its_peers_are_in_no_collective_that_is_known(pool):
    """They may sit in C++ that nobody published."""
    pool.start()
    started = time.monotonic()
    with pytest.raises(RanksRaisedError, match="boom 1") as caught:
        pool.run(cases.raise_while_others_compute, 1)
    assert time.monotonic() - started < 5
    assert caught.value.facts[0].doing == "running, in no collective"


def test_the_text_of_an_asymmetric_failure():
    """All of it: who raised, who waits where, what was done about it."""
    options = Options(retry=False, limits=Limits(settle_s=0.3))
    with (
        WorkerPool(2, None, options=options) as two,
        pytest.raises(RanksRaisedError) as caught,
    ):
        two.run(cases.raise_on, [1])
    lines = str(caught.value).splitlines()
    assert lines[0] == "case 1: 1 of 2 rank(s) raised"
    assert lines[1].startswith("  rank 0: all_reduce #1 on group 'workers' at cases.py:")
    assert lines[2] == "  rank 1: raised ValueError: boom 1"
    assert lines[3] == "  the workers were killed; the next case has fresh ones"
    assert lines[4:6] == ["--- rank 1 ---", "Traceback (most recent call last):"]
    assert lines[-1] == "ValueError: boom 1"


def test_a_rank_that_returned_is_not_waited_for(pool):
    """Megatron: others sit in a collective that it never enters; no time limit passes."""
    pool.start()
    started = time.monotonic()
    with pytest.raises(RanksPartedError) as caught:
        pool.run(cases.return_early, 1)
    assert time.monotonic() - started < 10
    assert caught.value.waits_for == {0: (1,), 2: (1,), 3: (1,)}
    assert "ranks 0, 2-3 wait for rank 1" in str(caught.value)
    assert "rank 1: returned" in str(caught.value)
    assert "in wait_in_all_reduce" in caught.value.stacks[0]


@pytest.mark.slow
def test_ranks_in_different_calls_are_told_apart(pool):
    """The same place of a group's order, and another operation."""
    with pytest.raises(RanksPartedError) as caught:
        pool.run(cases.part)
    assert caught.value.waits_for[0] == (1, 2, 3)
    assert caught.value.facts[3].doing == "broadcast #1 on group 'workers'"


def test_a_time_limit_names_who_waited_for_whom_with_the_stacks_of_all(pool):
    """Here in a ring, each in a group of two."""
    with pytest.raises(RanksPartedError) as caught:
        pool.run(cases.ring, timeout=1.0)
    assert isinstance(caught.value, TimeoutError)
    assert "did not answer within 1 s" in str(caught.value)
    assert caught.value.waits_for[0]
    assert all("in ring" in caught.value.stacks[rank] for rank in range(4))


def test_a_rank_that_holds_the_interpreter_is_killed_and_shown(pool):
    """A hang in C code, where no thread of Python's could help."""
    pool.run(cases.add, 1, 2)
    pids = pool.pids
    with pytest.raises(WorkerTimeoutError) as caught:
        pool.run(cases.hold_the_interpreter, 2, timeout=0.5)
    assert caught.value.facts[2].waits
    assert "hold_the_interpreter" in caught.value.stacks[2]
    assert not any(map(alive, pids))
    assert isinstance(caught.value, InfrastructureError)


@pytest.mark.slow
def test_a_stopped_worker_is_killed_all_the_same(pool):
    """It takes no signal but one, and writes no stack."""
    pool.run(cases.add, 1, 2)
    stopped = pool.pids[1]
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(WorkerTimeoutError):
        pool.run(cases.add, 1, 2, timeout=0.5)
    assert not alive(stopped)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("SIGKILL", "killed by SIGKILL"),
        ("SIGSEGV", "killed by SIGSEGV"),
        pytest.param("SIGABRT", "killed by SIGABRT", marks=pytest.mark.slow),
        pytest.param("exit", "exited with code 7", marks=pytest.mark.slow),
    ],
)
def test_a_crash_is_typed_and_has_the_tail_of_the_output(pool, how, text):
    """How it ended, what it printed last, and where it was if Python could still say so."""
    pool.start()
    started = time.monotonic()
    with pytest.raises(WorkerDiedError) as caught:
        pool.run(cases.end, 1, how)
    assert time.monotonic() - started < 5, "a fraction of the case's 20 s"
    error = caught.value
    assert error.ended == {1: text}
    assert error.outputs[1].startswith("last words")
    assert "--- output of rank 1 ---\nlast words" in str(error)
    assert ("in end" in error.stacks.get(1, "")) == (how in ("SIGSEGV", "SIGABRT"))
    assert pool.run(cases.add, 1, 2) == [3] * 4


@pytest.mark.slow
def test_an_error_is_not_overwritten_by_a_death_that_comes_later():
    """Mooncake's tests: what a rank raised is the cause, and who died of it is told beside."""
    limits = Limits(settle_s=5.0)
    with WorkerPool(2, None, options=Options(limits=limits, retry=False)) as two:
        with pytest.raises(RanksRaisedError, match="boom 0") as caught:
            two.run(cases.die_after_another_raised, 0)
        assert caught.value.facts[1].doing.startswith("killed by SIGKILL")
        assert two.run(cases.add, 1, 2) == [3] * 2


@pytest.mark.slow
def test_a_worker_that_died_between_two_cases_is_replaced(pool):
    """It is no case's fault."""
    pool.run(cases.add, 1, 2)
    os.kill(pool.pids[3], signal.SIGKILL)
    time.sleep(0.2)
    assert pool.run(cases.add, 1, 2) == [3] * 4
    assert "rank 3 killed by SIGKILL between two cases; the workers are killed" in pool.events


@pytest.mark.slow
@pytest.mark.parametrize("dies", [True, False])
def test_a_worker_that_dies_or_hangs_while_a_request_is_sent_is_told_as_any_other(dies):
    """It is stopped, so that the pool waits for it to read; then it is killed, or never goes on.

    Its keeper tells of its death a while after the channel has broken.
    """
    limits = Limits(settle_s=1.0)
    with WorkerPool(2, None, options=Options(retry=False, limits=limits)) as two:
        stopped, keeper = two.run(os.getppid)[1], two.run(cases.keeper)[1]
        os.kill(stopped, signal.SIGSTOP)
        if dies:
            os.kill(keeper, signal.SIGSTOP)
            threading.Timer(1.2, os.kill, (stopped, signal.SIGKILL)).start()
            threading.Timer(1.6, os.kill, (keeper, signal.SIGCONT)).start()
        kind = WorkerDiedError if dies else WorkerTimeoutError
        with pytest.raises(kind, match="rank 1 died" if dies else "did not answer within 1 s"):
            two.run(cases.add, bytes(1 << 24), b"", timeout=20.0 if dies else 1.0)
        assert two.run(cases.add, 1, 2) == [3] * 2


def test_banners_never_reach_the_channel(pool):
    """TransformerEngine's dup'd banners: of Python, C, children and raw bytes; 0 foreign frames."""
    assert pool.run(cases.make_noise) == ["quiet"] * 4
    for rank in range(4):
        text = pool.output(rank)
        for line in ("python 2", "python error 2", "banner of C", "NCCL version", "a child"):
            assert line in text, line


def test_a_partial_line_blocks_nobody(pool):
    """TransformerEngine's gap b: a reader of lines would wait for the rest of it for ever."""
    assert pool.run(cases.print_half_a_line) == [0, 1, 2, 3]
    assert pool.output(0) == '{"ok": tru'


def test_output_is_bounded_and_blocks_nobody(pool):
    """More than a pipe holds; the tail is kept."""
    pool.run(cases.print_much, 1_000_000)
    assert len(pool.output(0)) <= 4_000
    assert pool.run(cases.add, 1, 2) == [3] * 4


def test_output_at_import_time_is_captured(tmp_path, pool):
    """The module is imported in the worker, by file: it is in no search path."""
    source = "print('imported')\n\n\ndef answer():\n    return 42\n"
    (tmp_path / "loud.py").write_text(source)
    import importlib.util

    spec = importlib.util.spec_from_file_location("loud_module", tmp_path / "loud.py")
    loud = importlib.util.module_from_spec(spec)
    sys.modules["loud_module"] = loud
    try:
        spec.loader.exec_module(loud)
        assert pool.run(loud.answer) == [42] * 4
    finally:
        del sys.modules["loud_module"]
    assert pool.output(3) == "imported\n"


def test_output_of_what_workers_import_first_is_captured(tmp_path, monkeypatch):
    """Before the first request, by Python and below it: the channel was never standard output."""
    source = "import os\nprint('by Python')\nos.write(1, b'below it\\n')\n"
    (tmp_path / "loud_at_import.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with WorkerPool(2, None, options=Options(preload=("loud_at_import",))) as two:
        two.start()
        found = [sorted(two.output(rank).splitlines()) for rank in range(2)]
    assert found == [["below it", "by Python"]] * 2


def test_half_a_frame_of_a_stuck_rank_holds_nobody_up(pool):
    """TransformerEngine's gap b: what its peers have to say is told all the same."""
    pool.start()
    started = time.monotonic()
    with pytest.raises(RanksRaisedError, match="boom 2"):
        pool.run(cases.raise_beside_half_a_frame, 2)
    assert time.monotonic() - started < 5, "a fraction of the case's 20 s"
    assert pool.run(cases.add, 1, 2) == [3] * 4


def test_bytes_that_are_no_frame_are_a_typed_error(pool):
    """A worker that writes to its own channel; not run again."""
    with pytest.raises(ChannelError, match="rank 1: a frame begins with"):
        pool.run(cases.break_the_channel)
    assert pool.run(cases.add, 1, 2) == [3] * 4


def test_failures_are_typed_not_told_by_their_text(tmp_path):
    """TransformerEngine's gap c: there, a test that says 'timed out' would be run again."""
    assert issubclass(WorkerDiedError, InfrastructureError)
    assert issubclass(WorkerTimeoutError, InfrastructureError)
    assert issubclass(PoolStartError, InfrastructureError)
    for kind in (RanksRaisedError, RanksPartedError, ChannelError):
        assert not issubclass(kind, InfrastructureError)
    text = "pool worker died mid-request; rank 0 died; did not answer, timed out; not ready"
    with WorkerPool(1, None) as one:
        with pytest.raises(RanksRaisedError, match="timed out"):
            one.run(cases.raise_with, text, str(tmp_path / "raised"))
        assert one.run(cases.num_marks, str(tmp_path / "raised")) == [1], "and was not run again"


def test_an_infrastructure_failure_is_retried_once_and_a_test_failure_never(tmp_path):
    """A worker that dies is replaced, and the case run once more; the pool says so.

    Not what a body raises, nor a worker that breaks its channel; and nothing is run a third time.
    """
    echo = io.StringIO()
    options = Options(echo=echo, limits=Limits(settle_s=0.1))
    with WorkerPool(2, None, 20, options=options) as two:
        assert two.run(cases.die_once, str(tmp_path / "died")) == ["alive"] * 2
        assert two.num_starts == 2
        assert "[pool] case 1: rank 0 died: killed by SIGKILL; once more" in echo.getvalue()
        with pytest.raises(RanksRaisedError):
            two.run(cases.raise_with, "wrong sum", str(tmp_path / "raised"))
        assert two.run(cases.num_marks, str(tmp_path / "raised")) == [1, 1]
        assert two.num_starts == 2
        with pytest.raises(WorkerDiedError) as caught:
            two.run(cases.end, 0, "exit")
        assert two.num_starts == 3
        with pytest.raises(ChannelError):
            two.run(cases.break_the_channel)
        assert two.num_starts == 4
    assert "the case was run twice" in caught.value.__notes__[0]
    assert isinstance(caught.value.__cause__, WorkerDiedError)


def test_output_is_echoed_on_demand_with_its_rank(tmp_path):
    """Whole lines, as they come: each rank waits until its own has been shown."""

    class Shown(io.StringIO):
        def write(self, text):
            rank = text.removeprefix("[rank ")[0]
            if text == f"[rank {rank}] waiting to be shown\n":
                (tmp_path / rank).touch()
            return super().write(text)

    echo = Shown()
    with WorkerPool(2, None, options=Options(echo=echo)) as two:
        two.run(cases.make_noise, 1)
        assert two.run(cases.wait_until_shown, str(tmp_path)) == [True, True]
    lines = echo.getvalue().splitlines()
    assert "[rank 0] python 0" in lines
    assert "[rank 1] banner of C" in lines


def test_every_case_starts_from_the_same_state():
    """TransformerEngine's reset: case 1 equals case n, in environment, folder and seeds."""
    with WorkerPool(2, None) as two:
        first = two.run(cases.facts)
        two.run(cases.spoil)
        assert two.run(cases.facts) == first
    assert first[0] == first[1]


def test_a_warm_worker_does_not_grow(pool):
    """Memory is flat over many cases."""
    for _ in range(20):
        first = pool.run(cases.resident)
    for _ in range(100):
        last = pool.run(cases.resident)
    assert all(after < 1.05 * before for before, after in zip(first, last, strict=True))


def test_a_start_that_takes_too_long_has_the_stacks_of_all_ranks(tmp_path, monkeypatch):
    """Here a module that sleeps when it is imported."""
    (tmp_path / "sleepy_module.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    options = Options(limits=Limits(start_s=2.0), preload=("sleepy_module",), retry=False)
    with WorkerPool(2, None, options=options) as two, pytest.raises(PoolStartError) as caught:
        two.start()
    assert "ranks 0-1: importing sleepy_module, in no collective" in str(caught.value)
    assert "sleepy_module.py" in caught.value.stacks[1]


@pytest.mark.slow
def test_a_case_gives_the_same_on_fresh_workers_as_on_used_ones(pool):
    """Gap d: what a pool's reuse changes is found by running the case on fresh workers."""
    used = [pool.run(cases.facts) for _ in range(2)][-1]
    assert pool.run(cases.facts, fresh=True) == used
    assert pool.run(cases.set_state, 1) == [1] * 4
    assert pool.run(cases.set_state, 1) == [1] * 4, "modules keep nothing that cases did to them"


def test_the_reset_hook_runs_before_every_case_on_active_ranks(tmp_path, monkeypatch):
    """Case 1 included."""
    seen = tmp_path / "seen"
    monkeypatch.setenv("SEEN", str(seen))
    with WorkerPool(2, None, reset=reset_hook) as two:
        assert two.run(cases.num_marks, str(seen)) == [1, 1]
        assert two.run(cases.num_marks, str(seen), ranks=[1]) == [2]
    assert sorted(seen.read_text().split()) == ["0", "1", "1"]


def reset_hook():
    cases.mark(os.environ["SEEN"])


@pytest.mark.slow
def test_a_spin_loop_on_a_shared_dictionary_ends(pool):
    """Mooncake's tests: each rank writes its result and polls until all have."""
    with multiprocessing.get_context("spawn").Manager() as manager:
        results = manager.dict()
        assert pool.run(cases.write_and_poll, results) == [4] * 4
        assert sorted(results.items()) == [(0, 0), (1, 10), (2, 20), (3, 30)]


def test_map_goes_on_after_a_failure(pool):
    """Without fail-fast: every case is run, and has its outcome."""
    started = time.monotonic()
    found = pool.map(cases.raise_alone, [([],), ([1],), ([],)])
    assert [outcome.error is None for outcome in found] == [True, False, True]
    assert found[0].results == [None] * 4
    assert isinstance(found[1].error, RanksRaisedError)
    assert all(outcome.duration_s > 0 for outcome in found)
    assert sum(outcome.duration_s for outcome in found) <= time.monotonic() - started


def test_a_function_that_cannot_be_pickled_is_refused_before_it_is_sent(pool):
    """With the cure."""
    pids = pool.run(os.getppid)
    with pytest.raises(RequestError) as caught:
        pool.run(lambda: None)
    assert isinstance(caught.value, pickle.PicklingError)
    assert "to fix: define the function at the top of a module" in str(caught.value)
    assert [type(each.error) for each in pool.map(lambda: None, [()])] == [RequestError]
    assert pool.run(os.getppid) == pids


def test_a_result_that_cannot_be_pickled_is_that_ranks_error(pool):
    """It names the type."""
    with pytest.raises(RanksRaisedError, match="the result, a function, cannot be pickled"):
        pool.run(cases.unpicklable)


def test_a_result_of_a_class_that_the_pool_lacks_is_that_cases_error(pool):
    """And the next case runs on the same workers."""
    pids = pool.run(os.getppid)
    found = pool.map(cases.return_a_ghost, [(), ()])
    assert [type(outcome.error) for outcome in found] == [ResultError, ResultError]
    assert "rank 0 returned an object that this process cannot rebuild: Mod" in str(found[0].error)
    assert pool.run(os.getppid) == pids


@pytest.mark.parametrize("num_descriptors", [24, 60])
def test_a_pool_that_runs_out_of_descriptors_says_so(num_descriptors, tmp_path):
    """As an error of the pool's start; nothing stays open."""
    source = """
import os, resource
from simrank.validate import Options, WorkerPool
from simrank.errors import PoolStartError
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (NUMBER, hard))
    before = os.listdir("/proc/self/fd")
    try:
        with WorkerPool(16, None, timeout=20, options=Options(retry=False)) as pool:
            pool.run(os.getppid)
    except PoolStartError as error:
        print(error)
    assert os.listdir("/proc/self/fd") == before
"""
    file = tmp_path / "program.py"
    file.write_text(source.replace("NUMBER", str(num_descriptors)))
    command = [sys.executable, str(file)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "16 workers could not start: [Errno 24] Too many open files" in out


def test_an_exception_that_cannot_be_pickled_is_told_by_its_text(pool):
    """Its traceback is as good as any."""
    with pytest.raises(RanksRaisedError) as caught:
        pool.run(cases.raise_stubborn)
    assert type(caught.value.errors[0]) is RuntimeError
    assert "stubborn" in str(caught.value.errors[0])
    assert "in raise_stubborn" in caught.value.tracebacks[0]


def test_sys_exit_in_a_case_is_an_answer_not_an_end(pool):
    """The worker stays."""
    pids = pool.run(os.getppid)
    with pytest.raises(RanksRaisedError) as caught:
        pool.run(cases.leave, 3)
    assert isinstance(caught.value.errors[0], SystemExit)
    assert pool.run(os.getppid) == pids


@pytest.mark.parametrize(("how", "code"), [("returns", 0), ("raises", 1), ("exits", 3)])
def test_a_fork_that_leaves_its_case_is_no_second_worker(pool, how, code):
    """It ends there, as a process of its own; what it raised is among the rank's output."""
    pids = pool.run(os.getppid)
    assert pool.run(cases.fork, how) == [(code, pid) for pid in pids]
    assert ("ValueError: in a fork" in pool.output(2)) == (how == "raises")
    assert [pool.run(os.getppid) for _ in range(3)] == [pids] * 3


def test_a_fork_that_leaves_the_pool_ends_none_of_its_parents_workers():
    """It has a copy of the pool: closing it does nothing, and running a case is refused."""
    entered = []
    with WorkerPool(1, None) as one:
        one.enter(ExitStack()).callback(entered.append, "left")
        pids = one.run(os.getppid)
        child = os.fork()
        if child == 0:
            with suppress(PoolError):
                one.run(os.getppid)
                os._exit(1)
            one.__exit__(None, None, None)
            os._exit(len(entered))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert one.run(os.getppid) == pids
    assert entered == ["left"]


def test_a_fork_that_drops_the_pool_ends_none_of_its_parents_workers():
    """Nor does it leave the entered contexts, which are its parent's."""
    entered = []
    one = WorkerPool(1, None)
    try:
        one.enter(ExitStack()).callback(entered.append, "left")
        pids = one.run(os.getppid)
        child = os.fork()
        if child == 0:
            del one
            gc.collect()
            os._exit(len(entered))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert one.run(os.getppid) == pids
    finally:
        one.close()


def test_a_worker_has_a_session_and_a_group_of_its_own(pool):
    """And no descriptor of another worker's; so has its keeper, which Ctrl-C must not end first."""
    found = pool.run(cases.descriptors)
    assert all(session == group == pid for _, session, group, pid in found)
    keepers = pool.run(cases.keeper)
    assert [os.getsid(keeper) for keeper in keepers] == keepers
    assert len({len(fds) for fds, *_ in found}) == 1
    assert len(found[0][0]) <= 14  # Of them three keep what 0 to 2 were.


def test_errors_of_a_pool_travel(pool):
    """Pickled and back, with what they know."""
    with pytest.raises(RanksRaisedError) as caught:
        pool.run(cases.raise_alone, [1])
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value)
    assert error.tracebacks == caught.value.tracebacks
    assert type(error.errors[1]) is ValueError


@pytest.mark.parametrize(
    ("count", "backend", "text"), [(0, None, "num_workers"), (1, "mpi", "backend")]
)
def test_a_pool_that_cannot_be_is_refused(count, backend, text):
    """When it is made."""
    with pytest.raises(ValueError, match=text):
        WorkerPool(count, backend)


def test_teardown_needs_nobodys_consent(token):
    """Megatron's teardown with a stuck rank: closing ends in bounded time, with nothing left."""
    limits = Limits(end_s=0.3)
    two = WorkerPool(2, None, env={TOKEN: token}, options=Options(limits=limits, retry=False))
    two.start()
    os.kill(two.pids[0], signal.SIGSTOP)
    started = time.monotonic()
    two.close()
    assert time.monotonic() - started < 3
    assert none_left(token) == []
    with pytest.raises(PoolError, match="closed"):
        two.run(cases.add, 1, 2)


def test_workers_are_told_to_leave_before_they_are_killed(tmp_path):
    """What they have registered for their end is called; after `Limits.end_s` they are killed."""
    with WorkerPool(2, None) as two:
        two.run(cases.mark_at_exit, str(tmp_path / "left"))
    assert sorted((tmp_path / "left").read_text().split()) == ["0", "1"]


def test_what_was_entered_is_left_after_the_workers_are_gone(token, tmp_path):
    """cuda-python's order: kill, then close; a resource cannot wait for a worker that holds it."""
    seen = []

    class Resource:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            seen.append(none_left(token))

    with WorkerPool(1, None, env={TOKEN: token}, options=Options(retry=False)) as one:
        one.enter(Resource())
        with pytest.raises(WorkerTimeoutError):
            one.run(cases.start_descendants, str(tmp_path / "pids"), timeout=1.0)
    assert seen == [[]]


@pytest.mark.slow
def test_an_interrupt_kills_at_once_and_closes(token):
    """Ctrl-C reaches no worker, so the pool ends them."""

    def interrupt():
        time.sleep(0.5)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    pool = WorkerPool(2, None, env={TOKEN: token}, options=Options(limits=Limits(end_s=60.0)))
    pool.start()
    started = time.monotonic()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt), pool:
        pool.run(cases.sleep)
    assert time.monotonic() - started < 10, "a fraction of what workers have for leaving"
    assert none_left(token) == []


def test_a_pool_that_nobody_holds_ends_its_workers(token):
    """Without `close`."""
    lost = WorkerPool(2, None, env={TOKEN: token})
    lost.start()
    del lost
    gc.collect()
    assert none_left(token) == []


def test_a_start_that_fails_says_how_far_each_rank_had_come(token):
    """A module that is not there."""
    options = Options(preload=("no_such_module",), retry=False)
    with (
        WorkerPool(2, None, env={TOKEN: token}, options=options) as two,
        pytest.raises(PoolStartError) as caught,
    ):
        two.start()
    assert "could not start" in str(caught.value)
    assert "No module named 'no_such_module'" in str(caught.value)


def test_a_worker_that_ends_before_it_has_read_what_it_is_sent_first_is_told_as_any_other(token):
    """Here an interpreter that finds no library, and a hook that no socket's buffer holds."""
    environment = {TOKEN: token, "PYTHONHOME": "/nonexistent"}
    hook = functools.partial(cases.add, bytes(1 << 22))
    with (
        WorkerPool(2, None, env=environment, reset=hook, options=Options(retry=False)) as two,
        pytest.raises(PoolStartError, match="rank 0 was not ready") as caught,
    ):
        two.start()
    assert "No module named 'encodings'" in caught.value.outputs[0]


def test_workers_inherit_the_environment_and_what_is_added_or_removed(monkeypatch):
    """None removes a variable; the number of a rank is its own, whatever a launcher has set."""
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("GONE", "1")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "7")
    with WorkerPool(2, None, env={"ADDED": "2", "GONE": None}) as two:
        assert two.run(environment, "KEPT", "ADDED", "GONE") == [["1", "2", None]] * 2
        found = two.run(environment, "RANK", "LOCAL_RANK", "WORLD_SIZE")
    assert found == [["0", "0", "2"], ["1", "1", "2"]]


def environment(*names):
    return [os.environ.get(name) for name in names]


def test_queues_and_locks_of_multiprocessing_go_to_workers(pool):
    """As spawn's arguments may hold them."""
    context = multiprocessing.get_context("spawn")
    queue, lock = context.Queue(), context.Lock()
    pool.run(cases.count_down, queue, lock)
    assert sorted(queue.get(timeout=10) for _ in range(4)) == [0, 1, 2, 3]
    queue.close()
    queue.join_thread()


@pytest.mark.slow
def test_requests_of_several_threads_come_one_after_the_other(pool):
    """One request, one response."""
    found = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(pool.run(cases.add, n, 0)))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [[n] * 4 for n in range(8)]
