"""The last arrivals of collectives and messages, as observers of their ends see them."""

import simrank
import simrank.distributed as dist
from simrank.ranks.folding import FoldedAxis, Folding

MS = 10**9


class Arrivals:
    """Notes how long each rank's collectives and messages waited, and for which ranks."""

    def __init__(self):
        self.seen = {}

    def on_operation(self, operation):
        """Note the wait of one that has ended."""
        if operation.kind == "collective":
            waited_ps = max(operation.ready_ps - operation.start_ps, 0)
            late = operation.last_arrivals() if waited_ps else None
            lines = late and [site.line().line for site in late.sites]
            self.seen.setdefault(operation.rank, []).append((waited_ps, late and late.ranks, lines))

    def on_host(self, *args):
        """Note nothing."""

    on_transfer = on_task_switch = on_host


def arrivals(program, nprocs, folding=None):
    noted = Arrivals()
    with simrank.Context("hgx_h100", data=folding is None, folding=folding) as ctx:
        ctx.observe(noted)
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs)
    return noted.seen


def line(function, offset):
    return function.__code__.co_firstlineno + offset


def test_ranks_that_come_last_together_have_a_line_each():
    """Ranks 1 and 3, from two lines."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.empty(4)
        if rank % 2:
            ctx.engine.sleep(2 * MS)
        if rank == 3:
            dist.all_reduce(x, async_op=True).wait()
        else:
            dist.all_reduce(x)
        ctx.synchronize()

    late = 2 * MS, (1, 3), [line(program, 8), line(program, 6)]
    nothing = 0, None, None
    assert arrivals(program, 4) == {0: [late], 1: [nothing], 2: [late], 3: [nothing]}


def test_a_batch_waits_for_its_last_peer():
    """Rank 1 sends after 1 ms, rank 2 after 3."""

    def program(rank, ctx):
        dist.init_process_group()
        x, y = ctx.empty(4), ctx.empty(4)
        ends = [dist.P2POp(dist.irecv, x, 1), dist.P2POp(dist.irecv, y, 2)]
        if rank:
            ctx.engine.sleep((2 * rank - 1) * MS)
            ends = [dist.P2POp(dist.isend, x, 0)]
        for work in dist.batch_isend_irecv(ends):
            work.wait()

    found = arrivals(program, 3)
    assert found[0] == [(3 * MS, (2,), [line(program, 7)])]
    assert found[1] == found[2] == [(0, None, None)]


def test_members_wait_for_one_that_leaves_until_it_has_left():
    """No rank is late then: the call goes on with fewer."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.empty(4)
        if rank != 2:
            work = dist.all_reduce(x, async_op=True)
            if rank == 0:
                ctx.engine.sleep(MS)
                dist.deactivate_rank(2)
            work.wait()

    found = arrivals(program, 3)
    assert {rank: (waits[0][0] // MS, waits[0][1:]) for rank, waits in found.items()} == {
        0: (1, ((), [])), 1: (1, ((), [])),
    }  # fmt: skip


def test_ranks_that_do_not_run_are_late_as_their_representative_is():
    """Of two replicas of a group of two, rank 1's are late."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 1:
            ctx.engine.sleep(MS)
        dist.all_reduce(ctx.empty(2**20))
        ctx.synchronize()

    found = arrivals(program, 8, Folding(8, [FoldedAxis("dp", 4, 2)]))
    assert found == {0: [(MS, (1, 3, 5, 7), [line(program, 4)])], 1: [(0, None, None)]}
