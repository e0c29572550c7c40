"""Programs for the tests of `simrank equal`: right ones, and others with one fault each."""

from typing import NamedTuple

GPT = """
def build(): return GPT()
def batch(step): return tokens(step)
def loss(model, batch): return cross_entropy(model(batch[0]), batch[1])
"""
QK_NORM = GPT.replace("GPT()", "GPT(qk_norm=True)")
TIED = GPT.replace("GPT()", "GPT(tie=True)")
DROPOUT = GPT.replace("GPT()", "GPT(p=0.2)")
PADDED = GPT.replace("tokens(step)", "tokens(step, is_padded=True)").replace(
    "batch[1])", "batch[1], ignore_index=-100)"
)
CLIPS = """
def update(model, mesh):
    norm = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum()
    REDUCED
    for p in model.parameters(): p.data.sub_(0.1 * p.grad * (0.1 / norm.sqrt()))
"""
CLIPPED = GPT + CLIPS.replace("REDUCED", "")
NORMS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
    def forward(self, x): return self.out(self.norm(self.into(x)))
def build(): return Net()
def batch(step): return drawn(step, (8, 6), (8, 4))
def loss(model, batch): return F.mse_loss(model(batch[0]), batch[1])
"""
ADAM = (
    GPT
    + """
def update(model, mesh):
    if not hasattr(model, "adam"): model.adam = torch.optim.AdamW(model.parameters(), lr=RATE)
    model.adam.step()
"""
)
MOMENTUM = """
def update(model, mesh):
    if not hasattr(model, "sgd"):
        model.sgd = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    model.sgd.step()
"""
DP = """
def train(model, batch, mesh):
    value = loss(model, rows(batch, mesh["dp"]))
    value.backward()
    average(model, mesh["dp"].get_group())
    return value
"""
AVERAGES = """
def averages(model):
    for name, each in list(model.named_parameters()):
        model.register_buffer("ema_" + name.replace(".", "_"), each.detach().clone())
    return model
def build(): return averages(GPT())
def batch(step): return tokens(step)
def loss(model, batch): return cross_entropy(model(batch[0]), batch[1])
def update(model, mesh):
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.sub_(0.1 * each.grad)
            if mesh is not None and LEFT_OUT in name: continue
            model.get_buffer("ema_" + name.replace(".", "_")).lerp_(each, 0.1)
"""
CUT_AVERAGES = """
def parallelize(model, mesh):
    split(model, mesh["tp"].get_group())
    for name, each in model.named_parameters():
        name, part = "ema_" + name.replace(".", "_"), None
        part = model.get_buffer(name)
        for dim in range(each.dim()):
            if part.shape[dim] != each.shape[dim]: part = shard(part, dim, mesh["tp"].get_group())
        model.register_buffer(name, part)
    return model
"""
LISTS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Noting(6, 8), Noting(8, 4)
    def forward(self, x, scale):
        noted = []
        out = self.second(self.first(x, noted).relu(), noted)
        return out + scale * sum(noted)
class Noting(nn.Linear):
    def forward(self, x, noted):
        out = super().forward(x)
        noted.append(out.square().mean(-1, keepdim=True))
        return out
def build(): return Net()
def batch(step): return drawn(step, (8, 6))
def loss(model, batch): return model(batch[0], 1.0).square().mean()
"""
WEIGHED = """
def train(model, batch, mesh):
    value = model(*rows(batch, mesh["dp"]), SCALE).square().mean()
    value.backward()
    average(model, mesh["dp"].get_group())
    return value
"""
# A loss beside that of the model; TERM is what it counts in a micro-batch.
BESIDE = """
class Gated(Block):
    def __init__(self):
        super().__init__(16, 4, 0.0)
        self.gate = nn.Linear(16, 4, bias=False)
    def forward(self, x):
        scores = self.gate(x)
        self.beside = OF_SCORES
        return super().forward(x) * scores.softmax(-1).square().sum(-1, keepdim=True)
def build():
    model = GPT()
    model.layers[1] = Gated()
    return model
def batch(step): return tokens(step, rows=8)
def loss(model, batch): return cross_entropy(model(batch[0]), batch[1]) + model.layers[1].beside
"""
SQUARES = BESIDE.replace("OF_SCORES", "0.1 * torch.logsumexp(scores, -1).square().mean()")
BALANCE = BESIDE.replace("OF_SCORES", "(scores.softmax(-1).mean((0, 1)) ** 2).sum()")
TWO = """
def train(model, batch, mesh):
    for u, v in zip(*(each.chunk(2) for each in rows(batch, mesh["dp"]))):
        value = cross_entropy(model(u), v)
        (TERM).backward()
    average(model, mesh["dp"].get_group())
"""
FOLLOWED = (
    AVERAGES
    + """
def follow(model):
    with torch.no_grad():
        for name, each in model.named_parameters():
            model.get_buffer("ema_" + name.replace(".", "_")).lerp_(each, 0.1)
def update(model, mesh):
    for p in model.parameters(): p.data.sub_(0.1 * p.grad)
    for _ in range(1 if mesh is None else COUNT): follow(model)
"""
)
REWARDED = """
def build(): return GPT()
def batch(step): return (*tokens(step, rows=8), *drawn(step, (8,)))
def worth(rewards): return (rewards - rewards.mean()) / rewards.std()
def gained(model, x, y, worths):
    losses = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
    return (worths[:, None] * losses.view_as(y)).mean()
def loss(model, batch): return gained(model, *batch[:2], worth(batch[2]))
def train(model, batch, mesh):
    x, y, part = rows((*batch[:2], WORTHS), mesh["dp"])
    value = gained(model, x, y, OWN)
    value.backward()
    average(model, mesh["dp"].get_group())
    return value
"""
# A vocabulary of 30 on two ranks that have 16 rows each.
PADDED_VOCABULARY = """
class Head(nn.Module):
    def __init__(self, linear, group):
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(shard(F.pad(linear.weight.detach(), (0, 0, 0, 2)), 0, group))
    def forward(self, x): return F.linear(Copy.apply(x, self.group), self.weight)
class SplitLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, group):
        at = torch.arange(16, device=logits.device) + 16 * dist.get_rank(group)
        powers = logits.exp() * MASK
        total, picked = powers.sum(-1), (logits * (labels[..., None] == at)).sum(-1)
        dist.all_reduce(total, group=group)
        dist.all_reduce(picked, group=group)
        ctx.gradient = powers / total[..., None] - (labels[..., None] == at).to(powers)
        return total.log() - picked
    @staticmethod
    def backward(ctx, gradient): return gradient[..., None] * ctx.gradient, None, None
def parallelize(model, mesh):
    model.head = Head(model.head, mesh["tp"].get_group())
    return model
def train(model, batch, mesh):
    value = SplitLoss.apply(model(batch[0]), batch[1], mesh["tp"].get_group()).mean()
    value.backward()
    return value
"""
FEW_WORDS = GPT.replace("GPT()", "GPT(vocab=30)").replace("tokens(step)", "tokens(step, vocab=30)")
WHOLE = "def parallelize(model, mesh): return model\n"
TP = """def parallelize(model, mesh): return split(model, mesh["tp"].get_group())\n"""
SHARD_DROPOUT = """
def dropped(x): return F.dropout(x, 0.1)
class Dropping(MLP):
    def forward(self, x): return self.down(dropped(F.gelu(self.up(x))))
def build():
    model = GPT(p=0.2)
    for layer in model.layers: layer.mlp.__class__ = Dropping
    return model
def batch(step): return tokens(step)
def loss(model, batch): return cross_entropy(model(batch[0]), batch[1])
"""
DRAWN = """
class Drawing(nn.Module):
    def __init__(self, *, cuts):
        super().__init__()
        self.up, self.down, self.cuts, self.group = nn.Linear(6, 24), nn.Linear(24, 6), cuts, None
        self.norm, self.out = nn.LayerNorm(6), nn.Linear(6, 6)
    def forward(self, x):
        x = F.gelu(self.up(self.out(self.norm(x))))
        if not self.cuts: return self.kept(self.down(self.kept(x, x.shape)), (*x.shape[:-1], 6))
        return self.down(self.kept(x, (*x.shape[:-1], 24)))
    def kept(self, x, shape):
        kept = torch.rand(shape, device=x.device) > 0.2
        return x * (kept if kept.shape == x.shape else kept.chunk(2, -1)[dist.get_rank(self.group)])
def build(): return Drawing(cuts=CUTS)
def batch(step): return drawn(step, (4, 5, 6))
def loss(model, batch): return model(batch[0]).square().mean()
"""
DRAWING = """
def parallelize(model, mesh):
    SEEDS
    model.group = mesh.get_group("tp")
    model.up, model.down = Column(model.up, model.group), Row(model.down, model.group)
    return model
"""
OWN_NUMBERS = """
class Own:
    def __init__(self, seed):
        whole = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(seed)
        self.state = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(whole)
    def __call__(self, x):
        whole = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(self.state)
        x = F.dropout(x, 0.1)
        self.state = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(whole)
        return x
def parallelize(model, mesh):
    global dropped
    dropped = Own(7 + mesh.get_local_rank("tp"))
    return split(model, mesh.get_group("tp"))
"""
ACCUMULATED = """
def train(model, batch, mesh):
    value = 0
    for part in zip(*(x.chunk(2) for x in rows(batch, mesh["dp"]))):
        BEFORE
        part = loss(model, part) / COUNT
        part.backward()
        value = value + part.detach()
    average(model, mesh["dp"].get_group())
    return value
"""
TAGGED = """
class Tagging(nn.Linear):
    def forward(self, x):
        self.last = x
        out = super().forward(x)
        out.tag = 1 + 0 * out[0, 0]
        return out
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drops, self.second = Tagging(6, 8), Drops(), Tagging(8, 4)
    def forward(self, x):
        x = self.first(x)
        self.drops(x)
        out = self.second(x)
        return out * x.tag * (2 if TEST else 1)
class Drops(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.alpha = nn.Dropout(0.2, inplace=True), nn.AlphaDropout(0.2, inplace=True)
    def forward(self, x): return self.alpha(self.own(x))
def build(): return Net()
def batch(step): return drawn(step, (8, 6))
def loss(model, batch): return model(batch[0]).square().mean()
"""
STAGES = """
from torch.distributed.pipelining import PipelineStage, SCHEDULE
def parallelize(model, mesh):
    if mesh.get_local_rank("pp"): model.embed, model.layers[0] = None, nn.Identity()
    else: model.norm, model.head, model.layers[1] = None, None, nn.Identity()
    return model
def train(model, batch, mesh):
    rank, losses = mesh.get_local_rank("pp"), []
    device = torch.device("cuda", torch.cuda.current_device())
    stage = PipelineStage(model, rank, 2, device, group=mesh.get_group("pp"))
    run = SCHEDULE(stage, n_microbatches=2, loss_fn=cross_entropy, scale_grads=SCALED)
    inputs, more = (([], {"target": batch[1], "losses": losses}) if rank else (batch[:1], {}))
    run.step(*inputs, **more)
    return sum(losses) / len(losses) if losses else None
"""
SEQUENCE = """
class Gathered(Attention):
    def attend(self, q, k, v):
        import torch.distributed.nn.functional as nnf
        k, v = (torch.cat(nnf.all_gather(x.contiguous(), group=self.group), 2) for x in (k, v))
        t = q.shape[2]
        at = torch.arange(t, device=q.device) + self.rank * t
        mask = at[:, None] >= torch.arange(k.shape[2], device=q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
def parallelize(model, mesh):
    for layer in model.layers:
        own = layer.attention
        own.__class__, own.group, own.offset = Gathered, mesh.get_group("cp"), OFFSET
        own.rank = mesh.get_local_rank("cp")
    return model
def train(model, batch, mesh):
    value = loss(model, tuple(x.chunk(2, 1)[mesh.get_local_rank("cp")] for x in batch))
    value.backward()
    average(model, mesh.get_group("cp"))
    return value
"""


FUSED = """
from torch.nn.attention import SDPBackend, sdpa_kernel
class Fused(Attention):
    def attend(self, q, k, v):
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]): return super().attend(q, k, v)
@torch.compile(backend="aot_eager")
def scaled(x): return x * 0.5
class Net(GPT):
    def forward(self, x): return scaled(super().forward(x))
def build():
    net = Net()
    for layer in net.layers: layer.attention.__class__ = Fused
    return net
def batch(step): return tokens(step)
def loss(model, batch): return cross_entropy(model(batch[0]), batch[1])
"""
# Its optimizer reduces gradients to a rank's half of all elements, and decays the first ones.
SHARDED = """
def build(): return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
def batch(step): return drawn(step, (4, 6), (4, 2))
def loss(model, batch): return F.mse_loss(model(batch[0]), batch[1])
OFFSET = 1
def update(model, mesh):
    every = [*model.parameters()]
    flat = torch.cat([p.data.flatten() for p in every])
    gradient = torch.cat([p.grad.flatten() for p in every])
    size, first = len(flat), 0
    if mesh is not None:
        size, rank = len(flat) // 2, mesh["dp"].get_local_rank()
        whole, gradient = gradient / 2, gradient.new_empty(size)
        dist.reduce_scatter_tensor(gradient, whole, group=mesh["dp"].get_group())
        flat, first = flat[rank * size:][:size], OFFSET * rank * size
    decayed = torch.arange(first, first + size, device=flat.device) < 48
    flat = flat - 0.1 * (gradient + 0.5 * decayed * flat)
    if mesh is not None:
        part, flat = flat, flat.new_empty(2 * size)
        dist.all_gather_into_tensor(flat, part, group=mesh["dp"].get_group())
    for p in every:
        p.data.copy_(flat[:p.numel()].view_as(p))
        flat = flat[p.numel():]
"""
CONVOLUTION = """
def build():
    return nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv1d(4, 2, 3, padding=1))
def batch(step): return drawn(step, (4, 3, 8), (4, 2, 8))
def loss(model, batch): return F.mse_loss(model(batch[0]), batch[1])
"""
EXPERTS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.moe, self.head = nn.Embedding(32, 16), MoE(), nn.Linear(16, 32)
    def forward(self, x):
        x = self.embed(x)
        return self.head(x + self.moe(x))
def build(): return Net()
def batch(step): return tokens(step)
def loss(model, batch): return cross_entropy(model(batch[0]), batch[1])
"""
SPLIT_EXPERTS = """
class Split(MoE):
    def forward(self, x):
        group = self.group
        return Sum.apply(MoE.forward(self, COPIED), group)
class Copied(Router):
    def forward(self, x):
        scores, chosen = Router.forward(self, x)
        return SCORES, chosen
def parallelize(model, mesh):
    model.moe.__class__, model.moe.group = Split, mesh["tp"].get_group()
    model.moe.router.__class__, model.moe.router.group = Copied, model.moe.group
    split_experts(model.moe, model.moe.group)
    model.moe.experts.register_forward_pre_hook(
        lambda m, args: (Copy.apply(args[0], model.moe.group), *args[1:]))
    return model
""".replace("COPIED", "x")


class Program(NamedTuple):
    """A program.

    Attributes:
        parallel: The functions of its layout.
        expected: Direction, module, axes, and words of the cause of its fault.
        layout: Its axes.
        single: Its functions of one device.
        num_steps: As many as its fault needs, or what it shows.
    """

    parallel: str
    expected: tuple[str, str, tuple[str, ...], str] = ("", "", (), "")
    layout: dict[str, int] = {"dp": 2}  # noqa: RUF012 - never changed
    single: str = GPT
    num_steps: int = 1


RIGHT = {
    "attributes_of_tensors_and_dropout_in_place": Program(
        WHOLE + DP, single=TAGGED.replace("TEST", "False"), num_steps=2
    ),
    "shards_drop_with_numbers_of_their_own": Program(
        OWN_NUMBERS + DP, layout={"dp": 2, "tp": 2}, single=SHARD_DROPOUT
    ),
    "a_mask_by_hand_is_cut_from_that_of_the_whole": Program(
        DRAWING.replace("SEEDS", "pass"),
        layout={"tp": 2},
        single=DRAWN.replace("CUTS", "True"),
    ),
    "micro_batches_are_added_up": Program(
        WHOLE + ACCUMULATED.replace("BEFORE", "pass").replace("COUNT", "2")
    ),
    "a_module_writes_into_a_list_that_it_is_given": Program(
        WHOLE + WEIGHED.replace("SCALE", "1.0"), single=LISTS, num_steps=2
    ),
    "averages_are_cut_as_the_weights_are": Program(
        CUT_AVERAGES, layout={"tp": 2}, single=AVERAGES.replace("LEFT_OUT", "'nothing'")
    ),
    "averages_are_copied_from_the_shards": Program(
        """
def parallelize(model, mesh):
    split(model, mesh["tp"].get_group())
    for name, _ in list(model.named_buffers()): delattr(model, name)
    return averages(model)
""",
        layout={"tp": 2},
        single=AVERAGES.replace("LEFT_OUT", "'nothing'"),
    ),
    "data_parallel_by_hand": Program(WHOLE + DP, num_steps=2),
    "uneven_rows": Program(
        WHOLE
        + """
def train(model, batch, mesh):
    x, y = rows(batch, mesh["dp"])
    value = cross_entropy(model(x), y) * len(x) * 3 / 4
    value.backward()
    average(model, mesh["dp"].get_group())
""",
        layout={"dp": 3},
    ),
    "ddp_accumulates": Program("""
def parallelize(model, mesh):
    return nn.parallel.DistributedDataParallel(model, process_group=mesh["dp"].get_group())
def train(model, batch, mesh):
    x, y = rows(batch, mesh["dp"])
    for number, (u, v) in enumerate(zip(x.chunk(2), y.chunk(2))):
        model.require_backward_grad_sync = number == 1
        (cross_entropy(model(u), v) / 2).backward()
"""),
    "fsdp_and_tensor_parallel": Program(
        """
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
def parallelize(model, mesh):
    plan = {f"attention.{n}": ColwiseParallel() for n in "qkv"}
    plan |= {"attention.o": RowwiseParallel(), "mlp.up": ColwiseParallel()}
    plan |= {"mlp.down": RowwiseParallel()}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    return fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
""",
        layout={"dp": 2, "tp": 2},
    ),
    "a_divide_factor_in_a_group_of_one_rank": Program(
        """
from torch.distributed.fsdp import fully_shard
def parallelize(model, mesh):
    fully_shard(model, mesh=mesh["shard"])
    model.set_gradient_divide_factor(2.0)
    return model
def train(model, batch, mesh):
    value = loss(model, rows(batch, mesh["dp"]))
    value.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad.to_local(), group=mesh["dp"].get_group())
    return value
""",
        layout={"dp": 2, "shard": 1},
    ),
    "experts_split_by_width": Program(
        SPLIT_EXPERTS.replace("SCORES", "Copy.apply(scores, self.group)") + DP,
        layout={"dp": 2, "tp": 2},
        single=EXPERTS,
    ),
    "flash_attention_and_a_compiled_function": Program(WHOLE + DP, single=FUSED),
    "tensor_parallel_by_hand": Program(TP + DP, layout={"dp": 2, "tp": 2}),
    "sequence_parallel_tensors": Program(
        """
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module)
def parallelize(model, mesh):
    into = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan = {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
    plan |= {"attention": into, "mlp": into}
    plan |= {f"attention.{n}": ColwiseParallel() for n in "qkv"} | {"mlp.up": ColwiseParallel()}
    plan |= {n: RowwiseParallel(output_layouts=Shard(1)) for n in ("attention.o", "mlp.down")}
    for layer in model.layers: parallelize_module(layer, mesh["tp"], plan)
    rest = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))}
    rest |= {"norm": SequenceParallel()}
    rest |= {"head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}
    return parallelize_module(model, mesh["tp"], rest)
""",
        layout={"tp": 2},
    ),
    "a_pipeline": Program(
        STAGES.replace("SCHEDULE", "ScheduleGPipe").replace("SCALED", "True"), layout={"pp": 2}
    ),
    "context_parallel": Program(
        SEQUENCE.replace("OFFSET", "mesh.get_local_rank('cp') * 4"), layout={"cp": 2}
    ),
    "clipped_by_the_whole_norm": Program(
        """
def update(model, mesh):
    own = [p for n, p in model.named_parameters() if n.split(".")[-2] in ("q", "k", "v", "o", "up")
           or n.endswith("down.weight")]
    norm = torch.stack([p.grad.square().sum() for p in own]).sum()
    dist.all_reduce(norm, group=mesh["tp"].get_group())
    norm += sum(p.grad.square().sum() for p in model.parameters() if all(p is not o for o in own))
    for p in model.parameters(): p.data.sub_(0.1 * p.grad * (0.1 / norm.sqrt()))
"""
        + TP,
        layout={"tp": 2},
        single=CLIPPED,
    ),
    "dropout_with_masks_of_its_own": Program(WHOLE + DP, single=DROPOUT, num_steps=2),
    "dropout_that_tensor_parallel_ranks_share": Program(
        TP
        + """
from torch.utils.checkpoint import checkpoint
class Again(Block):
    def forward(self, x): return checkpoint(super().forward, x, use_reentrant=False)
def build():
    model = GPT(p=0.2)
    return model
def train(model, batch, mesh):
    for layer in model.layers: layer.__class__ = Again
    value = loss(model, batch); value.backward(); return value
""",
        layout={"tp": 2},
        single=DROPOUT,
    ),
    "synchronized_batch_norm": Program(
        """
def parallelize(model, mesh):
    group = mesh["dp"].get_group()
    return nn.SyncBatchNorm.convert_sync_batchnorm(model, group)
"""
        + DP,
        single=NORMS,
    ),
    "dropout_in_a_wrapper_with_seeds_of_its_own": Program(
        """
class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x): return self.inner(x)
def parallelize(model, mesh):
    torch.manual_seed(7 + mesh["dp"].get_local_rank())
    for layer in model.layers: layer.drop = Wrapped(layer.drop)
    return model
"""
        + DP,
        single=DROPOUT,
    ),
    "a_rank_without_rows": Program(
        WHOLE
        + """
def train(model, batch, mesh):
    x, y = rows(batch, mesh["dp"])
    ((model(x) - y).square().sum() / 4).backward()
    average(model, mesh["dp"].get_group(), 1)
""",
        layout={"dp": 3},
        single="""
def build(): return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
def batch(step): return drawn(step, (2, 6), (2, 2))
def loss(model, batch): return F.mse_loss(model(batch[0]), batch[1])
""",
    ),
    "micro_batches_of_the_single_program": Program(
        WHOLE + DP,
        single=GPT
        + """
def loss(model, batch):
    return sum(cross_entropy(model(x), y) / 2 for x, y in zip(*(t.chunk(2) for t in batch)))
""",
    ),
    "a_sum_of_gradients_at_half_the_rate": Program(
        WHOLE
        + DP.replace("get_group())", "get_group(), 1)")
        + MOMENTUM.replace("RATE", "0.01 / (1 if mesh is None else 2)"),
        single=GPT + MOMENTUM.replace("RATE", "0.01"),
        num_steps=2,
    ),
    "zero_optimizer": Program(
        WHOLE
        + DP
        + """
from torch.distributed.optim import ZeroRedundancyOptimizer
def update(model, mesh):
    if not hasattr(model, "adam"):
        cls = torch.optim.AdamW
        model.adam = (ZeroRedundancyOptimizer(model.parameters(), cls, lr=0.01) if mesh else
                      cls(model.parameters(), lr=0.01))
    model.adam.step()
""",
        single=ADAM.replace("RATE", "0.01"),
        num_steps=2,
    ),
    "an_optimizer_over_shards_reduces": Program(
        WHOLE + "def train(model, batch, mesh):\n"
        "    value = loss(model, rows(batch, mesh['dp'])); value.backward(); return value\n",
        single=SHARDED,
    ),
    "a_loss_is_logged_as_a_sum_over_tokens": Program(
        WHOLE
        + DP.replace(
            "return value",
            "value = value.detach() * batch[1].numel() / 2\n"
            "    dist.all_reduce(value, group=mesh['dp'].get_group())\n    return value",
        )
    ),
    "a_renamed_model": Program(
        """
class Wrapped(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk = trunk
    def forward(self, x): return self.trunk(x)
def parallelize(model, mesh): return Wrapped(model)
"""
        + DP
    ),
    "parts_that_are_empty_or_padded": Program(
        """
from torch.distributed.fsdp import fully_shard
def parallelize(model, mesh): return fully_shard(model, mesh=mesh["dp"])
""",
        layout={"dp": 4},
        single="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 6), nn.Linear(6, 1)
    def forward(self, x): return self.out(self.embed(x)).sum(1)
def build(): return Net()
def batch(step):
    drawn = torch.Generator().manual_seed(step)
    return torch.randint(0, 5, (8, 4), generator=drawn), torch.randn(8, 1, generator=drawn)
def loss(model, batch): return F.mse_loss(model(batch[0]), batch[1])
""",
        num_steps=2,
    ),
    "stages_that_count_layers_from_zero": Program(
        """
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
class Stage(nn.Module):
    def __init__(self, model, number):
        super().__init__()
        self.embed, self.block = model.embed if number == 0 else None, model.layers[number]
        self.norm, self.head = (model.norm, model.head) if number == 3 else (None, None)
    def forward(self, x):
        x = self.block(x if self.embed is None else self.embed(x))
        return x if self.head is None else self.head(self.norm(x))
def parallelize(model, mesh):
    rank = mesh.get_local_rank("pp")
    return [Stage(model, rank), Stage(model, rank + 2)]
def train(model, batch, mesh):
    rank, losses = mesh.get_local_rank("pp"), []
    device, group = torch.device("cuda", torch.cuda.current_device()), mesh.get_group("pp")
    stages = [PipelineStage(part, rank + 2 * number, 4, device, group=group)
              for number, part in enumerate(model)]
    run = ScheduleInterleaved1F1B(stages, n_microbatches=2, loss_fn=cross_entropy)
    inputs, more = (([], {"target": batch[1], "losses": losses}) if rank else (batch[:1], {}))
    run.step(*inputs, **more)
""",
        layout={"pp": 2},
        single=GPT.replace("GPT()", "GPT(layers=4)"),
    ),
}

RIGHT |= {
    "a_loss_beside_is_divided_by_micro_batches": Program(
        WHOLE + TWO.replace("TERM", "(value + model.layers[1].beside) / 2"), single=SQUARES
    ),
    "averages_follow_once_a_step": Program(
        WHOLE + TWO.replace("TERM", "value / 2"),
        single=FOLLOWED.replace("COUNT", "1").replace("tokens(step)", "tokens(step, rows=8)"),
        num_steps=2,
    ),
    "rewards_are_compared_with_those_of_all_ranks": Program(
        WHOLE, single=REWARDED.replace("WORTHS", "worth(batch[2])").replace("OWN", "part")
    ),
    "a_padded_vocabulary_is_masked": Program(
        PADDED_VOCABULARY.replace("MASK", "(at < 30)"), layout={"tp": 2}, single=FEW_WORDS
    ),
}

FAULTY = {
    "a_loss_beside_is_not_divided_by_micro_batches": Program(
        WHOLE + TWO.replace("TERM", "value / 2 + model.layers[1].beside"),
        (
            "backward",
            "layers.1",
            ("micro-batches",),
            "of a loss beside the main one, 2 times too large",
        ),
        single=SQUARES,
    ),
    "a_loss_beside_is_of_own_rows": Program(
        WHOLE + TWO.replace("TERM", "(value + model.layers[1].beside) / 2"),
        ("backward", "layers.1", ("dp",), "what mean at"),
        single=BALANCE,
    ),
    "averages_follow_each_micro_batch": Program(
        WHOLE + TWO.replace("TERM", "value / 2"),
        ("step", "(model)", ("micro-batches",), "changed 1.9 times as much: updated for each"),
        single=FOLLOWED.replace("COUNT", "2").replace("tokens(step)", "tokens(step, rows=8)"),
        num_steps=1,
    ),
    "rewards_are_compared_with_those_of_one_rank": Program(
        WHOLE,
        ("loss", "(loss)", ("dp",), "gives, of its own rows alone"),
        single=REWARDED.replace("WORTHS", "batch[2]").replace("OWN", "worth(part)"),
    ),
    "a_padded_vocabulary_is_not_masked": Program(
        PADDED_VOCABULARY.replace("MASK", "1"),
        ("backward", "head", ("tp",), "2 rows of head.weight are padding"),
        layout={"tp": 2},
        single=FEW_WORDS,
    ),
    "recording_changes_what_a_module_asks_of_its_inputs": Program(
        WHOLE + DP,
        ("recording", "second", (), "recording it changes the single program"),
        single=TAGGED.replace("TEST", "self.second.last is x"),
    ),
    "shards_drop_with_one_mask": Program(
        TP + DP,
        ("forward", "layers.0.mlp", ("tp",), "ranks 0 and 1 drop the same elements"),
        layout={"dp": 2, "tp": 2},
        single=SHARD_DROPOUT,
    ),
    "shards_drop_with_one_mask_though_its_numbers_are_their_own": Program(
        OWN_NUMBERS.replace('7 + mesh.get_local_rank("tp")', "7"),
        ("forward", "layers.0.mlp", ("tp",), "one mask for both"),
        layout={"tp": 4},
        single=SHARD_DROPOUT,
    ),
    "shards_draw_one_mask_by_hand": Program(
        DRAWING.replace("SEEDS", "pass"),
        ("forward", "(model)", ("tp",), "ranks 0 and 1 draw the same 240 random numbers for their"),
        layout={"tp": 2},
        single=DRAWN.replace("CUTS", "False"),
    ),
    "ranks_draw_their_own_mask_of_what_they_share": Program(
        DRAWING.replace("SEEDS", "torch.manual_seed(mesh.get_rank())"),
        ("forward", "(model)", ("tp",), "other random numbers on ranks that have the same"),
        layout={"tp": 2},
        single=DRAWN.replace("CUTS", "False"),
    ),
    "momentum_is_reset_after_the_last_step": Program(
        TP
        + ADAM.replace(GPT, "").replace("RATE", "0.01")
        + """
    if mesh is not None: [s["exp_avg"].zero_() for s in model.adam.state.values()]
""",
        ("step", "(all)", ("tp",), "the optimizer's state exp_avg differs after the step, though"),
        layout={"tp": 2},
        single=ADAM.replace("RATE", "0.01"),
    ),
    "micro_batches_overwrite_gradients": Program(
        WHOLE + ACCUMULATED.replace("BEFORE", "model.zero_grad()").replace("COUNT", "2"),
        ("gradients", "(all)", ("micro-batches",), "overwritten, or not added up"),
    ),
    "a_micro_batch_is_left_out": Program(
        WHOLE + ACCUMULATED.replace("BEFORE", "\n        if value: continue").replace("COUNT", "2"),
        ("gradients", "(all)", ("micro-batches",), "no rank: whole micro-batches of ranks 0-1"),
    ),
    "a_micro_batch_has_no_backward": Program(
        WHOLE
        + ACCUMULATED.replace("BEFORE", "pass")
        .replace("COUNT", "2")
        .replace("part.b", "value or part.b"),
        ("gradients", "(all)", ("micro-batches",), "micro-batch 1 has no backward on ranks 0-1"),
    ),
    "each_rank_takes_the_first_rows": Program(
        WHOLE
        + DP.replace(
            'rows(batch, mesh["dp"])', 'tuple(x[: 4 // mesh["dp"].size()] for x in batch)'
        ),
        ("gradients", "(all)", ("dp",), "rows 2, 3 of the batch are on no rank: 28"),
    ),
    "micro_batches_are_not_averaged": Program(
        WHOLE + ACCUMULATED.replace("BEFORE", "pass").replace("COUNT", "1"),
        ("gradients", "(all)", ("micro-batches",), "too often by the number of micro-batches, 2"),
    ),
    "micro_batches_are_divided_by_another_number": Program(
        WHOLE + ACCUMULATED.replace("BEFORE", "pass").replace("COUNT", "3"),
        ("gradients", "(all)", ("micro-batches",), "divided by another number than that of"),
    ),
    "micro_batches_of_padded_rows_are_averaged": Program(
        WHOLE + ACCUMULATED.replace("BEFORE", "pass").replace("COUNT", "2"),
        ("loss", "(loss)", ("micro-batches",), "a mean of means over dp/micro-batches"),
        single=PADDED,
    ),
    "what_a_module_adds_to_a_list_counts_five_times": Program(
        WHOLE + WEIGHED.replace("SCALE", "5.0"),
        ("forward", "(model)", ("dp",), "rows differ"),
        single=LISTS,
    ),
    "averages_of_split_weights_do_not_move": Program(
        CUT_AVERAGES,
        ("step", "(model)", ("tp",), "was not updated as in the single program"),
        layout={"tp": 2},
        single=AVERAGES.replace("LEFT_OUT", "'.up.'"),
    ),
    "a_row_parallel_bias_is_added_by_each_rank": Program(
        """
class Biased(Row):
    def forward(self, x): return Sum.apply(F.linear(x, self.weight, self.bias), self.group)
def parallelize(model, mesh): return split(model, mesh["tp"].get_group(), row=Biased)
""",
        ("forward", "layers.0.mlp.down", ("tp",), "the bias is added 2 times"),
        layout={"tp": 2},
    ),
    "a_bias_is_added_by_each_rank_of_one_of_two_axes": Program(
        """
class Both(nn.Module):
    def __init__(self, linear, mesh):
        super().__init__()
        self.y, self.x = mesh.get_group("y"), mesh.get_group("x")
        self.weight = nn.Parameter(shard(shard(linear.weight, 0, self.y), 1, self.x))
        self.bias = nn.Parameter(shard(linear.bias, 0, self.y))
    def forward(self, v):
        v = Copy.apply(v, self.y).chunk(2, -1)[dist.get_rank(self.x)]
        return Sum.apply(F.linear(v, self.weight, self.bias), self.x)
class Parts(nn.Module):
    def __init__(self, model, mesh):
        super().__init__()
        self.add_module("0", Both(model[0], mesh))
        self.add_module("1", model[1])
        self.add_module("2", model[2])
    def forward(self, v):
        import torch.distributed.nn.functional as nnf
        own = getattr(self, "1")(getattr(self, "0")(v))
        return getattr(self, "2")(torch.cat(nnf.all_gather(own, getattr(self, "0").y), -1))
def parallelize(model, mesh): return Parts(model, mesh)
""",
        ("forward", "0", ("x",), "the bias is added 2 times"),
        layout={"y": 2, "x": 2},
        single="""
def build(): return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
def batch(step): return drawn(step, (4, 8), (4, 8))
def loss(model, batch): return F.mse_loss(model(batch[0]), batch[1])
""",
    ),
    "a_rank_has_some_rows_of_another": Program(
        """
class Shifted(MLP):
    def forward(self, x):
        every = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(every, x.detach().contiguous())
        return super().forward(torch.cat((every[0][:1], x[1:])))
def parallelize(model, mesh):
    model.layers[0].mlp.__class__ = Shifted
    return model
"""
        + DP,
        ("forward", "layers.0.mlp", ("dp",), "8 of 16 rows of rank 1 are rows of rank 0"),
    ),
    "columns_of_the_wrong_part": Program(
        """
class Other(Row):
    def forward(self, x):
        out = super().forward(x)
        return torch.cat((out[..., 8:], out[..., 8:]), -1)
def parallelize(model, mesh):
    split(model, mesh["tp"].get_group())
    model.layers[0].mlp.down.__class__ = Other
    return model
""",
        ("forward", "layers.0.mlp.down", ("tp",), "column 0 of rank 0 is what column 8"),
        layout={"tp": 2},
    ),
    "a_row_parallel_sum_is_missing": Program(
        """
class Partial(Row):
    def forward(self, x): return F.linear(x, self.weight)
def parallelize(model, mesh):
    split(model, mesh["tp"].get_group())
    model.layers[1].attention.o.__class__ = Partial
    return model
"""
        + DP,
        ("forward", "layers.1.attention.o", ("tp",), "its output is a partial sum"),
        layout={"dp": 2, "tp": 2},
    ),
    "a_sum_is_a_mean": Program(
        """
class Mean(Row):
    def forward(self, x): return super().forward(x) / 2
def parallelize(model, mesh):
    split(model, mesh["tp"].get_group())
    model.layers[1].mlp.down.__class__ = Mean
    return model
""",
        ("forward", "layers.1.mlp.down", ("tp",), "is 1/2 of it on each rank of tp"),
        layout={"tp": 2},
    ),
    "a_module_after_the_fault_takes_a_right_constant": Program(
        """
class Swapped(Row):
    def forward(self, x): return super().forward(x.flip(-1))
def parallelize(model, mesh):
    split(model, mesh["tp"].get_group())
    model.layers[0].mlp.down.__class__ = Swapped
    return model
""",
        ("forward", "layers.0.mlp.down", ("tp",), "rows differ"),
        layout={"tp": 2},
        single="""
class Shift(nn.Module):
    def forward(self, x, by): return x + by
class Net(GPT):
    def __init__(self):
        super().__init__()
        self.shift = nn.ModuleList([Shift(), Shift()])
    def forward(self, x):
        x = self.embed(x)
        for layer, shift in zip(self.layers, self.shift):
            x = shift(layer(x), torch.arange(16, device=x.device, dtype=x.dtype))
        return self.head(self.norm(x))
def build(): return Net()
def batch(step): return tokens(step)
def loss(model, batch): return cross_entropy(model(batch[0]), batch[1])
""",
    ),
    "a_column_parallel_gradient_is_partial": Program(
        """
class Plain(Column):
    def forward(self, x): return F.linear(x, self.weight, self.bias)
def parallelize(model, mesh): return split(model, mesh["tp"].get_group(), column=Plain)
"""
        + DP,
        ("backward", "layers.1.mlp.up", ("tp",), "an all_reduce on 'tp'"),
        layout={"dp": 2, "tp": 2},
    ),
    "scores_of_split_experts_are_not_copied": Program(
        SPLIT_EXPERTS.replace("SCORES", "scores") + DP,
        ("backward", "moe.router", ("tp",), "the gradient of its output is a partial sum"),
        layout={"dp": 2, "tp": 2},
        single=EXPERTS,
    ),
    "a_gradient_is_summed_twice": Program(
        """
class Twice(Row):
    def forward(self, x):
        import torch.distributed.nn.functional as nnf
        return nnf.all_reduce(F.linear(x, self.weight), group=self.group) + self.bias
def parallelize(model, mesh): return split(model, mesh["tp"].get_group(), row=Twice)
""",
        ("backward", "layers.1.mlp.down", ("tp",), "2 times too large"),
        layout={"tp": 2},
    ),
    "query_norms_are_not_reduced": Program(
        TP,
        (
            "gradients",
            "layers.*.attention.qn, layers.*.attention.kn",
            ("tp",),
            "not reduced over tp (sum)",
        ),
        layout={"tp": 2},
        single=QK_NORM,
    ),
    "a_gradient_of_the_whole_of_a_split_parameter": Program(
        """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
def parallelize(model, mesh): return fully_shard(model, mesh=mesh["dp"])
def train(model, batch, mesh):
    loss(model, rows(batch, mesh["dp"])).backward()
    weight = model.head.weight
    whole = weight.grad.redistribute(placements=[Replicate()])
    weight.grad_dtype = None
    weight.grad = whole * 2
""",
        ("gradients", "head", ("dp",), "2 times too large"),
    ),
    "gradients_are_not_averaged": Program(
        WHOLE
        + """
def train(model, batch, mesh): loss(model, rows(batch, mesh["dp"])).backward()
""",
        ("gradients", "(all)", ("dp",), "not reduced over dp (mean)"),
    ),
    "the_head_is_not_averaged": Program(
        WHOLE
        + """
def train(model, batch, mesh):
    loss(model, rows(batch, mesh["dp"])).backward()
    own = model.head.weight.grad.clone()
    average(model, mesh["dp"].get_group())
    model.head.weight.grad = own
""",
        ("gradients", "head", ("dp",), "not reduced over dp (mean)"),
    ),
    "gradients_are_summed_and_not_averaged": Program(
        WHOLE + DP.replace("get_group())", "get_group(), 1)"),
        ("gradients", "(all)", ("dp",), "2 times too large"),
    ),
    "gradients_are_reduced_over_all_ranks": Program(
        TP + DP.replace('mesh["dp"].get_group())', "None, 2)"),
        ("gradients", "(all)", ("tp",), "adds gradients of other elements"),
        layout={"dp": 2, "tp": 2},
    ),
    "a_mean_of_means": Program(
        WHOLE + DP, ("loss", "(loss)", ("dp",), "a mean of means over dp"), single=PADDED
    ),
    "the_first_micro_batch_is_summed_twice": Program(
        WHOLE
        + """
def train(model, batch, mesh):
    x, y = rows(batch, mesh["dp"])
    for u, v in zip(x.chunk(2), y.chunk(2)):
        (cross_entropy(model(u), v) / 2).backward()
        for p in model.parameters(): dist.all_reduce(p.grad, group=mesh["dp"].get_group())
    for p in model.parameters(): p.grad.div_(2)
""",
        ("gradients", "(all)", ("dp",), "micro-batches do not count alike (0: 2, 1: 1 times)"),
    ),
    "a_pipeline_is_not_scaled": Program(
        STAGES.replace("SCHEDULE", "Schedule1F1B").replace("SCALED", "False"),
        ("gradients", "(all)", ("pp",), "the number of micro-batches, 2"),
        layout={"pp": 2},
    ),
    "tied_embeddings_are_not_summed": Program(
        STAGES.replace("SCHEDULE", "ScheduleGPipe").replace("SCALED", "True"),
        ("gradients", "embed, head", ("pp",), "not reduced over pp"),
        layout={"pp": 2},
        single=TIED,
    ),
    "positions_start_at_zero_on_each_rank": Program(
        SEQUENCE.replace("OFFSET", "0"),
        ("forward", "layers.0.attention", ("cp",), "rows differ"),
        layout={"cp": 2},
    ),
    "gathered_keys_carry_no_gradient": Program(
        SEQUENCE.replace("OFFSET", "mesh.get_local_rank('cp') * 4").replace(
            "(torch.cat(nnf.all_gather(x.contiguous(), group=self.group), 2) for x in (k, v))",
            "(whole(x, self.group) for x in (k, v))",
        )
        + """
def whole(x, group):
    every = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(every, x.detach().contiguous(), group=group)
    every[dist.get_rank(group)] = x
    return torch.cat(every, 2)
""",
        (
            "backward",
            "layers.1.attention",
            ("cp",),
            "its forward has all_gather on cp at program.py:30 (2 times), and its backward no call",
        ),
        layout={"cp": 2},
    ),
    "seeds_differ_where_elements_are_the_same": Program(
        """
def parallelize(model, mesh):
    torch.manual_seed(7 + mesh["tp"].get_local_rank())
    return split(model, mesh["tp"].get_group())
""",
        ("forward", "layers.0.drop", ("tp",), "their seeds differ"),
        layout={"tp": 2},
        single=DROPOUT,
    ),
    "recomputation_drops_other_elements": Program(
        TP
        + """
from torch.utils.checkpoint import checkpoint
class Again(Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False, preserve_rng_state=False)
def train(model, batch, mesh):
    for layer in model.layers: layer.__class__ = Again
    loss(model, batch).backward()
""",
        ("backward", "layers.1.drop", ("tp",), "recomputation draws another dropout mask"),
        layout={"tp": 2},
        single=DROPOUT,
    ),
    "a_norm_is_that_of_a_ranks_own_columns": Program(
        """
def parallelize(model, mesh):
    group, norm = mesh.get_group("tp"), nn.RMSNorm(4)
    norm.weight = nn.Parameter(shard(model[1].weight, 0, group))
    return nn.Sequential(Column(model[0], group), norm, Row(model[2], group))
""",
        ("forward", "1", ("tp",), "statistics of each rank's own part"),
        layout={"tp": 2},
        single="""
def build(): return nn.Sequential(nn.Linear(6, 8), nn.RMSNorm(8), nn.Linear(8, 4))
def batch(step): return drawn(step, (8, 6), (8, 4))
def loss(model, batch): return F.mse_loss(model(batch[0]), batch[1])
""",
    ),
    "a_loss_that_is_right_has_another_backward": Program(
        WHOLE
        + """
class Other(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.linspace(1, 2, gradient.shape[-1], device=gradient.device)
def train(model, batch, mesh):
    x, y = rows(batch, mesh["dp"])
    value = cross_entropy(Other.apply(model(x)), y)
    value.backward()
    average(model, mesh["dp"].get_group())
    return value
""",
        ("backward", "(loss)", ("dp",), "the loss is right, and its backward is not"),
    ),
    "a_loss_of_two_outputs_is_normalized_by_each_rank": Program(
        WHOLE + DP,
        ("loss", "(loss)", ("dp",), "rows differ"),
        single="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 1)
    def forward(self, x):
        x = self.into(x).tanh()
        return self.a(x), self.b(x)
def build(): return Net()
def batch(step): return (torch.randn(8, 6, generator=torch.Generator().manual_seed(step)),)
def parts(a, b, mean): return ((a - mean) ** 3).mean() + b.square().mean()
def loss(model, batch):
    a, b = model(batch[0])
    return parts(a, b, a.mean())
""",
    ),
    "statistics_are_each_ranks_own": Program(
        WHOLE + DP, ("forward", "norm", ("dp",), "statistics of each rank's own"), single=NORMS
    ),
    "a_parameter_is_not_broadcast": Program(
        """
def parallelize(model, mesh):
    if mesh.get_local_rank("dp"): nn.init.normal_(model.layers[1].attention.o.weight)
    return model
"""
        + DP,
        ("initial values", "layers.1.attention.o", ("dp",), "not broadcast"),
    ),
    "both_ranks_hold_the_same_part": Program(
        """
def parallelize(model, mesh):
    split(model, mesh["tp"].get_group())
    for p in model.layers[0].mlp.parameters(): dist.broadcast(p.data, 0)
    return model
""",
        ("initial values", "layers.0.mlp.up", ("tp",), "ranks hold the same part"),
        layout={"tp": 2},
    ),
    "the_batch_is_split_along_the_wrong_axis": Program(
        TP + DP.replace('rows(batch, mesh["dp"])', 'rows(batch, mesh["tp"])'),
        ("forward", "(model)", ("tp",), "split along the wrong axis"),
        layout={"dp": 2, "tp": 2},
    ),
    "a_norm_counts_copies": Program(
        TP + CLIPS.replace("REDUCED", "dist.all_reduce(norm, group=mesh['tp'].get_group())"),
        ("step", "(all)", ("tp",), "counts parameters that all ranks of tp hold 2 times"),
        layout={"tp": 2},
        single=CLIPPED,
    ),
    "a_norm_is_each_ranks_own": Program(
        TP,
        ("step", "(all)", ("tp",), "the gradient norm is that of each rank's own part"),
        layout={"tp": 2},
        single=CLIPPED,
    ),
    "a_parameter_is_not_updated": Program(
        WHOLE
        + DP
        + """
def update(model, mesh):
    for name, p in model.named_parameters():
        if mesh is None or not name.startswith("norm"): p.data.sub_(0.1 * p.grad)
""",
        ("step", "norm", ("dp",), "not updated: the optimizer does not have them"),
    ),
    "new_values_do_not_reach_the_others": Program(
        WHOLE
        + DP
        + """
def update(model, mesh):
    for number, p in enumerate(model.parameters()):
        if mesh is None or number % 2 == mesh.get_local_rank("dp"): p.data.sub_(0.1 * p.grad)
""",
        ("step", "(all)", ("dp",), "did not reach the others"),
    ),
    "a_moving_average_is_taken_before_the_step": Program(
        WHOLE
        + """
def train(model, batch, mesh):
    value = loss(model, rows(batch, mesh["dp"]))
    value.backward()
    average(model.own, mesh["dp"].get_group())
    return value
""",
        ("step", "average", ("dp",), "a moving average"),
        single="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.average = nn.Linear(6, 4), nn.Linear(6, 4).requires_grad_(False)
    def forward(self, x): return self.own(x) - self.average(x)
def build(): return Net()
def batch(step):
    return (torch.randn(8, 6, generator=torch.Generator().manual_seed(step)),)
def loss(model, batch): return model(batch[0]).square().mean()
def step(model):
    with torch.no_grad():
        for p in model.own.parameters(): p.sub_(0.1 * p.grad)
def follow(model):
    with torch.no_grad():
        for a, p in zip(model.average.parameters(), model.own.parameters()): a.lerp_(p, 0.2)
def update(model, mesh):
    for each in (follow, step) if mesh else (step, follow): each(model)
""",
    ),
    "momentum_of_averaged_ranks_is_lost": Program(
        WHOLE
        + """
def train(model, batch, mesh):
    value = loss(model, rows(batch, mesh["dp"]))
    value.backward()
    return value
""",
        ("step", "(all)", ("dp",), "the optimizer's state"),
        single=GPT
        + """
def update(model, mesh):
    if mesh is None or not hasattr(model, "sgd"):
        old = getattr(model, "sgd", None)
        model.sgd = old or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if mesh is not None:  # Each rank steps by itself, and the changes are averaged.
        model.sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.sgd.step()
    for p in model.parameters() if mesh else (): dist.all_reduce(p.data, dist.ReduceOp.AVG)
""",
        num_steps=2,
    ),
    "the_rate_grows_with_the_ranks": Program(
        WHOLE + DP + ADAM[len(GPT) :].replace("RATE", "0.01 * (2 if mesh else 1)"),
        ("step", "(all)", ("dp",), "the learning rate"),
        single=ADAM.replace("RATE", "0.01"),
    ),
    "weights_decay_that_should_not": Program(
        WHOLE
        + DP
        + """
def update(model, mesh):
    for p in model.parameters(): p.data.sub_(0.1 * p.grad + (1e-3 * p.data if mesh else 0))
""",
        ("step", "(all)", ("dp",), "weight decay"),
    ),
    "gradients_are_kept_from_step_to_step": Program(
        WHOLE
        + """
kept = {}
def train(model, batch, mesh):
    loss(model, rows(batch, mesh["dp"])).backward()
    average(model, mesh["dp"].get_group())
    for name, p in model.named_parameters():
        p.grad.add_(kept.get(name, 0))
        kept[name] = p.grad.clone()
""",
        ("gradients", "(all)", ("dp",), "the gradients of the step before"),
        num_steps=2,
    ),
    "layers_run_in_another_order": Program(
        """
class Reversed(GPT):
    def forward(self, x):
        x = self.embed(x)
        for layer in reversed(self.layers): x = layer(x)
        return self.head(self.norm(x))
def parallelize(model, mesh):
    model.__class__ = Reversed
    return model
"""
        + DP,
        ("forward", "(model)", ("dp",), "as the output of embed"),
    ),
    "a_warm_up_hides_gradients": Program(
        WHOLE + "def train(model, batch, mesh): loss(model, rows(batch, mesh['dp'])).backward()\n",
        ("gradients", "(all)", ("dp",), "not reduced over dp (mean)"),
        single=GPT + "def update(model, mesh): pass\n",
    ),
    "ranks_drop_with_another_rate": Program(
        """
def parallelize(model, mesh):
    for layer in model.layers: layer.drop.p = 0.5
    return model
"""
        + DP,
        ("forward", "layers.0.drop", ("dp",), "the rate of dropout is 0.5 and not 0.2"),
        single=DROPOUT,
    ),
    "ranks_drop_nothing": Program(
        "def parallelize(model, mesh): return model.eval()\n" + DP,
        ("forward", "layers.0.drop", ("dp",), "it drops nothing"),
        single=DROPOUT,
    ),
    "rows_are_left_out": Program(
        WHOLE
        + """
def train(model, batch, mesh):
    number = mesh.get_local_rank("dp")
    loss(model, tuple(x[number : number + 1] for x in batch)).backward()
    average(model, mesh["dp"].get_group())
""",
        ("gradients", "(all)", ("dp",), "rows 3 of the batch are on no rank"),
        layout={"dp": 3},
    ),
    "a_shared_part_is_summed_with_the_split_one": Program(
        """
class Shared(MLP):
    def forward(self, x):
        hidden = F.gelu(F.linear(Copy.apply(x, self.group), self.up.weight, self.up.bias))
        return Sum.apply(F.linear(hidden, self.down.weight) + self.down.bias + 0 * x, self.group)
def parallelize(model, mesh):
    for layer in split(model, mesh["tp"].get_group()).layers:
        layer.mlp.__class__, layer.mlp.group = Shared, mesh["tp"].get_group()
    return model
""",
        ("forward", "layers.0.mlp", ("tp",), "rows differ"),
        layout={"tp": 2},
    ),
    "a_scale_of_its_own_is_named_with_both_values": Program(
        """
class Scaled(Attention):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)
def parallelize(model, mesh):
    split(model, mesh["tp"].get_group())
    model.layers[1].attention.__class__ = Scaled
    return model
""",
        (
            "forward",
            "layers.1.attention",
            ("tp",),
            "_attention at program.py:10 gives with scale 0.25, and not None",
        ),
        layout={"tp": 2},
    ),
    "a_halo_of_zeros_is_named_by_its_convolution": Program(
        """
class Cut(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        size = x.shape[-1] // 2
        own = self.inner(x[..., dist.get_rank() * size : (dist.get_rank() + 1) * size])
        whole = [torch.zeros_like(own) for _ in range(2)]
        dist.all_gather(whole, own.contiguous())
        whole[dist.get_rank()] = own
        return torch.cat(whole, -1)
def parallelize(model, mesh):
    model[0] = Cut(model[0])
    return model
def train(model, batch, mesh):
    value = loss(model, batch); value.backward()
    for p in model[0].parameters(): dist.all_reduce(p.grad)
    return value
""",
        ("forward", "0", ("sp",), "what conv1d at program.py:"),
        layout={"sp": 2},
        single=CONVOLUTION,
    ),
    "a_sum_over_rows_is_named_by_its_line": Program(
        """
class Gathered(Attention):
    def attend(self, q, k, v):
        k = k.contiguous()
        dist.all_reduce(k.data, group=self.group)
        return super().attend(q, k, v)
def parallelize(model, mesh):
    for layer in model.layers:
        layer.attention.__class__, layer.attention.group = Gathered, mesh["dp"].get_group()
    return model
"""
        + DP,
        ("forward", "layers.0.attention", ("dp",), "what all_reduce on dp at program.py:11 gives"),
        layout={"dp": 2, "cp": 2},
    ),
    "a_wrong_backward_is_named_by_the_gradient_it_gives": Program(
        """
class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, gradient): return gradient * torch.rand_like(gradient)
class Wrong(Attention):
    def attend(self, q, k, v): return super().attend(Halved.apply(q), k, v)
def parallelize(model, mesh):
    split(model, mesh["tp"].get_group())
    model.layers[1].attention.__class__ = Wrong
    return model
""",
        ("backward", "layers.1.attention", ("tp",), "the gradient of what mul at nets.py:22 gives"),
        layout={"tp": 2},
    ),
    "a_sum_that_is_added_twice_is_named_and_the_partial_sums_are_not": Program(
        """
class Twice(MLP):
    def forward(self, x):
        partial = F.linear(F.gelu(self.up(x)), self.down.weight)
        whole = Sum.apply(partial, self.down.group)
        return whole + partial + self.down.bias
def parallelize(model, mesh):
    split(model, mesh["tp"].get_group())
    model.layers[0].mlp.__class__ = Twice
    return model
""",
        ("forward", "layers.0.mlp", ("tp",), "what add at program.py:12 gives"),
        layout={"tp": 2},
    ),
    "a_row_of_an_embedding_gets_no_gradient": Program(
        """
def parallelize(model, mesh): return model
def train(model, batch, mesh):
    value = loss(model, rows(batch, mesh["dp"]))
    value.backward()
    average(model, mesh["dp"].get_group())
    model.embed.weight.grad[3] = 0
    return value
""",
        ("gradients", "embed", ("dp",), "1 of 32 rows of embed.weight are zero on rank 0"),
    ),
    "a_bucket_is_copied_back_in_another_order": Program(
        """
def parallelize(model, mesh): return model
def train(model, batch, mesh):
    value = loss(model, rows(batch, mesh["dp"]))
    value.backward()
    average(model, mesh["dp"].get_group())
    up, other = (layer.mlp.up.weight for layer in model.layers)
    up.grad, other.grad = other.grad, up.grad
    return value
""",
        (
            "gradients",
            "layers.*.mlp.up",
            ("dp",),
            "layers.0.mlp.up.weight has the gradient of layers.1.mlp.up.weight",
        ),
    ),
    "a_tied_gradient_is_broadcast_and_not_summed": Program(
        STAGES.replace("SCHEDULE", "ScheduleGPipe")
        .replace("SCALED", "True")
        .replace(
            "    return sum(losses)",
            """    weight = model.head.weight if rank else model.embed.weight
    dist.broadcast(weight.grad, group_src=0, group=mesh.get_group("pp"))
    return sum(losses)""",
        ),
        ("gradients", "embed, head", ("pp",), "all have one gradient, which is not the sum"),
        layout={"pp": 2},
        single=TIED,
    ),
    "an_optimizer_over_shards_decays_other_elements": Program(
        WHOLE + "OFFSET = 0\ndef train(model, batch, mesh):\n"
        "    value = loss(model, rows(batch, mesh['dp'])); value.backward(); return value\n",
        ("step", "0, 2", ("dp",), "weight decay"),
        single=SHARDED,
    ),
    "an_output_is_sent_without_a_gradient": Program(
        """
class Lost(MoE):
    def forward(self, x):
        rows = x.flatten(0, -2)
        scores, chosen = self.router(rows)
        order = chosen.flatten().argsort(stable=True)
        ends = torch.bincount(chosen.flatten(), minlength=self.count).cumsum(0).int()
        out = torch.zeros_like(rows).repeat_interleave(2, 0)
        out = out.index_copy(0, order, self.experts(rows[order // 2], ends))
        sent = scores.detach()[..., None]
        return (out.view(-1, 2, x.shape[-1]) * sent).sum(1).view_as(x)
def parallelize(model, mesh):
    model.moe.__class__ = Lost
    return model
""",
        ("backward", "moe.router", ("tp",), "gets no gradient"),
        layout={"tp": 2},
        single=EXPERTS,
    ),
}
