"""Work that was started and never waited for: listed by line, taken off by a wait."""

import simrank.distributed as dist


def test_a_wait_of_any_kind_takes_a_work_off_the_list_of_leaks(run):
    """wait, a positive poll, ctx.wait."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(1)
        dist.all_reduce(x, async_op=True).wait()
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        ctx.wait(dist.all_reduce(x, async_op=True))
        dist.barrier(async_op=True).synchronize()

    assert run(program, 2).comm_library.leaks.report() == []
