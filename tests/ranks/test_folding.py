"""The ranks that run, and those that each represents."""

import pytest

from simrank.errors import FoldingError
from simrank.ranks.folding import Alone, FoldedAxis, Folding, LayoutAxis, layout_of

PIPELINE = Folding(32, [FoldedAxis("dp", 4, 4), FoldedAxis("tp", 4, 1)])  # Of pp 2, dp 4, tp 4.


def test_the_first_along_each_folded_axis_runs():
    """Of every stage of the pipeline one rank."""
    assert PIPELINE.running == (0, 16)
    assert [PIPELINE.representative(rank) for rank in (0, 15, 16, 31)] == [0, 0, 16, 16]
    assert PIPELINE.describe() == "2 of 32 ranks run (folded: dp 4, tp 4)"


def test_the_last_that_runs_stands_for_those_that_follow():
    """The first may do more than the others, for itself."""
    folding = Folding(8, [FoldedAxis("dp", 8, 1, representative=1, alone=(0,))])
    assert folding.running == (0, 1)
    assert [folding.representative(rank) for rank in range(8)] == [0, 1, 1, 1, 1, 1, 1, 1]


def test_another_slice_than_the_first_may_run():
    """It represents the first, too."""
    folding = Folding(8, [FoldedAxis("dp", 8, 1, representative=3)])
    assert folding.running == (3,)
    assert folding.representative(0) == folding.representative(7) == 3


def test_members_of_a_group_stand_for_others_of_it():
    """As places in the group; none if no member runs."""
    assert PIPELINE.represented(range(0, 16, 4)) == {0: (1, 2, 3)}
    assert PIPELINE.represented((0, 16)) == {}
    assert PIPELINE.represented((5, 6)) == {}


def test_a_group_without_the_stand_in_is_refused():
    """Nobody in it would know when the member comes."""
    folding = Folding(
        8, [FoldedAxis("dp", 4, 2), FoldedAxis("tp", 2, 1, representative=1, alone=(0,))]
    )
    with pytest.raises(FoldingError, match="has rank 3 without rank 1, its representative"):
        folding.represented((0, 3))


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((0, 1, 2, 3), [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
        ((0, 4, 8, 12), [[1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]),
        ((0, 1), [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]),
        (range(32), []),
    ],
)
def test_twins_do_what_a_group_does(ranks, expected):
    """Those along the folded axes; a pair of a longer axis has its like there, too."""
    assert PIPELINE.replicas(ranks) == expected


def test_messages_have_twins_of_the_same_direction():
    """Sender and receiver in their order."""
    assert PIPELINE.replicas((16, 0))[:2] == [[17, 1], [18, 2]]
    assert len(PIPELINE.replicas((16, 0))) == 15


def test_who_runs_for_itself_has_no_replicas():
    """The second coordinate has those of the others."""
    folding = Folding(8, [FoldedAxis("dp", 4, 2, representative=1, alone=(0,))])
    assert folding.replicas((0, 1)) == []
    assert folding.replicas((2, 3)) == [[4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("world_size", "axes"),
    [
        (12, [FoldedAxis("dp", 8, 1)]),
        (16, [FoldedAxis("dp", 4, 3), FoldedAxis("tp", 4, 1)]),
        (16, [FoldedAxis("dp", 4, 1, 0, (4,))]),
    ],
)
def test_axes_that_do_not_fit_are_refused(world_size, axes):
    """Into the ranks, or on each other."""
    with pytest.raises(FoldingError):
        Folding(world_size, axes)


def test_one_rank_alone_stands_for_all_in_every_group():
    """Messages to the others end by themselves."""
    alone = Alone(8, 3)
    assert alone.running == (3,)
    assert alone.represented((1, 3, 5)) == {1: (0, 2)}
    assert alone.represented((1, 5)) == alone.represented((3,)) == {}
    assert alone.answers_messages


MEGATRON = {
    "tensor": range(8),
    "data": range(0, 64, 8),
    "pipeline": range(0, 256, 64),
    "model": (*range(8), *range(64, 72)),
    "data and context": range(0, 64, 8),
}


DP_TP = [("dp", 4, 8), ("tp", 8, 1)]
DP_CP = [("dp_cp", 4, 8), ("tp", 8, 1)]


@pytest.mark.parametrize(
    ("world_size", "groups", "expected"),
    [
        (256, MEGATRON, [("pipeline", 4, 64), ("data", 8, 8), ("tensor", 8, 1)]),
        (32, {"world": range(32)}, [("world", 32, 1)]),
        (32, {"world": range(32), "dp": range(0, 32, 8), "tp": range(8)}, DP_TP),
        (32, {"dp_cp": range(0, 32, 8), "cp": range(0, 16, 8), "tp": range(8)}, DP_CP),
        (64, {"dp": range(0, 64, 8)}, [("dp", 8, 8), ("", 8, 1)]),
        (64, {"odd": (0, 3, 4)}, []),
    ],
)  # fmt: skip
def test_a_layout_follows_from_the_groups_of_rank_0(world_size, groups, expected):
    """That which covers most ranks, with the most axes."""
    found = layout_of(world_size, list(groups.items()))
    assert found == [LayoutAxis(*axis) for axis in expected]
