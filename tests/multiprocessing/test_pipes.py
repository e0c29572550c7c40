"""A pipe to a process: descriptors of its own, and waits that let the other end run."""

import multiprocessing as mp
import time

import pytest

import simrank
from simrank.errors import SpawnException

LARGE = 1 << 20  # More than a pipe holds.


def run(program, nprocs=2):
    """Run a program on threads, which may start processes."""
    with simrank.Context("hgx_h100", carrier="thread") as context:
        context.multiprocessing.spawn(program, nprocs=nprocs, share_args=True)


def child(end, rank):
    end.send(("ready", rank))
    end.send(len(end.recv()))


def answers(rank):
    context = mp.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs, rank), daemon=True)
    process.start()
    theirs.close()
    assert mine.poll(1)
    assert mine.recv() == ("ready", rank)
    mine.send("x" * LARGE)
    assert mine.recv() == LARGE
    process.join()
    with pytest.raises(EOFError):
        mine.recv()


def test_an_end_that_the_parent_closes_stays_open_in_the_child():
    """The usual idiom; as the child ends, the parent reads the end of the file."""
    run(answers)


def test_what_is_sent_is_a_copy():
    """Later changes do not travel."""

    def program(rank):
        first, last = mp.Pipe(duplex=False)
        value = {"rank": [rank]}
        last.send(value)
        value["rank"].append("changed")
        assert first.recv() == {"rank": [rank]}

    run(program)


def test_bytes_that_fill_a_pipe_wait_for_the_reader():
    """A native write would wait for ever: the reader is in the same process."""

    def write(end):
        end.send_bytes(b"x" * LARGE)

    def program(rank):
        first, last = mp.Pipe(duplex=False)
        process = mp.get_context("fork").Process(target=write, args=(last,))
        process.start()
        assert len(first.recv_bytes()) == LARGE
        process.join()

    run(program)


def test_a_poll_takes_simulated_time():
    """Nobody writes."""

    def program(rank):
        first, _last = mp.Pipe()
        before = time.monotonic()
        assert not first.poll(2.5)
        assert time.monotonic() - before == pytest.approx(2.5, rel=0.01)

    run(program, 1)


@pytest.mark.slow
def test_a_read_that_nobody_answers_is_reported():
    """As a suspicion, since it polls."""

    def program(rank):
        first, _last = mp.Pipe()
        first.recv()

    with pytest.raises((SpawnException, simrank.errors.SimrankError), match="recv\\(\\) of a pipe"):
        run(program, 1)
