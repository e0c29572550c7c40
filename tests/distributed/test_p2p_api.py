"""Single and batched messages: what blocks whom."""

import pytest

import simrank.distributed as dist
from simrank.errors import UnsupportedError

LARGE = 2**26


def test_two_ranks_exchange_large_tensors_in_one_batch(run):
    """A batch is one call: it never deadlocks, whatever the order of its entries."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x, y = ctx.empty(LARGE), ctx.empty(LARGE)
        entries = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
        works = dist.batch_isend_irecv(entries if rank else entries[::-1])
        assert len(works) == 1
        works[0].wait()
        ctx.synchronize()
        assert works[0].is_completed()

    run(program, 2, data=False)


def test_a_batch_moves_values_in_the_order_of_each_pair(run):
    """Two messages of a pair keep their order; a rank may send to itself."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        out = [ctx.empty(1) for _ in range(3)]
        sends = [dist.P2POp(dist.isend, ctx.full((1,), v), 1) for v in (1.0, 2.0)]
        receives = [dist.P2POp(dist.irecv, x, 0) for x in out[:2]]
        own = [
            dist.P2POp(dist.irecv, out[2], rank),
            dist.P2POp(dist.isend, ctx.full((1,), 5.0 + rank), rank),
        ]
        for work in dist.batch_isend_irecv((receives if rank else sends) + own):
            work.wait()
        assert out[2].item() == 5 + rank
        if rank:
            assert [out[0].item(), out[1].item()] == [1, 2]

    run(program, 2)


def test_isend_and_irecv_return_works_that_block_the_stream(run):
    """The host goes on with nccl; later work on the stream sees the values."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.full((4,), float(rank))
        work = dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)
        work.wait()
        assert ctx.now_ps == 0
        assert (x + 1).tolist() == [1.0] * 4
        assert rank == 0 or work.source_rank() == 0

    run(program, 2)


def test_gloo_blocks_the_host_until_the_receiver_has_come(run):
    """A send of one element waits for a late receiver."""
    sent_ps = {}

    def program(rank, ctx):
        dist.init_process_group("gloo")
        x = ctx.ones(1, device="cpu")
        if rank == 0:
            dist.send(x, 1)
            sent_ps[0] = ctx.now_ps
        else:
            ctx.engine.sleep(10**9)
            dist.recv(x, 0)

    run(program, 2)
    assert sent_ps[0] > 10**9


def test_a_receive_from_any_source_takes_what_came_first(run):
    """By simulated arrival, not by rank; `recv` returns the sender."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        x = ctx.full((1,), float(rank), device="cpu")
        if rank:
            ctx.engine.sleep((4 - rank) * 10**9)
            dist.send(x, 0)
        else:
            ctx.engine.sleep(5 * 10**9 if ctx.seed else 0)
            assert [dist.recv(x) for _ in range(3)] == [3, 2, 1]
            assert x.item() == 1

    run(program, 4)
    run(program, 4, seed=5)


def test_nccl_has_no_receives_from_any_source(run):
    """Refused by name, before anything is issued."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        with pytest.raises(UnsupportedError, match="does not support recvAnysource"):
            dist.irecv(ctx.ones(1))

    run(program, 2)


def test_a_coalescing_manager_collects_messages(run):
    """Its end starts one call."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x, y = ctx.full((1,), float(rank)), ctx.empty(1)
        with dist._coalescing_manager(async_ops=True) as manager:
            assert dist.isend(x, 1 - rank) is None
            dist.irecv(y, 1 - rank)
        manager.wait()
        assert y.item() == 1 - rank

    run(program, 2)


def test_wrong_batches_get_torchs_errors(run):
    """Other functions, other objects, several groups."""

    def program(rank, ctx):
        dist.init_process_group()
        x, pair = ctx.ones(1), dist.new_group([0, 1])
        with pytest.raises(ValueError, match="Invalid ``op``"):
            dist.P2POp(dist.send, x, 0)
        with pytest.raises(ValueError, match="Invalid ``p2p_op_list``"):
            dist.batch_isend_irecv([x])
        entries = [dist.P2POp(dist.isend, x, 1 - rank, group) for group in (None, pair)]
        with pytest.raises(ValueError, match="same group"):
            dist.batch_isend_irecv(entries)
        assert "isend" in repr(entries[0])

    run(program, 2)


def test_a_message_heeds_what_changed_since_the_last_one_of_its_pair(run):
    """The current stream, an open batch, another dtype, the layout, the group of the same name."""

    def exchange(rank, x, y):
        if rank:
            dist.recv(y, 0)
            dist.send(x, 0)
        else:
            dist.send(x, 1)
            dist.recv(y, 1)
        return y.tolist()

    def program(rank, ctx):
        for backend in ("nccl", "gloo", "nccl"):
            dist.init_process_group(backend)
            device = "cpu" if backend == "gloo" else "cuda"
            for dtype in ("float32", "int64"):
                for _ in range(2):
                    x = ctx.full((2,), 3 + rank, dtype=dtype, device=device)
                    y = ctx.zeros(2, dtype=dtype, device=device)
                    assert exchange(rank, x, y) == [4 - rank] * 2
            dist.destroy_process_group()
        dist.init_process_group("nccl")
        x, y = ctx.full((2,), 5.0 + rank), ctx.zeros(2)
        assert exchange(rank, x, y) == [6.0 - rank] * 2
        with ctx.stream(ctx.Stream()):
            x.add_(10)  # The message waits for this stream, and no more for the default one.
            assert exchange(rank, x, y) == [16.0 - rank] * 2
        ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert exchange(rank, x, y) == [16.0 - rank] * 2
        with pytest.raises(ValueError, match="contiguous"):
            dist.send(ctx.zeros(4, 4)[:, :2], 1 - rank)

    run(program, 2)
