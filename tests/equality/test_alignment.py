"""Rows, columns and elements are found by values; other dimensions by sizes."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from simrank.equality.alignment import ParameterElements, bases, cut_of, cuts, rows_of
from simrank.equality.layout import Layout
from simrank.equality.record import Taped


def whole(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def tokens(rows=6, columns=16):
    return torch.randint(0, 50, (rows, columns), generator=torch.Generator().manual_seed(0))


def test_rows_are_found_by_their_values():
    """Also where a micro-batch takes them in another order, and where two are alike."""
    batch = tokens()
    batch[4] = batch[1]
    (found,) = rows_of([Taped(batch)], [Taped(batch[[4, 0, 1]])])
    assert sorted(found.rows[::2]) == [1, 4]
    assert found.rows[1] == 0
    assert found.columns == tuple(range(16))


def test_columns_of_a_zigzag_are_found_in_their_order():
    """The first and the last quarter, as context parallelism balances causal attention."""
    batch = tokens()
    part = torch.cat([batch[2:4, 0:4], batch[2:4, 12:16]], 1)
    (found,) = rows_of([Taped(batch)], [Taped(part)])
    assert found.rows == (2, 3)
    assert found.columns == (0, 1, 2, 3, 12, 13, 14, 15)


def test_floating_inputs_are_found_up_to_rounding():
    """A later stage of a pipeline takes in what an earlier one has computed."""
    batch = whole(4, 6, 3)
    part = batch[1:3, 2:4] * (1 + 1e-15)
    (found,) = rows_of([Taped(batch)], [Taped(part)])
    assert (found.rows, found.columns) == ((1, 2), (2, 3))


def test_what_is_not_in_the_batch_has_no_rows():
    """A rank that draws its own data."""
    batch = tokens()
    assert rows_of([Taped(batch)], [Taped(batch + 100)]) is None


@pytest.mark.parametrize("form", ["rows first", "columns first", "flat"])
def test_rows_and_columns_are_taken_out_of_any_dimensions(form):
    """Of [rows, columns, features], as Megatron turns them, and of tokens in one dimension."""
    batch = tokens(4, 6)
    (rows,) = rows_of([Taped(batch)], [Taped(batch[1:3, 3:])])
    hidden = whole(4, 6, 5)
    want = hidden[1:3, 3:]
    if form == "columns first":
        hidden, want = hidden.transpose(0, 1), want.transpose(0, 1)
    elif form == "flat":
        hidden, want = hidden.flatten(0, 1), want.flatten(0, 1)
    assert any(torch.equal(each, want) for each in bases(hidden, rows))


def test_shorter_dimensions_are_cut_along_axes_of_their_sizes():
    """In each order where two axes cut one dimension."""
    layout = Layout({"a": 2, "b": 3})
    found = list(cuts(torch.Size([4, 2]), torch.Size([4, 12]), layout, ["a", "b"]))
    assert found == [{1: ("a", "b")}, {1: ("b", "a")}]
    full = torch.arange(12)[None].expand(4, 12)
    assert cut_of(full, found[0], layout, {"a": 1, "b": 2})[0].tolist() == [10, 11]
    assert cut_of(full, found[1], layout, {"a": 1, "b": 2})[0].tolist() == [10, 11]
    assert cut_of(full, found[1], layout, {"a": 1, "b": 0})[0].tolist() == [2, 3]
    assert not list(cuts(torch.Size([4, 5]), torch.Size([4, 12]), layout, ["a", "b"]))


@pytest.mark.parametrize(
    ("name", "take"),
    [
        ("w", lambda w: w),
        ("w", lambda w: w.chunk(4, 0)[2]),
        ("w", lambda w: w.chunk(2, 1)[1]),
        ("w", lambda w: w.view(2, 4, 6)[:, 1:3].reshape(4, 6)),  # fused matrices, cut by head
        ("w", lambda w: w[[5, 0, 7]]),
        ("flat", lambda w: torch.cat([w.flatten()[20:], torch.zeros(3, dtype=w.dtype)])),
    ],
)
def test_elements_of_parameters_are_found_by_their_values(name, take):
    """Chunks, rows in any order, and flat parts that are padded with zeros."""
    parameters = {"w": Taped(whole(8, 6)), "v": Taped(whole(8, 6) + 1)}
    part = take(parameters["w"].value)
    places = ParameterElements(parameters).find(name, part)
    assert places.shape == part.shape
    every = torch.cat([each.value.flatten() for each in parameters.values()])
    assert torch.equal(torch.where(places >= 0, every[places.clamp(min=0)], 0.0), part)


def test_a_value_that_no_parameter_has_is_not_found():
    """It is no part of the single program's."""
    parameters = {"w": Taped(whole(8, 6))}
    assert ParameterElements(parameters).find("w", whole(8, 6) + 1e-9) is None


def test_nothing_is_cut_from_a_tensor_without_elements():
    """As a cache that is empty at first, where that of a rank has its slots."""
    whole, part = torch.Size((2, 0, 8)), torch.Size((2, 16, 8))
    assert [*cuts(part, whole, Layout({"tp": 2}), ["tp"], replicates=True)] == []
