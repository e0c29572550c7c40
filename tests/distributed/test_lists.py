"""Collectives on lists: packed, uneven, early ends, memory and time."""

import pytest

import simrank.distributed as dist


def test_nccl_gathers_tensors_of_different_sizes(run):
    """Rank r contributes r + 1 elements; the lists may have gaps in memory."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        out = [ctx.zeros(size, 2).t()[0] for size in (1, 2, 3)]
        dist.all_gather(out, ctx.full((rank + 1,), float(rank)))
        assert [part.tolist() for part in out] == [[0], [1, 1], [2, 2, 2]]

    run(program, 3)


def test_nccl_scatters_sums_of_different_sizes(run):
    """Entry k of every list has k + 1 elements."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        out = ctx.empty(rank + 1)
        dist.reduce_scatter(out, [ctx.full((size,), float(rank)) for size in (1, 2, 3)])
        assert out.tolist() == [3.0] * (rank + 1)

    run(program, 3)


def test_an_asynchronous_gather_into_a_list_is_there_after_wait(run):
    """Unpacking is part of the operation."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        out = [ctx.zeros(2) for _ in range(4)]
        work = dist.all_gather(out, ctx.full((2,), float(rank)), async_op=True)
        work.wait()
        assert (out[3] + 1).tolist() == [4, 4]

    run(program, 4)


def test_a_scatter_gives_early_ranks_their_part_while_others_are_late(run):
    """The root may reuse its list; who comes late still gets the old values."""
    done_ps = {}

    def program(rank, ctx):
        dist.init_process_group("nccl")
        parts = [ctx.full((2,), float(index)) for index in range(4)] if rank == 0 else None
        out = ctx.empty(2)
        ctx.engine.sleep(10**9 if rank == 3 else 0)
        dist.scatter(out, parts, 0)
        if rank == 0:
            parts[3].fill_(-1)
        assert out.tolist() == [rank, rank]
        done_ps[rank] = ctx.now_ps

    run(program, 4)
    assert done_ps[1] < 10**8 < 10**9 < done_ps[3]


def test_a_gather_keeps_what_early_senders_sent(run):
    """Senders end before a late root, and may reuse their tensors."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.full((2,), float(rank))
        out = [ctx.empty(2) for _ in range(3)] if rank == 2 else None
        ctx.engine.sleep(10**9 if rank == 2 else 0)
        dist.gather(x, out, dst=2)
        if rank == 2:
            assert [part.tolist() for part in out] == [[0, 0], [1, 1], [2, 2]]
        else:
            x.fill_(-1)
            x.tolist()
            assert ctx.now_ps < 10**8

    run(program, 3)


def test_lists_cost_what_their_schedules_cost(run):
    """all_gather of a list takes as long as into a tensor."""
    took_ps = {}

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x, whole = ctx.ones(2**20), ctx.empty(4 * 2**20)
        for name in ("tensor", "list"):
            dist.barrier()
            start = ctx.now_ps
            if name == "list":
                dist.all_gather(list(whole.chunk(4)), x)
            else:
                dist.all_gather_into_tensor(whole, x)
            ctx.synchronize()
            took_ps[name] = ctx.now_ps - start

    run(program, 4, data=False)
    assert took_ps["list"] == pytest.approx(took_ps["tensor"], rel=0.01)


def test_a_gather_into_a_list_holds_its_buffer_in_device_memory(run):
    """Peak use has the packed output beside the list, as torch's has."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x, out = ctx.empty(2**20), [ctx.empty(2**20) for _ in range(2)]
        dist.all_gather(out, x)
        ctx.synchronize()
        assert ctx.devices[rank].memory.peak_bytes >= 5 * 2**22

    run(program, 2, data=False)


def test_shape_only_lists_lose_their_values(run):
    """Large outputs have none afterwards; small host tensors keep theirs."""

    def program(rank, ctx):
        dist.init_process_group()
        out = [ctx.empty(2**20) for _ in range(2)]
        dist.all_gather(out, ctx.empty(2**20))
        small = [ctx.empty(2, device="cpu") for _ in range(2)]
        dist.all_gather(small, ctx.full((2,), float(rank), device="cpu"))
        assert not out[0].storage.has_values
        assert [part.tolist() for part in small] == [[0, 0], [1, 1]]

    run(program, 2, data=False)
