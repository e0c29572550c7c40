"""NCCL_ALGO and NCCL_PROTO are read as NCCL reads them."""

import pytest

from simrank.collectives.nccl import Communicator, Shape
from simrank.collectives.nccl.forced import only, parse_algorithms, parse_protocols
from simrank.collectives.nccl.tuner import candidates


def test_names_leave_what_they_name():
    """Several, in any case."""
    assert parse_algorithms("Ring,TREE") == {"ring", "tree"}
    assert parse_algorithms("NVLSTree") == {"nvls_tree"}
    assert parse_protocols("ll128") == {"LL128"}


def test_a_caret_leaves_the_others():
    """`^NVLS,Tree` is everything but those two."""
    assert parse_algorithms("^NVLS,Tree") == {"ring", "nvls_tree"}
    assert parse_algorithms("^PAT") == {"ring", "tree", "nvls", "nvls_tree"}


@pytest.mark.parametrize("text", ["Foo", "", "Ring,Foo", "^Foo"])
def test_other_names_are_refused(text):
    """With those that there are."""
    with pytest.raises(ValueError, match="in tree, ring, nvls, nvlstree"):
        parse_algorithms(text)


def test_what_is_not_modelled_is_refused_by_name():
    """PAT is NCCL's, but has no law here."""
    with pytest.raises(ValueError, match="simrank models tree, ring"):
        parse_algorithms("PAT")


def test_nothing_left_is_an_error(hopper):
    """NVLS of an all_gather: NCCL would fail, too."""
    considered = candidates("all_gather", [8], Communicator(Shape.packed(8, 8), hopper))
    with pytest.raises(ValueError, match="ring LL, ring LL128, ring Simple"):
        only(considered, {"nvls"}, None)


def test_messages_have_no_other_way(hopper):
    """NCCL_ALGO is not about sends and receives."""
    considered = candidates("all_to_all", [8], Communicator(Shape.packed(8, 8), hopper))
    assert only(considered, {"nvls"}, {"LL"}) == considered
