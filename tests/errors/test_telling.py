"""A report tells the root cause, its time and its place, whatever the program's exceptions do."""

import logging
import time
from datetime import timedelta

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import (
    PeerDiedError,
    ProcessExitedException,
    SpawnException,
    TimeOverflowError,
    UninitializedValueError,
)


def test_the_time_of_a_failure_is_that_of_the_rank_s_own_clock(run):
    """Launches have moved it ahead of the engine's."""

    def program(rank, ctx):
        x = ctx.ones(4)
        for _ in range(100):
            x.add_(1)
        raise ValueError("after a hundred launches")

    with pytest.raises(SpawnException, match=r"raised by rank 0 at t=[1-9]\d\d\.000 us"):
        run(program, 1)


class MuteError(Exception):
    """Has no text."""

    def __str__(self):
        """Fail."""
        raise RuntimeError("no text")


class ProudError(Exception):
    """Takes no notes."""

    def add_note(self, note):
        """Refuse."""
        raise RuntimeError("no notes")


class FrozenError(Exception):
    """Takes no attributes."""

    def __setattr__(self, name, value):
        """Refuse."""
        raise RuntimeError("no attributes")


@pytest.mark.parametrize("on_failure", ["abort", "continue"])
@pytest.mark.parametrize("kind", [MuteError, ProudError, FrozenError])
def test_an_exception_that_misbehaves_is_still_the_root_cause(run, kind, on_failure):
    """Its text, its notes, its attributes: none of them replaces it."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 1:
            raise kind("the cause")
        dist.barrier()

    with pytest.raises(SpawnException, match=kind.__name__) as caught:
        run(program, 3, on_failure=on_failure)
    assert {rank: type(error) for rank, error in caught.value.errors.items()} == {1: kind}


def test_what_survivors_could_not_read_is_a_consequence(run):
    """The root cause is the rank that died."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        if rank == 1:
            raise KeyError("the cause")
        try:
            dist.all_reduce(x)
            x.tolist()
        except PeerDiedError:
            x.tolist()

    with pytest.raises(SpawnException, match="the cause") as caught:
        run(program, 3, on_failure="continue")
    assert list(caught.value.errors) == [1]
    assert {type(error) for error in caught.value.consequences.values()} <= {
        UninitializedValueError,
        PeerDiedError,
    }


def test_a_kill_tells_time_call_and_line(run):
    """Of what the rank was doing."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        for _ in range(100):
            dist.all_reduce(x)
            x.tolist()

    with pytest.raises(ProcessExitedException) as caught:
        run(program, 2, faults=[{"kill": 1, "at": "100 us"}])
    text = str(caught.value)
    assert text.startswith("process 1 terminated with signal SIGKILL\n")
    assert "killed by an injected fault at t=10" in text
    assert ", in all_reduce #" in text
    assert "test_telling.py:" in text


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_done_callback_that_raises_is_logged_as_torch_does(run, caplog, backend):
    """The rank goes on."""
    ended = []

    def program(rank, ctx):
        dist.init_process_group(backend)
        x = ctx.ones(4, device="cpu" if backend == "gloo" else "cuda")
        work = dist.all_reduce(x, async_op=True)
        work.get_future().add_done_callback(lambda _future: 1 / 0)
        work.wait()
        ended.append(x.tolist())

    with caplog.at_level(logging.ERROR, logger="simrank"):
        run(program, 2)
    assert ended == [[2.0] * 4] * 2
    assert "rank 1: got an error when running a future's callback" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_times_beyond_the_end_of_simulated_time_are_refused(run):
    """Not an overflow somewhere inside; time limits of any length are none."""

    def sleeps(rank):
        time.sleep(1e7)

    def waits_long(rank, ctx):
        dist.init_process_group("gloo")
        x = ctx.ones(4, device="cpu")
        dist.all_reduce(x, async_op=True).wait(timedelta.max)

    with simrank.Context() as ctx, pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(sleeps, nprocs=1)
    assert isinstance(caught.value.errors[0], TimeOverflowError)
    run(waits_long, 2)
