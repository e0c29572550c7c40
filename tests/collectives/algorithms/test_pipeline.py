"""Pipelines: pieces, and the rounds that follow from hops."""

import numpy as np
import pytest

from simrank.collectives import Problem
from simrank.collectives.algorithms.pipeline import NO_FAN, Hops, node_ranks, num_pieces
from simrank.collectives.schedule import Buffer, Op


def hops_of(begins, part=0):
    """Return hops along a line of ranks that begin in given rounds."""
    number = len(begins)
    column = np.full(number, Buffer.OUTPUT, dtype=np.int64)
    return Hops(
        src=np.arange(number),
        dst=np.arange(number) + 1,
        src_buffer=column,
        dst_buffer=column,
        op=np.full(number, Op.COPY),
        part=np.full(number, part),
        begin=np.array(begins),
        fan=np.full(number, NO_FAN),
    )


def test_every_piece_takes_every_hop_in_its_round():
    """Piece p takes a hop p rounds after the first piece."""
    taken = [
        (number, int(src), int(chunk))
        for number, steps in enumerate(hops_of([0, 1, 2]).rounds(2))
        for src, chunk in zip(steps.src, steps.src_chunk, strict=True)
    ]
    assert taken == [(0, 0, 0), (1, 0, 1), (1, 1, 0), (2, 1, 1), (2, 2, 0), (3, 2, 1)]


def test_parts_are_lanes_with_chunks_of_their_own():
    """Part q of p pieces has chunks q p to q p + p - 1."""
    both = Hops.join([hops_of([0]), hops_of([0], part=3)])
    first, second = both.rounds(2)
    assert first.channel.tolist() == [0, 3]
    assert first.src_chunk.tolist() == [0, 6]
    assert second.src_chunk.tolist() == [1, 7]
    assert both.num_hops == 2
    assert first.fan is None


@pytest.mark.parametrize(
    ("size_bytes", "wanted", "num_hops", "pieces"),
    [
        (8, 0, 10, 1),
        (10 * 64 * 1024, 0, 10, 10),
        (1 << 30, 0, 10, 32),
        (1 << 30, 0, 5_000, 4),
        (1 << 30, 0, 10**6, 1),
        (8, 7, 10**6, 7),
    ],
)
def test_pieces_are_no_smaller_and_no_more_than_is_worth_it(size_bytes, wanted, num_hops, pieces):
    """Unless a number is asked for."""
    problem = Problem("all_reduce", 2, size_bytes, itemsize=1)
    assert num_pieces(problem, wanted, num_parts=1, num_hops=num_hops) == pieces


def test_ranks_of_uneven_nodes_are_nodes_themselves():
    """Equal nodes are rows."""
    assert node_ranks(Problem("all_reduce", 4, 1, node_size=2)).tolist() == [[0, 1], [2, 3]]
    assert node_ranks(Problem("all_reduce", 3, 1)).tolist() == [[0], [1], [2]]
