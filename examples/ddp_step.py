"""Train one layer with torch's DistributedDataParallel.

Run: simrank run --nproc-per-node 4 examples/ddp_step.py
The same file runs on GPUs: torchrun --nproc-per-node 4 examples/ddp_step.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(dist.get_rank())  # Different data on each rank, equal weights by DDP.
    model = DistributedDataParallel(torch.nn.Linear(64, 1, device=device), device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(32, 64, device=device)
    y = x.sum(dim=1, keepdim=True)
    for step in range(20):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step}: mean loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
