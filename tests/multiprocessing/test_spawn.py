"""spawn: torch's arguments and errors; `tests/origins` tests how ranks wait."""

import sys

import pytest

import simrank
import simrank.distributed as dist
from simrank.engine import Handle
from simrank.errors import (
    ProcessExitedException,
    ProcessRaisedException,
    RankAborted,
    SimrankError,
    SpawnException,
)


def test_spawn_calls_the_function_once_per_rank_with_its_arguments():
    """fn(rank, *args); the return value is dropped; without a Context one is made."""
    calls = []

    def program(rank, word):
        calls.append((rank, word))
        return 5

    assert simrank.multiprocessing.spawn(program, args=("x",), nprocs=3) is None
    assert calls == [(0, "x"), (1, "x"), (2, "x")]


def test_without_a_context_the_cluster_grows_with_nprocs():
    """20 ranks need three HGX H100 nodes."""
    sizes = []

    def program(rank):
        dist.init_process_group()
        if rank == 19:
            sizes.append(dist.get_world_size())
        dist.barrier()

    simrank.multiprocessing.spawn(program, nprocs=20)
    assert sizes == [20]


def test_more_ranks_than_devices_is_an_error_with_both_numbers(ctx):
    """A named cluster does not grow by itself."""
    with pytest.raises(SimrankError, match=r"9 ranks on cluster 'hgx_h100', which has 8 devices"):
        ctx.multiprocessing.spawn(print, nprocs=9)


def test_a_raising_rank_ends_the_others_and_is_the_error(run):
    """SpawnException is a ProcessRaisedException with the original exception in .errors."""
    ended = []

    def program(rank, ctx):
        dist.init_process_group()
        try:
            if rank == 2:
                raise KeyError("lost")
            dist.barrier()
        finally:
            ended.append(rank)

    with pytest.raises(SpawnException) as caught:
        run(program, 4)
    error = caught.value
    assert isinstance(error, ProcessRaisedException)
    assert (error.error_index, error.error_pid) == (2, error.pid)
    assert list(error.errors) == [2]
    assert isinstance(error.errors[2], KeyError)
    assert error.msg.startswith("\n\n-- Process 2 terminated with the following error:\nTraceback")
    assert "in program" in error.msg
    assert "simrank/multiprocessing/spawn.py" not in error.msg
    assert any("raised by rank 2 at t=" in note for note in error.errors[2].__notes__)
    assert sorted(ended) == [0, 1, 2, 3]


def test_ranks_that_raise_at_the_same_time_are_all_root_causes(run):
    """The lowest is the one described first."""

    def program(rank, ctx):
        if rank in (1, 3):
            raise ValueError(rank)

    with pytest.raises(SpawnException) as caught:
        run(program, 4)
    assert sorted(caught.value.errors) == [1, 3]
    assert caught.value.error_index == 1
    assert "also raised on rank 3 (ValueError)" in caught.value.msg


def test_what_a_sibling_raises_because_it_was_aborted_is_no_root_cause(run):
    """Only the first failure counts, not the clean-up of the others."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 0:
            raise ValueError("first")
        try:
            dist.barrier()
        except RankAborted:
            raise RuntimeError("while cleaning up") from None

    with pytest.raises(SpawnException) as caught:
        run(program, 3)
    assert list(caught.value.errors) == [0]


@pytest.mark.parametrize("code", [0, None])
def test_sys_exit_without_a_code_is_success(run, code):
    """As in a child process."""

    def program(rank, ctx):
        sys.exit(code)

    run(program, 2)


@pytest.mark.parametrize("code", ["", "bad batch", [], b"", 2.0])
def test_sys_exit_with_anything_else_is_status_1(run, code):
    """Text too, however short; it is part of the message."""

    def program(rank, ctx):
        sys.exit(code)

    with pytest.raises(ProcessExitedException) as caught:
        run(program, 1)
    assert caught.value.exit_code == 1
    assert str(caught.value).endswith("exit code 1" + (f": {code}" if code == "bad batch" else ""))


@pytest.mark.parametrize("code", [256, False])
def test_a_status_has_eight_bits(run, code):
    """As a process's."""
    run(lambda rank, ctx: sys.exit(code), 1)


def test_sys_exit_with_a_code_is_torchs_exited_exception(run):
    """exit_code, error_index and torch's text."""

    def program(rank, ctx):
        if rank == 1:
            sys.exit(7)

    with pytest.raises(ProcessExitedException, match="process 1 terminated with exit code 7") as e:
        run(program, 2)
    assert (e.value.error_index, e.value.exit_code, e.value.signal_name) == (1, 7, None)


def test_join_false_gives_a_context_that_is_joined(ctx):
    """join(timeout) is False before the end, True afterwards and ever after."""

    def program(rank):
        ctx.engine.sleep((rank + 1) * 10**12)

    processes = ctx.multiprocessing.spawn(program, nprocs=2, join=False)
    assert ctx.now_ps == 0
    assert len(processes.pids()) == 2
    assert processes.join(timeout=1.5) is False
    assert ctx.now_ps == 1.5 * 10**12
    assert processes.join() is True
    assert ctx.now_ps == 2 * 10**12
    assert processes.join() is True


def test_zero_ranks_end_at_once(ctx):
    """As in torch."""
    assert ctx.multiprocessing.spawn(print, nprocs=0) is None


def test_a_spawn_inside_a_rank_is_a_wait(run):
    """Other ranks go on meanwhile; the inner ranks have their own world and streams."""
    order = []

    def inner(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(1)
        dist.all_reduce(x)
        assert x.item() == 3
        order.append("inner")

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 0:
            ctx.multiprocessing.spawn(inner, (ctx,), nprocs=3)
        else:
            order.append("sibling")
        dist.barrier()

    run(program, 2)
    assert order == ["sibling", "inner", "inner", "inner"]


def test_the_failure_of_an_inner_spawn_surfaces_at_the_parents_join(run):
    """It can be caught there, and the outer ranks go on unharmed."""

    def inner(rank):
        raise LookupError("inner")

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 1:
            with pytest.raises(SpawnException) as caught:
                ctx.multiprocessing.spawn(inner, nprocs=2)
            assert set(caught.value.errors) == {0, 1}
        x = ctx.ones(1)
        dist.all_reduce(x)
        assert x.item() == 2

    run(program, 2)


# ---- waiting behaviours (a) to (h) ----


def test_siblings_that_swallow_the_abort_end_all_the_same(run):
    """They are thrown at again, a bounded number of times, then parked and reported."""

    def program(rank, ctx):
        if rank == 2:
            raise ValueError
        attempts = 0
        while True:
            try:
                ctx.wait(Handle())
            except RankAborted:
                attempts += 1
                if rank == 1 and attempts == 3:
                    return

    with pytest.raises(SpawnException) as caught:
        run(program, 3)
    assert list(caught.value.errors) == [2]
    assert caught.value.stubborn == (0,)


def test_a_keyboard_interrupt_in_a_rank_ends_the_run_as_itself(run):
    """Ctrl-C is not swallowed: it surfaces from spawn, and the siblings are ended."""

    def program(rank, ctx):
        if rank == 1:
            raise KeyboardInterrupt
        ctx.wait(Handle())

    with pytest.raises(KeyboardInterrupt):
        run(program, 3)


def test_join_false_works_without_a_context():
    """The ranks run when they are joined."""
    ended = []
    processes = simrank.multiprocessing.spawn(ended.append, nprocs=2, join=False, share_args=True)
    assert ended == []
    while not processes.join():
        pass
    assert ended == [0, 1]


def test_a_failure_that_nobody_joined_surfaces_when_the_context_exits():
    """It is not lost."""

    def program(rank):
        raise LookupError(rank)

    with pytest.raises(SpawnException) as caught, simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2, join=False)
    assert set(caught.value.errors) == {0, 1}


def test_a_negative_number_of_ranks_is_an_error(ctx):
    """Not an empty run."""
    with pytest.raises(ValueError, match="nprocs=-1"):
        ctx.multiprocessing.spawn(print, nprocs=-1)


def test_waiting_for_what_is_no_handle_is_a_type_error(ctx):
    """The message names what can be waited for."""
    with pytest.raises(TypeError, match="Handle, Work, Event or Stream, not int"):
        ctx.wait(5)
