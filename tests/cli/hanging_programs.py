"""Torch programs that hang, or whose calls do not match; the cause is the line marked `# here`."""

_BEGIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.ones(4)
"""
_MODEL = """
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
model = DDP(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
_BODIES = {
    "a rank skips a collective": """
if rank != 1:  # here
    dist.all_reduce(x)
dist.barrier()
""",
    "a rank leaves a loop early": """
for step in range(5):
    loss = rank * step
    if loss > 5:  # here
        break
    dist.all_reduce(x)
dist.barrier()
""",
    "a rank continues a loop": """
for step in range(4):
    if step == 2 and rank == 3:  # here
        continue
    dist.all_reduce(x)
    dist.broadcast(x, 0)
""",
    "loops of different length": """
batches = range(3 + (rank == 0))
for batch in batches:  # here
    dist.all_reduce(x)
dist.barrier()
""",
    "a function returns early": """
def step(value):
    if value > 2:  # here
        return
    dist.all_reduce(x)
for number in range(3):
    step(number + rank / 2)
dist.barrier()
""",
    "a swallowed exception": """
def load(index):
    if index == 2 and rank == 1:  # here
        raise OSError("no file")
    return x
for index in range(4):
    try:
        batch = load(index)
    except OSError:
        continue
    dist.all_reduce(batch)
dist.barrier()
""",
    "a while loop with a condition of each rank": """
error = float(rank + 1)
while error > 1:  # here
    error /= 2
    dist.all_reduce(x)
dist.barrier()
""",
    "only the first rank of a group calls": """
group = dist.new_group([0, 1])
if rank == 0:  # here
    dist.all_reduce(x, group=group)
dist.barrier()
""",
    "two groups in opposite order": """
first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
if rank == 0:  # here
    dist.all_reduce(x, group=first)
    dist.all_reduce(x, group=second)
elif rank == 1:
    dist.all_reduce(x, group=second)
    dist.all_reduce(x, group=first)
dist.barrier()
""",
    "another collective on one rank": """
if x.sum() + rank < 5:  # here
    dist.all_reduce(x)
else:
    dist.broadcast(x, 0)
""",
    "a rank evaluates alone": """
def evaluate():
    dist.all_reduce(x)
for epoch in range(3):
    dist.all_reduce(x)
    if rank == 0 and epoch == 1:  # here
        evaluate()
""",
    "a checkpoint is saved by one rank": """
def save(name):
    dist.barrier()
for step in range(3):
    dist.all_reduce(x)
    if step == 1:
        if rank == 0:  # here
            save("step")
""",
    "a receive without a send": """
for step in range(3):
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1 and step < 3:
        dist.recv(x, 0)
if rank == 1:  # here
    dist.recv(x, 0)
dist.barrier()
""",
    "stop at a bad loss": """
for step in range(4):
    loss = torch.tensor(float("nan") if (step, rank) == (2, 2) else 1.0)
    if not loss.isfinite():  # here
        break
    dist.all_reduce(loss)
dist.barrier()
""",
    "a match statement": """
for step in range(3):
    match (step, rank):  # here
        case (1, 2):
            pass
        case _:
            dist.all_reduce(x)
dist.barrier()
""",
    "an object method": """
class Trainer:
    def __init__(self): self.best = 0
    def step(self, loss):
        if loss < self.best:  # here
            self.best = loss
            dist.all_gather([torch.empty(4) for _ in range(world)], x)
        dist.all_reduce(x)
trainer = Trainer()
for step in range(3):
    trainer.step(1 - 2 * (step == 1 and rank == 0))
""",
    "a rank without a batch": _MODEL
    + """
for step in range(3):
    if (step, rank) == (2, 1):  # here
        break
    model(x).sum().backward()
    optimizer.step()
dist.barrier()
""",
    "a rank accumulates longer": _MODEL
    + """
for step in range(4):
    if step == 2 and rank == 3:  # here
        with model.no_sync():
            model(x).sum().backward()
    else:
        model(x).sum().backward()
dist.barrier()
""",
    "a sharded model runs on some ranks": """
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
dist.destroy_process_group()
dist.init_process_group("nccl")
torch.cuda.set_device(rank)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
for layer in model: fully_shard(layer)
fully_shard(model)
batch = torch.ones(2, 8, device="cuda")
for step in range(2):
    model(batch).sum().backward()
    if step == 1 and rank == 2:  # here
        model(batch)
dist.barrier(device_ids=[rank])
torch.cuda.synchronize()
""",
    "an early stop that is not shared": """
best, patience = 1.0, 0
for epoch in range(6):
    metric = 1.0 - 0.1 * epoch * (rank != 3)
    patience = 0 if metric < best else patience + 1
    best = min(best, metric)
    if patience > 2:  # here
        break
    dist.all_reduce(x)
dist.barrier()
""",
}
PROGRAMS = {name: _BEGIN.lstrip() + body for name, body in _BODIES.items()}


def line_of(source):
    """Return the number of the line that is marked."""
    return next(n for n, line in enumerate(source.splitlines(), 1) if line.endswith("# here"))
