"""Broadcast and reduce: who sends when."""

import pytest

from simrank.collectives import Problem, build


def sends(problem, algorithm, **options):
    """Return (source, destination) pairs of each round between ranks."""
    rounds = build(problem, algorithm, options=options).rounds()
    pairs = [sorted(zip(steps.src.tolist(), steps.dst.tolist(), strict=True)) for steps in rounds]
    return [found for found in pairs if any(src != dst for src, dst in found)]


def test_binomial_broadcast_doubles_from_the_root():
    """Five ranks, root 3: positions are counted from the root."""
    assert sends(Problem("broadcast", 5, 4, root=3), "binomial") == [
        [(3, 4)],
        [(3, 0), (4, 1)],
        [(3, 2)],
    ]


def test_binomial_reduce_folds_into_the_root():
    """The same tree with the smallest distance first."""
    assert sends(Problem("reduce", 5, 4), "binomial") == [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]


def test_chain_pipelines_its_chunks():
    """Three ranks and two chunks: the second follows one round behind."""
    problem = Problem("broadcast", 3, 4)
    assert sends(problem, "chain", num_chunks=2) == [[(0, 1)], [(0, 1), (1, 2)], [(1, 2)]]
    problem = Problem("reduce", 3, 4)
    assert sends(problem, "chain", num_chunks=2) == [[(2, 1)], [(1, 0), (2, 1)], [(1, 0)]]


@pytest.mark.parametrize(("count", "chunks"), [(1, 1), (1 << 17, 1), (1 << 19, 4), (1 << 30, 256)])
def test_chain_chunks_are_512_kib_by_default(count, chunks):
    """As NCCL's, within limits; the schedule records what was used."""
    schedule = build(Problem("broadcast", 4, count), "chain")
    assert schedule.options == {"num_chunks": chunks, "num_channels": 1}
    assert schedule.num_rounds == 4 - 2 + chunks


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("root", [0, 3, 9])
def test_chains_between_nodes_cross_each_rail_once(collective, root):
    """As NCCL's rings: each channel enters a node at another device, whoever is the root."""
    problem = Problem(collective, 12, 3 * 4 * 1000, root=root, node_size=4)
    schedule = build(problem, "chain", options={"num_chunks": 2})
    assert schedule.num_channels == 4
    carried = {}
    for steps in schedule.rounds():
        crossing = steps.src // 4 != steps.dst // 4
        for src, channel in zip(steps.src[crossing], steps.channel[crossing], strict=True):
            carried.setdefault(int(channel), set()).add(int(src) % 4)
    entered = [carried[channel] for channel in range(4)]
    if root % 4 == 0:  # Else a chain that begins inside a node comes back to it.
        assert all(len(each) == 1 for each in entered)
    assert set.union(*entered) == {0, 1, 2, 3}


def test_chains_of_many_ranks_have_fewer_chunks():
    """At most 2^18 steps, whatever the number of channels."""
    problem = Problem("broadcast", 1024, 1 << 30, node_size=8)
    assert build(problem, "chain").options == {"num_channels": 8, "num_chunks": 32}
    with pytest.raises(ValueError, match="num_channels may be at most 64, got 65"):
        build(problem, "chain", options={"num_channels": 65})
