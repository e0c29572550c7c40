"""The summary: where simulated time went, per set of equal ranks."""

import inspect
import time
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pytest

import simrank
import simrank.distributed as dist
from simrank.hardware.roofline import BY_BYTES
from simrank.ranks.folding import FoldedAxis, Folding
from simrank.trace import PeakMemory, Summary, summary_json, summary_text
from simrank.trace.summary import LateRanks


def summarised(program, nprocs=4):
    summary = Summary()
    with simrank.Context("hgx_h100", data=False) as ctx:
        ctx.observe(summary)
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs)
    peaks = {device.index: PeakMemory(device.memory.peak_bytes) for device in ctx.devices}
    return summary, ctx.now_ps, peaks


def program(rank, ctx):
    dist.init_process_group()
    large = ctx.empty((4096, 4096), dtype="bfloat16")
    small = ctx.empty(2**20)
    dist.all_reduce(small)
    product = large @ large
    if rank == 3:
        product = product @ large
    dist.all_reduce(small)
    ctx.synchronize()


def test_ranks_that_spent_their_time_alike_share_an_entry():
    """Rank 3 computed twice as long; the times add up to the run."""
    summary, end_ps, peaks = summarised(program)
    first, last = summary.ranks(end_ps, peaks)
    assert (first.ranks, last.ranks) == ((0, 1, 2), (3,))
    assert last.compute_us == pytest.approx(2 * first.compute_us, rel=1e-6)
    for times in (first, last):
        total = times.compute_us + times.exposed_communication_us + times.idle_us
        assert total == pytest.approx(end_ps / 1e6)
    assert last.peak_memory_bytes == 3 * 2 * 4096**2 + 4 * 2**20


def test_communication_under_compute_is_not_exposed():
    """An asynchronous all_reduce beside a longer matmul adds no exposed time."""

    def overlapped(rank, ctx):
        dist.init_process_group()
        large, small = ctx.empty((8192, 8192), dtype="bfloat16"), ctx.empty(1024)
        work = dist.all_reduce(small, async_op=True)
        large @ large
        work.wait()
        ctx.synchronize()

    summary, end_ps, peaks = summarised(overlapped)
    (times,) = summary.ranks(end_ps, peaks)
    assert times.compute_us > 1000
    assert times.exposed_communication_us < 10


def test_the_costliest_collectives_come_first():
    """By total time; calls of one size and algorithm are one entry."""

    def calls(rank, ctx):
        dist.init_process_group()
        for size, times in ((2**24, 1), (2**10, 3)):
            x = ctx.empty(size)
            for _ in range(times):
                dist.all_reduce(x)
        dist.broadcast(x, 0)

    summary, end_ps, peaks = summarised(calls)
    costs = summary.costliest()
    assert [(c.name, c.size_bytes, c.num_calls) for c in costs] == [
        ("all_reduce", 2**26, 1), ("all_reduce", 2**12, 3), ("broadcast", 2**12, 1),
    ]  # fmt: skip
    assert summary_json(summary, end_ps, peaks)["collectives"][0]["num_calls"] == 1
    text = summary_text(summary, end_ps, peaks)
    assert text.startswith("simulated time: ")
    assert "ranks 0-3: compute 0.000 us" in text


def test_the_costliest_kernels_come_first_with_their_shapes():
    """Calls of one operator are one entry per set of shapes, on the rank that spent most."""
    summary, end_ps, peaks = summarised(program)
    (cost,) = summary.costliest_kernels()
    assert (cost.name, cost.num_calls) == ("matmul", 2)
    assert f"costliest kernels:\n  matmul: 2 calls, {cost.total_us:.3f} us" in summary_text(
        summary, end_ps, peaks
    )
    shapes = [[4096, 1024], [1024, 512]], [[], [8], [2, 3], [4]]
    for each in (*shapes, shapes[0]):
        summary.on_operation(Issued("mm", {"shapes": each}, 0, 10**12))
    found = [(c.name, c.shapes, c.num_calls) for c in summary.costliest_kernels()[:2]]
    assert found == [("mm", "4096x1024, 1024x512", 2), ("mm", "1, 8, 2x3, 1 more", 1)]


class Issued(NamedTuple):
    """An operation as observers see it."""

    name: str
    details: dict[str, object]
    start_ps: int
    complete_ps: int
    rank: int = 0
    kind: str = "kernel"
    phase: str = ""
    flops: float = 0.0
    basis: str = ""
    ready_ps: int = 0


def test_what_is_charged_by_bytes_alone_is_named_with_its_share():
    """If it has more than 2 % of the kernels' time."""
    summary = Summary()
    summary.on_operation(Issued("mm", {}, 0, 98))
    summary.on_operation(Issued("sort.stable", {}, 98, 100, basis=BY_BYTES))
    assert summary.by_basis(BY_BYTES) == []
    summary.on_operation(Issued("sort", {}, 100, 102, basis=BY_BYTES))
    assert summary.by_basis(BY_BYTES) == [("sort", 4 / 102)]
    text = summary_text(summary, 102, {})
    assert "charged by their bytes alone, of the kernels' time: sort 3.9%" in text


def test_products_of_an_optimizer_are_no_model_flops():
    """As Muon's: they are not what the model needs."""
    summary = Summary()
    for number, (phase, flops) in enumerate(
        [("forward", 1e12), ("backward", 2e12), ("optimizer", 5e12)]
    ):
        summary.on_operation(Issued("mm", {}, number, number + 1, phase=phase, flops=flops))
    assert summary.steps().model_flops == 3e12


def test_ranks_that_waited_for_other_groups_are_not_alike():
    """Their times are equal in all, but not by group."""
    summary = Summary()
    for rank, group in enumerate("aab"):
        name = f"all_reduce on group '{group}'"
        summary.on_operation(Issued(name, {}, 0, 10**6, rank, "collective"))
    found = summary.ranks(10**6, {})
    assert [(times.ranks, times.exposed_by_group_us) for times in found] == [
        ((0, 1), {"a": 1.0}), ((2,), {"b": 1.0}),
    ]  # fmt: skip


def test_ranks_that_did_not_run_are_said():
    """As what they were taken: in the text, and whole in the data."""
    summary = Summary(Folding(16, [FoldedAxis("dp", 4, 4), FoldedAxis("tp", 4, 1, 1, (0,))]))
    not_run = summary_json(summary, 0, {})["not_run"]
    assert not_run == {"0": [4, 8, 12], "1": [2, 3, *(r for r in range(5, 16) if r % 4)]}
    text = summary_text(summary, 0, {})
    assert "not run: ranks 4, 8, 12, taken as rank 0; ranks 2-3, 5-7, " in text
    assert "not run" not in summary_text(Summary(), 0, {})
    assert summary_json(Summary(), 0, {})["not_run"] == {}


# ---- exposed communication: waiting for a late rank, and wire time ----


def line_of(function, text):
    """Return `file.py:number` of a line of a function."""
    lines, first = inspect.getsourcelines(function)
    (at,) = [number for number, line in enumerate(lines, first) if text in line]
    return f"{Path(__file__).name}:{at}"


def parts_ps(summary, end_ps, peaks):
    """Return the exposed, waiting and wire time of each rank, in picoseconds."""
    return {
        rank: tuple(
            round(us * 10**6)
            for us in (times.exposed_communication_us, times.waiting_us, times.wire_us)
        )
        for times in summary.ranks(end_ps, peaks)
        for rank in times.ranks
    }


def delayed(issue, late, seconds=0.005):
    """Return a program in which a rank sleeps before its call."""

    def work(rank, ctx):
        dist.init_process_group()
        if rank == late:
            time.sleep(seconds)
        issue(rank, ctx)
        ctx.synchronize()

    return work


def test_a_late_rank_is_named_with_its_line_and_its_time():
    """Rank 2 sleeps for 5 ms: the others wait for exactly that, and wire time is rank 2's own."""

    def reduce(rank, ctx):
        dist.all_reduce(ctx.empty(2**20))

    found = summarised(delayed(reduce, late=2))
    parts = parts_ps(*found)
    assert {rank: waiting for rank, (_, waiting, _) in parts.items()} == {
        0: 5 * 10**9, 1: 5 * 10**9, 2: 0, 3: 5 * 10**9,
    }  # fmt: skip
    assert all(waiting + wire == exposed for exposed, waiting, wire in parts.values())
    assert len({wire for _, _, wire in parts.values()}) == 1
    line = line_of(reduce, "all_reduce")
    (late,) = found[0].late_ranks(found[1])
    assert late == LateRanks((2,), line, 1, 5000.0, (0, 1, 3))
    text = summary_text(*found)
    assert f"late ranks:\n  rank 2 at {line}: 1 call, ranks 0-1, 3 waited 5000.000 us\n" in text
    assert "us (waiting for late ranks 5000.000, wire " in text
    assert summary_json(*found)["late_ranks"] == [asdict(late)]


def test_without_a_late_rank_all_exposed_communication_is_wire_time():
    """In text, too."""
    found = summarised(delayed(lambda rank, ctx: dist.all_reduce(ctx.empty(2**20)), late=None))
    for exposed, waiting, wire in parts_ps(*found).values():
        assert (waiting, wire) == (0, exposed)
        assert exposed > 0
    assert found[0].late_ranks(found[1]) == []
    assert "late ranks:" not in summary_text(*found)


def test_a_rank_waits_for_those_alone_that_it_needs():
    """A broadcast from rank 0: its root needs no member, and no member a late leaf."""

    def broadcast(rank, ctx):
        dist.broadcast(ctx.empty(1024), 0)

    of_root = parts_ps(*summarised(delayed(broadcast, late=0)))
    assert [of_root[rank][1] for rank in range(4)] == [0, 5 * 10**9, 5 * 10**9, 5 * 10**9]
    of_leaf = parts_ps(*summarised(delayed(broadcast, late=3)))
    assert of_leaf[0][1] == of_leaf[3][1] == 0
    for exposed, waiting, wire in (*of_root.values(), *of_leaf.values()):
        assert waiting + wire == exposed


@pytest.mark.parametrize(
    ("late", "size", "waiter"), [(0, 16, 1), (0, 2**26, 1), (1, 16, None), (1, 2**26, 0)]
)
def test_a_receiver_waits_for_its_sender_and_a_large_send_for_its_receiver(late, size, waiter):
    """A small send leaves without the receiver."""

    def message(rank, ctx):
        x = ctx.empty(size)
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)  # the message

    found = summarised(delayed(message, late), nprocs=2)
    parts = parts_ps(*found)
    waited = {rank: waiting for rank, (_, waiting, _) in parts.items() if waiting}
    assert waited == ({} if waiter is None else {waiter: 5 * 10**9})
    assert all(waiting + wire == exposed for exposed, waiting, wire in parts.values())
    line = line_of(message, "the message")
    expected = [] if waiter is None else [LateRanks((late,), line, 1, 5000.0, (waiter,))]
    assert found[0].late_ranks(found[1]) == expected


def test_ranks_that_were_late_alike_are_one_entry():
    """In one call, or in calls of two groups."""

    def reduce(rank, ctx):
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        if rank % 2:
            time.sleep(0.001)
        dist.all_reduce(ctx.empty(16), group=groups[rank // 2])

    (late,) = late_of(delayed(reduce, late=None))
    assert (late.ranks, late.waiting_us, late.waiting_ranks) == ((1, 3), 1000.0, (0, 2))


def late_of(program):
    summary, end_ps, _ = summarised(program)
    return summary.late_ranks(end_ps)
