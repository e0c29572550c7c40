"""What gloo makes of collectives that it has not."""

from simrank.validate.compare.comparison import first_parting
from simrank.validate.compare.program import Issued


def call(op, num, *, results=None, inputs=((4,),), line=1):
    return Issued(op, {"Float": num}, {"Float": results or num}, (0, 1), "", inputs, "a.py", line)


REDUCED = call("all_reduce", 4)


def test_a_reduce_scatter_is_an_all_reduce_of_all_or_of_each_part():
    """Of one tensor, or of a list."""
    mine = [call("reduce_scatter", 8, results=4), call("barrier", 0)]
    for theirs in ([call("all_reduce", 8)], [REDUCED, REDUCED]):
        assert first_parting(mine, [*theirs, call("barrier", 0)], "gloo") is None
        assert first_parting(mine, [*theirs, call("barrier", 0)], "nccl") == (0, 0)
    assert first_parting(mine, [call("all_reduce", 6)], "gloo") == (0, 0)
    assert first_parting(mine, [REDUCED, call("all_reduce", 4, line=2)], "gloo") == (0, 0)


def test_nothing_reduced_is_told_by_its_shape():
    """Lists of empty tensors are as many calls, an empty tensor is one."""
    empty = Issued("all_reduce", {}, {}, (0, 1), "", ((0,),), "a.py", 1)
    as_list = Issued("reduce_scatter", {}, {}, (0, 1), "", ((2, 0),), "a.py", 1)
    single = Issued("reduce_scatter", {}, {}, (0, 1), "", ((0,),), "a.py", 1)
    assert first_parting([as_list, single], [empty] * 3, "gloo") is None
    assert first_parting([single, single], [empty] * 2, "gloo") is None
    assert first_parting([as_list], [empty], "gloo") == (0, 0)


def test_coalesced_all_gathers_are_one():
    """Whose outputs its recorder does not tell."""
    mine = [call("all_gather", 4, results=8)] * 2
    assert first_parting(mine, [call("all_gather", 8, inputs=((4,), (4,)))], "gloo") is None
    assert first_parting(mine, [call("all_gather", 9, inputs=((4,), (4,)))], "gloo") == (0, 0)


def test_a_sparse_all_reduce_is_three_gathers_where_it_is_simulated():
    """What is non-zero, where, and what it is."""
    mine = [call("all_gather", num) for num in (1, 4, 2)]
    assert first_parting(mine, [call("sparse_all_reduce", 9)], "gloo") is None
    assert first_parting(mine[:2], [call("sparse_all_reduce", 9)], "gloo") == (0, 0)


def test_what_one_side_has_more_is_told_by_its_place():
    """Behind the end of the other."""
    assert first_parting([REDUCED], [REDUCED, REDUCED], "gloo") == (1, 1)
    assert first_parting([REDUCED, REDUCED], [REDUCED], "nccl") == (1, 1)
