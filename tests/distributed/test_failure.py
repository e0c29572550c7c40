"""A rank that fails: what the others see, with `on_failure="continue"`, and at teardown."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import DeadlockError, PeerDiedError, SpawnException


def outcome(program, nprocs=4, **options):
    """Return the Context, what each rank noted, and what spawn raised."""
    noted = {}
    with simrank.Context("hgx_h100", on_failure="continue", **options) as ctx:
        try:
            ctx.multiprocessing.spawn(program, (ctx, noted), nprocs=nprocs, share_args=True)
        except SpawnException as error:
            return ctx, noted, error
    return ctx, noted, None


def test_ranks_that_do_not_depend_on_a_dead_one_run_to_their_end():
    """They go on in groups without it; all root causes are in errors, and nothing else."""

    def program(rank, ctx, noted):
        dist.init_process_group()
        pair = dist.new_group([0, 1])
        if rank == 2:
            raise ValueError("two")
        if rank == 3:
            raise KeyError("three")
        x = ctx.ones(4)
        for _ in range(3):
            dist.all_reduce(x, group=pair)
        noted[rank] = x.tolist()

    _, noted, error = outcome(program)
    assert noted == {0: [8.0] * 4, 1: [8.0] * 4}
    assert {rank: type(e) for rank, e in error.errors.items()} == {2: ValueError, 3: KeyError}
    assert error.consequences == {}


@pytest.mark.parametrize(("backend", "device"), [("nccl", "cuda"), ("gloo", "cpu")])
@pytest.mark.parametrize("when", ["before", "after"])
def test_ranks_that_wait_for_a_dead_one_get_an_error_that_names_it(backend, device, when):
    """Whether it dies before or after they call; their errors are consequences, no causes."""

    def program(rank, ctx, noted):
        dist.init_process_group(backend)
        x = ctx.ones(4, device=device)
        if rank == 3:
            if when == "after":
                ctx.engine.sleep(10**9)
            raise ValueError("no data for rank 3\nmore")
        if when == "before":
            ctx.engine.sleep(10**9)
        dist.all_reduce(x)
        x.tolist()
        noted[rank] = "never"

    ctx, noted, error = outcome(program)
    assert noted == {}
    assert list(error.errors) == [3]
    assert sorted(error.consequences) == [0, 1, 2]
    found = error.consequences[0]
    assert isinstance(found, PeerDiedError | RuntimeError)
    assert found.peer == 3
    assert "on group 'default_pg' cannot complete: rank 3 died before" in str(found)
    assert str(found).endswith("(ValueError: no data for rank 3)")
    assert not ctx.engine.pending


def test_what_depends_on_a_failed_collective_is_never_read():
    """The collective's tensor and what is computed from it; a new tensor is."""

    def program(rank, ctx, noted):
        dist.init_process_group()
        if rank == 1:
            ctx.engine.sleep(10**9)
            raise ValueError
        x = ctx.ones(4)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        y = x + 1
        for read in (x.tolist, y.tolist, lambda: work.wait() and x.tolist()):
            with pytest.raises(PeerDiedError):
                read()
        assert ctx.ones(2).tolist() == [1, 1]
        x.fill_(3)
        assert x.tolist() == [3] * 4
        noted[rank] = "went on"

    _, noted, error = outcome(program, 2)
    assert noted == {0: "went on"}
    assert list(error.errors) == [1]


def test_messages_with_a_dead_rank_fail_and_others_arrive():
    """A receive that waits, a later send, and a message among the healthy."""

    def program(rank, ctx, noted):
        dist.init_process_group()
        x = ctx.full((2,), float(rank))
        if rank == 2:
            ctx.engine.sleep(10**9)
            raise ValueError
        if rank == 0:
            dist.recv(x, 2)
            with pytest.raises(PeerDiedError, match="recv from rank 2 on group"):
                x.tolist()
            with pytest.raises(PeerDiedError, match="send to rank 2 on group"):
                dist.send(x, 2)
            dist.send(ctx.full((2,), 7.0), 1)
        else:
            dist.recv(x, 0)
            noted[rank] = x.tolist()

    _, noted, _ = outcome(program, 3)
    assert noted == {1: [7.0, 7.0]}


def test_survivors_that_catch_the_error_make_a_smaller_group():
    """As elastic programs do."""

    def program(rank, ctx, noted):
        dist.init_process_group("gloo")
        smaller = dist.new_group([0, 1], backend="gloo")
        if rank == 2:
            raise ValueError
        x = ctx.ones(1, device="cpu")
        try:
            dist.all_reduce(x)
        except PeerDiedError:
            x.fill_(1)
            dist.all_reduce(x, group=smaller)
        noted[rank] = x.item()

    _, noted, _ = outcome(program, 3)
    assert noted == {0: 2.0, 1: 2.0}


def test_the_next_spawn_in_the_same_context_runs():
    """The rest of a test suite."""

    def bad(rank, ctx):
        dist.init_process_group()
        if rank == 1:
            raise ValueError
        dist.all_reduce(ctx.ones(1))
        ctx.synchronize()

    def good(rank, ctx, noted):
        dist.init_process_group()
        x = ctx.ones(1)
        dist.all_reduce(x)
        noted.append(x.item())

    noted = []
    with simrank.Context("hgx_h100", on_failure="continue") as ctx:
        with pytest.raises(SpawnException):
            ctx.multiprocessing.spawn(bad, (ctx,), nprocs=3)
        ctx.multiprocessing.spawn(good, (ctx, noted), nprocs=3, share_args=True)
    assert noted == [3.0] * 3


def test_a_hang_after_a_death_raises_the_death_and_notes_the_hang():
    """A wait that simrank cannot trace to the dead rank: the cause is still what is raised."""

    def program(rank, ctx, noted):
        if rank == 1:
            raise ValueError("the cause")
        ctx.wait(simrank.engine.Handle())

    _, _, error = outcome(program, 2)
    assert isinstance(error.errors[1], ValueError)
    assert "deadlock (proved)" in "\n".join(error.__notes__)
    assert isinstance(error.__cause__, DeadlockError | ValueError)


def test_an_unknown_choice_is_refused():
    """With the choices."""
    with pytest.raises(ValueError, match="choices: abort, continue"):
        simrank.Context("hgx_h100", on_failure="ignore")


def test_a_group_is_left_at_once_whatever_a_member_does():
    """Rank 3 dead, stuck or elsewhere: the report names it, or the spawn its error."""

    def program(rank, ctx, state):
        dist.init_process_group()
        if rank == 3:
            if state == "dead":
                raise ValueError
            if state == "stuck":
                dist.recv(ctx.ones(1), 0)
                ctx.synchronize()
            return
        dist.all_reduce(ctx.ones(1), async_op=True)
        dist.destroy_process_group()

    for state, text in (
        ("stuck", "rank 3: recv from rank 0"),
        ("elsewhere", "rank 3: returned"),
    ):
        with pytest.raises(DeadlockError) as caught, simrank.Context("hgx_h100") as ctx:
            ctx.multiprocessing.spawn(program, (ctx, state), nprocs=4)
        assert text in str(caught.value)
        assert "ranks 0-2: all_reduce #1" in str(caught.value)
    for choice in ("abort", "continue"):
        context = simrank.Context("hgx_h100", on_failure=choice)
        with pytest.raises(SpawnException) as raised, context as ctx:
            ctx.multiprocessing.spawn(program, (ctx, "dead"), nprocs=4)
        assert list(raised.value.errors) == [3]


def test_a_mismatch_that_all_ranks_raise_in_turn_stays_short():
    """Each says what the others do; those that have raised say it in one line."""

    def program(rank, ctx, noted):
        dist.init_process_group()
        for step in range(2):
            dist.all_gather_into_tensor(ctx.zeros(32), ctx.ones(4))
            if (rank, step) == (2, 1):
                dist.all_gather_into_tensor(ctx.zeros(32), ctx.ones(4))
            ctx.synchronize()
            dist.all_reduce(ctx.ones(16))
            ctx.synchronize()

    _, _, error = outcome(program, nprocs=8)
    texts = [str(each) for each in error.errors.values()]
    assert len(texts) >= 7
    assert max(map(len, texts)) < 1500
