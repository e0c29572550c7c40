"""Data parallel training of two layers: gradients in buckets, reduced while others follow."""

import os

import simrank as torch
import simrank.distributed as dist

HIDDEN, BATCH, STEPS, LR = 16, 8, 3, 0.01
BUCKET_BYTES = 1024


class Bucket:
    """Gradients that are reduced together, as soon as all of them are there."""

    def __init__(self, shapes):
        self.shapes = shapes
        self.flat = torch.zeros(sum(a * b for a, b in shapes), device="cuda")
        self.work = None

    def reduce(self, gradients):
        """Start the all-reduce of the gradients' mean."""
        self.flat.copy_(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        self.work = dist.all_reduce(self.flat, dist.ReduceOp.AVG, async_op=True)

    def gradients(self):
        """Wait for it, and return the parts."""
        self.work.wait()
        sizes = [a * b for a, b in self.shapes]
        return [p.view(*s) for p, s in zip(self.flat.split(sizes), self.shapes, strict=True)]


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    weights = [torch.randn(HIDDEN, HIDDEN) * 0.1 for _ in range(2)]
    for weight in weights:
        dist.broadcast(weight, src=0)
    torch.manual_seed(rank + 1)
    x, target = torch.randn(BATCH, HIDDEN), torch.randn(BATCH, HIDDEN)
    buckets = [Bucket([(HIDDEN, HIDDEN)]) for _ in weights]
    losses = []
    for _ in range(STEPS):
        hidden = x @ weights[0]
        error = hidden @ weights[1] - target
        loss = (error * error).mean()
        grad = error * (2 / error.numel())
        buckets[1].reduce([hidden.T @ grad])  # The first layer's gradient is computed beside it.
        buckets[0].reduce([x.T @ (grad @ weights[1].T)])
        for weight, bucket in zip(weights, buckets, strict=True):
            (gradient,) = bucket.gradients()
            weight.sub_(gradient * LR)
        dist.all_reduce(loss)
        losses.append(loss.item() / world_size)
    assert losses == sorted(losses, reverse=True), losses
    if rank == 0:
        print("loss went down:", losses[0] > losses[-1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
