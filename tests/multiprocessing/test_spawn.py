"""spawn: torch's signature and errors, and the waiting behaviours (a) to (h)."""

import sys

import pytest
from greenlet import getcurrent, greenlet

import simrank
import simrank.distributed as dist
from simrank.engine import Handle
from simrank.errors import (
    DeadlockError,
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


def test_a_wait_in_a_rank_defers_and_switches(run):
    """(a) While rank 0 waits, rank 1 runs."""
    order = []

    def program(rank, ctx):
        if rank == 0:
            ctx.wait(ctx.timer(1000))
        order.append(rank)

    run(program, 2)
    assert order == [1, 0]


def test_b_the_handle_is_complete_when_a_wait_returns(run):
    """(b) And the clock is at its completion."""

    def program(rank, ctx):
        handle = ctx.timer(1000 * (rank + 1))
        ctx.wait(handle)
        assert handle.complete
        assert ctx.now_ps == handle.complete_ps == 1000 * (rank + 1)

    run(program, 3)


def test_c_all_ranks_have_queued_before_time_moves(run):
    """(c) At the first completion every rank waits."""
    waiting = []

    def program(rank, ctx):
        handle = ctx.timer(1000)
        if rank == 0:
            handle.on_complete(lambda: waiting.extend(ctx.pending_waits))
        assert ctx.now_ps == 0
        ctx.wait(handle)

    run(program, 4)
    assert [task.rank for task in waiting] == [0, 1, 2, 3]


def test_d_the_parent_of_every_task_is_the_hub_whoever_starts_it(run):
    """(d) A task that a rank starts outlives the rank."""
    parents, done = [], []

    def program(rank, ctx):
        def body():
            parents.append(getcurrent().parent)
            ctx.wait(ctx.timer(10**6))
            done.append(rank)

        ctx.start(body)

    context = run(program, 2)
    assert parents == [context.engine.hub] * 2
    assert sorted(done) == [0, 1]


def test_e_waiting_again_drives_nothing(ctx):
    """(e) On a complete handle a wait returns at once, in the hub and in a rank."""
    handle, later = ctx.timer(10), ctx.timer(1000)
    ctx.wait(handle)
    ctx.wait(handle)
    assert ctx.now_ps == 10
    assert not later.complete

    def program(rank):
        before = ctx.now_ps
        ctx.wait(handle)
        assert ctx.now_ps == before

    ctx.multiprocessing.spawn(program, nprocs=2)


def test_f_after_a_failure_nothing_is_left_and_later_runs_are_clean(ctx):
    """(f) Pending waits are cleared, siblings aborted, and the next spawn works on the Context."""

    def failing(rank):
        dist.init_process_group()
        x = ctx.ones(2**20)
        dist.all_reduce(x, async_op=True)
        if rank == 3:
            raise ValueError
        dist.barrier()

    def working(rank):
        dist.init_process_group()
        x = ctx.ones(4)
        dist.all_reduce(x)
        assert x.tolist() == [4] * 4

    for _ in range(3):
        with pytest.raises(SpawnException):
            ctx.multiprocessing.spawn(failing, nprocs=4)
        assert ctx.pending_waits == []
        assert not ctx.engine.pending
        assert all(device.sms.held == 0 for device in ctx.devices)
        ctx.multiprocessing.spawn(working, nprocs=4)


def test_f_after_a_deadlock_later_runs_are_clean_too(ctx):
    """(f) The waiting ranks are ended, their streams dropped."""

    def hanging(rank):
        dist.init_process_group()
        if rank:
            dist.barrier()

    for _ in range(2):
        with pytest.raises(DeadlockError):
            ctx.multiprocessing.spawn(hanging, nprocs=4)
        assert ctx.pending_waits == []
    ctx.multiprocessing.spawn(lambda rank: ctx.ones(1).item(), nprocs=4)


def test_g_a_bare_greenlet_may_wait_too(ctx):
    """(g) From the hub, control returns there; the engine resumes it when the handle completes."""
    done = []
    handle = ctx.timer(100)

    def body():
        ctx.wait(handle)
        done.append(ctx.now_ps)

    bare = greenlet(body)
    bare.switch()
    assert not done
    assert len(ctx.pending_waits) == 1
    assert bare.parent is ctx.engine.hub
    ctx.drain()
    assert done == [100]
    assert bare.dead


def test_g_a_bare_greenlet_of_a_rank_does_not_hold_the_rank(run):
    """(g) The rank that switched into it goes on at the same simulated time."""
    order = []

    def program(rank, ctx):
        handle = ctx.timer(100)
        bare = greenlet(lambda: (ctx.wait(handle), order.append("bare")))
        bare.switch()
        order.append("rank")
        assert ctx.now_ps == 0
        ctx.wait(handle)

    run(program, 1)
    assert order[0] == "rank"
    assert "bare" in order


def test_h_siblings_that_swallow_the_abort_end_all_the_same(run):
    """(h) They are thrown at again, a bounded number of times, then parked and reported."""

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
