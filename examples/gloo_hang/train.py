"""Four ranks of which one has a batch less: it goes on to the evaluation, and the job hangs.

`torchrun --nproc-per-node 4 train.py records` writes the records beside this file. torch writes
those of nccl by itself (TORCH_FR_DUMP_TEMP_FILE); of gloo a program has to ask for them.
"""

import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

NUM_BATCHES = [6, 6, 5, 6]  # Of each rank: the last batch of rank 2 was dropped.


def write_record(folder: Path) -> None:
    """Write the calls of this rank, and end."""
    (folder / f"rank_{dist.get_rank()}").write_bytes(_dump_fr_trace())
    os._exit(1)


def main() -> None:
    """Train, then evaluate; write the record after half a minute."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    timer = threading.Timer(30, write_record, [Path(sys.argv[1])])
    timer.daemon = True
    timer.start()
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(NUM_BATCHES[dist.get_rank()]):
        optimizer.zero_grad()
        loss = mse_loss(model(torch.randn(8, 16)), torch.randn(8, 4))
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach() / dist.get_world_size())
    counts = torch.zeros(dist.get_world_size())
    dist.all_gather_into_tensor(counts, torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
