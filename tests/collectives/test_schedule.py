"""Chunk tables, loops, and how many elements a step moves."""

import numpy as np
import pytest

from simrank.collectives import Problem, build
from simrank.collectives.schedule import ChunkTable, step_elements


def test_split_gives_the_first_chunks_the_rest():
    """Ten elements in four chunks are 3, 3, 2, 2."""
    table = ChunkTable.split(10, 4)
    assert table.size.tolist() == [3, 3, 2, 2]
    assert table.start.tolist() == [0, 3, 6, 8]
    assert (table.num_chunks, table.max_size, table.num_elements) == (4, 3, 10)
    assert table.is_contiguous


def test_more_chunks_than_elements_leaves_empty_chunks():
    """Zero-size chunks are normal: small messages on many ranks."""
    assert ChunkTable.split(2, 5).size.tolist() == [1, 1, 0, 0, 0]


def test_cut_moves_through_every_chunk_at_once():
    """A slice keeps its place in each chunk, and is short or empty in short chunks."""
    table = ChunkTable.from_sizes([5, 2, 0])
    first, second, third = (table.cut(at, 2) for at in (0, 2, 4))
    assert [part.size.tolist() for part in (first, second, third)] == [
        [2, 2, 0],
        [2, 0, 0],
        [1, 0, 0],
    ]
    assert second.start.tolist()[0] == 2
    assert third.start.tolist()[0] == 4
    assert table.cut(2, 2, packed=True).start.tolist() == [0, 2, 4]


@pytest.mark.parametrize("num_loops", [1, 2, 3, 7])
def test_loops_cover_each_element_once(num_loops):
    """The slices of all loops together are the chunks, uneven tail included."""
    schedule = build(Problem("all_reduce", 3, 17), "ring", options={"num_loops": num_loops})
    covered = np.zeros(17, dtype=int)
    for loop in range(num_loops):
        table = schedule.loop_tables(loop)[0]
        for start, size in zip(table.start.tolist(), table.size.tolist(), strict=True):
            covered[start : start + size] += 1
    assert covered.tolist() == [1] * 17


def test_a_step_moves_what_all_its_chunks_have():
    """A scratch slot may be larger than the chunk that visits it."""
    schedule = build(Problem("all_reduce", 3, 7), "ring")
    moved = [step_elements(schedule.tables, steps).tolist() for steps in schedule.rounds()]
    assert moved == [[3, 2, 2], [2, 3, 2], [2, 2, 3], [3, 2, 2]]


def test_rounds_share_their_constant_arrays():
    """A ring of 1,024 ranks has 2,046 rounds: they are views and shared arrays."""
    rounds = build(Problem("all_reduce", 1024, 2048), "ring").materialise()
    assert len(rounds) == 2046
    assert len({id(steps.src) for steps in rounds}) == 1
    assert all(steps.operand_chunk.base is not None for steps in rounds[:10])
