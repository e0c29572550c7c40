"""The future of a Work: its tensors, callbacks, and what waiting for it means."""

import pytest

import simrank.distributed as dist


@pytest.mark.parametrize(("backend", "device"), [("nccl", "cuda"), ("gloo", "cpu")])
def test_the_future_of_a_work_has_its_tensors_and_chains(run, backend, device):
    """wait, value, done, then and add_done_callback."""

    def program(rank, ctx):
        dist.init_process_group(backend)
        x = ctx.full((2,), float(rank), device=device)
        future = dist.all_reduce(x, async_op=True).get_future()
        assert future.done() == (backend == "nccl")
        seen = []
        future.add_done_callback(lambda done: seen.append(done.value()[0].tolist()))
        halved = future.then(lambda done: done.value()[0] / 2)
        failed = future.then(lambda done: 1 / 0)
        assert halved.wait().tolist() == [0.5, 0.5]
        assert future.wait()[0].tolist() == [1, 1]
        assert seen == [[1, 1]]
        with pytest.raises(
            RuntimeError, match="the callback: ZeroDivisionError: division"
        ) as error:
            failed.wait()
        assert isinstance(error.value.__cause__, ZeroDivisionError)

    context = run(program, 2)
    assert context.findings == []


def test_waiting_for_the_future_of_a_nccl_work_does_not_block_the_host(run):
    """It holds the current stream, as Work.wait does."""

    def program(_, ctx):
        dist.init_process_group()
        x = ctx.zeros(2**24)
        dist.all_reduce(x, async_op=True).get_future().wait()
        assert ctx.now_ps == 0
        ctx.synchronize()
        assert ctx.now_ps > 100_000_000

    run(program, 2, data=False)
