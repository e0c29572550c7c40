"""Object collectives: copies per rank, sizes charged, on every backend."""

import pytest

import simrank.distributed as dist

BACKENDS = ("nccl", "gloo")


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_rank_gets_a_copy_of_its_own(run, backend):
    """Objects are pickled, also the rank's own; shape-only runs keep them."""

    def program(rank, ctx):
        dist.init_process_group(backend)
        own, out = {"rank": rank}, [None] * 3
        dist.all_gather_object(out, own)
        assert out == [{"rank": r} for r in range(3)]
        assert out[rank] is not own
        values = [rank, [rank]]
        dist.broadcast_object_list(values, src=1)
        assert values == [1, [1]]
        gathered = [None] * 3 if rank == 0 else None
        dist.gather_object(rank * "x", gathered)
        assert rank or gathered == ["", "x", "xx"]
        mine = [None]
        dist.scatter_object_list(mine, ["a", "b" * 99, None] if rank == 2 else None, src=2)
        assert mine == [("a", "b" * 99, None)[rank]]

    run(program, 3, data=False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("use_batch", [False, True])
def test_lists_of_objects_travel_between_two_ranks(run, backend, use_batch):
    """`recv_object_list` returns the sender."""

    def program(rank, ctx):
        dist.init_process_group(backend)
        values = [rank, {"x": "y" * rank}]
        if rank == 1:
            dist.send_object_list(values, 0, use_batch=use_batch)
        else:
            assert dist.recv_object_list(values, 1, use_batch=use_batch) == 1
            assert values == [1, {"x": "y"}]

    run(program, 2)


def test_a_larger_object_takes_longer(run):
    """Its bytes are charged."""
    took_ps = {}

    def program(rank, ctx, size):
        dist.init_process_group("nccl")
        dist.all_gather_object([None] * 2, b"x" * size)
        took_ps[size] = ctx.now_ps

    run(program, 2, 10)
    run(program, 2, 10**7)
    assert took_ps[10**7] > took_ps[10] + 10**7


def test_lists_on_the_wrong_ranks_get_torchs_errors(run):
    """As `gather` and `scatter`."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank:
            with pytest.raises(ValueError, match="must NOT be specified on non-destination"):
                dist.gather_object(1, [None] * 2)
        else:
            with pytest.raises(ValueError, match="must be specified on destination rank"):
                dist.gather_object(1)
            with pytest.raises(ValueError, match="source rank must provide"):
                dist.scatter_object_list([None])
        with pytest.raises(ValueError, match="list of size at least 1"):
            dist.scatter_object_list([])
        with pytest.raises(ValueError, match="Invalid destination rank"):
            dist.send_object_list([1], rank)

    run(program, 2)
