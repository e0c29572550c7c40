"""Handlers of DTensor's operators: each rank adds and takes away its own."""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional as F  # noqa: N812 - torch's custom.


def test_a_rank_that_leaves_loss_parallel_takes_it_from_nobody(spawn):
    """One is in the midst of its block while another enters, and while another leaves."""

    def program(rank):
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (4,))
        torch.manual_seed(0)
        x, labels = torch.randn(4, 8), torch.randint(0, 8, (4,))
        sharded = distribute_tensor(x.clone().requires_grad_(), mesh, [Shard(1)])
        with loss_parallel():
            loss = F.cross_entropy(sharded, labels)
            if rank % 2:
                dist.barrier()
            loss.backward()
        if rank % 2 == 0:
            dist.barrier()
        alone = x.clone().requires_grad_()
        F.cross_entropy(alone, labels).backward()
        assert torch.allclose(sharded.grad.full_tensor(), alone.grad)

    outside = DTensor._op_dispatcher._custom_op_handlers
    before = dict(outside)
    spawn(program, 4)
    assert DTensor._op_dispatcher._custom_op_handlers is outside
    assert outside == before


def test_handlers_of_a_rank_begin_as_the_process_has_them(spawn):
    """What it puts there is its own, also where it puts another dictionary."""
    dispatcher = DTensor._op_dispatcher

    def program(rank):
        assert dispatcher._custom_op_handlers == before
        dispatcher._custom_op_handlers["of a rank"] = rank
        dist.init_process_group("gloo")
        dist.barrier()
        assert dispatcher._custom_op_handlers["of a rank"] == rank
        dispatcher._custom_op_handlers = before
        dispatcher._custom_op_handlers.pop(next(iter(before)))
        dist.barrier()
        assert len(dispatcher._custom_op_handlers) == len(before) - 1

    before = dict(dispatcher._custom_op_handlers)
    spawn(program)
    assert dispatcher._custom_op_handlers == before
