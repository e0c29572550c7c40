"""The ring's hops, by hand."""

import numpy as np
import pytest

from simrank.collectives import Problem, build, play_data
from simrank.collectives.algorithms.ring import (
    NO_FAN,
    Hops,
    Rings,
    gather_rounds,
    node_ranks,
    num_pieces,
    reduce_rounds,
)
from simrank.collectives.schedule import Buffer, Op
from simrank.collectives.traffic import link_bytes
from simrank.hardware import load_cluster


def hops(schedule):
    """Return (source chunk, destination chunk) of rank 0's send in each round."""
    return [
        (int(steps.src_chunk[0]), int(steps.dst_chunk[0]), Buffer(int(steps.dst_buffer[0])).name)
        for steps in schedule.rounds()
    ]


def test_all_reduce_sends_own_chunk_first():
    """Rank 0 of three sends chunk 0, passes on the sum of 2, then gathers from chunk 1 on."""
    assert hops(build(Problem("all_reduce", 3, 9), "ring")) == [
        (0, 0, "SCRATCH"),
        (0, 2, "OUTPUT"),
        (1, 1, "OUTPUT"),
        (0, 0, "OUTPUT"),
    ]


@pytest.mark.parametrize(("collective", "factor"), [("all_gather", 1), ("reduce_scatter", 1)])
def test_half_rings_take_half_the_rounds(collective, factor):
    """All_reduce is the two of them, one after the other."""
    whole = build(Problem("all_reduce", 7, 14), "ring")
    assert build(Problem(collective, 7, 2), "ring").num_rounds * 2 == whole.num_rounds * factor


def test_channels_split_every_block():
    """Twice the steps per round, of half the size."""
    one = build(Problem("all_gather", 4, 8), "ring")
    two = build(Problem("all_gather", 4, 8), "ring", options={"num_channels": 2})
    assert [schedule.materialise()[1].num_steps for schedule in (one, two)] == [4, 8]
    assert (one.max_chunk, two.max_chunk) == (8, 4)
    assert two.options == {"num_channels": 2, "num_loops": 1}


def test_uneven_blocks_are_not_uniform():
    """Rounds of a ring of uneven inputs differ in cost."""
    assert build(Problem("all_gather", 3, 4), "ring").phases
    assert not build(Problem("all_gather", 3, 0, splits=(1, 2, 3)), "ring").phases


def rings(schedule):
    """Return the ranks of each channel in the order in which they send to each other."""
    steps = schedule.materialise()[-1]
    return steps.src.reshape(schedule.num_channels, -1).tolist()


def test_each_channel_enters_nodes_at_another_device():
    """Six ranks on two nodes: three rings, which cross to local ranks 0, 1 and 2."""
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        schedule = build(Problem(collective, 6, 18, node_size=3), "ring")
        assert rings(schedule) == [[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3], [2, 0, 1, 5, 3, 4]]
        assert schedule.options["num_channels"] == 3


def test_channels_are_spread_over_the_rails():
    """Fewer channels than rails leave gaps between them, more begin again."""
    problem = Problem("all_gather", 8, 8, node_size=4)
    two, five = (build(problem, "ring", options={"num_channels": number}) for number in (2, 5))
    assert [ring[0] for ring in rings(two)] == [0, 2]
    assert [ring[0] for ring in rings(five)] == [0, 1, 2, 3, 0]


def test_one_node_or_an_unknown_one_has_one_ring():
    """Nothing is gained there, and the chunks stay large."""
    for node_size in (0, 8):
        schedule = build(Problem("all_reduce", 8, 64, node_size=node_size), "ring")
        assert rings(schedule) == [list(range(8))]


def test_a_mesh_has_as_many_rings_as_share_no_link():
    """Seven on eight ranks: all 56 links carry the same."""
    cluster = load_cluster("mi300x")
    problem = Problem("all_reduce", 8, 56 << 10, node_size=8, is_mesh=cluster.is_mesh)
    schedule = build(problem, "ring")
    assert schedule.num_channels == 7
    carried = link_bytes(schedule, cluster, np.arange(8), 4)
    assert len(carried) == 56
    assert len(set(carried.values())) == 1


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 8])
def test_rings_of_a_mesh_sum_everything(size):
    """Whatever their order, and as few as there are."""
    problem = Problem("all_reduce", size, 101, node_size=size, is_mesh=True)
    inputs = np.random.default_rng(0).integers(0, 100, (size, 101))
    outputs = [np.empty(101, dtype=np.int64) for _ in range(size)]
    play_data(build(problem, "ring"), list(inputs), outputs=outputs)
    assert all((output == inputs.sum(axis=0)).all() for output in outputs)


# ---- what rounds of rings share ----

TWO_RINGS = np.array([[[0, 2, 4], [1, 3, 5]]])


def test_chunks_go_around_each_ring():
    """Position p sends what belongs to the one `shift` before it, on its own ring."""
    rings = Rings(TWO_RINGS, TWO_RINGS * 10, num_chunks=10)
    assert rings.src.tolist() == [0, 2, 4, 1, 3, 5]
    assert rings.dst.tolist() == [2, 4, 0, 3, 5, 1]
    assert rings.chunks(1).tolist() == [40, 0, 20, 50, 10, 30]
    assert rings.phase(2).num_rounds == 4


def test_sums_end_where_their_owner_is():
    """After m - 1 hops, each has passed every rank."""
    rings = Rings(TWO_RINGS, TWO_RINGS, source=Buffer.OUTPUT)
    *_, last = reduce_rounds(rings, first_shift=1, last=lambda chunk: chunk)
    assert np.array_equal(last.dst_chunk, last.dst)
    first, *_ = gather_rounds(rings, first_shift=0)
    assert np.array_equal(first.src_chunk, first.src)
    assert set(last.operand_buffer.tolist()) == {Buffer.OUTPUT}


# ---- pipelines: pieces, and the rounds that follow from hops ----


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
