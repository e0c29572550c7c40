"""Two tracks side by side: where they meet again, and the last place where all was even."""

from array import array

import pytest

import simrank
import simrank.distributed as dist
from simrank.trace.divergence.compare import TrackPosition, Walk, line_before, without_unwinding
from simrank.trace.divergence.track import (
    CALL,
    COMM,
    EXIT,
    LINE,
    RAISED,
    CodeNumbers,
    Track,
    encode,
)

START = TrackPosition(0, 0)


def track(text):
    """Return a track: a number is a line, `(` and `)` a call and its end, letters are calls."""
    made = Track(0, CodeNumbers())
    kinds = {"(": encode(CALL, 7), ")": encode(EXIT, 7), "!": encode(EXIT, 7, RAISED)}
    for word in text.split():
        if word.isdecimal():
            made.events.append(encode(LINE, 7, int(word)))
        else:
            made.events.append(kinds.get(word) or encode(COMM, ord(word)))
    return made


def diverged_at(ours, theirs, matters=lambda _: True):
    return Walk(track(ours), track(theirs), matters).diverged_at(START)


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ("1 2 3 a 4 b", "1 2 4", TrackPosition(1, 1)),  # A call that the other one has gone past.
        ("1 2 3 4 b", "1 2 4 b", None),  # Rejoined, no call in the branch.
        (
            "1 2 3 a 4 5 6 b",
            "1 2 4 a 5 7 c",
            TrackPosition(5, 4),
        ),  # Equal again at 5; different after that.
        ("1 2 a", "1 2 a", None),
        ("1 2 a 3 a", "1 2 a 4", TrackPosition(2, 2)),  # Never together again.
        ("1 ( 2 3 a ) 4 5", "1 ( 2 ) 4 6", TrackPosition(2, 2)),  # In a call, which both have left.
        ("1 2 1 2 1 3", "1 2 1 3", None),  # A loop of another length, without a call.
    ],
)
def test_ranks_parted_for_good_at_the_last_even_place(ours, theirs, found):
    """Whichever of the two is asked about."""
    assert diverged_at(ours, theirs) == found
    swapped = None if found is None else TrackPosition(*reversed(found))
    assert diverged_at(theirs, ours) == swapped


def test_calls_that_do_not_matter_to_both_are_passed_over():
    """Of a group that one of them is no member of."""
    assert diverged_at("1 2 a 3 4", "1 2 3 4", lambda _: False) is None


def test_a_place_is_found_in_another_track():
    """By the place where both begin; None where the other one has never been."""
    ours, theirs = track("1 2 9 3 4"), track("1 2 8 8 3 5")
    assert Walk(ours, theirs, lambda _: False).aligned(START, 3) == 4
    assert Walk(ours, theirs, lambda _: False).aligned(START, 2) is None


def test_the_line_that_runs_is_the_frame_s_own():
    """Not one of what it has called."""
    events = track("1 ( 2 3 ) a").events
    assert line_before(events, 5) == 0
    assert line_before(events, 3) == 3
    assert line_before(array("q"), -1) is None


def test_frames_that_an_exception_has_left_are_none_of_the_way():
    """At the end only."""
    events = track("1 ( 2 ! 3 ( 4 ! !").events
    assert list(without_unwinding(events)) == list(events[:7])


# ---- Equal calls in opposite orders ----

WORLD = 3


def findings_of(program, *, divergence=True):
    """Return the findings of a program on three ranks."""
    with simrank.Context("hgx_h100", divergence=divergence) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=WORLD)
    return ctx.findings


def by_key(rank):
    dist.init_process_group("nccl")
    held = {"a": simrank.ones(4), "b": simrank.zeros(4)}
    for name in sorted(held, reverse=rank == 1):
        dist.broadcast(held[name], 0)
    dist.destroy_process_group()


def first(x):
    dist.all_reduce(x)


def second(x):
    dist.all_reduce(x)


def by_function(rank):
    dist.init_process_group("nccl")
    calls = (first, second) if rank != 1 else (second, first)
    for call in calls:
        call(simrank.ones(4))
    dist.destroy_process_group()


def test_tensors_of_a_container_in_opposite_orders_are_a_finding():
    """Named by where the program keeps them; without the option nothing is compared."""
    (found,) = findings_of(by_key)
    assert "broadcast #1 and #2 on 'default_pg'" in found
    assert "rank 0: first held['a'], then held['b'] at test_compare.py:" in found
    assert "rank 1: first held['b'], then held['a'] at test_compare.py:" in found
    assert findings_of(by_key, divergence=False) == []


def test_lines_in_opposite_orders_are_a_finding():
    """Where no container tells the tensors apart."""
    (found,) = findings_of(by_function)
    ours, theirs = (f.__code__.co_firstlineno + 1 for f in (first, second))
    assert f"rank 0: first line {ours}, then line {theirs}" in found


def branches(rank, held):
    if rank == 0:
        dist.broadcast(held["a"], 0)
    else:
        dist.broadcast(held["b"], 0)


def rotating_roots(rank, held):
    for root in range(WORLD):
        if rank == root:
            dist.broadcast(held["a"], root)
        else:
            dist.broadcast(held["b"], root)


def rotating_roles(rank, held):
    for step in range(2 * WORLD):
        if step % WORLD == rank:
            dist.all_reduce(held["a"])
        else:
            dist.all_reduce(held["b"])


def own_parts(rank, held):
    outputs = [simrank.zeros(4) for _ in range(WORLD)]
    parts = [simrank.ones(4) for _ in range(WORLD)]
    for step in range(WORLD):
        dist.all_gather(outputs, parts[(rank + step) % WORLD])


def double_buffers(rank, held):
    buffers = [held["a"], held["b"]]
    for step in range(4):
        dist.all_reduce(buffers[step % 2])


@pytest.mark.parametrize(
    "body", [branches, rotating_roots, rotating_roles, own_parts, double_buffers]
)
def test_programs_that_are_right_get_no_finding(body):
    """Branches, roles that rotate, parts that each rank chooses for itself, buffers in turn."""

    def program(rank):
        dist.init_process_group("nccl")
        body(rank, {"a": simrank.ones(4), "b": simrank.zeros(4)})
        dist.destroy_process_group()

    assert findings_of(program) == []
