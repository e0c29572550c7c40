"""Random programs of torch.distributed, what they compute, and mistakes planted in them.

A `Plan` is data: groups, and steps that every member of a step's group makes. `run` executes it on
simulated ranks, `expected` in numpy. A `Mistake` changes what one rank does at one step.
"""

from dataclasses import dataclass, field

import numpy as np

import simrank
import simrank.distributed as dist

SIZE = 24  # Elements per tensor: divisible by every group's size.
MODULUS = 1009  # Numbers stay small, so that sums are exact in any order.


@dataclass(frozen=True)
class Step:
    """One thing that the members of a group do.

    Attributes:
        kind: A key of `KINDS`.
        group: Index of the group; 0 is all ranks.
        root: Group rank of the root.
        op: Reduction.
        is_async: Whether it is started and waited for later.
    """

    kind: str
    group: int = 0
    root: int = 0
    op: str = "sum"
    is_async: bool = False


@dataclass(frozen=True)
class Mistake:
    """What one rank does wrongly.

    Attributes:
        kind: A key of `MISTAKES`.
        rank: Who.
        step: Index of the step.
    """

    kind: str
    rank: int
    step: int


@dataclass(frozen=True)
class Plan:
    """A program.

    Attributes:
        world_size: Ranks.
        backend: "nccl" on devices, or "gloo" on the host.
        groups: Global ranks of each group; the first is all of them.
        steps: In order.
    """

    world_size: int
    backend: str
    groups: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...] = field(default=())


def start_values(rank):
    """Return what a rank begins with."""
    return np.arange(SIZE, dtype=np.int64) * 7 % 31 + rank


# ---- what steps compute ----

REDUCE = {"sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce}


def expected(plan):
    """Return each rank's values at the end."""
    values = [start_values(rank) for rank in range(plan.world_size)]
    for step in plan.steps:
        members = plan.groups[step.group]
        before = np.array([values[rank] for rank in members])
        after = KINDS[step.kind].compute(step, before, np.array(members))
        for rank, row in zip(members, after, strict=True):
            values[rank] = row % MODULUS
    return values


def _only_root(step, before, rows):
    after = before.copy()
    after[step.root] = rows
    return after


def _scattered(before, part):
    after = before.copy()
    after[:, : part.shape[1]] = part
    return after


def _exchanged(before):
    size = len(before)
    return before.reshape(size, size, -1).swapaxes(0, 1).reshape(size, -1)


def _paired(before):
    size = len(before) // 2 * 2
    partner = np.array([i ^ 1 if i < size else i for i in range(len(before))])
    return before + np.where((partner != np.arange(len(before)))[:, None], before[partner], 0)


# ---- what a rank does ----


class Rank:
    """One rank that runs a plan, with or without a mistake."""

    def __init__(self, rank, plan, mistake, ctx):
        self.rank, self.plan, self.ctx = rank, plan, ctx
        self.mistake = mistake if mistake is not None and mistake.rank == rank else None
        self.is_gloo = plan.backend == "gloo"
        self.device = "cpu" if self.is_gloo else "cuda"
        self.late = []

    def run(self):
        """Run it, and return the values at the end."""
        # Which call is the first one of a group is drawn: communicators are made before.
        dist.init_process_group(self.plan.backend, device_id=self.rank)
        self.ctx.cuda.set_device(self.rank)
        self.groups = [dist.group.WORLD, *(dist.new_group(g) for g in self.plan.groups[1:])]
        self.twins = [dist.new_group(group) for group in self.plan.groups]
        self.x = self.ctx.tensor(start_values(self.rank), device=self.device)
        for index, step in enumerate(self.plan.steps):
            wrong = self.mistake.kind if self.mistake and self.mistake.step == index else None
            if self.rank in self.plan.groups[step.group] and self._step(step, wrong):
                break
        if self.mistake is None or self.mistake.kind != "never waits":
            for work in self.late:
                work.wait()
        return self.x.tolist()

    def _step(self, step, wrong):
        """Make one step; return whether the program ends with it."""
        if wrong == "raises":
            raise KeyError("planted")
        if wrong == "returns early":
            return True
        if wrong == "skips":
            return False
        self.group = (self.twins if wrong == "takes another group" else self.groups)[step.group]
        self.members = self.plan.groups[step.group]
        self.me = self.members.index(self.rank)
        for _ in range(2 if wrong == "calls twice" else 1):
            KINDS[step.kind].perform(self, step, wrong)
        self.x = self.x % MODULUS
        return False

    def peer(self, offset, wrong=None):
        """Return the global rank of a member beside this one."""
        offset += wrong == "takes another peer"
        return self.members[(self.me + offset) % len(self.members)]

    def empty(self, size, like=None):
        """Return room for results."""
        return self.ctx.empty(
            size, dtype=(self.x if like is None else like).dtype, device=self.device
        )

    def given(self, wrong):
        """Return what is passed to a collective."""
        if wrong == "passes another type":
            return self.x.to("int32")
        return self.x[: SIZE - len(self.members)].clone() if wrong == "passes less" else self.x

    def root(self, step, wrong):
        """Return the root's global rank."""
        return self.members[(step.root + (wrong == "takes another root")) % len(self.members)]

    def op(self, step, wrong):
        """Return the reduction."""
        name = step.op
        if wrong == "reduces otherwise":
            name = {"sum": "max", "max": "min", "min": "sum"}[name]
        return getattr(dist.ReduceOp, name.upper())

    def finish(self, work, step, wrong):
        """Wait for a Work, unless that is the mistake."""
        if not step.is_async:
            return
        if wrong in ("reads before the wait", "never waits"):
            self.late.append(work)
        else:
            work.wait()


class Kind:
    """A kind of step: what it computes, what a rank does, what can be wrong with it."""

    def __init__(self, compute, perform, *wrongs, backends=("nccl", "gloo")):
        self.compute, self.perform, self.wrongs = compute, perform, wrongs
        self.backends = backends


def all_reduce(me, step, wrong):
    x = me.given(wrong)
    work = dist.all_reduce(x, me.op(step, wrong), group=me.group, async_op=step.is_async)
    me.finish(work, step, wrong)
    if x is not me.x:
        me.x = me.ctx.zeros(SIZE, dtype="int64", device=me.device)


def overlap(me, step, wrong):
    other = me.x.clone()
    work = dist.all_reduce(other, me.op(step, wrong), group=me.group, async_op=True)
    me.x = me.x * 2
    if wrong != "forgets the result":
        work.wait()
        me.x = me.x + other


def broadcast(me, step, wrong):
    x = me.given(wrong)
    work = dist.broadcast(x, me.root(step, wrong), group=me.group, async_op=step.is_async)
    me.finish(work, step, wrong)


def reduce(me, step, wrong):
    x = me.given(wrong).clone()  # Gloo may use the others' as a scratch pad.
    dist.reduce(x, me.root(step, wrong), me.op(step, wrong), group=me.group)
    if me.me == step.root and x.numel() == SIZE and x.dtype is me.x.dtype:
        me.x = x


def all_gather(me, step, wrong):
    x = me.given(wrong)
    out = me.empty(x.numel() * len(me.members), x)
    work = dist.all_gather_into_tensor(out, x, group=me.group, async_op=step.is_async)
    me.finish(work, step, wrong)
    me.x = out.view(len(me.members), -1).sum(0)
    if me.x.numel() != SIZE or x is not me.x:
        me.x = me.x.to("int64")


def reduce_scatter(me, step, wrong):
    x = me.given(wrong)
    out = me.empty(x.numel() // len(me.members), x)
    op = me.op(step, wrong)
    work = dist.reduce_scatter_tensor(out, x, op, group=me.group, async_op=step.is_async)
    me.finish(work, step, wrong)
    me.x = me.x.clone()
    me.x[: out.numel()] = out


def all_to_all(me, step, wrong):
    x = me.given(wrong)
    out = me.empty(x.numel(), x)
    work = dist.all_to_all_single(out, x, group=me.group, async_op=step.is_async)
    me.finish(work, step, wrong)
    me.x = out


def gather(me, step, wrong):
    x, root = me.given(wrong), me.root(step, wrong)
    parts = [me.empty(x.numel(), x) for _ in me.members] if root == me.rank else None
    dist.gather(x, parts, dst=root, group=me.group)
    if parts is not None and me.me == step.root:
        me.x = me.ctx.stack(parts).sum(0)


def scatter(me, step, wrong):
    root = me.root(step, wrong)
    parts = [me.x + index for index in range(len(me.members))] if root == me.rank else None
    out = me.empty(SIZE)
    dist.scatter(out, parts, src=root, group=me.group)
    me.x = out


def barrier(me, step, wrong):
    dist.barrier(group=me.group)


def objects(me, step, wrong):
    found = [None] * len(me.members)
    dist.all_gather_object(found, {"rank": me.me}, group=me.group)
    me.x = me.x + sum(each["rank"] for each in found)


def ring_batch(me, step, wrong):
    out = me.empty(SIZE)
    ends = [
        dist.P2POp(dist.isend, me.x, me.peer(1, wrong), me.group),
        dist.P2POp(dist.irecv, out, me.peer(-1), me.group),
    ]
    works = dist.batch_isend_irecv(ends)
    for work in works:
        work.wait()
    me.x = me.x + out


def ring_async(me, step, wrong):
    out = me.empty(SIZE)
    if len(me.members) == 2 and me.me == 0:  # Both are one communicator's then: order matters.
        sending = dist.isend(me.x, me.peer(1, wrong), me.group)
        receiving = dist.irecv(out, me.peer(-1), me.group)
    else:
        receiving = dist.irecv(out, me.peer(-1), me.group)
        sending = dist.isend(me.x, me.peer(1, wrong), me.group)
    if wrong == "reads before the wait":
        me.late += [receiving, sending]
    else:
        for work in (sending, receiving):
            work.wait()
    me.x = me.x + out


def pairs(me, step, wrong):
    partner = me.me ^ 1
    if partner >= len(me.members):
        return
    peer, out = me.members[partner], me.empty(SIZE)
    sends_first = (me.me % 2 == 0) != (wrong == "turns the order around")
    for is_send in (sends_first, not sends_first):
        if is_send:
            dist.send(me.x, peer, me.group)
        else:
            dist.recv(out, peer, me.group)
    if wrong == "sends once more":
        dist.send(me.x, peer, me.group)
    me.x = me.x + out


def pipeline(me, step, wrong):
    out = me.ctx.zeros(SIZE, dtype="int64", device=me.device)
    if me.me > 0:
        dist.recv(out, me.peer(-1), me.group)
    me.x = me.x + out
    if me.me + 1 < len(me.members):
        dist.send(me.x, me.peer(1), me.group)


def gather_list(me, step, wrong):
    x = me.given(wrong)
    parts = [me.empty(x.numel(), x) for _ in me.members]
    work = dist.all_gather(parts, x, group=me.group, async_op=step.is_async)
    me.finish(work, step, wrong)
    me.x = me.ctx.stack(parts).sum(0)


def scatter_list(me, step, wrong):
    out = me.empty(SIZE // len(me.members))
    parts = [me.x[i * out.numel() : (i + 1) * out.numel()] for i in range(len(me.members))]
    work = dist.reduce_scatter(
        out, parts, me.op(step, wrong), group=me.group, async_op=step.is_async
    )
    me.finish(work, step, wrong)
    me.x = me.x.clone()
    me.x[: out.numel()] = out


def uneven_splits(size):
    """Return how many elements each member sends to each: row i is what member i sends."""
    sends = np.full((size, size), SIZE // size - 1, dtype=int)
    sends[np.arange(size), np.arange(size)] += size
    return sends


def uneven(me, step, wrong):
    sends = uneven_splits(len(me.members))
    given, taken = sends[me.me].tolist(), sends[:, me.me].tolist()
    if wrong == "splits otherwise":
        given = [*given[1:], given[0]]
    out = me.empty(SIZE)
    dist.all_to_all_single(out, me.x, taken, given, group=me.group)
    me.x = out


def _uneven(before):
    size = len(before)
    sends = uneven_splits(size)
    rows = [np.split(row, sends[i].cumsum()[:-1]) for i, row in enumerate(before)]
    return np.array([np.concatenate([rows[i][j] for i in range(size)]) for j in range(size)])


def coalesced(me, step, wrong):
    first, second = me.x.clone(), me.x * 2
    with dist._coalescing_manager(group=me.group, async_ops=True) as manager:
        dist.all_reduce(first, me.op(step, wrong), group=me.group)
        dist.all_reduce(second, me.op(step, wrong), group=me.group)
    if wrong == "reads before the wait":
        me.late.append(manager)
    else:
        manager.wait()
    me.x = first + second


def broadcast_objects(me, step, wrong):
    found = [me.x.tolist(), {"me": me.me}]
    dist.broadcast_object_list(found, me.root(step, wrong), group=me.group)
    me.x = me.ctx.tensor(found[0], device=me.device) + found[1]["me"]


def tags(me, step, wrong):
    """Two messages cross, told apart by tags only."""
    outs = [me.empty(SIZE), me.empty(SIZE)]
    sent = [me.x + 1, me.x + 2]
    works = []
    for tag in (0, 1):
        other = 2 if wrong == "takes another tag" and tag else tag
        works.append(dist.isend(sent[tag], me.peer(1), me.group, other))
    works += [dist.irecv(outs[tag], me.peer(-1), me.group, tag) for tag in (1, 0)]
    for work in works:
        work.wait()
    me.x = outs[0] + 2 * outs[1]


def side_collective(me, step, wrong):
    side, current = me.ctx.cuda.Stream(), me.ctx.cuda.current_stream()
    if wrong != "does not wait for the stream":
        side.wait_stream(current)
    with me.ctx.cuda.stream(side):
        y = me.x.clone()
        dist.all_reduce(y, me.op(step, wrong), group=me.group)
    me.x = me.x * 2  # Beside it.
    if wrong != "does not wait for the result":
        current.wait_stream(side)
    me.x = me.x + y


def late_group(me, step, wrong):
    """A group that only its members make, in the midst of the program."""
    group = dist.new_group(list(me.members), use_local_synchronization=True)
    x = me.x.clone()
    dist.all_reduce(x, group=group)
    me.x = x


def compute(me, step, wrong):
    me.x = me.x * 3 + me.me


def side_stream(me, step, wrong):
    side, current = me.ctx.cuda.Stream(), me.ctx.cuda.current_stream()
    if wrong != "does not wait for the stream":
        side.wait_stream(current)
    with me.ctx.cuda.stream(side):
        y = me.x * 2
    if wrong != "does not wait for the result":
        current.wait_stream(side)
    me.x = y + 1


def events(me, step, wrong):
    side, current = me.ctx.cuda.Stream(), me.ctx.cuda.current_stream()
    ready, done = me.ctx.cuda.Event(), me.ctx.cuda.Event()
    ready.record(current)
    if wrong != "does not wait for the stream":
        side.wait_event(ready)
    with me.ctx.cuda.stream(side):
        y = me.x + 5
        done.record(side)
    if wrong != "does not wait for the result":
        done.wait(current)
    me.x = y * 2


def host_read(me, step, wrong):
    me.x = me.x + int(me.x.sum().item()) % 7


CALL = ("skips", "calls twice", "takes another group", "returns early", "raises")
DATA = ("passes less", "passes another type")
WAIT = ("reads before the wait", "never waits")
STREAM = ("does not wait for the stream", "does not wait for the result")
KINDS = {
    "all_reduce": Kind(
        lambda s, b, _: np.repeat(REDUCE[s.op](b)[None], len(b), 0),
        all_reduce, *CALL, *DATA, *WAIT, "reduces otherwise",
    ),
    "overlap": Kind(
        lambda s, b, _: b * 2 + REDUCE[s.op](b), overlap, *CALL, "forgets the result"
    ),
    "broadcast": Kind(
        lambda s, b, _: np.repeat(b[s.root][None], len(b), 0),
        broadcast, *CALL, *DATA, *WAIT, "takes another root",
    ),
    "reduce": Kind(
        lambda s, b, _: _only_root(s, b, REDUCE[s.op](b)),
        reduce, *CALL, *DATA, "takes another root", "reduces otherwise",
    ),
    "all_gather": Kind(
        lambda _, b, __: np.repeat(b.sum(0)[None], len(b), 0), all_gather, *CALL, *DATA, *WAIT
    ),
    "reduce_scatter": Kind(
        lambda s, b, _: _scattered(b, REDUCE[s.op](b).reshape(len(b), -1)),
        reduce_scatter, *CALL, *DATA, *WAIT, "reduces otherwise",
    ),
    "all_to_all": Kind(lambda _, b, __: _exchanged(b), all_to_all, *CALL, *DATA, *WAIT),
    "gather": Kind(
        lambda s, b, _: _only_root(s, b, b.sum(0)), gather, *CALL, *DATA, "takes another root"
    ),
    "scatter": Kind(
        lambda s, b, _: b[s.root][None] + np.arange(len(b))[:, None],
        scatter, *CALL, "takes another root",
    ),
    "gather_list": Kind(
        lambda _, b, __: np.repeat(b.sum(0)[None], len(b), 0), gather_list, *CALL, *DATA, *WAIT
    ),
    "scatter_list": Kind(
        lambda s, b, _: _scattered(b, REDUCE[s.op](b).reshape(len(b), -1)),
        scatter_list, *CALL, *WAIT, "reduces otherwise",
    ),
    "uneven": Kind(lambda _, b, __: _uneven(b), uneven, *CALL, "splits otherwise"),
    "coalesced": Kind(
        lambda s, b, _: np.repeat(3 * REDUCE[s.op](b)[None], len(b), 0), coalesced,
        *CALL, "reduces otherwise", "reads before the wait", backends=("nccl",),
    ),
    "broadcast_objects": Kind(
        lambda s, b, _: np.repeat(b[s.root][None] + s.root, len(b), 0), broadcast_objects,
        *CALL, "takes another root",
    ),
    "tags": Kind(
        lambda _, b, __: 3 * np.roll(b, 1, 0) + 5, tags, *CALL, "takes another tag",
        backends=("gloo",),
    ),
    "side_collective": Kind(
        lambda s, b, _: b * 2 + REDUCE[s.op](b), side_collective, *CALL, *STREAM,
        backends=("nccl",),
    ),
    "late_group": Kind(
        lambda _, b, __: np.repeat(b.sum(0)[None], len(b), 0), late_group,
        "skips", "returns early", "raises",
    ),
    "barrier": Kind(lambda _, b, __: b, barrier, *CALL),
    "objects": Kind(lambda _, b, __: b + sum(range(len(b))), objects, *CALL),
    "ring_batch": Kind(
        lambda _, b, __: b + np.roll(b, 1, 0), ring_batch, *CALL, "takes another peer",
        backends=("nccl",),
    ),
    "ring_async": Kind(
        lambda _, b, __: b + np.roll(b, 1, 0), ring_async, *CALL, "takes another peer",
        "reads before the wait",
    ),
    "pairs": Kind(lambda _, b, __: _paired(b), pairs, *CALL, "sends once more",
                  "turns the order around"),
    "pipeline": Kind(lambda _, b, __: b.cumsum(0), pipeline, *CALL),
    "compute": Kind(lambda _, b, __: b * 3 + np.arange(len(b))[:, None], compute, "raises"),
    "side_stream": Kind(lambda _, b, __: b * 2 + 1, side_stream, *STREAM, backends=("nccl",)),
    "events": Kind(lambda _, b, __: (b + 5) * 2, events, *STREAM, backends=("nccl",)),
    "host_read": Kind(lambda _, b, __: b + (b.sum(1) % 7)[:, None], host_read, "raises"),
}  # fmt: skip


# ---- drawing ----


def random_plan(seed):
    """Return the plan of a seed."""
    rng = np.random.default_rng(seed)
    world_size = int(rng.choice([2, 3, 4, 6, 8]))
    backend = str(rng.choice(["nccl", "nccl", "gloo"]))
    groups = [tuple(range(world_size))]
    for _ in range(int(rng.integers(0, 3))):
        sizes = [size for size in (2, 3, 4) if size <= world_size]
        members = rng.choice(world_size, size=int(rng.choice(sizes)), replace=False)
        groups.append(tuple(sorted(int(member) for member in members)))
    kinds = [name for name, kind in KINDS.items() if backend in kind.backends]
    steps = []
    for _ in range(int(rng.integers(2, 9))):
        group = int(rng.integers(len(groups)))
        steps.append(
            Step(
                kind=str(rng.choice(kinds)),
                group=group,
                root=int(rng.integers(len(groups[group]))),
                op=str(rng.choice(["sum", "max", "min"])),
                is_async=bool(rng.integers(2)),
            )
        )
    return Plan(world_size, backend, tuple(groups), tuple(steps))


def random_mistake(plan, seed):
    """Return a mistake that can be made in a plan, or None if there is none."""
    rng = np.random.default_rng([seed, 1])
    possible = [
        (kind, rank, index)
        for index, step in enumerate(plan.steps)
        for rank in plan.groups[step.group]
        for kind in KINDS[step.kind].wrongs
        if _is_mistake(plan, step, rank, kind)
    ]
    return Mistake(*possible[int(rng.integers(len(possible)))]) if possible else None


def _is_mistake(plan, step, rank, kind):
    """Return whether it is one at this place: some need a certain form of the step."""
    members = plan.groups[step.group]
    me = members.index(rank)
    if kind in ("reads before the wait", "never waits") and step.kind != "ring_async":
        if step.kind == "coalesced":
            return True
        if not step.is_async:
            return False
        return not (step.kind == "broadcast" and me == step.root)  # Which only reads it.
    if step.kind == "pairs":
        has_partner = me ^ 1 < len(members)
        return has_partner or kind == "raises"
    if kind == "takes another peer":
        return len(members) > 2
    if kind == "splits otherwise":
        return len(set(uneven_splits(len(members))[me])) > 1
    return True


def run(plan, mistake=None, **options):
    """Run a plan on simulated ranks; return each rank's values and what was found."""
    outputs = [None] * plan.world_size
    with simrank.Context(**{"races": "error", "strict": True} | options) as ctx:
        args = (ctx, plan, mistake, outputs)
        ctx.multiprocessing.spawn(on_rank, args, nprocs=plan.world_size, share_args=True)
    return outputs, ctx.findings


def on_rank(rank, ctx, plan, mistake, outputs):
    """Run one rank's part."""
    outputs[rank] = Rank(rank, plan, mistake, ctx).run()
