"""Joining, leaving and making process groups: torch's rules and errors."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import DeadlockError, UnsupportedError

LARGE = 2**26  # Elements of float32: far above any protocol buffer.


def test_sub_groups_have_their_own_ranks_and_calls(run):
    """Two disjoint groups reduce apart; non-members get -1, None and torch's warning."""

    def program(rank, ctx):
        dist.init_process_group()
        even, odd = dist.new_group([0, 2]), dist.new_group([1, 3], group_desc="odd")
        mine, other = (even, odd) if rank % 2 == 0 else (odd, even)
        assert dist.get_rank(mine) == mine.rank() == rank // 2
        assert dist.get_rank(other) == -1
        assert dist.get_world_size(mine) == 2
        assert dist.get_world_size(other) == -1
        x = ctx.full((1,), float(rank))
        assert other == dist.GroupMember.NON_GROUP_MEMBER
        with pytest.warns(UserWarning, match=f"Running all_reduce on global rank {rank} which"):
            assert dist.all_reduce(x, group=other) is None
        dist.all_reduce(x, group=mine)
        dist.broadcast(x, src=mine.ranks[1], group=mine)
        assert x.item() == (2 if rank % 2 == 0 else 4)
        assert rank % 2 == 0 or odd.name == "odd"

    run(program, 4)


def test_initialisation_has_torchs_rules(run):
    """Once, with the right rank and world size, and again after destroy."""

    def program(rank, ctx):
        with pytest.raises(ValueError, match="Default process group has not been initialized"):
            dist.get_rank()
        assert not dist.is_initialized()
        dist.init_process_group("nccl", rank=rank, world_size=2)
        with pytest.raises(ValueError, match="default process group twice!"):
            dist.init_process_group()
        assert dist.is_initialized()
        dist.destroy_process_group()
        with pytest.raises(ValueError, match="rank=7"):
            dist.init_process_group(rank=7)
        with pytest.raises(UnsupportedError, match="mpi"):
            dist.init_process_group("mpi")
        dist.init_process_group()
        x = ctx.ones(1)
        dist.all_reduce(x)
        assert x.item() == 2
        dist.destroy_process_group()
        with pytest.raises(ValueError, match="Invalid process group"):
            dist.destroy_process_group()

    run(program, 2)


@pytest.mark.parametrize(
    ("backend", "device", "count"), [("nccl", "cuda", LARGE), ("gloo", "cpu", 4)]
)
@pytest.mark.parametrize("end", ["isend", "irecv"])
def test_destroy_waits_for_own_messages_in_flight(run, backend, device, count, end):
    """For the rank's own end, until its peer has come and the message has arrived."""
    late_ps, left_ps = 10**9, {}

    def program(rank, ctx):
        dist.init_process_group(backend)
        x = ctx.full((count,), 1.0, device=device)
        is_early = rank == (end == "irecv")
        if not is_early:
            ctx.engine.sleep(late_ps)
        work = dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)
        dist.destroy_process_group()
        assert work.is_success()
        left_ps[rank] = ctx.now_ps

    run(program, 2, data=False)
    assert min(left_ps.values()) > late_ps


def test_destroy_with_a_message_that_is_never_received_is_reported():
    """As a deadlock of that message, at its line."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 0:
            dist.isend(ctx.ones(LARGE), 1)
            dist.destroy_process_group()

    with pytest.raises(DeadlockError) as caught, simrank.Context("hgx_h100", data=False) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    (wait,) = [each for each in caught.value.waits if each.ranks == (0,)]
    assert wait.state.startswith("send to rank 1")


def test_bad_groups_and_peers_get_torchs_errors(run):
    """Ranks that do not exist, roots outside the group, both ways of naming a root."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(1)
        with pytest.raises(ValueError, match="Rank 5 is out of range"):
            dist.new_group([0, 5])
        with pytest.raises(ValueError, match="duplicate"):
            dist.new_group([0, 0])
        pair = dist.new_group([0, 1])
        if rank < 2:
            with pytest.raises(ValueError, match="Global rank 2 is not part of group"):
                dist.broadcast(x, 2, group=pair)
        with pytest.raises(ValueError, match="Can't specify both group_rank and global_rank"):
            dist.broadcast(x, 0, group_src=0)
        with pytest.raises(ValueError, match="Invalid destination rank"):
            dist.send(x, rank)
        with pytest.raises(UnsupportedError, match="any source"):
            dist.recv(x)

    run(program, 3)


def test_what_is_no_group_of_this_spawn_is_refused(run):
    """A number, a string, a group kept from an earlier spawn."""
    kept = []

    def first(rank, ctx):
        dist.init_process_group()
        kept.append(dist.new_group([0, 1]))

    def second(rank, ctx):
        dist.init_process_group()
        for wrong, error in ((5, TypeError), ("tp", TypeError), (kept[0], ValueError)):
            with pytest.raises(error):
                dist.all_reduce(ctx.ones(1), group=wrong)

    run(first, 2)
    run(second, 2)
