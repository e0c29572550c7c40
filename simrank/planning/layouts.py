"""Layouts of a model on a cluster that are worth a run, by arithmetic; their plan.

The arithmetic orders runs and leaves out hopeless ones; figures come from the runs.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.config.cluster import ClusterConfig
    from simrank.config.decoder import DecoderConfig

RECOMPUTED = {"none": 0.0, "half": 0.5, "full": 1.0}  # Shares of the blocks.
_SIZES = (1, 2, 4, 8, 16)
_MOST_PER_NODE = 8  # Assumed: the largest tensor parallelism in use; larger ones leave a node.
_LEAST_SEQ = 8192  # Assumed: sequences are split into shorter parts only where ranks are left.
_MOST_ROWS = 12
# Assumed, as on a processor of 2023: seconds for a block of one micro-batch, and for a run besides
# them. Runs are chosen until the sum is that of five minutes on two processors.
_BLOCK_S, _RUN_S, _SWEEP_S, _ROW_S = 0.12, 5.0, 480.0, 120.0
_MOST_ALLOCATED = 0.95  # Assumed: of a device's memory; the allocator reserves more than that.
_PRODUCTS = 0.65  # Assumed: rate of a step's products as a share of the peak.
_EXPOSED = 0.1  # Assumed: share of overlapped communication that is waited for all the same.
# Of an expert's parameter in a micro-batch: read three times, its gradient added in float32.
_EXPERT_BYTES = 3 * 2 + 3 * 4
_BLOCK_HOST_S = 1e-4  # Assumed: what a block of a further micro-batch takes besides its products.
# Logarithms of the logits and two gradients in float32; of a split vocabulary one gradient.
_LOGIT_BYTES, _SPLIT_LOGIT_BYTES = 12, 8
# What a block that is recomputed keeps, in sizes of its input, as runs have it.
_INPUTS_KEPT, _SPLIT_INPUTS_KEPT = 2.0, 1.3


class ParallelLayout(NamedTuple):
    """Sizes of parallelism, and what of a batch runs at once.

    Attributes:
        tp: Ranks of tensor parallelism.
        pp: Stages of the pipeline.
        cp: Ranks that share a sequence.
        ep: Ranks that share the experts of a block.
        replicate: Replicas of HSDP; 1: FSDP over all data-parallel ranks.
        micro: Sequences of a micro-batch.
        recompute: Blocks that are recomputed: none, half or full.
    """

    tp: int
    pp: int
    cp: int
    ep: int
    replicate: int
    micro: int
    recompute: str


class TrainingJob(NamedTuple):
    """A model to train on a cluster.

    Attributes:
        model: The model.
        cluster: Its devices and rates.
        num_ranks: Devices that train.
        seq: Tokens of a sequence.
        batch: Sequences of a step, of all ranks together.
    """

    model: DecoderConfig
    cluster: ClusterConfig
    num_ranks: int
    seq: int
    batch: int

    def data_ranks(self, layout: ParallelLayout) -> int:
        """Return the number of data-parallel groups."""
        return self.num_ranks // (layout.tp * layout.pp * layout.cp)

    def num_micro(self, layout: ParallelLayout) -> int:
        """Return the micro-batches of a rank in a step."""
        return self.batch // self.data_ranks(layout) // layout.micro


class Chosen(NamedTuple):
    """Layouts to run, the best estimate first, and how many were left out for which reason."""

    layouts: tuple[ParallelLayout, ...]
    left_out: dict[str, int]


def choose(job: TrainingJob) -> Chosen:
    """Return the layouts that are worth a run.

    Each split of the ranks has its best size of a micro-batch for each share of recomputation.
    """
    left_out: Counter[str] = Counter()
    best: dict[tuple[object, ...], ParallelLayout] = {}
    memory = job.cluster.device.memory_bytes
    fit = 0
    for layout in _splits(job):
        if not _divides(job, layout):
            left_out["do not divide heads, blocks, experts, ranks or the batch"] += 1
        elif memory_of(job, layout) > _MOST_ALLOCATED * memory:
            left_out[f"do not fit into {memory / 2**30:.1f} GiB"] += 1
        else:
            fit += 1
            split = (*layout[:5], layout.recompute)
            known = best.get(split)
            if known is None or time_of(job, layout) < time_of(job, known):
                best[split] = layout
    ordered = sorted(best.values(), key=lambda layout: time_of(job, layout))
    chosen: list[ParallelLayout] = []
    left_s = _SWEEP_S
    for layout in ordered:
        cost = _RUN_S + _BLOCK_S * job.model.layers * (1 + job.num_micro(layout))
        if len(chosen) < _MOST_ROWS and cost <= min(left_s, _ROW_S):
            chosen.append(layout)
            left_s -= cost
    chosen = chosen or ordered[:1]
    if fit > len(chosen):
        left_out["are slower by arithmetic, or take long to simulate"] = fit - len(chosen)
    return Chosen(tuple(chosen), dict(left_out))


def _splits(job: TrainingJob) -> Iterator[ParallelLayout]:
    """Yield all layouts that could be tried."""
    per_node = job.cluster.device.count
    most_tp = min(per_node, _MOST_PER_NODE)
    sizes_ep = [2**i for i in range(11)] if job.model.experts else [1]
    for tp, pp, cp, ep in product(_SIZES, _SIZES, _SIZES, sizes_ep):
        is_long = job.seq // cp >= _LEAST_SEQ or cp <= job.num_ranks // (tp * pp * job.batch)
        if tp > most_tp or tp * pp * cp > job.num_ranks or ep > job.num_ranks:
            continue
        if cp > 1 and not is_long:
            continue
        if pp > 1 and job.num_ranks <= per_node:  # A node's links make a pipeline needless.
            continue
        shards = per_node // (tp * cp)
        replicas = job.num_ranks // (pp * per_node)
        for replicate in (1, replicas) if shards > 1 and replicas > 1 else (1,):
            for micro, recompute in product((1, 2, 4, 8), RECOMPUTED):
                yield ParallelLayout(tp, pp, cp, ep, replicate, micro, recompute)


def _divides(job: TrainingJob, layout: ParallelLayout) -> bool:
    """Return whether ranks, sequences and the model can be split so."""
    model, (tp, pp, cp, ep, replicate, micro, _) = job.model, layout
    per_stage = job.num_ranks // pp
    wholes = [
        (model.heads, tp), (model.kv_heads, tp), (model.kv_heads, tp * (cp if tp > 1 else 1)),
        (model.vocab, tp), (model.ffn, tp), (model.experts, ep), (per_stage, ep),
        (job.num_ranks, tp * pp * cp * replicate), (job.seq, 2 * cp * tp),
        (job.batch, job.data_ranks(layout) * micro),
        (job.seq // (cp * tp) * micro * model.top_k, model.experts or 1),
    ]  # fmt: skip
    fills = pp <= job.num_micro(layout) or pp == 1
    deep = pp == 1 or model.layers + 2 >= 2 * pp
    return fills and deep and not any(whole % part for whole, part in wholes)


# ---- memory ----


def memory_of(job: TrainingJob, layout: ParallelLayout) -> float:
    """Return the bytes that the fullest rank allocates, about."""
    model, (tp, pp, cp, ep, replicate, micro, _) = job.model, layout
    per_stage = job.num_ranks // pp
    blocks = -(-(model.layers + 2) // pp) - (1 if pp > 1 else 2)
    is_end = 2 if pp == 1 and not model.tied else 1
    ends = is_end * model.vocab * model.hidden / tp
    dense = blocks * model.block_parameters / tp + ends
    experts = blocks * model.experts * model.expert_parameters / ep
    own = dense / (per_stage // (tp * replicate)) + experts / (per_stage // ep)
    block = model.block_parameters / tp + model.experts * model.expert_parameters / ep
    whole = 2 * block if pp == 1 else blocks * block
    gathered = 2 * (whole + ends) + (6 * block if pp == 1 else 4 * (whole + ends))
    running = min(pp, job.num_micro(layout))
    kept = _activations(job, layout) * blocks * running
    per_logit = _LOGIT_BYTES if tp == 1 else _SPLIT_LOGIT_BYTES
    logits = job.seq // cp * micro * model.vocab / tp * per_logit
    one = _activations(job, layout._replace(recompute="none"))
    # The peak is where logits meet all activations of the last stage, or in the first backward.
    if pp > 1:
        at_loss = 12 * own + gathered - 6 * block + logits + kept / running
    else:  # Blocks are sharded again, and gradients of an earlier micro-batch are there.
        at_loss = (16 if job.num_micro(layout) > 1 else 12) * own + logits + kept
    at_backward = 12 * own + gathered + kept + one
    return max(at_loss, at_backward, 16 * own + gathered)


def _activations(job: TrainingJob, layout: ParallelLayout) -> float:
    """Return the bytes that a block keeps for backward of a micro-batch, in bfloat16."""
    model, tp = job.model, layout.tp
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    attention = 3 * queries + (4 if model.qk_norm else 2) * keys + queries * model.qk_norm
    rows = 2 * model.hidden / tp
    if model.experts:
        routed = model.top_k * (2 * model.hidden + 4 * model.expert_ffn)
        each = attention / tp + 2 * rows + model.hidden + (routed + 6 * model.experts) / tp
    else:
        each = (attention + 4 * model.ffn) / tp + rows + 2 * model.hidden
    share = RECOMPUTED[layout.recompute]
    inputs = _INPUTS_KEPT if tp == 1 else _SPLIT_INPUTS_KEPT
    kept = (1 - share) * each + share * inputs * model.hidden / tp
    return 2 * kept * job.seq // layout.cp * layout.micro


# ---- time ----


def time_of(job: TrainingJob, layout: ParallelLayout) -> float:
    """Return the seconds of a step, about: enough to order layouts."""
    model, (tp, pp, cp, ep, _, micro, recompute) = job.model, layout
    device = job.cluster.device
    count = job.num_micro(layout)
    tokens = job.batch * job.seq
    active = model.layers * (model.block_parameters + model.top_k * model.expert_parameters)
    flops = 6 * (active + model.vocab * model.hidden)
    flops += 6 * model.layers * job.seq * model.heads * model.head_dim
    again = 1 + RECOMPUTED[recompute] / 3
    rate = _PRODUCTS * device.peak_flops["bfloat16"]
    compute = again * flops * tokens / job.num_ranks / rate
    held = 2 * job.seq // cp * micro * model.hidden  # Bytes of an activation.
    calls = model.layers / pp * count * (2 + RECOMPUTED[recompute])
    near, far = _rates(job, tp * cp), _rates(job, tp * cp * ep)
    waits = calls * (2 if model.experts else 4) * held * (tp - 1) / tp / near
    waits += calls * 2 * model.top_k * held / tp * (ep > 1) / far
    keys = held * model.kv_heads * model.head_dim / model.hidden
    waits += _EXPOSED * calls * 2 * keys * (cp - 1) / tp / _rates(job, tp * cp)
    waits += _BLOCK_HOST_S * calls
    overlapped = _sharding(job, layout)
    held_experts = model.layers * model.experts * model.expert_parameters / (pp * ep)
    waits += count * held_experts * _EXPERT_BYTES / device.memory_bandwidth_bytes_per_s
    busy = (compute + waits) * (1 + (pp - 1) / count)
    return max(busy, overlapped) + _EXPOSED * overlapped


def _sharding(job: TrainingJob, layout: ParallelLayout) -> float:
    """Return the seconds of gathering parameters and reducing gradients."""
    model, (tp, pp, _, ep, replicate, _, _) = job.model, layout
    per_node, num_gathers = job.cluster.device.count, job.num_micro(layout) if pp == 1 else 1
    shards = job.num_ranks // (pp * tp * replicate)
    dense = (model.layers * model.block_parameters + model.vocab * model.hidden * 2) / (tp * pp)
    ways = min(per_node // tp or 1, shards)
    spans = shards * tp > per_node
    rate = _rates(job, 1) if not spans else min(_rates(job, 1), ways * _nic(job))
    seconds = 8 * dense * num_gathers / rate * (shards - 1) / shards
    if replicate > 1:
        seconds += 8 * dense / shards * num_gathers / _nic(job)
    if model.experts:
        experts = model.layers * model.experts * model.expert_parameters / (ep * pp)
        over = job.num_ranks // pp // ep
        ways = max(per_node // ep, 1)
        rate = min(_rates(job, 1), ways * _nic(job)) if over * ep > per_node else _rates(job, 1)
        seconds += 8 * experts * num_gathers / rate * (over - 1) / over
    return seconds


def _rates(job: TrainingJob, ranks: int) -> float:
    """Return the bytes per second of a rank among so many neighbours."""
    nccl = job.cluster.nccl
    assert nccl is not None, "the clusters of `clusters_of` have it"
    return nccl.ring_bandwidth_bytes_per_s if ranks <= job.cluster.device.count else _nic(job)


def _nic(job: TrainingJob) -> float:
    """Return the bytes per second of a rank between nodes."""
    nccl = job.cluster.nccl
    assert nccl is not None, "the clusters of `clusters_of` have it"
    own = nccl.nic_bandwidth_bytes_per_s or nccl.ring_bandwidth_bytes_per_s
    return own * (nccl.nics or 1) / job.cluster.device.count


# ---- the plan ----


def plan_text(job: TrainingJob, words: tuple[str, str], chosen: Chosen) -> str:
    """Return the YAML of a plan of layouts.

    Args:
        job: What is trained.
        words: The program and the model, as the command names them.
        chosen: The layouts.
    """
    layouts: Sequence[ParallelLayout] = chosen.layouts
    absent = ParallelLayout(tp=1, pp=1, cp=1, ep=1, replicate=1, micro=1, recompute="none")
    names = [
        name for at, name in enumerate(ParallelLayout._fields)
        if any(layout[at] != absent[at] for layout in layouts)
    ] or ["tp"]  # fmt: skip
    program, model = words
    fixed = f"--model {model} --seq {job.seq} --batch {job.batch}"
    options = " ".join(f"--{name} {{{name}}}" for name in names)
    nodes, per_node = job.cluster.nodes, job.num_ranks // job.cluster.nodes
    ranks = [f"nnodes: {nodes}"] if job.cluster.fabric is not None else []
    if per_node < job.cluster.device.count or not ranks:
        ranks.append(f"nproc_per_node: {per_node}")
    lines = [
        *(f"# {count} {why}" for why, count in chosen.left_out.items()),
        f"command: --fold all {program} {fixed} {options}",
        f"cluster: {job.cluster.name}",
        f"parameters: {{{', '.join(ranks)}}}",
        "layouts:",
    ]
    for layout in layouts:
        found = ", ".join(f"{name}: {getattr(layout, name)}" for name in names)
        lines.append(f"  - {{{found}}}")
    return "\n".join([*lines, f"tokens_per_step: {job.batch * job.seq}", ""])
