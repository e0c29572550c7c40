"""NCCL_ALGO and NCCL_PROTO are read as NCCL reads them."""

import pytest

from simrank.collectives.nccl import Communicator, GroupShape
from simrank.collectives.nccl.environment import only, parse_algorithms, parse_protocols
from simrank.collectives.nccl.tuner import candidates
from simrank.errors import ConfigError


def test_names_leave_what_they_name():
    """Several, in any case."""
    assert parse_algorithms("Ring,TREE", "all_reduce") == {"ring", "tree"}
    assert parse_algorithms("NVLSTree", "all_reduce") == {"nvls_tree"}
    assert parse_protocols("ll128", "all_reduce") == {"LL128"}


def test_a_caret_leaves_the_others():
    """`^NVLS,Tree` is everything but those two."""
    assert parse_algorithms("^NVLS,Tree,CollNetChain", "all_reduce") == {
        "ring",
        "collnet_direct",
        "nvls_tree",
        "pat",
    }
    assert parse_algorithms("^PAT,CollNetDirect,CollNetChain", "all_reduce") == {
        "ring",
        "tree",
        "nvls",
        "nvls_tree",
    }


def test_a_collective_may_have_a_list_of_its_own():
    """It wins over the list for all; without either, anything may be chosen."""
    text = "ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring"
    assert parse_algorithms(text, "all_reduce") == {"tree", "collnet_direct"}
    assert parse_algorithms(text, "broadcast") == {"ring"}
    assert parse_algorithms(text, "all_gather") == {"ring", "collnet_direct"}
    assert parse_algorithms("allreduce:tree", "all_gather") is None
    assert parse_protocols("LL,Simple;allreduce:^LL", "all_reduce") == {"LL128", "Simple"}
    assert parse_protocols("^LL128;AllReduce: LL128", "all_reduce") == {"LL128"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allreduce:ring;tree", "COLLECTIVE: before each list but the first, got 'tree'"),
        ("alltoall:ring", "a collective of broadcast, .*got 'alltoall'"),
        ("broadcast:ring;allreduce:", "names of tree, .* got ''"),
    ],
)
def test_lists_that_nccl_would_not_read_are_refused(text, message):
    """Whichever collective asks."""
    with pytest.raises(ConfigError, match=message):
        parse_algorithms(text, "broadcast")


@pytest.mark.parametrize("text", ["Foo", "", "Ring,Foo", "^Foo"])
def test_other_names_are_refused(text):
    """With those that there are."""
    known = "tree, ring, collnetdirect, collnetchain, nvls, nvlstree, pat"
    with pytest.raises(ConfigError, match=f"expected names of {known}, got"):
        parse_algorithms(text, "all_reduce")


def test_everything_left_out_is_an_error():
    """Nothing is left to choose from."""
    everything = "^tree,ring,collnetdirect,collnetchain,nvls,nvlstree,pat"
    with pytest.raises(ConfigError, match=r"some of tree, ring, .*, got '\^tree"):
        parse_algorithms(everything, "all_reduce")


def test_collnet_without_switches_that_reduce_is_an_error(hopper):
    """As without NCCL's plugin for them."""
    comm = Communicator(GroupShape.packed(16, 8), hopper)
    considered = candidates("all_reduce", [8], comm)
    with pytest.raises(ConfigError, match=r"tree LL, .* nvls_tree Simple"):
        only(considered, {"collnet_direct"}, None)


def test_nothing_left_is_an_error(hopper):
    """NVLS of an all_gather: NCCL would fail, too."""
    considered = candidates("all_gather", [8], Communicator(GroupShape.packed(8, 8), hopper))
    with pytest.raises(ConfigError, match="ring LL, ring LL128, ring Simple"):
        only(considered, {"nvls"}, None)


def test_messages_have_no_other_way(hopper):
    """NCCL_ALGO is not about sends and receives."""
    considered = candidates("all_to_all", [8], Communicator(GroupShape.packed(8, 8), hopper))
    assert only(considered, {"nvls"}, {"LL"}) == considered
