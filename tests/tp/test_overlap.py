"""The reduction of the input's gradient runs beside the weight's, as the timeline shows."""

import json

import pytest

import simrank
import simrank.distributed as dist
from simrank import tp
from simrank.trace import Timeline

TOKENS, HIDDEN = 4096, 8192


def backward(rank, ctx, times, *, overlaps, sequence_parallel=False):
    """Run one backward of a column-parallel layer; note when it ends."""
    dist.init_process_group("nccl")
    tp.parallel_state.initialize_model_parallel(8)
    config = tp.ModelParallelConfig(
        params_dtype=ctx.bfloat16,
        sequence_parallel=sequence_parallel,
        async_tensor_model_parallel_allreduce=overlaps,
    )
    layer = tp.ColumnParallelLinear(HIDDEN, 4 * HIDDEN, config=config, bias=False)
    rows = TOKENS // 8 if sequence_parallel else TOKENS
    layer(ctx.empty(rows, HIDDEN, dtype=ctx.bfloat16))
    grad = ctx.empty(TOKENS, HIDDEN // 2, dtype=ctx.bfloat16)
    ctx.synchronize()
    start_ps = ctx.now_ps
    layer.backward(grad)
    ctx.synchronize()
    times.append(ctx.now_ps - start_ps)


def run(*, overlaps, sequence_parallel=False):
    """Return the time of the backward in picoseconds, and the timeline's operations of rank 0."""
    times, timeline = [], Timeline([0])
    with simrank.Context("hgx_h100", data=False) as ctx:
        ctx.observe(timeline)
        ctx.multiprocessing.spawn(
            lambda rank: backward(
                rank, ctx, times, overlaps=overlaps, sequence_parallel=sequence_parallel
            ),
            nprocs=8,
        )
    return max(times), timeline


def operations(timeline, tmp_path):
    """Return (name, start, end) of the operations on the device, in microseconds."""
    path = tmp_path / "timeline.json"
    timeline.write(path)
    events = json.loads(path.read_text())["traceEvents"]
    return [
        (event["name"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("ph") == "X"
    ]


def last_of(found, part):
    return [each for each in found if each[0].startswith(part)][-1]


def test_the_timeline_shows_the_all_reduce_beside_the_weight_gradient(tmp_path):
    """With overlap they share time, without they do not."""
    for overlaps in (True, False):
        _, timeline = run(overlaps=overlaps)
        found = operations(timeline, tmp_path)
        _, reduce_start, reduce_end = last_of(found, "all_reduce")
        _, product_start, product_end = last_of(found, "matmul")
        shared = min(reduce_end, product_end) - max(reduce_start, product_start)
        assert (shared > 0.5 * (reduce_end - reduce_start)) == overlaps


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_without_overlap_the_step_is_longer_by_what_was_hidden(sequence_parallel):
    """The cost model says how long the collectives take by themselves."""
    with_overlap_ps, _ = run(overlaps=True, sequence_parallel=sequence_parallel)
    without_ps, _ = run(overlaps=False, sequence_parallel=sequence_parallel)
    collectives_ps = 0
    with simrank.Context("hgx_h100", data=False) as ctx:

        def alone(rank):
            nonlocal collectives_ps
            dist.init_process_group("nccl")
            whole = ctx.empty(TOKENS, HIDDEN, dtype=ctx.bfloat16)
            part = ctx.empty(TOKENS // 8, HIDDEN, dtype=ctx.bfloat16)
            ctx.synchronize()
            start_ps = ctx.now_ps
            if sequence_parallel:
                dist.all_gather_into_tensor(whole, part)
                dist.reduce_scatter_tensor(part, whole)
            else:
                dist.all_reduce(whole)
            ctx.synchronize()
            collectives_ps = ctx.now_ps - start_ps

        ctx.multiprocessing.spawn(alone, nprocs=8)
    hidden_ps = without_ps - with_overlap_ps
    assert 0 < hidden_ps <= collectives_ps
    # What runs beside a collective has fewer SMs: the products lose a part of what is hidden.
    assert hidden_ps > 0.5 * collectives_ps
