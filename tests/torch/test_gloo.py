"""Errors of calls with wrong roots and sizes are gloo's own, on every member alike."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # New names of collectives.

import torch.distributed as dist  # noqa: E402

ROOTED = {
    "broadcast": lambda root: dist.broadcast(torch.ones(1), src=root),
    "reduce": lambda root: dist.reduce(torch.ones(1), dst=root),
    "gather": lambda root: dist.gather(torch.ones(1), None, dst=root),
    "scatter": lambda root: dist.scatter(torch.ones(1), None, src=root),
}
OBJECTS = {
    "broadcast": [
        lambda root: dist.broadcast_object_list([1], src=root),
        lambda root: dist.scatter_object_list([None], None, src=root),
    ],
    "gather": [lambda root: dist.gather_object(1, None, dst=root)],
}


def test_a_root_that_is_no_member_is_gloos_error(spawn):
    """A RuntimeError, where nccl has a ValueError; the group goes on."""

    def program(rank):
        dist.init_process_group("gloo")
        half = dist.new_group([0, 1])
        for root in (-1, 2):
            for name, call in ROOTED.items():
                with pytest.raises(RuntimeError, match=f"{name}: invalid root rank: {root}$"):
                    call(root)
            for name, calls in OBJECTS.items():
                for call in calls:
                    with pytest.raises(RuntimeError, match=f"{name}: invalid root rank: {root}$"):
                        call(root)
        with pytest.raises(ValueError, match="Global rank 2 is not part of group"):
            dist.broadcast(torch.ones(1), src=2, group=half)
        with pytest.raises(RuntimeError, match="broadcast: invalid root rank: 3"):
            dist.broadcast(torch.ones(1), group_src=3, group=half)
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == 2.0

    spawn(program, 2)


def test_sizes_that_do_not_fit_are_gloos_errors(spawn):
    """Of single tensors, which it cuts into parts, and of lists."""

    def program(rank):
        dist.init_process_group("gloo")
        for num_rows, told in (
            (7, r"invalid tensor size at index 0 \(expected \(2\), got \(3\)\)"),
            (5, r"invalid tensor size at index 2 \(expected \(2\), got \(1\)\)"),
            (2, r"invalid output tensor list at index 0 \(expected length 3, got 2\)"),
        ):
            with pytest.raises(RuntimeError, match=told):
                dist.all_gather_into_tensor(torch.ones(num_rows), torch.ones(2))
        told = r"outputShape\[0\] \* worldSize == inputShape\[0\] \(9 vs. 6\)"
        with pytest.raises(RuntimeError, match=told):
            dist.reduce_scatter_tensor(torch.ones(3), torch.ones(6))
        for inputs in ([], [torch.ones(1)] * 2):
            told = f"input tensor list size {len(inputs)} does not match world size 3"
            with pytest.raises(RuntimeError, match=told):
                dist.all_to_all([torch.ones(1)] * 3, inputs)
        out = torch.empty(6)
        dist.all_gather_into_tensor(out, torch.full((2,), float(rank)))
        assert out.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]

    spawn(program, 3)
