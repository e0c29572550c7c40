"""Random torch programs of all collectives, and one wrong program for each term of a contract.

A program is a list of steps for three ranks; a mutant changes one step of one rank, in one fact
that `simrank.distributed.contracts` says the ranks agree on. As a script: `contract_programs.py
SEED COUNT` prints the results of correct programs on real gloo processes, as JSON.
"""

import json
import random
import sys
import tempfile
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from simrank.distributed.contracts import CONTRACTS

WORLD = 3
DTYPES = ("float32", "float64", "int32", "int64")
REDUCTIONS = ("SUM", "MAX", "MIN")
FORMS = {  # The collective of each way to call it.
    "all_reduce": "all_reduce",
    "all_reduce functional": "all_reduce",
    "all_reduce coalesced": "all_reduce",
    "all_reduce coalesced functional": "all_reduce",
    "all_reduce managed": "all_reduce",
    "all_reduce managed with a device": "all_reduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "all_gather": "all_gather",
    "all_gather into a tensor": "all_gather",
    "all_gather in place": "all_gather",
    "all_gather managed": "all_gather",
    "all_gather managed with a device": "all_gather",
    "all_gather of unequal sizes": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter of a tensor": "reduce_scatter",
    "reduce_scatter in place": "reduce_scatter",
    "reduce_scatter managed": "reduce_scatter",
    "reduce_scatter of unequal sizes": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_all single": "all_to_all",
    "all_to_all functional": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
NCCL_ONLY = ("in place", "unequal", "managed with a device", "all_to_all", "managed")
GENERAL = ("skips it", "calls it twice", "calls another")


class Step(NamedTuple):
    """One call of one rank.

    Attributes:
        form: How it is called.
        dtype, reduction, root: As in torch.
        sizes: Elements of each tensor; of one that is gathered or scattered, of each part.
        splits: Elements that each rank sends to each, by rows; the own row and column are used.
        own: Elements added to what the rank sends to itself.
        shift: By how many slots an in-place part is away from the rank's.
        is_async: Whether it is called with `async_op=True`, and waited for.
    """

    form: str
    dtype: str
    reduction: str
    root: int
    sizes: tuple[int, ...]
    splits: tuple[tuple[int, ...], ...]
    own: int = 0
    shift: int = 0
    is_async: bool = False


class Mutant(NamedTuple):
    """A mistake: the term of the contract that is broken, and the plans of all ranks."""

    term: str
    rank: int
    plans: list[list[Step]]


def program_of(seed, backend):
    """Return a correct program."""
    draw = random.Random(seed)
    forms = [form for form in FORMS if backend == "nccl" or not any(n in form for n in NCCL_ONLY)]
    return [step_of(draw, draw.choice(forms)) for _ in range(draw.randint(2, 5))]


def step_of(draw, form):
    """Return a correct step; tensors of one call are of different sizes."""
    coalesces = "coalesced" in form or "managed" in form
    sizes = tuple(draw.sample(range(1, 12), draw.randint(2, 3) if coalesces else 1))
    splits = tuple(tuple(draw.randint(0, 4) for _ in range(WORLD)) for _ in range(WORLD))
    if "unequal" in form:
        row = tuple(draw.sample(range(1, 9), WORLD))
        splits = (row,) * WORLD
    reduction = draw.choice(REDUCTIONS)
    root, is_async = draw.randrange(WORLD), draw.random() < 0.3
    return Step(form, draw.choice(DTYPES), reduction, root, sizes, splits, is_async=is_async)


def terms_of(step):
    """Return the terms of a step's contract that a rank can break."""
    contract = CONTRACTS[FORMS[step.form]]
    terms = [*GENERAL, *contract.columns]
    if "unequal" in step.form or FORMS[step.form] == "all_to_all":
        terms = [each for each in terms if each != "count"] + ["splits", "splits to itself"]
    if len(step.sizes) > 1:
        terms.append("order")
    return [*terms, "in_place"] if "in place" in step.form else terms


def mutant_of(steps, seed):  # noqa: C901 - a case for each term
    """Return a program of which one rank gets one term of one step wrong."""
    draw = random.Random(seed)
    index, rank = draw.randrange(len(steps)), draw.randrange(WORLD)
    term = draw.choice(terms_of(steps[index]))
    plans = [list(steps) for _ in range(WORLD)]
    own, peer = plans[rank], (rank + 1) % WORLD
    step = own[index]
    if term == "skips it":
        del own[index]
    elif term == "calls it twice":
        own.insert(index, step)
    elif term == "calls another":
        kinds = [form for form, op in FORMS.items() if op != FORMS[step.form]]
        kind = draw.choice([form for form in kinds if not any(n in form for n in NCCL_ONLY)])
        own[index] = step_of(draw, kind)
    elif term == "reduce_op":
        own[index] = step._replace(reduction=_other(draw, REDUCTIONS, step.reduction))
    elif term == "root":
        own[index] = step._replace(root=_other(draw, range(WORLD), step.root))
    elif term == "dtype":
        own[index] = step._replace(dtype=_other(draw, DTYPES, step.dtype))
    elif term == "count":
        own[index] = step._replace(sizes=(step.sizes[0] + 1, *step.sizes[1:]))
    elif term == "order":
        own[index] = step._replace(sizes=step.sizes[1:] + step.sizes[:1])
    elif term == "in_place":
        own[index] = step._replace(shift=draw.randint(1, WORLD - 1))
    elif term == "splits to itself":
        own[index] = step._replace(own=1)
    else:
        rows = [list(row) for row in step.splits]
        rows[rank][peer] += 1
        own[index] = step._replace(splits=tuple(map(tuple, rows)))
    return Mutant(f"{step.form}: {term}", rank, plans)


def _other(draw, choices, chosen):
    return draw.choice([each for each in choices if each != chosen])


# ---- running ----


def values(rank, number, size, dtype, device):
    """Return the input of a rank: small integers, so that sums are exact."""
    numbers = torch.arange(size, dtype=torch.int64) * (rank + 2) + number
    return (numbers % 7 + 1).to(getattr(torch, dtype)).to(device)


def run_plan(steps, rank, device):
    """Run a rank's steps; return all that they fill, as lists."""
    results = []
    for number, step in enumerate(steps):
        filled = _run(step, rank, number, device)
        results.append([tensor.tolist() for tensor in filled])
    return results


def _run(step, rank, number, device):  # noqa: C901 - a case for each way to call
    """Make one call, and return what it fills."""
    redop, dtype = getattr(dist.ReduceOp, step.reduction), getattr(torch, step.dtype)
    op, is_root = FORMS[step.form], rank == step.root

    def own(size):
        return values(rank, number, size, step.dtype, device)

    def room(size):
        return torch.zeros(size, dtype=dtype, device=device)

    def done(work):
        if step.is_async and work is not None:
            work.wait()

    later = {"async_op": step.is_async}
    if op == "barrier":
        dist.barrier()
        return []
    if "functional" in step.form:
        return _run_functional(step, own, rank)
    if "managed" in step.form:
        return _run_managed(step, own, room, device, redop)
    size = step.sizes[0]
    if step.form == "all_reduce coalesced":
        tensors = [own(each) for each in step.sizes]
        done(dist.all_reduce_coalesced(tensors, redop, **later))
        return tensors
    if op in ("all_reduce", "reduce", "broadcast"):
        tensor = own(size)
        root = () if op == "all_reduce" else (step.root,)
        reduction = () if op == "broadcast" else (redop,)
        done(getattr(dist, op)(tensor, *root, *reduction, **later))
        return [] if op == "reduce" and not is_root else [tensor]
    if op == "gather":
        parts = [room(size) for _ in range(WORLD)] if is_root else None
        done(dist.gather(own(size), parts, step.root, **later))
        return parts or []
    if op == "scatter":
        parts = [own(size) + k for k in range(WORLD)] if is_root else None
        target = room(size)
        done(dist.scatter(target, parts, step.root, **later))
        return [target]
    if op == "all_gather":
        return _run_all_gather(step, own, room, rank, later, done)
    if op == "reduce_scatter":
        return _run_reduce_scatter(step, own, room, rank, later, done, redop)
    return _run_all_to_all(step, own, room, rank, later, done)


def _run_all_gather(step, own, room, rank, later, done):
    size = step.sizes[0]
    if "unequal" in step.form:
        row = step.splits[rank]
        parts = [room(each) for each in row]
        done(dist.all_gather(parts, own(row[rank] + step.own), **later))
        return parts
    if step.form == "all_gather":
        parts = [room(size) for _ in range(WORLD)]
        done(dist.all_gather(parts, own(size), **later))
        return parts
    whole, part = room(WORLD * size), own(size)
    if "in place" in step.form:
        slot = (rank + step.shift) % WORLD
        whole[slot * size : (slot + 1) * size] = part
        part = whole[slot * size : (slot + 1) * size]
    done(dist.all_gather_into_tensor(whole, part, **later))
    return [whole]


def _run_reduce_scatter(step, own, room, rank, later, done, redop):
    size = step.sizes[0]
    if "unequal" in step.form:
        row = step.splits[rank]
        target = room(row[rank] + step.own)
        done(dist.reduce_scatter(target, [own(each) for each in row], redop, **later))
        return [target]
    if step.form == "reduce_scatter":
        target = room(size)
        done(dist.reduce_scatter(target, [own(size) + k for k in range(WORLD)], redop, **later))
        return [target]
    whole, target = own(WORLD * size), room(size)
    if "in place" in step.form:
        slot = (rank + step.shift) % WORLD
        target = whole[slot * size : (slot + 1) * size]
    done(dist.reduce_scatter_tensor(target, whole, redop, **later))
    return [target]


def _splits(step, rank):
    """Return the split sizes of a rank: sent to each peer, expected from each peer."""
    sends = list(step.splits[rank])
    expects = [row[rank] for row in step.splits]
    sends[rank] += step.own
    return sends, expects


def _run_all_to_all(step, own, room, rank, later, done):
    sends, expects = _splits(step, rank)
    if step.form == "all_to_all":
        parts = [room(each) for each in expects]
        done(dist.all_to_all(parts, [own(each) for each in sends], **later))
        return parts
    target = room(sum(expects))
    done(dist.all_to_all_single(target, own(sum(sends)), expects, sends, **later))
    return [target]


def _run_functional(step, own, rank):
    group = dist.group.WORLD
    if step.form == "all_to_all functional":
        sends, expects = _splits(step, rank)
        found = functional.all_to_all_single(own(sum(sends)), expects, sends, group)
        return [functional.wait_tensor(found)]
    if "coalesced" in step.form:
        given = [own(each) for each in step.sizes]
        found = functional.all_reduce_coalesced(given, step.reduction.lower(), group)
        return [functional.wait_tensor(each) for each in found]
    found = functional.all_reduce(own(step.sizes[0]), step.reduction.lower(), group)
    return [functional.wait_tensor(found)]


def _run_managed(step, own, room, device, redop):
    op = FORMS[step.form]
    with_device = torch.device(device) if "device" in step.form else None
    given = [own(each * (WORLD if op == "reduce_scatter" else 1)) for each in step.sizes]
    filled = [room(each * (WORLD if op == "all_gather" else 1)) for each in step.sizes]
    with dist._coalescing_manager(None, with_device, step.is_async) as manager:
        for source, target in zip(given, filled, strict=True):
            if op == "all_reduce":
                dist.all_reduce(source, redop)
            elif op == "all_gather":
                dist.all_gather_into_tensor(target, source)
            else:
                dist.reduce_scatter_tensor(target, source, redop)
    if step.is_async:
        manager.wait()
    return given if op == "all_reduce" else filled


# ---- the right results ----


def expected(steps, rank):
    """Return the right results of `run_plan` on a rank."""
    return [_expected(step, rank, number) for number, step in enumerate(steps)]


def _expected(step, rank, number):  # noqa: C901 - a case for each collective
    op = FORMS[step.form]

    def given(peer, size):
        return values(peer, number, size, step.dtype, "cpu")

    def combine(tensors):
        stacked = torch.stack(tensors)
        if step.reduction == "SUM":
            return stacked.sum(0).to(stacked.dtype)
        return stacked.amax(0) if step.reduction == "MAX" else stacked.amin(0)

    def parts(size):
        return [given(peer, size) for peer in range(WORLD)]

    if op == "barrier" or (op in ("reduce", "gather") and rank != step.root):
        return []
    if op in ("all_reduce", "reduce"):
        found = [combine(parts(each)) for each in step.sizes]
    elif op == "broadcast":
        found = [given(step.root, step.sizes[0])]
    elif op == "scatter":
        found = [given(step.root, step.sizes[0]) + rank]
    elif "unequal" in step.form and op == "all_gather":
        found = [given(peer, each) for peer, each in enumerate(step.splits[rank])]
    elif "unequal" in step.form:
        found = [combine(parts(step.splits[rank][rank]))]
    elif op == "all_to_all":
        found = _expected_exchange(step, rank, given)
    elif op == "gather" or step.form == "all_gather":
        found = parts(step.sizes[0])
    elif op == "all_gather":
        found = [torch.cat(parts(each)) for each in step.sizes]
    elif step.form == "reduce_scatter":
        found = [combine([part + rank for part in parts(step.sizes[0])])]
    else:
        wholes = [combine(parts(WORLD * each)) for each in step.sizes]
        found = [whole.chunk(WORLD)[rank] for whole in wholes]
    return [tensor.tolist() for tensor in found]


def _expected_exchange(step, rank, given):
    if step.form == "all_to_all":
        return [given(peer, row[rank]) for peer, row in enumerate(step.splits)]
    parts = []
    for peer, row in enumerate(step.splits):
        whole = given(peer, sum(row))
        parts.append(whole[sum(row[:rank]) : sum(row[: rank + 1])])
    return [torch.cat(parts)]


# ---- real processes ----


def _process(rank, folder, seeds):
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=WORLD)
    results = [run_plan(program_of(seed, "gloo"), rank, "cpu") for seed in seeds]
    with open(f"{folder}/{rank}.json", "w", encoding="utf-8") as file:
        json.dump(results, file)
    dist.destroy_process_group()


def main(first, count):
    """Print what real gloo processes compute, by rank and program."""
    with tempfile.TemporaryDirectory() as folder:
        seeds = range(first, first + count)
        torch.multiprocessing.spawn(_process, (folder, seeds), WORLD)
        results = []
        for rank in range(WORLD):
            with open(f"{folder}/{rank}.json", encoding="utf-8") as file:
                results.append(json.load(file))
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
