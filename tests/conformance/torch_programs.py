"""Programs of torch.distributed, each a function of rank and world size that returns tensors.

The same functions run on simulated ranks and on real gloo processes; see `test_torch_programs.py`.
Where order of summation would show, numbers are float64.
"""

import contextlib
import importlib
import os
import pkgutil
import random
import tempfile
import warnings
from functools import partial
from types import FunctionType

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dnn  # Its defaults are the WORLD at its import.
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

PROGRAMS = {}


def program(function):
    """Add a program to the list."""
    PROGRAMS[function.__name__] = function
    return function


def whole(tensor):
    """Return a plain copy of a tensor, gathered if it is a DTensor."""
    value = tensor.detach()
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()


def perceptron(seed=0, width=8):
    """Return a small model with the same weights everywhere."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 2 * width), nn.Tanh(), nn.Linear(2 * width, 8)).double()


def batch(step, rank, rows=6):
    """Return the data of a step on a rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, 8, generator=generator, dtype=torch.float64)


def trained(model, rank, steps=3, optimizer=torch.optim.SGD, **options):
    """Train, and return the weights."""
    stepper = optimizer(model.parameters(), **({"lr": 0.1} | options))
    for step in range(steps):
        stepper.zero_grad()
        model(batch(step, rank)).square().mean().backward()
        stepper.step()
    return weights(model)


def weights(model):
    """Return the weights of a model by name."""
    return {name: whole(parameter) for name, parameter in model.named_parameters()}


def base(rank, count=6, dtype=torch.float64):
    """Return numbers that differ from rank to rank."""
    return torch.arange(count, dtype=dtype) * (rank + 1) + rank


# ---- c10d ----


@program
def reductions(rank, world):
    results = {}
    for name in ("SUM", "PRODUCT", "MIN", "MAX"):
        for dtype in (torch.float64, torch.int64, torch.uint8):
            tensor = base(rank, dtype=dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
            results[f"{name} {dtype}"] = tensor
    for name in ("BAND", "BOR", "BXOR"):
        tensor = base(rank, dtype=torch.int32)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        results[name] = tensor
    tensor = base(rank)
    dist.reduce(tensor, dst=world - 1)
    results["reduce"] = tensor if rank == world - 1 else None
    tensor = torch.complex(base(rank), -base(rank))
    dist.all_reduce(tensor)
    results["complex"] = tensor
    return results


@program
def rooted(rank, world):
    results = {}
    tensor = base(rank)
    dist.broadcast(tensor, src=1)
    results["broadcast"] = tensor
    outputs = [torch.empty(6, dtype=torch.float64) for _ in range(world)] if rank == 1 else None
    dist.gather(base(rank), outputs, dst=1)
    results["gather"] = outputs
    inputs = [base(i) for i in range(world)] if rank == 0 else None
    output = torch.empty(6, dtype=torch.float64)
    dist.scatter(output, inputs, src=0)
    results["scatter"] = output
    return results


@program
def gathered(rank, world):
    lists = [torch.empty(6, dtype=torch.float64) for _ in range(world)]
    dist.all_gather(lists, base(rank))
    one = torch.empty(6 * world, dtype=torch.float64)
    dist.all_gather_into_tensor(one, base(rank))
    stacked = torch.empty(world, 6, dtype=torch.float64)
    dist.all_gather_into_tensor(stacked, base(rank).view(1, 6))
    scattered = torch.empty(2, dtype=torch.float64)
    dist.reduce_scatter(scattered, list(base(rank, 2 * world).chunk(world)))
    single = torch.empty(2, dtype=torch.float64)
    dist.reduce_scatter_tensor(single, base(rank, 2 * world))
    return {
        "lists": lists,
        "one": one,
        "stacked": stacked,
        "scattered": scattered,
        "single": single,
    }


@program
def exchanged(rank, world):
    equal = torch.empty(world, dtype=torch.float64)
    dist.all_to_all_single(equal, base(rank, world))
    sends, receives = [rank + k + 1 for k in range(world)], [k + rank + 1 for k in range(world)]
    uneven = torch.empty(sum(receives), dtype=torch.float64)
    dist.all_to_all_single(uneven, base(rank, sum(sends)), receives, sends)
    lists = [torch.empty(3, dtype=torch.float64) for _ in range(world)]
    dist.all_to_all(lists, list(base(rank, 3 * world).chunk(world)))
    return {"equal": equal, "uneven": uneven, "lists": lists}


@program
def objects(rank, world):
    everyone = [None] * world
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * rank})
    shared = [rank, {"a": [1, 2]}] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, src=0)
    own = [None]
    dist.scatter_object_list(own, [f"for {i}" for i in range(world)] if rank == 0 else None, src=0)
    at_last = [None] * world if rank == world - 1 else None
    dist.gather_object((rank, rank**2), at_last, dst=world - 1)
    return {"everyone": everyone, "shared": shared, "own": own, "last": at_last}


@program
def messages(rank, world):
    following, before = (rank + 1) % world, (rank - 1) % world
    ring = torch.empty(6, dtype=torch.float64)
    calls = [dist.P2POp(dist.isend, base(rank), following), dist.P2POp(dist.irecv, ring, before)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    results = {"ring": ring}
    if rank == 0:
        found = []
        for _ in range(world - 1):
            tensor = torch.empty(6, dtype=torch.float64)
            sender = dist.recv(tensor, tag=7)
            found.append((sender, tensor))
        results["any source"] = sorted(found, key=lambda pair: pair[0])
    else:
        dist.send(base(rank), 0, tag=7)
    if rank < 2:  # By tag, not by order.
        first, second = torch.empty(6, dtype=torch.float64), torch.empty(6, dtype=torch.float64)
        other = 1 - rank
        sends = [dist.isend(base(rank + tag), other, tag=tag) for tag in (1, 2)]
        dist.irecv(second, other, tag=2).wait()
        dist.irecv(first, other, tag=1).wait()
        for work in sends:
            work.wait()
        results["tags"] = [first, second]
    listed = [torch.full((2,), float(rank)), torch.arange(3)]
    if rank == 0:
        dist.send_object_list(["to", 1], dst=1)
    elif rank == 1:
        received = [None, None]
        dist.recv_object_list(received, src=0)
        results["objects"] = received
    results["listed"] = listed
    return results


@program
def groups(rank, world):
    results = {}
    made = [dist.new_group([k, (k + 1) % world]) for k in range(world)] if world > 2 else []
    for k, group in enumerate(made):
        if rank in (k, (k + 1) % world):
            tensor = base(rank)
            dist.all_reduce(tensor, group=group)
            results[f"pair {k}"] = [tensor, torch.tensor(dist.get_rank(group))]
    own, everything = dist.new_subgroups(world // 2)
    tensor = base(rank)
    dist.broadcast(tensor, group=own, group_src=0)
    results["subgroup"] = [tensor, torch.tensor(len(everything))]
    local = dist.new_group([rank], use_local_synchronization=True)
    tensor = base(rank)
    dist.all_reduce(tensor, group=local)
    results["alone"] = tensor
    dist.destroy_process_group(local)
    results["ranks"] = dist.get_process_group_ranks(own)
    return results


@program
def works(rank, world):
    tensor = base(rank)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future().then(lambda done: done.value()[0] * 2)
    work.wait()
    with dist._coalescing_manager():
        first, second = base(rank), base(rank) * 2
        dist.all_reduce(first)
        dist.all_reduce(second)
    dist.monitored_barrier()
    dist.barrier()
    return {
        "future": future.wait(),
        "coalesced": [first, second],
        "done": [work.is_completed(), work.is_success()],
    }


@program
def sparse(rank, world):
    indices = torch.tensor([[rank, world], [1, 0]])
    tensor = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0 + rank]), (world + 1, 2))
    dist.all_reduce(tensor)
    return {"dense": tensor.to_dense()}


@program
def stores(rank, world):
    store = dist.distributed_c10d._get_default_store()
    own = dist.PrefixStore("test", store)
    own.set(f"key {rank}", str(rank))
    values = [own.get(f"key {other}") for other in range(world)]
    total = own.add("counter", rank + 1)
    dist.barrier()
    seen = own.add("counter", 0)
    own.compare_set("winner", "", "somebody")
    return {"values": values, "positive": total > 0, "seen": seen, "winner": own.get("winner")}


@program
def mesh(rank, world):
    two = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("outer", "inner"))
    results = {"coordinate": two.get_coordinate()}
    for name in ("outer", "inner"):
        tensor = base(rank)
        dist.all_reduce(tensor, group=two.get_group(name))
        results[name] = tensor
    flat = two["outer", "inner"]._flatten()
    tensor = base(rank)
    dist.all_reduce(tensor, group=flat.get_group())
    results["flat"] = tensor
    return results


@program
def functional(rank, world):
    group, x = dist.group.WORLD, base(rank, 8)
    results = {
        "all_reduce": funcol.all_reduce(x, "sum", group) + 0,
        "all_gather": funcol.all_gather_tensor(x, 0, group) + 0,
        "reduce_scatter": funcol.reduce_scatter_tensor(base(rank, 8 * world), "sum", 0, group) + 0,
        "all_to_all": funcol.all_to_all_single(base(rank, world), None, None, group) + 0,
        "broadcast": funcol.broadcast(x, 1, group) + 0,
        "permute": funcol.permute_tensor(x, [(i + 1) % world for i in range(world)], group) + 0,
        "coalesced": [t + 0 for t in funcol.all_reduce_coalesced([x, 2 * x], "sum", group)],
        "gathered": [t + 0 for t in funcol.all_gather_into_tensor_coalesced([x, -x], group)],
    }
    leaf = x.clone().requires_grad_()
    y = funcol.all_gather_tensor_autograd(leaf, 0, group)
    (y * torch.arange(float(y.numel()))).sum().backward()
    results["gradient of all_gather"] = leaf.grad
    leaf = base(rank, 8 * world).requires_grad_()
    (funcol.reduce_scatter_tensor_autograd(leaf, "sum", 0, group) * (rank + 1)).sum().backward()
    results["gradient of reduce_scatter"] = leaf.grad
    leaf = base(rank, world).requires_grad_()
    (funcol.all_to_all_single_autograd(leaf, None, None, group) * (rank + 1)).sum().backward()
    results["gradient of all_to_all"] = leaf.grad
    return results


@program
def differentiable(rank, world):
    results = {}

    def gradient(name, call):
        leaf = base(rank, 4).requires_grad_()
        (call(leaf * leaf) * (rank + 1)).sum().backward()
        results[name] = leaf.grad

    gradient("all_reduce", dnn.all_reduce)
    gradient("all_gather", lambda t: torch.stack(dnn.all_gather(t)))
    gradient("broadcast", lambda t: dnn.broadcast(t, 0))
    gradient(
        "all_to_all",
        lambda t: torch.stack(
            dnn.all_to_all(
                [torch.empty_like(t) for _ in range(world)], [t * k for k in range(world)]
            )
        ),
    )
    gradient(
        "reduce_scatter",
        lambda t: dnn.reduce_scatter(torch.empty_like(t), [t * (k + 1) for k in range(world)]),
    )
    return results


# ---- training ----


@program
def ddp(rank, world):
    return trained(DistributedDataParallel(perceptron(), bucket_cap_mb=0.001), rank)


@program
def ddp_views(rank, world):
    model = DistributedDataParallel(perceptron(), gradient_as_bucket_view=True, static_graph=True)
    return trained(model, rank, optimizer=torch.optim.AdamW, lr=0.01)


@program
def ddp_unused_parameters(rank, world):
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = perceptron(1), perceptron(2)

        def forward(self, x):
            return self.a(x) if rank % 2 == 0 else self.a(self.b(x))

    return trained(DistributedDataParallel(Branching(), find_unused_parameters=True), rank)


@program
def ddp_no_sync(rank, world):
    model = DistributedDataParallel(perceptron())
    stepper = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        stepper.zero_grad()
        with model.no_sync():
            model(batch(step, rank)).square().mean().backward()
        model(batch(step + 9, rank)).square().mean().backward()
        stepper.step()
    return weights(model)


@program
def ddp_comm_hooks(rank, world):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    compressed = DistributedDataParallel(perceptron().float())
    compressed.register_comm_hook(None, default_hooks.fp16_compress_hook)
    low_rank = DistributedDataParallel(perceptron())
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    low_rank.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    stepper = torch.optim.SGD(compressed.parameters(), lr=0.1)
    for step in range(2):
        stepper.zero_grad()
        compressed(batch(step, rank).float()).square().mean().backward()
        stepper.step()
    return {"fp16": weights(compressed), "powerSGD": trained(low_rank, rank)}


@program
def ddp_join(rank, world):
    def trained_unevenly(**how):
        model = DistributedDataParallel(perceptron())
        stepper = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join(**how):
            for step in range(2 + rank):
                stepper.zero_grad()
                model(batch(step, rank)).square().mean().backward()
                stepper.step()
        return weights(model)

    shrinking = trained_unevenly(divide_by_initial_world_size=False)
    return {"all": trained_unevenly(), "those who take part": shrinking}


@program
def ddp_checkpointing(rank, world):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = perceptron(1), perceptron(2)

        def forward(self, x):
            x = checkpoint(self.a, x, use_reentrant=False)
            return checkpoint(self.b, x, use_reentrant=False)

    return trained(DistributedDataParallel(Checkpointed(), static_graph=True), rank)


@program
def zero_redundancy(rank, world):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(perceptron())
    stepper = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(3):
        stepper.zero_grad()
        model(batch(step, rank)).square().mean().backward()
        stepper.step()
    stepper.consolidate_state_dict(0)
    return weights(model)


@program
def local_sgd(rank, world):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = perceptron()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    stepper = PostLocalSGDOptimizer(inner, PeriodicModelAverager(2, warmup_steps=1))
    for step in range(4):
        stepper.zero_grad()
        model(batch(step, rank)).square().mean().backward()
        stepper.step()
    return weights(model)


@program
def fsdp2(rank, world):
    from torch.distributed.fsdp import fully_shard

    model, shards = perceptron(), init_device_mesh("cpu", (world,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=shards)
    fully_shard(model, mesh=shards)
    return trained(model, rank, optimizer=torch.optim.AdamW, lr=0.01)


@program
def fsdp2_hybrid_mixed_precision(rank, world):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    both = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
    model = fully_shard(perceptron(), mesh=both, mp_policy=policy)
    return trained(model, rank)


@program
def fsdp_of_tensor_parallel(rank, world):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    both = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(perceptron(), both["tensor"], plan)
    fully_shard(model, mesh=both["data"])
    return trained(model, rank // 2)


@program
def tensor_parallel_mlp(rank, world):
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return self.down(F.gelu(self.up(self.norm(x))))

    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    }
    model = parallelize_module(Block().double(), init_device_mesh("cpu", (world,)), plan)
    stepper = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        stepper.zero_grad()
        model(batch(step, 0, 16).chunk(world)[rank]).square().sum().backward()
        stepper.step()
    return weights(model)


@program
def dtensor(rank, world):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    line = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    a, b = torch.randn(8, 16, dtype=torch.float64), torch.randn(16, 8, dtype=torch.float64)
    results = {}
    for one in (Shard(0), Shard(1), Replicate()):
        for other in (Shard(0), Shard(1), Replicate()):
            x = distribute_tensor(a, line, [one]).requires_grad_()
            z = x @ distribute_tensor(b, line, [other])
            z.redistribute(line, [Shard(0)]).sum().backward()
            results[f"{one} {other}"] = [whole(z), whole(x.grad)]
    sharded = distribute_tensor(a, line, [Shard(0)])
    results["softmax"] = whole(torch.softmax(sharded, 0))
    results["norm"] = whole(sharded.norm())
    return results


def _pipeline(name, rank, world):
    import torch.distributed.pipelining as pipelining

    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()).double() for _ in range(2 * world)]
    kind, cpu = getattr(pipelining, name), torch.device("cpu")
    is_single = issubclass(kind, pipelining.schedules.PipelineScheduleSingle)
    is_v = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    last_stage = 2 * world - 1
    if is_single:
        modules = [nn.Sequential(layers[2 * rank], layers[2 * rank + 1])]
        stages = pipelining.PipelineStage(modules[0], rank, world, cpu)
    else:
        numbers = [rank, last_stage - rank] if is_v else [rank, rank + world]
        modules = [layers[number] for number in numbers]
        stages = [
            pipelining.PipelineStage(module, number, 2 * world, cpu)
            for module, number in zip(modules, numbers, strict=True)
        ]
    schedule = kind(stages, 2 * world, loss_fn=lambda y, target: (y - target).square().sum())
    x, losses = batch(0, 0, 4 * world), []
    is_last = rank == (0 if is_v else world - 1)
    options = {"target": x.flip(0), "losses": losses} if is_last else {}
    schedule.step(*([x] if rank == 0 else []), **options)
    results = {
        f"{index} {name}": whole(parameter.grad)
        for index, module in enumerate(modules)
        for name, parameter in module.named_parameters()
    }
    results["losses"] = [loss.detach() for loss in losses]
    return results


for _name in (
    "ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleLoopedBFS",
    "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV",
):  # fmt: skip
    PROGRAMS[f"pipeline {_name}"] = lambda rank, world, _name=_name: _pipeline(_name, rank, world)


@program
def distributed_checkpoint(rank, world):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor, zeros

    line = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    values = torch.randn(16, 4)
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    saved = {"a": distribute_tensor(values, line, [Shard(0)]), "n": {"x": 3}}
    dcp.save(saved, checkpoint_id=folder[0])
    loaded = {"a": zeros(16, 4, device_mesh=line, placements=[Shard(1)]), "n": {"x": 0}}
    dcp.load(loaded, checkpoint_id=folder[0])
    later = dcp.async_save(saved, checkpoint_id=os.path.join(folder[0], "later"))
    later.result()
    return {
        "a": whole(loaded["a"]),
        "n": loaded["n"],
        "same": torch.equal(whole(loaded["a"]), values),
    }


@program
def backwards_of_all_ranks(rank, world):
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x = x.clone()
            dist.all_reduce(x)
            return x

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.clone()
            dist.all_reduce(gradient)
            return gradient

    def hook(gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return gradient + total / 16

    torch.manual_seed(rank)
    x, w = (torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    h = x
    for _ in range(3):
        h = Sum.apply(torch.tanh(h * w)) / world + x * 2
        h.register_hook(hook)
        h = checkpoint(lambda v: Sum.apply(torch.sin(v)) * w, h, use_reentrant=True)
    h.sum().backward()
    return {"x": x.grad, "w": w.grad}


@program
def random_numbers(rank, world):
    torch.manual_seed(7)
    results = {"same": torch.rand(3)}
    dist.barrier()
    results["dropout"] = nn.Dropout(0.5)(torch.ones(16))
    dist.barrier()
    torch.manual_seed(rank)
    results["own"] = torch.randn(3)
    dist.barrier()
    results["more"] = torch.bernoulli(torch.full((5,), 0.5))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first = torch.rand(2)
        dist.barrier()
        results["forked"] = [first, torch.rand(2)]
    results["after"] = torch.randperm(10)
    random.seed(5)
    np.random.seed(6)
    dist.barrier()
    results["others"] = [random.random(), float(np.random.rand())]
    return results


@program
def modes(rank, world):
    results = {}
    if rank % 2:
        torch.set_default_dtype(torch.float64)
    dist.barrier()
    results["default dtype"] = str(torch.ones(1).dtype)
    with torch.no_grad() if rank == 0 else torch.enable_grad():
        dist.barrier()
        results["grad"] = torch.is_grad_enabled()
    with torch.autocast("cpu", torch.bfloat16, enabled=rank == 0):
        dist.barrier()
        results["autocast"] = str(
            torch.mm(torch.ones(2, 2).float(), torch.ones(2, 2).float()).dtype
        )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        dist.barrier()
        warnings.warn(f"of rank {rank}", stacklevel=1)
    results["warnings"] = [str(w.message) for w in seen]
    torch.set_default_dtype(torch.float32)
    return results


# ---- each public flag of torch, as torch names them ----

_READERS = ("get_{}", "is_{}", "{}", "{}_enabled", "is_{}_enabled", "get_{}_enabled", "are_{}")
_PLACES = (
    "torch", "torch.__future__", "torch.autograd", "torch.autograd.graph", "torch.backends.cuda",
    "torch.distributed", "torch.hub", "torch.multiprocessing", "torch.nn.attention", "torch.jit",
    "torch.serialization", "torch.sparse", "torch.utils.checkpoint", "torch.utils.deterministic",
)  # fmt: skip
_PLAIN = (bool, int, str)
_TEXTS = ("tf32", "ieee", "medium", "greedy", "file_system", "fbgemm", "qnnpack", "auto", "native")


def _flags():
    """Yield each flag: its name, a function that returns it, and one that sets it."""
    for each in pkgutil.iter_modules(torch.backends.__path__, "torch.backends."):
        module = importlib.import_module(each.name)
        owners = {k: v for k, v in vars(type(module)).items() if hasattr(v, "fp32_precision")}
        owners |= {"matmul": module.matmul} if hasattr(module, "matmul") else {}
        for key, owner in {"": module, **owners}.items():
            names = {*dir(owner), *vars(type(owner))} - {"backend", "op"}
            if isinstance(setter := vars(type(owner)).get("__setattr__"), FunctionType):
                texts = {c for c in setter.__code__.co_consts if isinstance(c, str)}
                names |= {text for text in texts if text.isidentifier()}
            for name in sorted(names):
                value = _value(partial(getattr, owner, name))
                if name[0] != "_" and not name.isupper() and isinstance(value, _PLAIN):
                    title = f"{each.name}.{key}.{name}"
                    yield title, partial(getattr, owner, name), partial(setattr, owner, name)
    for place in _PLACES:
        module = importlib.import_module(place)
        for name in sorted(vars(module)):
            verb, _, flag = name.partition("_")
            read = [getattr(module, reader.format(flag), None) for reader in _READERS]
            read = [r for r in read if callable(r) and not isinstance(r, type)]
            if verb in ("set", "enable", "use") and read:
                yield f"{place}.{name}", read[0], getattr(module, name)


def _value(read):
    try:
        return read()
    except Exception as error:
        return error


def _others(value):
    """Return values to which a flag may be set instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, str):
        return _TEXTS
    if isinstance(value, torch.dtype):
        return [torch.float64]
    return list(getattr(type(value), "__members__", {}).values()) or [True, "text"]


def _change(read, put):
    """Set a flag to another value; return whether torch took it."""
    before = _value(read)
    for value in [] if isinstance(before, Exception) else _others(before):
        with contextlib.suppress(Exception):
            put(value)
        if str(_value(read)) != str(before):
            return True
    return False


@program
def flags(rank, world):
    """Set each flag on rank 0, read it on all, and set it back."""
    found = {}
    for name, read, put in _flags():
        before = _value(read)
        is_set = rank == 0 and _change(read, put)
        own = str(_value(read))
        dist.barrier()
        seen = str(_value(read))
        dist.barrier()
        if is_set:
            with contextlib.suppress(RuntimeError):  # Some may be set once.
                put(before)
        dist.barrier()
        after = str(_value(read))
        found[name] = [is_set, own == str(before), seen == own, after == str(before)]
    return found
