"""Random correct programs: tie seeds change neither numbers nor times, and no alarm is raised."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank
import simrank.distributed as dist

STEPS = (
    "sum",
    "max async",
    "gather",
    "scatter",
    "exchange",
    "broadcast",
    "reduce",
    "barrier",
    "ring",
)


def do_step(step, x, rank_and_size, ctx):
    """Do one collective as a careful program would, and return the rank's new tensor."""
    rank, size = rank_and_size
    if step == "sum":
        dist.all_reduce(x, dist.ReduceOp.AVG)
    elif step == "max async":
        work = dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
        ctx.ones(3)
        work.wait()
    elif step == "gather":
        out = ctx.empty(x.numel() * size)
        dist.all_gather_into_tensor(out, x)
        return out[: x.numel()].clone() + rank
    elif step == "scatter":
        out = ctx.empty(x.numel() // size)
        dist.reduce_scatter_tensor(out, x)
        x[: out.numel()].copy_(out / size)
    elif step == "exchange":
        out = ctx.empty(x.numel())
        dist.all_to_all_single(out, x)
        return out
    elif step == "broadcast":
        dist.broadcast(x, size - 1)
        return x + rank
    elif step == "reduce":
        dist.reduce(x, 0)
        return x / size
    elif step == "barrier":
        dist.barrier()
    elif size > 1:
        return pass_on(x, rank_and_size, ctx)
    return x


def pass_on(x, rank_and_size, ctx):
    """Send to the next rank and receive from the one before, as one batch."""
    rank, size = rank_and_size
    out = ctx.empty(x.numel())
    operations = [
        dist.P2POp(dist.isend, x, (rank + 1) % size),
        dist.P2POp(dist.irecv, out, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return out


def program(rank, ctx, steps, late, outputs):
    dist.init_process_group()
    ctx.cuda.set_device(rank)
    size = dist.get_world_size()
    x = ctx.arange(8 * size, dtype="float32") + rank
    for step, delay_us in steps:
        if rank == late:
            ctx.engine.sleep(delay_us * 1_000_000)
        x = do_step(step, x, (rank, size), ctx)
    outputs[rank] = x.numpy()


def run_program(steps, size, late, seed):
    """Run a program with one rank that is late at every step; return numbers and end."""
    outputs = simrank.multiprocessing.Manager().dict()
    with simrank.Context("hgx_h100", seed=seed, races="error", strict=True) as ctx:
        ctx.multiprocessing.spawn(program, (ctx, steps, late, outputs), nprocs=size)
    assert ctx.findings == []
    return outputs, ctx.now_ps


@settings(max_examples=5)
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 100)), min_size=1, max_size=7),
    size=st.sampled_from((1, 2, 3, 4, 5, 8)),
    late=st.integers(0, 7),
    seed=st.integers(1, 1000),
)
def test_seeds_change_neither_numbers_nor_times_of_correct_programs(steps, size, late, seed):
    """Whoever is late, in whatever order simultaneous events run (E4, D5)."""
    first, end_ps = run_program(steps, size, late, seed=0)
    again, again_end_ps = run_program(steps, size, late, seed=seed)
    assert end_ps == again_end_ps
    for rank, values in first.items():
        assert np.array_equal(values, again[rank], equal_nan=True)
