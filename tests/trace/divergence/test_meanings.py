"""Names under which ranks make equal calls: keys and loop variables, under `checks="all"`."""

import pytest

import simrank
import simrank.distributed as dist


def findings_of(program):
    """Return the findings of a program on two ranks."""
    with simrank.Context("hgx_h100", divergence=True) as ctx:
        ctx.multiprocessing.spawn(in_group, args=(program,), nprocs=2)
    return [finding for finding in ctx.findings if "different things" in finding]


def in_group(rank, program):
    dist.init_process_group("nccl")
    program(rank)
    dist.destroy_process_group()


def reduced(value):
    dist.all_reduce(value)


class Metrics:
    def __init__(self, names):
        self.held = {name: simrank.ones(1) for name in names}

    def reduce(self):
        for value in self.held.values():
            reduced(value)


def keys_in_another_order(rank):
    for name in ("loss", "length") if rank else ("length", "loss"):
        reduced(simrank.full((1,), float(len(name))))


def other_keys(rank):
    for name in ("length", "reward") if rank else ("format", "reward"):
        reduced(simrank.full((1,), float(len(name))))


def values_of_a_dict(rank):
    Metrics(("a", "b") if rank else ("b", "a")).reduce()


def given(rank):
    def reduce(key, value):
        reduced(value)

    reduce("a" if rank else "b", simrank.ones(1))
    reduce("b" if rank else "a", simrank.ones(1))


def layers_in_another_order(rank):
    for layer in (0, 1, 2) if rank else (0, 2, 1):
        reduced(simrank.full((1,), float(layer)))


def in_a_comprehension(rank):
    return [reduced(simrank.ones(1)) for name in (("a", "b") if rank else ("b", "a"))]


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        (keys_in_another_order, "rank 0: name = 'length'"),
        (other_keys, "rank 1: name = 'length'"),
        (values_of_a_dict, "rank 0: the key of value = 'b'"),
        (given, "rank 1: key = 'a'"),
        (layers_in_another_order, "rank 0: layer = 2"),
        (in_a_comprehension, "rank 0: name = 'b'"),
    ],
)
def test_equal_calls_under_different_names_are_a_finding(program, shown):
    """It names the first such call once, with what each rank is at, and its line."""
    (finding,) = findings_of(program)
    assert finding.strip().startswith("equal calls for different things (suspected), all_reduce #")
    assert shown in finding
    assert finding.count("test_meanings.py:") == 2


def a_name_of_each_rank(rank):
    def on(device, value):
        reduced(value)

    for _ in range(3):
        on(f"cuda:{rank}", simrank.ones(1))


def shards(rank):
    for sample in range(rank, 6, 2):
        reduced(simrank.full((1,), float(sample)))


def texts(rank):
    for prompt in ("what is it", "why though") if rank else ("why though", "what is it"):
        reduced(simrank.full((1,), float(len(prompt))))


def a_role(rank):
    def report(role):
        reduced(simrank.ones(1))

    for _ in range(2):
        report("worker" if rank else "leader")


def stages(rank):
    for name in (f"layers.{2 * rank}.weight", f"layers.{2 * rank + 1}.weight"):
        reduced(simrank.full((1,), float(len(name))))


def counts(rank):
    for value in {"seen": 4 + rank, "skipped": 2, "kept": 3 - rank}.values():
        reduced(simrank.full((1,), float(value)))


def lengths(rank):
    for length in (5, 7, 8) if rank else (5, 6, 9):
        reduced(simrank.full((1,), float(length)))


def tasks(rank):
    def step(task):
        reduced(simrank.full((1,), float(len(task))))

    for sampled in "abbaab" if rank else "bbabba":
        step(sampled)


def shuffled_epochs(rank):
    for epoch in range(3):
        for file in ("a", "b", "c") if (rank + epoch) % 2 else ("c", "a", "b"):
            reduced(simrank.full((1,), float(len(file))))


@pytest.mark.parametrize(
    "program",
    [a_name_of_each_rank, shards, texts, a_role, stages, counts, lengths, tasks, shuffled_epochs],
)
def test_what_each_rank_has_of_its_own_is_none(program):
    """Devices, parts of a data set, texts, roles, stages and samples differ in right programs."""
    assert findings_of(program) == []


def test_spawns_are_not_compared_with_each_other():
    """Their groups have the same name; with fewer ranks, those left out would seem to differ."""
    with simrank.Context("hgx_h100", divergence=True) as ctx:
        for num_ranks in (4, 2):
            ctx.multiprocessing.spawn(in_group, args=(equal_names,), nprocs=num_ranks)
    assert ctx.findings == []


def equal_names(rank):
    for name in ("a", "b"):
        reduced(simrank.full((1,), float(len(name))))


def test_other_levels_do_not_look_at_names():
    """It is part of the deepest level: the program's variables are read at each call."""
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(in_group, args=(keys_in_another_order,), nprocs=2)
    assert ctx.findings == []
