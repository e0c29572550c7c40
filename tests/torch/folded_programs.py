"""Programs as users write them; each prints the time of its last step, and its memory."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WIDTH = 512


def fsdp():
    """Shard a model over all ranks."""
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(2)]).cuda()
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def hsdp():
    """Shard a model within nodes."""
    mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(2)]).cuda()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def ddp():
    """Replicate a model."""
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(2)]).cuda()
    return nn.parallel.DistributedDataParallel(model)


def tensor():
    """Split layers in nodes, and shard them over nodes."""
    shape = (int(os.environ["WORLD_SIZE"]) // 4, 4)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("dp", "tp"))
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH))]
        model = nn.Sequential(*layers)
    for layer in model:
        parallelize_module(layer, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model.to_empty(device="cuda")


def pipeline():
    """Return the step of a pipeline of stages that are sharded."""
    mesh = init_device_mesh("cuda", (4, 4), mesh_dim_names=("pp", "dp"))
    stage = mesh["pp"].get_local_rank()
    model = nn.Linear(WIDTH, WIDTH).cuda()
    fully_shard(model, mesh=mesh["dp"])
    device = torch.device("cuda", torch.cuda.current_device())
    staged = PipelineStage(model, stage, 4, device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(staged, 4, loss_fn=lambda out, to: (out - to).square().mean())

    def step(x):
        schedule.step(*([x] if stage == 0 else []), target=x if stage == 3 else None)

    return model, step


def main():
    """Train for three steps."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    kind = sys.argv[1]
    built = globals()[kind]()
    model, step = built if kind == "pipeline" else (built, None)
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(3):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        x = torch.randn(64, WIDTH, device="cuda")
        if step is not None:
            step(x)
        else:
            loss = model(x).square().mean()
            loss.backward()
            if kind == "ddp" and dist.get_rank() == 0:
                loss.item()
        optimizer.step()
        optimizer.zero_grad()
        end.record()
        torch.cuda.synchronize()
        if number > 1:
            print("step", start.elapsed_time(end), torch.cuda.max_memory_allocated())
    dist.destroy_process_group()


main()
