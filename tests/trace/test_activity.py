"""How simulated time is divided between phases of a step and groups that communicate."""

import random
from typing import NamedTuple

from simrank.trace.activity import PHASES, RankOperations


class Done(NamedTuple):
    """An operation that has ended."""

    start_ps: int
    complete_ps: int
    phase: str = ""
    flops: float = 0.0


def drawn(rng):
    """Return random kernels and collectives, in the order of their ends."""
    kernels, collectives = [], []
    for _ in range(rng.randrange(1, 30)):
        start = rng.randrange(100)
        done = Done(start, start + rng.randrange(1, 25), rng.choice([*PHASES, ""]), 1.0)
        if rng.random() < 0.5:
            kernels.append(done)
        else:
            late = rng.randrange(3)
            ready = rng.randrange(start - 5, done.complete_ps + 5)
            collectives.append((done, rng.choice("abc"), ready, late))
    return kernels, collectives


def counted(kernels, collectives, begin, end):
    """Return the same by looking at each picosecond."""
    by_phase, by_group, by_late = dict.fromkeys([*PHASES, ""], 0), {}, {}
    for at in range(begin, end):
        running = [k for k in kernels if k.start_ps <= at < k.complete_ps]
        waiting = [each for each in collectives if each[0].start_ps <= at < each[0].complete_ps]
        if running:
            by_phase[min(running, key=lambda k: max(k.start_ps, begin)).phase] += 1
        elif waiting:
            _, group, ready, late = min(waiting, key=lambda each: each[0].complete_ps)
            by_group[group] = by_group.get(group, 0) + 1
            if at < ready:
                by_late[late] = by_late.get(late, 0) + 1
    return by_phase, by_group, by_late


def test_every_picosecond_has_one_owner():
    """The kernel that began first, else the collective that ends first: it waits, or it moves."""
    for seed in range(100):
        rng = random.Random(seed)
        kernels, collectives = drawn(rng)
        activity = RankOperations()
        for kernel in kernels:
            activity.computed(kernel)
        for collective in collectives:
            activity.communicated(*collective)
        begin = rng.choice([0, rng.randrange(60)])
        end = rng.randrange(begin + 1, 140)
        span = activity.span(begin, end)
        by_phase, by_group, by_late = counted(kernels, collectives, begin, end)
        assert span.compute_ps == sum(by_phase.values())
        assert span.exposed_ps == sum(by_group.values()) == sum(span.exposed_by_group_ps.values())
        assert dict(zip([*PHASES, ""], span.by_phase_ps, strict=True)) == by_phase
        assert span.exposed_by_group_ps == by_group
        assert span.waiting_ps == by_late
        inside = [k for k in kernels if begin <= k.start_ps < end]
        again = [k for k in inside if k.phase == "recomputation"]
        others = [k for k in inside if k.phase == "optimizer"]
        num = len(inside) - len(again) - len(others)
        assert (span.flops, span.recomputed_flops) == (num, len(again))


def test_a_step_ends_with_the_last_kernel_of_its_optimizers():
    """Two optimizers after one backward are one step; one without backward is none."""
    activity = RankOperations()
    phases = ["optimizer", "forward", "backward", "optimizer", "forward", "optimizer", "backward"]
    for number, phase in enumerate([*phases, "optimizer", "forward"]):
        activity.computed(Done(10 * number, 10 * number + 8, phase))
    assert activity.steps() == [(0, 58), (58, 78)]
    assert RankOperations().steps() == []


def test_sums_are_those_of_all_operations_so_far():
    """Asked twice, and again after another operation."""
    activity = RankOperations()
    activity.communicated(Done(0, 10), "a", 4, 0)
    assert activity.span(0, 100) == activity.span(0, 100)
    assert activity.span(0, 100).waiting_ps == {0: 4}
    activity.computed(Done(0, 3))
    assert activity.span(0, 100).waiting_ps == {0: 1}
    activity.communicated(Done(20, 30), "a", 25, 1)
    assert activity.span(0, 100).waiting_ps == {0: 1, 1: 5}
    assert activity.span(0, 22).waiting_ps == {0: 1, 1: 2}
