"""Mooncake, 8: a group that shrinks after a failure and grows again, with right numbers.

The cases are those of Mooncake's elastic tests: a failed rank, recovery, a rejoin in place,
extension, eviction by hand. A process that replaces a dead one is not simulated.
"""

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import PeerDiedError, SpawnException, UnsupportedError


def total(ctx, rank, group=None):
    """Return the sum over the active ranks of a bit for each."""
    x = ctx.full((64,), float(1 << rank))
    dist.all_reduce(x, group=group)
    return int(x[0].item())


@pytest.fixture
def elastic():
    """Return what runs a program in elastic groups: what each rank noted, and what was raised."""

    def run(program, nprocs=4, *, first=None, **options):
        noted = {}

        def body(rank, ctx):
            dist.init_process_group("nccl", pg_options=dist.ElasticOptions(first=first))
            noted[rank] = program(rank, ctx)

        with simrank.Context("hgx_h100", on_failure="continue", **options) as ctx:
            try:
                ctx.multiprocessing.spawn(body, (ctx,), nprocs=nprocs, share_args=True)
            except SpawnException as error:
                return noted, error
        return noted, None

    return run


def test_a_failed_rank_leaves_a_group_that_goes_on(elastic):
    """Every later sum is that of those that are left, in one group after the other."""

    def program(rank, ctx):
        seen = [total(ctx, rank)]
        for failing in (1, 3):
            if rank == failing:
                raise ValueError("broken")
            seen.append(total(ctx, rank))
        return seen

    noted, error = elastic(program)
    assert noted == {0: [15, 13, 5], 2: [15, 13, 5]}
    assert sorted(error.errors) == [1, 3]
    assert error.consequences == {}


def test_a_rank_that_was_declared_broken_rejoins_in_place(elastic):
    """It asks to come back when it can; healthy ranks go on until they let it in."""

    def program(rank, ctx):
        seen = [total(ctx, rank)]
        if rank == 1:
            dist.deactivate_rank(1)
            ctx.engine.sleep(500_000_000)
        else:
            seen += [total(ctx, rank) for _ in range(3)]
        dist.set_active_ranks([0, 1, 2, 3])
        return [*seen, total(ctx, rank)]

    noted, error = elastic(program)
    assert error is None
    assert noted[0] == noted[2] == noted[3]
    assert noted[0][0] == noted[0][-1] == noted[1][-1] == 15
    assert set(noted[0][2:-1]) == {13}


def test_recovery_after_a_fault_is_agreed_on_by_all(elastic):
    """A fault breaks it in its third collective; the numbers of calls go on together."""

    def program(rank, ctx):
        seen = [total(ctx, rank) for _ in range(5)]
        dist.set_active_ranks([0, 1, 2, 3])
        return [*seen, *(total(ctx, rank) for _ in range(2))]

    faults = [{"deactivate": 2, "at_collective": 3}]
    noted, error = elastic(program, faults=faults)
    assert error is None
    assert noted[0] == noted[1] == noted[3] == [15, 15, 11, 11, 11, 15, 15]
    assert noted[2] == [15, 15, 4, 4, 4, 15, 15]


@pytest.mark.parametrize("direction", [(3, 1), (1, 3)])
def test_an_extension_takes_part_in_collectives_and_messages(elastic, direction):
    """Before it joins, what it calls is its own; after that, it sends and receives."""
    src, dst = direction

    def program(rank, ctx):
        before = total(ctx, rank)
        dist.set_active_ranks([0, 1, 2, 3])
        after = total(ctx, rank)
        x = ctx.full((1024,), float(rank))
        if rank == src:
            dist.send(x, dst)
        elif rank == dst:
            dist.recv(x, src)
        dist.barrier()
        return before, after, int(x[0].item())

    noted, error = elastic(program, first=[0, 1])
    assert error is None
    joined = {rank: src if rank == dst else rank for rank in range(4)}
    assert noted == {0: (3, 15, 0), 1: (3, 15, joined[1]), 2: (4, 15, 2), 3: (8, 15, joined[3])}


def test_a_healthy_rank_is_evicted_by_hand_and_let_in_again(elastic):
    """One rank says so; the evicted one finds out by asking."""

    def program(rank, ctx):
        seen = [total(ctx, rank)]
        if rank == 0:
            dist.deactivate_rank(3)
        while 3 in dist.active_ranks():
            ctx.engine.sleep(1_000_000)
        seen.append(total(ctx, rank))
        dist.set_active_ranks([0, 1, 2, 3])
        return [*seen, total(ctx, rank)]

    noted, error = elastic(program)
    assert error is None
    assert noted == {0: [15, 7, 15], 1: [15, 7, 15], 2: [15, 7, 15], 3: [15, 8, 15]}


def test_subgroups_shrink_and_grow_by_themselves(elastic):
    """Members of several groups are active in each of them or not."""

    def program(rank, ctx):
        options = dist.ElasticOptions(first=[1])
        pair = dist.new_group([1, 2], pg_options=options)
        seen = []
        if rank in (1, 2):
            seen.append(total(ctx, rank, pair))
            dist.set_active_ranks([1, 2], pair)
            seen.append(total(ctx, rank, pair))
        return [*seen, total(ctx, rank)]

    noted, error = elastic(program)
    assert error is None
    assert noted == {0: [15], 1: [2, 6, 15], 2: [4, 6, 15], 3: [15]}


def test_shrink_group_makes_a_group_of_the_survivors(elastic):
    """Only they call it, after the failure; numbers in it are its own."""

    def program(rank, ctx):
        group = dist.new_group([0, 1, 2, 3])
        if rank == 1:
            raise ValueError("broken")
        with pytest.raises((PeerDiedError, RuntimeError)):
            total(ctx, rank, group)
        smaller = dist.shrink_group([1], group)
        assert dist.get_rank(smaller) == (0, None, 1, 2)[rank]
        again = dist.shrink_group([2], smaller) if rank != 3 else None
        return total(ctx, rank, smaller), None if again is None else total(ctx, rank, again)

    noted, error = elastic(program)
    assert list(error.errors) == [1]
    assert noted == {0: (13, 5), 2: (13, 5), 3: (13, None)}


def test_shrink_group_refuses_what_it_cannot_do(elastic):
    """The default group, flags, strangers, and the caller itself."""

    def program(rank, ctx):
        group = dist.new_group([0, 1])
        with pytest.raises(UnsupportedError, match="shrink_group of the default group"):
            dist.shrink_group([1])
        with pytest.raises(UnsupportedError, match="shrink_flags=1"):
            dist.shrink_group([1 - rank], group, 1)
        for wrong in ([], [7], [0, 0], [0, 1]):
            with pytest.raises(ValueError, match="ranks_to_exclude"):
                dist.shrink_group(wrong, group)
        with pytest.raises(RuntimeError, match="in the exclusion list"):
            dist.shrink_group([rank], group)

    _, error = elastic(program, 2)
    assert error is None
