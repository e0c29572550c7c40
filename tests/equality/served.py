"""Programs that decode, for the tests of `simrank equal`: right layouts, and faults by name."""

from typing import NamedTuple

NET = """
import torch.distributed as dist
FAULT = "none"
VOCAB, DIM, HEADS, KV, HEAD, MAX, NEW, ROWS = 48, 32, 4, 2, 8, 16, 4, 3


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (
            nn.Linear(DIM, n * HEAD, bias=False) for n in (HEADS, KV, KV)
        )
        self.o, self.qn = nn.Linear(HEADS * HEAD, DIM), nn.RMSNorm(HEADS * HEAD)
        self.rank = 0

    def rotate(self, x, at):
        wave = at[:, None, :, None] / torch.arange(1, HEAD // 2 + 1, device=x.device)
        a, b = x.chunk(2, -1)
        return torch.cat([a * wave.cos() - b * wave.sin(), a * wave.sin() + b * wave.cos()], -1)

    def forward(self, x, cache, at, slots):
        b, t, _ = x.shape
        q, k, v = self.qn(self.q(x)), self.k(x), self.v(x)
        q, k, v = (each.view(b, t, -1, HEAD).transpose(1, 2) for each in (q, k, v))
        is_shifted = FAULT == "a_rotary_position_of_the_slot" and t == 1
        if (is_shifted or FAULT == "all_positions_shifted_alike") and self.rank:
            at = slots.expand(b, t)
        q, k = self.rotate(q, at), self.rotate(k, at)
        if FAULT == "a_stale_slot_of_the_cache" and self.rank and int(slots[0]) == 8:
            slots = slots - 1
        cache[0][:, :, slots], cache[1][:, :, slots] = k, v
        repeats = q.shape[1] // k.shape[1]
        keys, values = (each.repeat_interleave(repeats, 1) for each in cache[:2])
        last = torch.arange(MAX, device=x.device)
        mask = (last <= slots[:, None])[None] & (last >= cache[2][:, None, None])
        if FAULT == "a_mask_without_the_padding" and self.rank:
            mask = mask | (last <= slots[:, None])
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask[:, None])
        if FAULT == "a_cache_without_the_last_token" and self.rank and t > 1:
            cache[0][:, :, t - 1] = 0
        return self.o(out.transpose(1, 2).reshape(b, t, -1))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, DIM, DIM) / 6)
        self.first, self.group = 0, None

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, up in enumerate(self.up):
            share = (weight * (chosen == number + self.first)).sum(-1, keepdim=True)
            out = out + share * torch.tanh(x @ up)
        if self.group is not None:
            if FAULT == "a_combine_without_a_rank" and dist.get_rank(self.group) == 1:
                out = torch.zeros_like(out)
            if FAULT != "no_sum_of_the_experts":
                dist.all_reduce(out, group=self.group)
        return out


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.attn = nn.RMSNorm(DIM), nn.RMSNorm(DIM), Attention()
        self.experts = Experts()

    def forward(self, x, cache, at, slots):
        x = x + self.attn(self.n1(x), cache, at, slots)
        return x + self.experts(self.n2(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(VOCAB, DIM), nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        self.group, self.stages = None, None

    def forward(self, x, caches, at, slots):
        if self.embed is not None:
            x = self.embed(x)
        else:
            x = torch.empty(*x.shape, DIM, device=x.device, dtype=torch.get_default_dtype())
            x = x.to(caches[0][0].dtype)
            dist.recv(x, group=self.stages, group_src=0)
        for block, cache in zip(self.blocks, caches):
            x = block(x, cache, at, slots)
        if self.head is None:
            dist.send(x, group=self.stages, group_dst=1)
            return x
        return self.head(self.norm(x)[:, -1])


def gathered(model, logits):
    if model.group is None:
        return logits
    parts = [torch.empty_like(logits) for _ in range(dist.get_world_size(model.group))]
    dist.all_gather(parts, logits.contiguous(), group=model.group)
    if FAULT == "logits_in_the_order_of_others":
        parts = parts[::-1]
    return torch.cat(parts, -1)


def chosen(model, logits):
    if SAMPLES:
        drawn = torch.Generator(logits.device).manual_seed(model.seed)
        model.seed += 1
        noise = torch.rand(logits.shape, generator=drawn, device=logits.device)
        return (logits - (-noise.log()).log()).argmax(-1)
    return logits.argmax(-1)


def generate(model, batch):
    tokens, lengths = batch
    b, width = tokens.shape
    is_rank, dtype = hasattr(model, "rank"), next(model.parameters()).dtype
    start, slots = width - lengths, torch.arange(width, device=tokens.device)
    kv = model.blocks[0].attn.k.weight.shape[0] // HEAD
    caches = [
        [*torch.zeros(2, b, kv, MAX, HEAD, device=tokens.device, dtype=dtype), start]
        for _ in model.blocks
    ]
    model.seed = 7
    if is_rank and FAULT == "seeds_of_their_own":
        model.seed += model.rank
    found, logits = [], []
    for step in range(NEW - (is_rank and FAULT == "a_stop_before_the_last_token")):
        at = (slots - start[:, None]).clamp(min=0)
        if FAULT == "a_rotary_position_that_lags" and is_rank and step:
            at = at - 1
        out = model(tokens, caches, at, slots)
        if model.stages is None:
            local, whole = out, gathered(model, out)
        else:
            whole = torch.empty(b, VOCAB, device=out.device, dtype=dtype)
            local = whole = out if model.head is not None else whole
            dist.broadcast(whole, group=model.stages, group_src=1)
        next_ones = chosen(model, local if FAULT == "a_local_argmax" else whole)
        if FAULT == "a_stage_decodes_the_token_before" and is_rank and step and model.embed:
            next_ones = found[-1]
        found.append(next_ones)
        logits.append(whole)
        tokens, slots = found[-1][:, None], slots[-1:] + 1
    return {"tokens": torch.stack(found, 1), "logits": torch.stack(logits, 1)}


def build(): return Net()


def batch(step):
    drawn = torch.Generator().manual_seed(step)
    tokens, lengths = torch.randint(0, VOCAB, (ROWS, 6), generator=drawn), torch.tensor([6, 3, 4])
    return tokens, lengths
"""
TP = """
class Rows(nn.Module):
    def __init__(self, whole, group):
        super().__init__()
        self.weight, self.bias = nn.Parameter(shard(whole.weight, 1, group)), whole.bias
        self.group = group

    def forward(self, x):
        if FAULT == "a_bias_on_every_rank":
            out = F.linear(x, self.weight, self.bias)
            dist.all_reduce(out, group=self.group)
            return out
        out = F.linear(x, self.weight)
        if FAULT != "no_sum_after_the_output_projection":
            dist.all_reduce(out, group=self.group)
        return out + self.bias


class Norm(nn.Module):
    def __init__(self, whole, group):
        super().__init__()
        self.weight, self.group = nn.Parameter(shard(whole.weight, 0, group)), group

    def forward(self, x):
        squares = x.square().sum(-1, keepdim=True)
        if FAULT == "a_norm_over_the_shard":
            squares = squares * dist.get_world_size(self.group)
        else:
            dist.all_reduce(squares, group=self.group)
        mean = squares / (HEADS * HEAD)
        return x * (mean + torch.finfo(x.dtype).eps).rsqrt() * self.weight


def cut(linear, count, at):
    out = nn.Linear(1, 1, bias=False)
    out.weight = nn.Parameter(linear.weight.detach().chunk(count)[at].clone())
    return out


def parallelize(model, mesh):
    group, size, rank = mesh["tp"].get_group(), mesh["tp"].size(), mesh["tp"].get_local_rank()
    model.group, model.rank = group, rank
    kv = min(size, KV)
    part = rank % kv if FAULT == "the_heads_of_another_replica" else rank * kv // size
    for block in model.blocks:
        attn = block.attn
        attn.rank = rank
        attn.q, attn.qn, attn.o = cut(attn.q, size, rank), Norm(attn.qn, group), Rows(attn.o, group)
        attn.k, attn.v = cut(attn.k, kv, part), cut(attn.v, kv, part)
    model.head = cut(model.head, size, rank)
    return model
"""
EP = """
def parallelize(model, mesh):
    group, size, rank = mesh["ep"].get_group(), mesh["ep"].size(), mesh["ep"].get_local_rank()
    model.rank = rank
    for block in model.blocks:
        experts = block.experts
        experts.up = nn.Parameter(experts.up.detach().chunk(size)[rank].clone())
        experts.first, experts.group = rank * len(experts.up), group
    return model
"""
PP = """
def parallelize(model, mesh):
    model.stages, model.rank = mesh["pp"].get_group(), mesh["pp"].get_local_rank()
    if model.rank:
        model.embed, model.blocks = None, nn.ModuleList([model.blocks[1]])
    else:
        model.blocks, model.norm, model.head = nn.ModuleList([model.blocks[0]]), None, None
    return model
"""
# Each rank quantizes its own part of the weights, with a scale for each of its rows.
INT8 = """
class Int8(nn.Module):
    def __init__(self, linear, rank):
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("whole", (linear.weight.detach() / scale).round().to(torch.int8))
        if FAULT == "quantized_columns_in_another_order" and rank == 1:
            self.whole = self.whole.flip(1)
        self.register_buffer("scale", scale)
        self.bias, self.group = getattr(linear, "bias", None), getattr(linear, "group", None)

    @property
    def weight(self): return self.whole * self.scale

    def forward(self, x):
        out = F.linear(x, self.weight)
        if self.group is not None:
            dist.all_reduce(out, group=self.group)
        return out if self.bias is None else out + self.bias


whole_parallelize = parallelize


def parallelize(model, mesh):
    model = whole_parallelize(model, mesh)
    for block in model.blocks:
        for name in "qkvo":
            setattr(block.attn, name, Int8(getattr(block.attn, name), model.rank))
    return model
"""
GREEDY, SAMPLED = f"SAMPLES = False\n{NET}", f"SAMPLES = True\n{NET}"


class Served(NamedTuple):
    """A program on a layout; a faulty one with what is expected: step, module, axis and words."""

    parallel: str
    layout: dict[str, int]
    expected: tuple[int, str, tuple[str, ...], str] = (0, "", (), "")
    single: str = GREEDY


QUANTIZED = Served(TP + INT8, {"tp": 2}, single=f"{GREEDY}\nTOLERANCE = 0.05\n")
RIGHT = {
    "tensor_parallel": Served(TP, {"tp": 2}),
    "tensor_parallel_with_replicated_heads": Served(TP, {"tp": 4}),
    "tensor_parallel_and_samples": Served(TP, {"tp": 2}, single=SAMPLED),
    "expert_parallel": Served(EP, {"ep": 2}),
    "pipeline_parallel": Served(PP, {"pp": 2}),
    "quantized_parts": QUANTIZED,
}
_ATTENTION = "blocks.0.attn"
# Similar faults were reported: positions of slots (unslothai/unsloth#3699), masks without the
# padding (thu-nics/C2C#19), replicas of KV heads (vllm-project/vllm-ascend#3366), biases on every
# rank (huggingface/text-generation-inference#1036), norms over shards (sgl-project/sglang#20967)
# and seeds of ranks (huggingface/transformers#36634, openai/gpt-oss#270).
FAULTY = {
    "a_rotary_position_that_lags": Served(
        TP, {"tp": 2}, (1, "(generate)", ("tp",), "at of the model is 5 and not 6")
    ),
    "a_rotary_position_of_the_slot": Served(TP, {"tp": 2}, (1, _ATTENTION, ("tp",), "")),
    "a_stale_slot_of_the_cache": Served(TP, {"tp": 2}, (3, _ATTENTION, ("tp",), "")),
    "a_cache_without_the_last_token": Served(
        TP, {"tp": 2}, (0, _ATTENTION, ("tp",), "the cache caches.0.0 after the step is 0")
    ),
    "a_mask_without_the_padding": Served(TP, {"tp": 2}, (0, _ATTENTION, ("tp",), "")),
    "the_heads_of_another_replica": Served(
        TP, {"tp": 4}, (0, _ATTENTION, ("tp",), "part 2 of 2 of blocks.0.attn.k.weight")
    ),
    "a_local_argmax": Served(
        TP, {"tp": 2}, (1, "(generate)", ("tp",), "its own shard of the vocabulary along tp")
    ),
    "no_sum_after_the_output_projection": Served(
        TP, {"tp": 2}, (0, f"{_ATTENTION}.o", ("tp",), "")
    ),
    "a_bias_on_every_rank": Served(
        TP, {"tp": 2}, (0, f"{_ATTENTION}.o", ("tp",), "the bias is added 2 times")
    ),
    "a_norm_over_the_shard": Served(TP, {"tp": 2}, (0, f"{_ATTENTION}.qn", ("tp",), "")),
    "logits_in_the_order_of_others": Served(
        TP, {"tp": 2}, (1, "(generate)", ("tp",), "x of the model")
    ),
    "seeds_of_their_own": Served(
        TP, {"tp": 2}, (1, "(generate)", ("tp",), "have different ones"), SAMPLED
    ),
    "a_combine_without_a_rank": Served(EP, {"ep": 2}, (0, "blocks.0.experts", ("ep",), "")),
    "a_stop_before_the_last_token": Served(
        EP, {"ep": 2}, (2, "(generate)", ("ep",), "the model is called 3 times, and not 4")
    ),
    "no_sum_of_the_experts": Served(
        EP, {"ep": 2}, (0, "blocks.0.experts", ("ep",), "not reduced over ep")
    ),
    "quantized_columns_in_another_order": QUANTIZED._replace(
        expected=(0, f"{_ATTENTION}.q", ("tp",), "rows differ on rank 1")
    ),
    "a_stage_decodes_the_token_before": Served(
        PP, {"pp": 2}, (2, "(generate)", ("pp",), "x of the model")
    ),
}
