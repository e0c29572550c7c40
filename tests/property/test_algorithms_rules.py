"""Every algorithm keeps the rules that `collectives/schedule.py` states."""

import itertools

import numpy as np
import pytest

from simrank.collectives import algorithms_for, build
from simrank.collectives.problem import COLLECTIVES, GATHERED, Problem
from simrank.collectives.schedule import Buffer, Op, step_elements

PROBLEMS = [
    Problem(collective, world_size, 5, node_size=node_size)
    for collective in (*COLLECTIVES, *GATHERED)
    for world_size, node_size in ((1, 0), (2, 0), (3, 0), (6, 0), (6, 3), (8, 0), (8, 2))
]
CASES = [
    pytest.param(
        problem, name, id=f"{problem.collective} {name} {problem.world_size}/{problem.node_size}"
    )
    for problem in PROBLEMS
    for name in algorithms_for(problem.collective, problem.world_size)
]


def _where(schedule, cell, in_place):
    """Return the buffer and the elements of one chunk; an aliased INPUT has OUTPUT's elements."""
    rank, buffer, chunk = cell
    table = schedule.tables[buffer]
    start, size = (
        int(part[chunk] if part.ndim == 1 else part[rank, chunk])
        for part in (table.start, table.size)
    )
    if in_place and schedule.collective == "all_gather" and buffer == Buffer.INPUT:
        start += int(schedule.output.start[rank * schedule.num_channels])
    if in_place and schedule.collective == "reduce_scatter" and buffer == Buffer.OUTPUT:
        start += int(schedule.input.start[rank * schedule.num_channels])
    if in_place and buffer == Buffer.INPUT:
        buffer = Buffer.OUTPUT
    return {(rank, int(buffer), element) for element in range(start, start + size)}


def _accesses(schedule, steps, in_place):
    """Return what each destination of a round reads and writes, by destination."""
    found = {}
    for index in range(steps.num_steps):
        for part in range(int(steps.count[index])):
            dst = int(steps.dst[index])
            target = (dst, int(steps.dst_buffer[index]), int(steps.dst_chunk[index]) + part)
            source = (int(steps.src[index]), int(steps.src_buffer[index]))
            reads = _where(schedule, (*source, int(steps.src_chunk[index]) + part), in_place)
            if steps.op[index] == Op.REDUCE and steps.operand_buffer is not None:
                operand = (dst, int(steps.operand_buffer[index]))
                chunk = int(steps.operand_chunk[index]) + part
                reads = reads | _where(schedule, (*operand, chunk), in_place)
            entry = found.setdefault(target, (set(), _where(schedule, target, in_place)))
            entry[0].update(reads)
    return found


@pytest.mark.parametrize(("problem", "algorithm"), CASES)
def test_no_step_reads_what_its_round_writes(problem, algorithm):
    """Rounds have no order inside: also with OUTPUT over INPUT where that is said to be safe."""
    schedule = build(problem, algorithm)
    ways = [False, True] if schedule.in_place_safe else [False]
    for steps, in_place in itertools.product(schedule.rounds(), ways):
        accesses = _accesses(schedule, steps, in_place)
        for target, (reads, _) in accesses.items():
            for other, (_, writes) in accesses.items():
                assert other == target or not reads & writes


@pytest.mark.parametrize(("problem", "algorithm"), CASES)
def test_rounds_are_counted_and_move_what_their_tables_hold(problem, algorithm):
    """`num_rounds` is the number of rounds between ranks; rounds can be generated again."""
    schedule = build(problem, algorithm)
    rounds = schedule.materialise()

    assert sum(bool((steps.src != steps.dst).any()) for steps in rounds) == schedule.num_rounds
    assert len(rounds) == len(schedule.materialise())
    for steps in rounds:
        assert step_elements(schedule.tables, steps).min(initial=0) >= 0
        assert steps.channel.max(initial=0) < schedule.num_channels


@pytest.mark.parametrize(("problem", "algorithm"), CASES)
def test_phases_are_rings(problem, algorithm):
    """They promise rings, channel by channel and ring by ring, and pay for their longest step."""
    schedule = build(problem, algorithm)
    rounds = (steps for steps in schedule.rounds() if (steps.src != steps.dst).any())
    for phase in schedule.phases:
        every_rank = np.arange(problem.world_size)
        assert (np.sort(phase.rings.reshape(len(phase.rings), -1)) == every_rank).all()
        assert len(phase.rings) == schedule.num_channels
        src, dst = phase.ends
        for steps in itertools.islice(rounds, phase.num_rounds):
            assert np.array_equal(steps.src, src)
            assert np.array_equal(steps.dst, dst)
            assert np.array_equal(steps.channel, np.arange(steps.num_steps) // problem.world_size)
            longest = step_elements(schedule.tables, steps).max()
            assert longest == phase.step_elements(schedule.tables)
    assert not schedule.phases or next(rounds, None) is None
