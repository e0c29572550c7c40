"""Prints each attribute of torch's modules and classes that a Context leaves changed, or True."""

import sys
from types import ModuleType

import torch
import torch._dynamo.device_interface
import torch._inductor.codecache
import torch.distributed as dist
import torch.distributed._symmetric_memory
import torch.distributed.fsdp
import torch.distributed.tensor

import simrank

# Counters and caches of torch's own, what it does to a class of optimizers at its first instance,
# Python's own cache, and the frames that Dynamo skips, simrank's among them.
OWN = {
    "AUTOGRAD_FUNCTION_COUNTER", "DESCRIBER_NEXT_ID", "cache_hits", "cache_misses", "Adam.step",
    "_FakeScriptObject_cls", "_cupti_monitor_checked", "__annotations__", "SKIP_DIRS_RE",
}  # fmt: skip


def attributes():
    """Return the values of all attributes of torch's modules and classes, by their names."""
    found = {("sys", name): getattr(sys, name) for name in ("excepthook", "unraisablehook")}
    modules = {
        name: module for name, module in sys.modules.items() if name[:6] in ("torch", "torch.")
    }
    for name, module in modules.items():
        if not isinstance(module, ModuleType):
            continue
        found[name, "class"] = type(module)
        for key, value in list(vars(module).items()):
            if key.startswith("__") or isinstance(value, ModuleType) or key in OWN:
                continue
            found[name, key] = value
            if isinstance(value, type) and value.__module__.partition(".")[0] == "torch":
                for own, held in vars(value).items():
                    if own not in OWN and f"{key}.{own}" not in OWN:
                        found[name, f"{key}.{own}"] = held
    return found


def program(rank):
    """Use devices, groups, DDP, graphs, streams, symmetric memory and a mesh."""
    torch.cuda.set_device(rank)
    bound = torch.device("cuda", rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=bound)
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x += 1
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.Event().record()
    memory = torch.distributed._symmetric_memory.empty(4, device="cuda")
    torch.distributed._symmetric_memory.rendezvous(memory, dist.group.WORLD)
    mesh = dist.init_device_mesh("cuda", (2,))
    torch.distributed.tensor.distribute_tensor(torch.ones(4, 4), mesh)
    dist.destroy_process_group()


if __name__ == "__main__":
    before = attributes()
    with simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, nprocs=2)
    after = attributes()
    changed = [name for name, value in before.items() if after.get(name) is not value]
    known = {(module, name.partition(".")[0]) for module, name in before}
    of_classes = sorted(name for name in after.keys() - before.keys() if "." in name[1])
    changed += [name for name in of_classes if (name[0], name[1].partition(".")[0]) in known]
    print(changed or True)  # noqa: T201 - for the test
