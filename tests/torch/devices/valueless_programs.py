"""Programs that run with and without values; `PROGRAMS` has them by name.

Each gets its rank and leaves what it likes. They are what users write: optimizers, precisions,
layouts, offloading, pipelines, graphs, kernels.
"""

from __future__ import annotations

import io

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - the customary name
from torch.utils.checkpoint import checkpoint

from tests.torch.collectives import all_gather_single

WIDTH, WORLD = 192, 4
PROGRAMS = {}


def program(function):
    """Add a program."""
    PROGRAMS[function.__name__] = function
    return function


def mlp(device="cuda"):
    """Return a model of two layers, on the device."""
    layers = (
        nn.Linear(WIDTH, 4 * WIDTH),
        nn.GELU(),
        nn.LayerNorm(4 * WIDTH),
        nn.Linear(4 * WIDTH, WIDTH),
    )
    return nn.Sequential(*layers).to(device)


def inputs(*shape, **kwargs):
    """Return drawn inputs, on the device."""
    return torch.randn(*(shape or (128, WIDTH)), device="cuda", **kwargs)


def train(model, batch, optimizer=None, *, loss=None, amp=None, clip=True):
    """Train for two steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", amp, enabled=amp is not None):
            result = model(batch)
            error = loss(result) if loss else result.float().square().mean()
        error.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@program
def data_parallel(_):
    train(DDP(mlp()), inputs())


@program
def data_parallel_without_sync(_):
    model = DDP(mlp(), gradient_as_bucket_view=True, bucket_cap_mb=1)
    with model.no_sync():
        model(inputs()).sum().backward()
    train(model, inputs())


@program
def unused_parameters(_):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = mlp(), mlp()

        def forward(self, x):
            return self.used(x)

    train(DDP(Half(), find_unused_parameters=True), inputs())


def _with_optimizer(name, make):
    def run(_):
        model = mlp()
        train(model, inputs(), make(model.parameters()))

    run.__name__ = name
    program(run)


_with_optimizer(
    "sgd", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1)
)
_with_optimizer("adam_fused", lambda p: torch.optim.Adam(p, fused=True))
_with_optimizer("adam_loop", lambda p: torch.optim.Adam(p, foreach=False, amsgrad=True))
_with_optimizer("rmsprop", torch.optim.RMSprop)
_with_optimizer("adagrad", torch.optim.Adagrad)
_with_optimizer("adadelta", torch.optim.Adadelta)
_with_optimizer("nadam", torch.optim.NAdam)


@program
def muon(_):
    model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
    train(model, inputs(), torch.optim.Muon(model.parameters()))


@program
def autocast(_):
    train(DDP(mlp()), inputs(), amp=torch.bfloat16)


@program
def convolutions(_):
    layers = (
        nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 32, 3, padding=1), nn.SyncBatchNorm(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    targets = torch.arange(4, device="cuda")
    train(
        DDP(nn.Sequential(*layers).cuda()), inputs(4, 3, 64, 64),
        loss=lambda result: F.cross_entropy(result, targets),
    )  # fmt: skip


@program
def channels_last(_):
    layers = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ConvTranspose2d(32, 16, 2, 2)
    model = nn.Sequential(*layers).to("cuda", memory_format=torch.channels_last)
    batch = inputs(4, 16, 32, 32).contiguous(memory_format=torch.channels_last)
    train(model, batch, amp=torch.bfloat16)


@program
def evaluated_norm(_):
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)).cuda().eval()
    model(inputs(4, 3, 32, 32)).sum().backward()


@program
def transformer(_):
    layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.0, batch_first=True)
    train(DDP(layer.cuda()), inputs(2, 128, WIDTH))


@program
def transformer_with_dropout(_):
    layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.1, batch_first=True)
    train(DDP(layer.cuda()), inputs(2, 128, WIDTH), amp=torch.bfloat16)


@program
def attention(_):
    query = inputs(2, 4, 128, 64, requires_grad=True)
    mask = torch.ones(128, 128, dtype=torch.bool, device="cuda").tril()
    F.scaled_dot_product_attention(query, query, query, attn_mask=mask).sum().backward()
    half = query.detach().bfloat16().requires_grad_()
    grouped = half[:, :2]
    F.scaled_dot_product_attention(
        half, grouped, grouped, is_causal=True, enable_gqa=True
    ).sum().backward()


@program
def recurrent(_):
    train(
        nn.LSTM(WIDTH, WIDTH, 2).cuda(), inputs(16, 8, WIDTH), loss=lambda r: r[0].square().mean()
    )


@program
def checkpointed(_):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.drop = mlp(), mlp(), nn.Dropout(0.1)

        def forward(self, x):
            middle = checkpoint(self.first, x, use_reentrant=False)
            return checkpoint(lambda y: self.drop(self.second(y)), middle, use_reentrant=True)

    train(Checkpointed(), inputs().requires_grad_())


@program
def custom_function(_):
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w.t()

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad @ w, grad.t() @ x

    weight = nn.Parameter(inputs(WIDTH, WIDTH))
    Product.apply(inputs(), weight).square().mean().backward()


@program
def language_model(_):
    model = nn.Sequential(nn.Embedding(3000, WIDTH), nn.Linear(WIDTH, 3000)).cuda()
    tokens = torch.randint(0, 3000, (4, 128), generator=torch.Generator().manual_seed(1)).cuda()
    assert tokens.sum().item() > 0  # Token ids live.
    train(model, tokens, loss=lambda r: F.cross_entropy(r.flatten(0, 1).float(), tokens.flatten()))


@program
def sharded(_):
    model = nn.Sequential(mlp(), mlp())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mp_policy=policy)
    train(fully_shard(model), inputs())


@program
def sharded_in_two_dims(_):
    mesh = init_device_mesh("cuda", (WORLD // 2, 2), mesh_dim_names=("replicas", "shards"))
    model = nn.Sequential(mlp(), mlp())
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.set_requires_gradient_sync(False)
    model(inputs()).sum().backward()
    model.set_requires_gradient_sync(True)
    train(model, inputs())


@program
def offloaded(_):
    model = nn.Sequential(mlp("cpu"), mlp("cpu"))
    for block in model:
        fully_shard(block, offload_policy=CPUOffloadPolicy())
    train(fully_shard(model, offload_policy=CPUOffloadPolicy()), inputs(), clip=False)


@program
def fully_sharded_1(_):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817

    inner = [FSDP(mlp(), use_orig_params=True) for _ in range(2)]
    model = FSDP(nn.Sequential(*inner), use_orig_params=True)
    train(model, inputs(), clip=False)
    model.clip_grad_norm_(1.0)


@program
def tensor_parallel(_):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (WORLD,))
    layers = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
    model = nn.Sequential(*layers).cuda()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(model, inputs())


@program
def zero_redundancy(_):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(mlp())
    train(model, inputs(), ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3))


@program
def pipelined(rank):
    stage = PipelineStage(mlp(), rank, WORLD, torch.device("cuda"))
    schedule = Schedule1F1B(
        stage, 4, loss_fn=lambda result, target: (result - target).square().mean()
    )
    batch = inputs(256, WIDTH)
    if rank == 0:
        schedule.step(batch)
    elif rank == WORLD - 1:
        schedule.step(target=batch)
    else:
        schedule.step()


@program
def in_place_and_out(_):
    a, b = inputs(WIDTH, WIDTH), torch.empty(0, device="cuda")
    torch.mm(a, a, out=b)
    a.add_(b).clamp_(0, 1)
    torch.cat([a, b], out=torch.empty(0, device="cuda"))
    a.index_put_((torch.arange(4, device="cuda"),), torch.zeros(WIDTH, device="cuda"))
    a[1:3] = 2
    a.t_()
    a.unfold(0, 4, 4).clone()
    a.tril().sum(0, keepdim=True).expand(4, WIDTH).contiguous()


@program
def linear_algebra(_):
    a = inputs(WIDTH, WIDTH)
    torch.fft.rfft(a)
    torch.linalg.qr(a)
    torch.linalg.svd(a, full_matrices=False)
    torch.linalg.inv(a)
    torch.sort(a)
    torch.einsum("ij,kj->ik", a, torch.cumsum(a, 0))


@program
def graphed(_):
    a, graph, side = inputs(WIDTH, WIDTH), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        a @ a
    torch.cuda.current_stream().wait_stream(side)
    small = torch.ones(4, device="cuda")
    with torch.cuda.graph(graph):
        F.dropout((a @ a).relu(), 0.5)
        small.mul_(2)
    graph.replay()
    graph.replay()
    assert small.tolist() == [4.0] * 4


@program
def random_numbers(_):
    torch.cuda.manual_seed(7)
    F.dropout(inputs(1 << 16), 0.5)
    torch.randperm(1 << 16, device="cuda")
    inputs(1 << 16).bernoulli_(0.5)
    return torch.rand(1, device="cuda").item()


@program
def collectives(rank):
    a = inputs(1 << 15)
    dist.all_reduce(a)
    all_gather_single(torch.empty(WORLD << 15, device="cuda"), a)
    dist.all_to_all_single(torch.empty_like(a), a)
    dist.broadcast(a, 0)
    dist.all_gather([torch.empty_like(a) for _ in range(WORLD)], a)
    total = torch.tensor([float(rank)], device="cuda")
    dist.all_reduce(total)
    counts = torch.arange(WORLD, device="cuda")
    dist.all_to_all_single(torch.empty_like(counts), counts.clone())
    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": rank})
    return total.item(), [each["rank"] for each in objects]


@program
def messages(rank):
    a = inputs(1 << 15)
    if rank % 2 == 0:
        dist.send(a, rank + 1)
    else:
        dist.recv(a, rank - 1)
    other = torch.empty_like(a)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, a, (rank + 1) % WORLD),
            dist.P2POp(dist.irecv, other, (rank - 1) % WORLD),
        ]
    )
    for work in works:
        work.wait()


@program
def functional_collectives(_):
    import torch.distributed._functional_collectives as functional

    gathered = functional.all_gather_tensor(inputs(1 << 15), 0, dist.group.WORLD)
    (functional.reduce_scatter_tensor(gathered, "sum", 0, dist.group.WORLD) * 2).sum()


@program
def context_parallel(_):
    from torch.distributed.tensor.experimental import context_parallel as split

    mesh = init_device_mesh("cuda", (WORLD,))
    shape = (1, 4, 256, 64)
    q, k, v = (inputs(*shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    with split(mesh, buffers=[q.detach(), k.detach(), v.detach()], buffer_seq_dims=[2, 2, 2]):
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()


@program
def small_states(_):
    torch.save({"step": torch.arange(4, device="cuda")}, io.BytesIO())
