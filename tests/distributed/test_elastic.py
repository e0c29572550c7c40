"""Ranks that sit out: who takes part, what the others' calls do, and how ranks come back."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import (
    CollectiveMismatchError,
    DeadlockError,
    PeerDiedError,
    RankInactiveError,
    SpawnException,
    UnsupportedError,
)

BACKENDS = pytest.mark.parametrize(("backend", "device"), [("nccl", "cuda"), ("gloo", "cpu")])


@pytest.fixture
def outcome():
    """Return what runs a program on ranks: what each noted, and what spawn raised."""

    def run(program, nprocs=4, *, on_failure="abort", **options):
        noted = {}
        with simrank.Context("hgx_h100", on_failure=on_failure, **options) as ctx:
            try:
                ctx.multiprocessing.spawn(program, (ctx, noted), nprocs=nprocs, share_args=True)
            except SpawnException as error:
                return noted, error
        return noted, None

    return run


@BACKENDS
def test_a_step_on_a_subset_reduces_over_it_and_everyone_is_back_later(outcome, backend, device):
    """Who sits out calls and keeps its values; nothing waits for it."""

    def program(rank, ctx, noted):
        dist.init_process_group(backend)
        sums = []
        for active in ([0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3]):
            dist.set_active_ranks(active)
            assert dist.active_ranks() == active
            x = ctx.full((4,), float(1 << rank), device=device)
            dist.all_reduce(x)
            sums.append(x[0].item())
        noted[rank] = sums

    noted, error = outcome(program)
    assert error is None
    assert noted[0] == noted[1] == noted[3] == [15.0, 11.0, 15.0]
    assert noted[2] == [15.0, 4.0, 15.0]


@pytest.mark.parametrize(
    ("op", "expected"),
    [(dist.ReduceOp.SUM, 9.0), (dist.ReduceOp.PRODUCT, 15.0),
     (dist.ReduceOp.MIN, 1.0), (dist.ReduceOp.MAX, 5.0)],
)  # fmt: skip
def test_sum_product_min_and_max_are_over_the_active_ranks_only(outcome, op, expected):
    """Values 1, 2, 3, 5 on ranks 0 to 3, of which rank 1 sits out."""

    def program(rank, ctx, noted):
        dist.init_process_group("nccl")
        dist.set_active_ranks([0, 2, 3])
        x = ctx.full((4,), float((1, 2, 3, 5)[rank]))
        dist.all_reduce(x, op)
        noted[rank] = x.tolist()

    noted, error = outcome(program)
    assert error is None
    assert noted == {0: [expected] * 4, 1: [2.0] * 4, 2: [expected] * 4, 3: [expected] * 4}


@pytest.mark.parametrize(
    ("op", "dtype", "text"),
    [(dist.ReduceOp.AVG, "float32", "all_reduce with avg with inactive ranks"),
     (dist.ReduceOp.SUM, "float16", "all_reduce of float16 with inactive ranks")],
)  # fmt: skip
def test_other_reductions_and_types_are_refused_by_name(outcome, op, dtype, text):
    """At the call, on every active rank; nobody waits."""

    def program(rank, ctx, noted):
        dist.init_process_group("nccl")
        dist.set_active_ranks([0, 1])
        with pytest.raises(UnsupportedError, match=text):
            dist.all_reduce(ctx.ones(4, dtype=getattr(simrank, dtype)), op)
        noted[rank] = "refused"

    noted, error = outcome(lambda *args: program(*args) if args[0] < 2 else sits_out(*args))
    assert error is None
    assert noted == {0: "refused", 1: "refused"}


def sits_out(rank, ctx, noted):
    """Agree that ranks 0 and 1 are active, and end."""
    dist.init_process_group("nccl")
    dist.set_active_ranks([0, 1])


def collectives(rank, ctx, device):
    """Return what every collective leaves on a rank of three, by its name."""
    base = float(10 * rank)
    own = ctx.tensor([base, base + 1], device=device)
    six = ctx.tensor([base + k for k in range(6)], device=device)
    left = {}

    def keep(name, *tensors):
        left[name] = [value for tensor in tensors for value in tensor.tolist()]

    y = ctx.full((6,), -1.0, device=device)
    dist.all_gather_into_tensor(y, own)
    keep("all_gather_into_tensor", y)
    y = [ctx.full((2,), -1.0, device=device) for _ in range(3)]
    dist.all_gather(y, own)
    keep("all_gather", *y)
    y = ctx.full((2,), -1.0, device=device)
    dist.reduce_scatter_tensor(y, six)
    keep("reduce_scatter_tensor", y)
    y = ctx.full((2,), -1.0, device=device)
    dist.reduce_scatter(y, [six[0:2].clone(), six[2:4].clone(), six[4:6].clone()])
    keep("reduce_scatter", y)
    y = ctx.full((6,), -1.0, device=device)
    dist.all_to_all_single(y, six)
    keep("all_to_all_single", y)
    y = own.clone()
    dist.broadcast(y, 2)
    keep("broadcast", y)
    y = own.clone()
    dist.reduce(y, 2)
    keep("reduce", y if rank == 2 else own)
    y = [ctx.full((2,), -1.0, device=device) for _ in range(3)]
    dist.gather(own, y if rank == 2 else None, 2)
    keep("gather", *y)
    y = ctx.full((2,), -1.0, device=device)
    dist.scatter(y, [six[2 * k : 2 * k + 2].clone() for k in range(3)] if rank == 2 else None, 2)
    keep("scatter", y)
    dist.barrier()
    return left


EXPECTED = {
    0: {
        "all_gather_into_tensor": [0, 1, -1, -1, 20, 21],
        "all_gather": [0, 1, -1, -1, 20, 21],
        "reduce_scatter_tensor": [20, 22],
        "reduce_scatter": [20, 22],
        "all_to_all_single": [0, 1, -1, -1, 20, 21],
        "broadcast": [20, 21],
        "reduce": [0, 1],
        "gather": [-1] * 6,
        "scatter": [20, 21],
    },
    1: {
        "all_gather_into_tensor": [-1] * 6,
        "all_gather": [-1] * 6,
        "reduce_scatter_tensor": [-1, -1],
        "reduce_scatter": [-1, -1],
        "all_to_all_single": [-1] * 6,
        "broadcast": [10, 11],
        "reduce": [10, 11],
        "gather": [-1] * 6,
        "scatter": [-1, -1],
    },
    2: {
        "all_gather_into_tensor": [0, 1, -1, -1, 20, 21],
        "all_gather": [0, 1, -1, -1, 20, 21],
        "reduce_scatter_tensor": [28, 30],
        "reduce_scatter": [28, 30],
        "all_to_all_single": [4, 5, -1, -1, 24, 25],
        "broadcast": [20, 21],
        "reduce": [20, 22],
        "gather": [0, 1, -1, -1, 20, 21],
        "scatter": [24, 25],
    },
}


@BACKENDS
def test_every_collective_skips_who_sits_out_and_keeps_the_places_of_the_others(
    outcome, backend, device
):
    """Rank 1 of three sits out: its parts are neither sent nor written, in any call."""

    def program(rank, ctx, noted):
        dist.init_process_group(backend)
        dist.set_active_ranks([0, 2])
        noted[rank] = collectives(rank, ctx, device)
        dist.set_active_ranks([0, 1, 2])
        whole = collectives(rank, ctx, device)
        assert whole["all_gather"] == [0, 1, 10, 11, 20, 21]

    noted, error = outcome(program, 3)
    assert error is None
    assert noted == EXPECTED


@BACKENDS
@pytest.mark.parametrize("has_called", [False, True])
def test_a_rank_that_is_declared_broken_is_skipped_by_the_collective_in_flight(
    outcome, backend, device, has_called
):
    """Whoever polls is let go; the broken rank's own call ends too, and changes nothing."""

    def program(rank, ctx, noted):
        dist.init_process_group(backend)
        x = ctx.full((4,), float(1 << rank), device=device)
        work = None
        if rank == 0:
            ctx.engine.sleep(10**9)  # The last to come.
            dist.deactivate_rank(3)
        if rank != 3 or has_called:
            work = dist.all_reduce(x, async_op=True)
        while work is not None and not work.is_completed():
            pass
        if rank != 3:
            dist.all_reduce(x)
        noted[rank] = x[0].item()

    noted, error = outcome(program)
    assert error is None
    assert noted == {0: 21.0, 1: 21.0, 2: 21.0, 3: 8.0}


def test_what_is_decided_is_not_taken_back(outcome):
    """All have arrived: the numbers are those of all, on every rank."""

    def program(rank, ctx, noted):
        dist.init_process_group("nccl")
        x = ctx.full((1 << 24,), float(1 << rank))
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            ctx.engine.sleep(50_000_000)
            assert not work.is_completed()
            dist.deactivate_rank(3)
        work.wait()
        noted[rank] = x[0].item()

    noted, error = outcome(program)
    assert error is None
    assert noted == dict.fromkeys(range(4), 15.0)


def test_a_group_that_asks_for_it_goes_on_without_a_rank_that_dies(outcome):
    """The tensor of its options says who is left; the death is told at the end all the same."""

    def program(rank, ctx, noted):
        mask = simrank.zeros(4, dtype=simrank.int32, device="cpu")
        dist.init_process_group("nccl", pg_options=dist.ElasticOptions(mask))
        x = ctx.ones(4)
        dist.all_reduce(x)
        assert x[0].item() == 4.0
        if rank == 3:
            raise ValueError("broken")
        dist.all_reduce(x)
        noted[rank] = (x[0].item(), mask.tolist(), dist.active_ranks())
        with pytest.raises(PeerDiedError, match="ranks 0-3 of 'default_pg' active"):
            dist.set_active_ranks([0, 1, 2, 3])

    noted, error = outcome(program, on_failure="continue")
    assert list(error.errors) == [3]
    assert error.consequences == {}
    assert noted == dict.fromkeys(range(3), (12.0, [1, 1, 1, 0], [0, 1, 2]))


def test_without_the_option_a_dead_rank_is_an_error_as_before(outcome):
    """Though somebody has set who is active."""

    def program(rank, ctx, noted):
        dist.init_process_group("nccl")
        dist.set_active_ranks([0, 1, 2, 3])
        if rank == 3:
            raise ValueError("broken")
        x = ctx.ones(4)
        dist.all_reduce(x)
        noted[rank] = x.tolist()

    noted, error = outcome(program, on_failure="continue")
    assert noted == {}
    assert sorted(error.consequences) == [0, 1, 2]


def test_ranks_that_name_others_are_told_apart(outcome):
    """As every call that differs: with the line of each."""

    def program(rank, ctx, noted):
        dist.init_process_group("nccl")
        dist.set_active_ranks([0, 1] if rank != 3 else [0, 3])

    _noted, error = outcome(program)
    (found,) = {str(each) for each in error.errors.values()}
    assert isinstance(next(iter(error.errors.values())), CollectiveMismatchError)
    assert "active=0-1" in found
    assert "active=0, 3" in found


def test_a_call_that_needs_a_rank_that_sits_out_is_an_error_at_the_call(outcome):
    """A root, a receiver; and the sender itself."""

    def program(rank, ctx, noted):
        dist.init_process_group("nccl")
        dist.set_active_ranks([0, 1])
        x = ctx.ones(4)
        if rank < 2:
            with pytest.raises(RankInactiveError, match="broadcast on group 'default_pg' cannot"):
                dist.broadcast(x, 2)
        with pytest.raises(RankInactiveError, match="rank 2 is inactive since t="):
            dist.send(x, 2 if rank < 2 else 0)
        noted[rank] = "reported"

    noted, error = outcome(program, 3)
    assert error is None
    assert noted == dict.fromkeys(range(3), "reported")


def test_a_message_in_flight_to_a_broken_rank_fails(outcome):
    """Its receiver will never come."""

    def program(rank, ctx, noted):
        dist.init_process_group("gloo")
        x = ctx.ones(4, device="cpu")
        if rank == 0:
            with pytest.raises(PeerDiedError, match="rank 1 was deactivated before"):
                dist.send(x, 1)
            noted[rank] = "reported"
        elif rank == 2:
            ctx.engine.sleep(10**6)
            dist.deactivate_rank(1)

    noted, error = outcome(program, 3)
    assert error is None
    assert noted == {0: "reported"}


def test_a_broken_rank_that_lives_is_told_of_its_own_messages(outcome):
    """Its receive will never end; nobody else is harmed by it."""

    def program(rank, ctx, noted):
        dist.init_process_group("gloo")
        x = ctx.ones(4, device="cpu")
        if rank == 1:
            with pytest.raises(RankInactiveError, match="rank 1 is inactive since"):
                dist.recv(x, 2)
            x = ctx.ones(4, device="cpu")
        elif rank == 0:
            ctx.engine.sleep(10**6)
            dist.deactivate_rank(1)
        else:
            ctx.engine.sleep(2 * 10**6)
        if rank != 1:
            dist.all_reduce(x)
        dist.set_active_ranks([0, 1, 2])
        dist.all_reduce(x)
        noted[rank] = x[0].item()

    noted, error = outcome(program, 3)
    assert error is None
    assert noted == dict.fromkeys(range(3), 5.0)


def test_a_group_is_left_while_calls_of_some_of_its_ranks_are_in_flight(outcome):
    """Each waits for its own part, and a rank that has none for nothing."""

    def program(rank, ctx, noted):
        dist.init_process_group("nccl")
        dist.set_active_ranks([0, 2])
        x = ctx.ones(1 << 20)
        work = dist.all_reduce(x, async_op=True)
        dist.destroy_process_group()
        assert rank == 1 or work.is_completed()
        noted[rank] = x[0].item()

    noted, error = outcome(program, 3)
    assert error is None
    assert noted == {0: 2.0, 1: 1.0, 2: 2.0}


def test_a_rank_that_dies_later_is_an_error_for_those_that_are_active(outcome):
    """Calls of fewer members know it by its number among them."""

    def program(rank, ctx, noted):
        dist.init_process_group("nccl")
        dist.set_active_ranks([1, 3])
        if rank == 3:
            ctx.engine.sleep(10**9)
            raise ValueError("late")
        x = ctx.ones(4)
        dist.all_reduce(x)
        noted[rank] = x[0].item()

    noted, error = outcome(program, on_failure="continue")
    assert noted == {0: 1.0, 2: 1.0}
    assert list(error.errors) == [3]
    assert list(error.consequences) == [1]


def test_the_root_of_a_broadcast_in_flight_cannot_be_skipped(outcome):
    """Those that wait for it are told."""

    def program(rank, ctx, noted):
        dist.init_process_group("gloo")
        if rank == 0:
            ctx.engine.sleep(10**6)
            dist.deactivate_rank(0)
            return
        with pytest.raises(PeerDiedError, match="rank 0 was deactivated"):
            dist.broadcast(ctx.ones(4, device="cpu"), 0)
        noted[rank] = "reported"

    noted, error = outcome(program, 3)
    assert error is None
    assert noted == {1: "reported", 2: "reported"}


def test_a_rank_that_never_comes_back_is_named_by_the_report(outcome):
    """The change waits for it."""

    def program(rank, ctx, noted):
        dist.init_process_group("nccl")
        dist.set_active_ranks([0, 1])
        if rank < 2:
            dist.set_active_ranks([0, 1, 2])

    with pytest.raises(DeadlockError) as caught:
        outcome(program, 3)
    text = str(caught.value)
    assert "ranks 0-1: set_active_ranks #2 on group 'default_pg'" in text
    assert "rank 2: returned" in text


def test_the_last_active_rank_and_a_stranger_are_no_choice(outcome):
    """ValueError; who is left is never nobody."""

    def program(rank, ctx, noted):
        dist.init_process_group("nccl")
        dist.set_active_ranks([0])
        if rank == 0:
            with pytest.raises(ValueError, match="rank 0 is the last active one"):
                dist.deactivate_rank(0)
        for ranks in ([], [7]):
            with pytest.raises(ValueError, match="not members of group"):
                dist.set_active_ranks(ranks)

    _, error = outcome(program, 2)
    assert error is None


def test_the_monitored_barrier_does_not_ask_who_sits_out(outcome):
    """Nor does it fail for it."""

    def program(rank, ctx, noted):
        dist.init_process_group("gloo")
        dist.set_active_ranks([0, 2])
        dist.monitored_barrier()
        noted[rank] = "passed"

    noted, error = outcome(program, 3)
    assert error is None
    assert sorted(noted) == [0, 1, 2]
