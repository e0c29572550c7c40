"""Schedules proved without numbers, and what is said of wrong ones."""

from dataclasses import replace

import numpy as np
import pytest

from simrank.collectives import Problem, algorithms_for, build
from simrank.collectives.problem import COLLECTIVES, GATHERED
from simrank.collectives.proof import content_text, prove
from simrank.collectives.schedule import Buffer, ChunkTable, Op, Round, Schedule


def lines_of_the_table():
    """Yield every algorithm of every collective on 1 to 8 ranks."""
    for collective in (*COLLECTIVES, *GATHERED):
        for world_size in (1, 2, 3, 6, 8):
            for algorithm in algorithms_for(collective, world_size):
                yield pytest.param(collective, world_size, algorithm)


@pytest.mark.parametrize(("collective", "world_size", "algorithm"), list(lines_of_the_table()))
def test_every_algorithm_of_the_table_is_proved(collective, world_size, algorithm):
    """With fewer elements than chunks, with uneven chunks, and with large ones; any root."""
    rooted = collective in ("broadcast", "reduce", *GATHERED)
    for count in (1, 7, 50_000):
        problem = Problem(collective, world_size, count, root=world_size // 2 if rooted else 0)
        assert prove(build(problem, algorithm), problem).flaw is None


def test_uneven_splits_and_rings_over_nodes_are_proved():
    """Tables that differ from rank to rank, and one ring per rail."""
    for problem, algorithm in (
        (Problem("all_gather", 3, 0, splits=(2, 0, 5)), "ring"),
        (Problem("reduce_scatter", 3, 0, splits=(2, 0, 5)), "direct"),
        (Problem("all_to_all", 2, 0, splits=(1, 2, 0, 3)), "pairwise"),
        (Problem("all_reduce", 6, 1000, node_size=3), "ring"),
    ):
        assert prove(build(problem, algorithm), problem).flaw is None


def test_a_ring_of_64_ranks_moves_what_theory_asks_for():
    """126 rounds of 64 steps, and no byte more than the bound."""
    problem = Problem("all_reduce", 64, 1 << 20)
    proof = prove(build(problem, "ring"), problem)
    assert (proof.flaw, proof.num_rounds, proof.num_steps) == (None, 126, 8064)
    assert proof.busiest_bytes == proof.bound_bytes == 2 * 63 / 64 * (4 << 20)


def test_a_root_counts_what_it_receives():
    """All of gather's bytes pass the root, though no rank sends more than its own."""
    problem = Problem("gather", 4, 100)
    proof = prove(build(problem, "direct"), problem)
    assert proof.busiest_bytes == proof.bound_bytes == 1200


def ring(world_size=4):
    """Return the ring all_reduce, its rounds as a list, and its problem."""
    problem = Problem("all_reduce", world_size, 100)
    schedule = build(problem, "ring")
    return schedule, schedule.materialise(), problem


def flaw_of(schedule, rounds, problem):
    """Return the flaw of a schedule with other rounds."""
    return prove(replace(schedule, rounds=lambda: iter(rounds)), problem).flaw


def without(steps, index):
    """Return a round without one of its steps."""
    return Round(*(None if column is None else np.delete(column, index) for column in steps))


def test_a_missing_step_is_a_missing_contribution():
    """Rank 0's first partial sum never reaches rank 1: it reads what nobody wrote."""
    schedule, rounds, problem = ring()
    flaw = flaw_of(schedule, [without(rounds[0], 0), *rounds[1:]], problem)
    assert (flaw.rank, flaw.buffer, flaw.chunk, flaw.round_number) == (1, Buffer.SCRATCH, 0, 1)
    assert "which is not written" in flaw.what
    flaw = flaw_of(schedule, [*rounds[:-1], without(rounds[-1], 2)], problem)
    assert (flaw.rank, flaw.holds, flaw.num_wrong) == (3, "nothing", 1)
    assert flaw.expected.startswith("the sum of chunk ")
    assert flaw.expected.endswith(" of ranks 0-3")


def test_a_contribution_that_is_counted_twice_is_wrong():
    """As sets of ranks the outputs would be right."""
    schedule, rounds, problem = ring(2)
    first = rounds[0]
    again = Round(*(None if c is None else np.concatenate((c, c)) for c in first))
    flaw = flaw_of(schedule, [again, *rounds[1:]], problem)
    assert flaw.round_number is None
    assert flaw.holds == "the sum of chunk 0 of ranks 0-1 (rank 0 2 times)"
    assert flaw.expected == "the sum of chunk 0 of ranks 0-1"
    assert str(flaw) == (
        "at the end OUTPUT chunk 0 of rank 0 holds the sum of chunk 0 of ranks 0-1 "
        "(rank 0 2 times), and should hold the sum of chunk 0 of ranks 0-1 "
        "(4 chunks are wrong in all)"
    )


def test_the_first_wrong_chunk_is_named():
    """Two rounds swapped: chunks are gathered before they are summed."""
    schedule, rounds, problem = ring(3)
    shifted = [*rounds[:2], rounds[3], rounds[2]]
    flaw = flaw_of(schedule, shifted, problem)
    assert flaw.round_number == 2
    assert "which is not written" in flaw.what


def one_round(op, *, dst=(0, 0), dst_chunk=(0, 0), src_chunk=(0, 0), src_buffer=0):
    """Return a round of two steps from rank 1 and rank 2 to OUTPUT of rank 0."""
    zeros = np.zeros(2, np.int64)
    return Round(
        src=np.array([1, 2]),
        dst=np.array(dst),
        src_buffer=zeros + src_buffer,
        src_chunk=np.array(src_chunk),
        dst_buffer=zeros + Buffer.OUTPUT,
        dst_chunk=np.array(dst_chunk),
        count=zeros + 1,
        op=np.array(op),
        channel=zeros,
    )


def handmade(*rounds):
    """Return the flaw of a `reduce` on three ranks with one chunk."""
    whole = ChunkTable.split(5, 1)
    schedule = Schedule("reduce", "handmade", 3, lambda: iter(rounds), 1, whole, whole, root=0)
    return prove(schedule, Problem("reduce", 3, 5)).flaw


def test_two_copies_onto_one_chunk_are_a_conflict():
    """Reductions onto it are not: they are applied in their order."""
    flaw = handmade(one_round([Op.COPY, Op.COPY]))
    assert flaw.what == (
        "round 0 writes OUTPUT chunk 0 of rank 0 twice: a copy undoes what another step writes"
    )
    flaw = handmade(one_round([Op.COPY, Op.REDUCE]))
    assert flaw.holds == "the sum of chunk 0 of ranks 1-2"


def test_reductions_onto_two_values_are_a_conflict():
    """The second operand would be lost."""
    zeros = np.zeros(2, np.int64)
    steps = one_round([Op.REDUCE, Op.REDUCE])._replace(
        operand_buffer=np.array([Buffer.INPUT, Buffer.SCRATCH]), operand_chunk=zeros
    )
    whole = ChunkTable.split(5, 1)
    fill = one_round([Op.COPY, Op.COPY], dst=(0, 1))._replace(dst_buffer=zeros + Buffer.SCRATCH)
    rounds = [fill, steps]
    schedule = Schedule("reduce", "x", 3, lambda: iter(rounds), 2, whole, whole, whole, root=0)
    flaw = prove(schedule, Problem("reduce", 3, 5)).flaw
    assert "two steps reduce onto two values" in flaw.what
    same = steps._replace(operand_buffer=zeros + Buffer.INPUT)
    proved = replace(schedule, rounds=lambda: iter([same]))
    assert prove(proved, Problem("reduce", 3, 5)).flaw is None


def test_a_step_may_not_read_what_its_round_writes():
    """Which of the two comes first is open."""
    first = one_round([Op.COPY, Op.COPY], dst=(0, 1))
    second = one_round([Op.COPY, Op.COPY], dst=(0, 1), src_buffer=Buffer.OUTPUT)
    second = second._replace(src=np.array([1, 0]))
    flaw = handmade(first, second)
    assert flaw.what == "round 1 reads OUTPUT chunk 0 of rank 1, which another of its steps writes"


def test_a_part_of_a_chunk_is_not_the_chunk():
    """A short source leaves the end of a chunk unwritten, or the end of an older value."""
    sizes = ChunkTable.from_sizes([2, 5])
    problem = Problem("broadcast", 1, 7)
    zeros = np.zeros(2, np.int64)
    chunks = np.arange(2)
    whole = Round(zeros, zeros, zeros, chunks, zeros + 1, chunks, zeros + 1, zeros, zeros)
    part = whole._replace(src_chunk=zeros)
    for rounds, words in (
        ([part], "OUTPUT chunk 1 of rank 0 holds a part of chunk 0 of rank 0"),
        ([whole, part], "round 1 writes 2 of the 5 elements of OUTPUT chunk 1 of rank 0"),
    ):
        schedule = Schedule("broadcast", "x", 1, lambda r=rounds: iter(r), 0, sizes, sizes, root=0)
        assert words in prove(schedule, problem).flaw.what


def test_outputs_that_the_chunks_do_not_make_up_are_wrong():
    """A table that is too short."""
    short = ChunkTable.split(4, 1)
    schedule = Schedule("broadcast", "x", 1, lambda: iter(()), 0, short, short, root=0)
    flaw = prove(schedule, Problem("broadcast", 1, 5)).flaw
    assert flaw.what == "OUTPUT chunks of rank 0 do not make up elements 0 to 5"


def test_steps_inside_a_switch_load_their_link_once():
    """A multicast to two ranks: the sender's link carries it once, and theory has no bound."""
    whole = ChunkTable.split(5, 1)
    own = np.zeros(1, np.int64)
    local = Round(own, own, own, own, own + 1, own, own + 1, own, own)
    cast = one_round([Op.COPY, Op.COPY], dst=(1, 2))._replace(
        src=np.array([0, 0]), fan=np.array([7, 7])
    )
    schedule = Schedule("broadcast", "x", 3, lambda: iter([local, cast]), 1, whole, whole, root=0)
    proof = prove(schedule, Problem("broadcast", 3, 5))
    assert (proof.flaw, proof.busiest_bytes, proof.bound_bytes) == (None, 20, None)


def test_contents_are_told_in_few_words():
    """Whatever a chunk holds."""
    assert content_text(None) == "nothing"
    assert content_text({}) == "no elements"
    assert content_text({(2, 5): 1}) == "chunk 5 of rank 2"
    many = {(0, chunk): 1 for chunk in range(9)}
    assert content_text(many).endswith("chunk 3 of rank 0 and 5 more chunks")
