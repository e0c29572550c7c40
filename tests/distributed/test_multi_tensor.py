"""Several tensors of a rank in one call, as gloo takes them."""

import pytest

import simrank.distributed as dist
from simrank.distributed.multi_tensor import (
    all_gather_multi_tensor,
    all_reduce_multi_tensor,
    broadcast_multi_tensor,
)
from simrank.errors import CollectiveMismatchError, SpawnException, UnsupportedError


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_tensors_of_all_members_become_one_result(run, size):
    """Each of the caller's tensors gets it, and a call with one tensor matches."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        own = [ctx.full((2,), rank + 1.0), ctx.full((2,), 10.0 * rank)]
        all_reduce_multi_tensor(own, dist.ReduceOp.SUM).wait()
        total = size * (size + 1) / 2 + 10 * size * (size - 1) / 2
        assert [tensor.tolist() for tensor in own] == [[total, total]] * 2
        mixed = [ctx.full((1,), rank + 2.0)] * (1 if rank else 2)
        all_reduce_multi_tensor(mixed, dist.ReduceOp.MAX).wait()
        assert mixed[0].tolist() == [size + 1.0]
        with pytest.raises(UnsupportedError, match="an average of 2 tensors per rank"):
            all_reduce_multi_tensor(own, dist.ReduceOp.AVG)

    run(program, size)


def test_the_roots_tensor_goes_to_all_tensors_of_all(run):
    """To the root's other ones, too."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        own = [ctx.full((2,), 10.0 * rank + index) for index in range(3)]
        broadcast_multi_tensor(own, 2, 1).wait()
        assert [tensor.tolist() for tensor in own] == [[12.0, 12.0]] * 3

    run(program, 3)


def test_each_list_gets_the_tensors_of_all(run):
    """In group order, and in the caller's order within a member."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        own = [ctx.full((1,), 2.0 * rank + index) for index in range(2)]
        lists = [[ctx.zeros(1) for _ in range(6)] for _ in range(2)]
        all_gather_multi_tensor(lists, own).wait()
        for listed in lists:
            assert [tensor.item() for tensor in listed] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

    run(program, 3)


def test_members_with_other_sizes_are_told(run):
    """Each tensor of a rank counts once."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        own = [ctx.zeros(2 + rank), ctx.zeros(2 + rank)]
        all_reduce_multi_tensor(own, dist.ReduceOp.SUM).wait()

    with pytest.raises(SpawnException, match="differ in count") as caught:
        run(program, 2)
    assert {type(error) for error in caught.value.errors.values()} == {CollectiveMismatchError}
