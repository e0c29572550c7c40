"""One table of c10d programs, for the simulator and for real gloo processes alike.

A program takes a module like torch.distributed, a tensor factory, a group and a case, and returns
plain values; what it raises counts as its result. `python c10d.py FILE` runs the table on real
processes and pickles the results of each rank.
"""

import pickle
import sys
from dataclasses import dataclass
from functools import partial
from itertools import product

WORLD = 4
PART = [0, 2]
DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool", "int16",
)  # fmt: skip
REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
SHAPES = {"vector": (4,), "empty": (0,), "matrix": (2, 4), "transposed": (4, 2), "scalar": ()}
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
COPYING = (
    "broadcast", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single",
    "gather", "scatter", "sendrecv", "isendirecv", "batch",
)  # fmt: skip
OTHERS = (
    "any_source", "tags", "all_gather_object", "broadcast_object_list", "gather_object",
    "scatter_object_list", "send_object_list", "uneven_all_to_all_single", "work", "groups",
    "barrier", "wrong_arguments", "coalesced", "coalesced_mixed", "futures", "coalesced_functions",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    op: str
    dtype: str = "float32"
    reduce_op: str = "SUM"
    is_async: bool = False
    in_part: bool = False
    shape: str = "vector"


def cases():
    """Return the table."""
    found = []
    for op, dtype, reduce_op in product(REDUCING, DTYPES, REDUCE_OPS):
        found.append(Case(op, dtype, reduce_op))
    for op, dtype in product(COPYING, DTYPES):
        found.append(Case(op, dtype))
    for op, is_async, in_part, shape in product(
        REDUCING + COPYING, (False, True), (False, True), SHAPES
    ):
        # torch's gloo dies of the one and refuses the other; nccl takes both.
        if shape != "scalar" or op not in ("reduce_scatter_tensor", "all_gather_into_tensor"):
            found.append(Case(op, is_async=is_async, in_part=in_part, shape=shape))
    for op, in_part in product(OTHERS, (False, True)):
        found.append(Case(op, in_part=in_part))
    return list(dict.fromkeys(found))


class Setting:
    """What a program runs in."""

    def __init__(self, dist, factory, group, case):
        self.dist, self.factory, self.group, self.case = dist, factory, group, case
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.ranks = dist.get_process_group_ranks(group)
        self.root = self.ranks[-1]

    def tensor(self, seed, rows=1):
        """Return a tensor of the case's shape and dtype, `rows` times as long in dim 0."""
        shape = SHAPES[self.case.shape]
        if rows != 1:
            shape = (shape[0] * rows, *shape[1:]) if shape else (rows,)
        count = 1
        for size in shape:
            count *= size
        values = [(seed + index) % 3 + (self.case.reduce_op != "BXOR") for index in range(count)]
        if self.case.dtype == "bool":
            values = [value % 2 == 0 for value in values]
        tensor = self.factory(values, self.case.dtype)
        if self.case.shape == "transposed":
            return tensor.reshape(shape[1], shape[0]).t()
        return tensor.reshape(shape)

    def empty(self, rows=1):
        """Return such a tensor full of something else."""
        return self.tensor(7, rows)

    def keywords(self):
        """Return the arguments that most calls take."""
        return {"group": self.group, "async_op": self.case.is_async}

    def newer(self, name, earlier):
        """Return a function that torch before 2.13 has by an earlier name only."""
        return getattr(self.dist, name, None) or getattr(self.dist, earlier)

    def reduce_op(self):
        """Return the reduction of the case."""
        return getattr(self.dist.ReduceOp, self.case.reduce_op)


def done(work):
    """Wait for what an asynchronous call returned."""
    if work is not None:
        work.wait()


def plain(value):
    """Return tensors, also in lists, as numbers."""
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value.tolist() if hasattr(value, "tolist") else value


def all_reduce(s):
    x = s.tensor(s.rank)
    done(s.dist.all_reduce(x, op=s.reduce_op(), **s.keywords()))
    return x


def reduce(s):
    x = s.tensor(s.rank)
    done(s.dist.reduce(x, s.root, op=s.reduce_op(), **s.keywords()))
    return x if s.rank == s.size - 1 else None  # Elsewhere it is anything.


def reduce_scatter(s):
    out = s.empty()
    inputs = [s.tensor(s.rank + index) for index in range(s.size)]
    done(s.dist.reduce_scatter(out, inputs, op=s.reduce_op(), **s.keywords()))
    return out


def reduce_scatter_tensor(s):
    out, x = s.empty(), s.tensor(s.rank, s.size)
    call = s.newer("reduce_scatter_single", "reduce_scatter_tensor")
    done(call(out, x, op=s.reduce_op(), **s.keywords()))
    return out


def broadcast(s):
    x = s.tensor(s.rank)
    done(s.dist.broadcast(x, s.root, **s.keywords()))
    return x


def all_gather(s):
    out = [s.empty() for _ in range(s.size)]
    done(s.dist.all_gather(out, s.tensor(s.rank), **s.keywords()))
    return out


def all_gather_into_tensor(s):
    out = s.empty(s.size)
    call = s.newer("all_gather_single", "all_gather_into_tensor")
    done(call(out, s.tensor(s.rank), **s.keywords()))
    return out


def all_to_all(s):
    out = [s.empty() for _ in range(s.size)]
    inputs = [s.tensor(s.rank + 2 * index) for index in range(s.size)]
    done(s.dist.all_to_all(out, inputs, **s.keywords()))
    return out


def all_to_all_single(s):
    out = s.empty(s.size)
    done(s.dist.all_to_all_single(out, s.tensor(s.rank, s.size), **s.keywords()))
    return out


def uneven_all_to_all_single(s):
    sends = [(s.rank + index) % 3 for index in range(s.size)]
    x, out = s.factory(list(range(sum(sends))), "int64"), s.factory([0] * sum(sends), "int64")
    done(s.dist.all_to_all_single(out, x, sends, sends, **s.keywords()))
    return out


def gather(s):
    is_root = s.rank == s.size - 1
    out = [s.empty() for _ in range(s.size)] if is_root else None
    done(s.dist.gather(s.tensor(s.rank), out, s.root, **s.keywords()))
    return out


def scatter(s):
    is_root = s.rank == s.size - 1
    inputs = [s.tensor(index) for index in range(s.size)] if is_root else None
    out = s.empty()
    done(s.dist.scatter(out, inputs, s.root, **s.keywords()))
    return out


def sendrecv(s):
    x = s.tensor(s.rank)
    if s.rank == 0:
        s.dist.send(x, s.root, group=s.group)
    if s.rank == s.size - 1:
        return [s.dist.recv(x, s.ranks[0], group=s.group), x]
    return None


def isendirecv(s):
    x, out = s.tensor(s.rank), s.empty()
    after, before = s.ranks[(s.rank + 1) % s.size], s.ranks[s.rank - 1]
    works = [s.dist.isend(x, after, group=s.group), s.dist.irecv(out, before, group=s.group)]
    return [[work.wait() for work in works], out]


def batch(s):
    x, out = s.tensor(s.rank), s.empty()
    after, before = s.ranks[(s.rank + 1) % s.size], s.ranks[s.rank - 1]
    entries = [
        s.dist.P2POp(s.dist.isend, x, after, s.group),
        s.dist.P2POp(s.dist.irecv, out, before, s.group),
    ]
    for work in s.dist.batch_isend_irecv(entries):
        work.wait()
    return out


def any_source(s):
    if s.rank:
        s.dist.send(s.tensor(s.rank), s.ranks[0], group=s.group)
        return None
    found = {}
    for _ in range(s.size - 1):
        x = s.empty()
        found[s.dist.recv(x, group=s.group)] = plain(x)
    return sorted(found.items())


def tags(s):
    x, y = s.tensor(1), s.tensor(2)
    if s.rank == 0:
        works = [s.dist.isend(x, s.root, s.group, 1), s.dist.isend(y, s.root, s.group, 2)]
        return [work.wait() for work in works]
    if s.rank == s.size - 1:
        s.dist.recv(x, s.ranks[0], s.group, 2)
        s.dist.recv(y, s.ranks[0], s.group, 1)
        return [x, y]
    return None


def all_gather_object(s):
    out = [None] * s.size
    s.dist.all_gather_object(out, {"rank": s.rank, "text": "x" * s.rank}, group=s.group)
    return out


def broadcast_object_list(s):
    values = [s.rank, {"a": [s.rank]}]
    s.dist.broadcast_object_list(values, src=s.root, group=s.group)
    return values


def gather_object(s):
    out = [None] * s.size if s.rank == s.size - 1 else None
    s.dist.gather_object(("of", s.rank), out, dst=s.root, group=s.group)
    return out


def scatter_object_list(s):
    out = [None]
    values = [{"for": index} for index in range(s.size)] if s.rank == s.size - 1 else None
    s.dist.scatter_object_list(out, values, src=s.root, group=s.group)
    return out


def send_object_list(s):
    values = [s.rank, "text", None]
    if s.rank == 0:
        s.dist.send_object_list(values, s.root, group=s.group)
    if s.rank == s.size - 1:
        return [s.dist.recv_object_list(values, s.ranks[0], group=s.group), values]
    return None


def work(s):
    x = s.tensor(s.rank)
    handle = s.dist.all_reduce(x, group=s.group, async_op=True)
    return [handle.wait(), handle.is_completed(), x]


def ask(handle, name):
    return getattr(handle, name)()


def coalesced(s):
    """Return what calls inside a manager give: results, and what their Works refuse."""
    dist, size = s.dist, s.size
    reduced = [s.tensor(s.rank + shift) for shift in range(2)]
    gathered, parts = [s.empty(size) for _ in range(2)], [s.empty() for _ in range(2)]
    refused = []
    with dist._coalescing_manager(group=s.group, async_ops=True) as manager:
        for x in reduced:
            held = dist.all_reduce(x, group=s.group, async_op=True)
            refused += [result_of(partial(ask, held, name)) for name in ("wait", "result")]
    manager.wait()
    with dist._coalescing_manager(group=s.group):
        for output, x in zip(gathered, reduced, strict=True):
            refused.append(dist.all_gather_into_tensor(output, x, group=s.group))
    with dist._coalescing_manager(group=s.group):
        for output, x in zip(parts, gathered, strict=True):
            dist.reduce_scatter_tensor(output, x, group=s.group)
    return [reduced, gathered, parts, refused, len(manager.works)]


def coalesced_mixed(s):
    dist, x = s.dist, s.tensor(0)

    def mixed():
        with dist._coalescing_manager(group=s.group):
            dist.all_reduce(x, group=s.group)
            dist.all_gather_into_tensor(s.empty(s.size), x, group=s.group)

    def nothing():
        with dist._coalescing_manager(group=s.group, async_ops=True) as manager:
            pass
        return manager.works

    return [result_of(mixed), result_of(nothing)]


def futures(s):
    x, seen = s.tensor(s.rank), []
    future = s.dist.all_reduce(x, group=s.group, async_op=True).get_future()
    then = future.then(lambda done: [2 * value for value in done.value()[0].tolist()])
    future.add_done_callback(lambda done: seen.append(done.done()))
    failing = future.then(lambda done: 1 / 0)
    results = [future.wait(), then.wait(), future.done(), future.value(), x]
    return [*results, seen, result_of(failing.wait)]


def coalesced_functions(s):
    dist = s.dist
    tensors = [s.tensor(s.rank), s.tensor(s.rank + 1, 2)]
    first = dist.all_reduce_coalesced(tensors, group=s.group)
    future = dist.all_reduce_coalesced(tensors, group=s.group, async_op=True)
    second = future.wait()
    outputs = [[s.empty(), s.empty(2)] for _ in range(s.size)]
    dist.all_gather_coalesced(outputs, tensors, group=s.group)
    return [first, second, outputs]


def barrier(s):
    return s.dist.barrier(s.group)


def groups(s):
    return [
        s.dist.get_backend(s.group), s.dist.get_rank(s.group), s.dist.get_world_size(s.group),
        s.dist.get_process_group_ranks(s.group),
        [s.dist.get_group_rank(s.group or s.dist.group.WORLD, rank) for rank in s.ranks],
        s.dist.get_global_rank(s.group or s.dist.group.WORLD, s.size - 1), s.dist.is_initialized(),
    ]  # fmt: skip


def wrong_arguments(s):
    dist, x = s.dist, s.tensor(0)
    calls = [
        lambda: dist.all_reduce(3),
        lambda: dist.all_gather(3, x),
        lambda: dist.all_gather([x] * (s.size + 1), x, group=s.group),
        lambda: dist.all_gather([x] * s.size, s.factory([1] * 4, "int32"), group=s.group),
        lambda: dist.reduce_scatter(x, [x] * (s.size + 1), group=s.group),
        lambda: dist.all_to_all([x] * (s.size + 1), [x] * s.size, group=s.group),
        lambda: dist.all_to_all_single(x, x, [1, 1], [3], group=s.group),
        lambda: dist.gather(x, [x] * s.size if s.rank else None, s.ranks[0], group=s.group),
        lambda: dist.scatter(x, [x] * s.size if s.rank else None, s.ranks[0], group=s.group),
        lambda: dist.send(x, s.ranks[s.rank], group=s.group),
        lambda: dist.broadcast(x, s.ranks[0], group=s.group, group_src=0),
        lambda: dist.broadcast(x, group=s.group),
        lambda: dist.new_group([0, 0]),
        lambda: dist.new_group([0, 99]),
        lambda: dist.new_group([0], timeout=3),
        lambda: dist.P2POp(dist.send, x, 0),
        lambda: dist.batch_isend_irecv([3]),
        lambda: dist.new_subgroups(3),
        lambda: dist.get_global_rank(s.group or dist.group.WORLD, 99) if s.group else 1 / 0,
        lambda: dist.init_process_group("gloo"),
    ]
    return [result_of(call) for call in calls]


def result_of(call):
    """Return what a call returns, or the type of what it raises."""
    try:
        return plain(call())
    except Exception as error:  # noqa: BLE001 - the result
        return f"raises {type(error).__name__}"


def run_case(dist, factory, part, case):
    """Return one rank's result of a case; None where it is no member of the group."""
    if case.in_part and dist.get_rank() not in PART:
        return None
    setting = Setting(dist, factory, part if case.in_part else None, case)
    return result_of(lambda: globals()[case.op](setting))


def run_table(dist, factory, table):
    """Return one rank's results."""
    part = dist.new_group(PART)
    return [run_case(dist, factory, part, case) for case in table]


def _real_rank(rank, folder):
    import torch
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/store", WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    results = run_table(dist, lambda v, d: torch.tensor(v, dtype=getattr(torch, d)), cases())
    with open(f"{folder}/{rank}", "wb") as file:
        pickle.dump(results, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    from torch.multiprocessing import spawn

    spawn(_real_rank, (sys.argv[1],), nprocs=WORLD)
