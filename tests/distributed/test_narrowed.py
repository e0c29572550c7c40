"""Requests over the active members: which parts stay, and what is refused."""

import pytest

import simrank
from simrank.distributed.active_members import check_narrow, narrow
from simrank.distributed.request import DTYPES, REDUCTIONS, Request, Signature
from simrank.errors import UnsupportedError


@pytest.fixture
def numbers():
    """Return what makes a host tensor of 0, 1, 2, ..."""
    with simrank.Context("hgx_h100"):
        yield lambda count: simrank.arange(count, dtype=simrank.float32, device="cpu")


def test_parts_keep_their_places_in_one_tensor(numbers):
    """An all_gather of two elements, of which member 1 of 3 is not there."""
    source, target = numbers(2), numbers(6)
    signature = Signature("all_gather", None, None, "float32", 2)
    narrowed = narrow(Request(signature, source, target), [0, 2], 0, 3)
    assert narrowed.target.numel() == 4
    assert [part.array.tolist() for part in narrowed.targets] == [[0.0, 1.0], [4.0, 5.0]]
    assert [part.shape for part in narrowed.targets] == [(2,), (2,)]
    assert narrowed.source is source


def test_uneven_parts_follow_their_sizes(numbers):
    """An all_to_all of 1, 2 and 3 elements to members 0, 1 and 2."""
    source, target = numbers(6), numbers(6)
    signature = Signature("all_to_all", None, None, "float32", "uneven")
    request = Request(signature, source, target, ([1, 2, 3], [3, 2, 1]))
    narrowed = narrow(request, [1, 2], 1, 3)
    assert narrowed.splits == ([2, 3], [2, 1])
    assert [part.array.tolist() for part in narrowed.sources] == [[1.0, 2.0], [3.0, 4.0, 5.0]]
    assert [part.array.tolist() for part in narrowed.targets] == [[3.0, 4.0], [5.0]]


def test_a_root_is_counted_among_the_active(numbers):
    """Member 2 is the second of those that are left."""
    x = numbers(2)
    request = Request(Signature("broadcast", None, 2, "float32", 2), x, x)
    assert narrow(request, [0, 2], 0, 3).signature.root == 1
    assert request.signature.root == 2


@pytest.mark.parametrize("op", ["avg", "band", "premul_sum"])
def test_every_other_reduction_is_refused(op):
    """By name, with those that there are."""
    with pytest.raises(UnsupportedError, match=f"reduce with {op} .*sum, prod, min, max"):
        check_narrow(Signature("reduce", op, 0, "float32", 1))
    assert op not in REDUCTIONS


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "complex64"])
def test_every_other_type_is_refused_where_it_is_reduced(dtype):
    """What is only moved may have any."""
    with pytest.raises(UnsupportedError, match=f"all_reduce of {dtype}"):
        check_narrow(Signature("all_reduce", "sum", None, dtype, 1))
    check_narrow(Signature("all_gather", None, None, dtype, 1))
    assert len(DTYPES) == 9


def test_object_collectives_are_refused():
    """Their sizes are exchanged first."""
    with pytest.raises(UnsupportedError, match="all_gather_object with inactive ranks"):
        check_narrow(Signature("all_gather_object", None, None, "uint8", 1))


def test_a_list_that_has_no_tensor_for_each_member_is_refused(numbers):
    """As of a coalesced all_gather."""
    signature = Signature("all_gather", None, None, "float32", 2)
    request = Request(signature, numbers(2), numbers(6), targets=[numbers(3), numbers(3)])
    with pytest.raises(UnsupportedError, match="2 tensors with inactive ranks among 3"):
        narrow(request, [0, 2], 0, 3)
