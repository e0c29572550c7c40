"""A pipeline of one forward, one backward (1F1B), each rank a stage."""

import os

import simrank as torch
import simrank.distributed as dist

MICROBATCHES, HIDDEN = 6, 8


class Stage:
    """One stage: multiplies by a number forward, and its gradient by the same backward."""

    def __init__(self, rank, world_size):
        self.before = rank - 1 if rank else None
        self.after = rank + 1 if rank + 1 < world_size else None
        self.factor = float(rank + 1)
        self.grad = 0.0
        self.inputs = []

    def exchange(self, peer, sent, receives):
        """Send to and receive from a neighbour in one call, so that neither waits for the other."""
        ends, received = [], torch.empty(HIDDEN)
        if peer is None:
            return received
        if sent is not None:
            ends.append(dist.P2POp(dist.isend, sent, peer))
        if receives:
            ends.append(dist.P2POp(dist.irecv, received, peer))
        for work in dist.batch_isend_irecv(ends) if ends else ():
            work.wait()
        return received

    def forward(self, x, number):
        """Return what follows from an activation, which the first stage makes."""
        x = torch.full((HIDDEN,), float(number)) if self.before is None else x
        self.inputs.append(x)
        return x * self.factor

    def backward(self, grad):
        """Return what follows from a gradient, which the last stage makes."""
        x = self.inputs.pop(0)
        grad = torch.ones(HIDDEN) if self.after is None else grad
        self.grad += (grad * x).sum().item()
        return grad * self.factor

    def run(self, num_ahead):
        """Run ahead, then one forward and one backward at a time, then what is left."""
        for number in range(num_ahead):
            x = self.exchange(self.before, None, receives=True)
            self.exchange(self.after, self.forward(x, number), receives=False)
        if num_ahead < MICROBATCHES:
            x = self.exchange(self.before, None, receives=True)
        for number in range(num_ahead, MICROBATCHES):
            grad = self.exchange(self.after, self.forward(x, number), receives=True)
            is_last = number + 1 == MICROBATCHES
            x = self.exchange(self.before, self.backward(grad), receives=not is_last)
        for _ in range(num_ahead):
            grad = self.exchange(self.after, None, receives=True)
            self.exchange(self.before, self.backward(grad), receives=False)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, world_size)
    stage.run(min(world_size - rank - 1, MICROBATCHES))
    before = after = 1
    for other in range(world_size):
        before *= other + 1 if other < rank else 1
        after *= other + 1 if other > rank else 1
    assert stage.grad == HIDDEN * before * after * sum(range(MICROBATCHES))
    dist.barrier()
    if rank == 0:
        print("gradients are right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
