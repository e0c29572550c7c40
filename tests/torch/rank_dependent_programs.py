"""Programs in which some ranks do something else; argv: a name. Each trains three steps."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

WIDTH, ROWS, BIG = 512, 256, 16384
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
size = int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


def train(rows=ROWS, after=lambda step: None, skips=lambda step: False):
    for step in range(3):
        model(torch.empty(rows, WIDTH, device="cuda")).sum().backward()
        if not skips(step):
            dist.all_reduce(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        after(step)


def work(times=20):
    x = torch.empty(8192, WIDTH, device="cuda")
    for _ in range(times):
        x = model(x).detach()


def hold(gib=1):
    return torch.empty(gib << 30, dtype=torch.uint8, device="cuda")


def alike():
    train()


def printing():
    train(after=lambda step: sys.stdout.write(f"{step} ") if rank == 0 else None)


def late_skip():
    train(skips=lambda step: rank == 5 and step == 2)


def late_leak():
    train()
    handle = dist.all_reduce(torch.ones(WIDTH, device="cuda"), async_op=True)
    if rank != 5:
        handle.wait()


def late_crash():
    train()
    assert rank != size - 1, "the last rank fails after training"


def early_crash():
    assert rank != 5, "rank 5 has a bad shard"
    train()


def late_work_of_first():
    train(after=lambda step: work() if rank == 0 and step == 2 else None)


def modulo():
    train(after=lambda step: work() if rank % 8 == 3 else None)


def late_modulo():
    train(after=lambda step: work() if rank % 8 == 3 and step == 2 else None)


def odd():
    train(after=lambda step: work(2) if rank % 2 else None)


def mesh_coordinate():
    mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("dp", "tp"))
    train(after=lambda step: work() if mesh.get_coordinate()[1] == 5 and step == 2 else None)


def mesh_local_rank():
    mesh = init_device_mesh("cuda", (4, 4), mesh_dim_names=("dp", "tp"))
    kept = hold() if mesh.get_local_rank("dp") == 2 else None
    train()
    del kept


def text():
    kept = hold() if os.environ["RANK"] == "6" else None
    train()
    del kept


def node():
    train(after=lambda step: work() if int(os.environ["GROUP_RANK"]) == 1 and step == 2 else None)


def hostname():
    name = f"host-{rank // 8}"
    train(after=lambda step: work() if name == "host-1" else None)


def stages():
    first, last = rank == 0, rank == size - 1
    x = torch.empty(ROWS, WIDTH, device="cuda")
    for _ in range(2):
        if not first:
            dist.recv(x, rank - 1)
        y = model(x).detach()
        if not last:
            dist.send(y, rank + 1)


def uneven():
    total = ROWS * size + 3
    train(total // size + (rank < total % size))


def very_uneven():
    train(BIG if rank < size // 4 else ROWS)


def dictionary():
    rows = {5: BIG, 9: BIG}
    train(rows.get(rank, ROWS))


def late_set():
    train()
    if rank in {4, 7}:
        work()


def counting():
    train(after=lambda step: [work(1) for _ in range(rank)])


def pattern():
    train()
    match rank:
        case 11:
            work()
        case _:
            pass


def many_values():
    train()
    for bad in range(3, size, 1):
        if rank == bad and bad % 4 == 3:
            work()


def sleeping():
    train(after=lambda step: time.sleep(0.01) if dist.get_rank() == 6 and step == 2 else None)


def groups():
    pairs = [dist.new_group([i, i + 1]) for i in range(0, size, 2)]
    train(after=lambda step: work() if dist.get_rank(pairs[rank // 2]) == 1 else None)


def quarters():
    fours = [dist.new_group(range(i, i + 4)) for i in range(0, size, 4)]
    train()
    if dist.get_rank(fours[rank // 4]) == 3 and rank // 4 == 1:
        work()


def shards():
    sizes = [ROWS] * size
    sizes[11] = BIG
    train(sizes[rank])


def mismatch():
    train()
    dist.all_reduce(torch.zeros(100 if rank == 5 else 101, device="cuda"))


globals()[sys.argv[1]]()
dist.destroy_process_group()
