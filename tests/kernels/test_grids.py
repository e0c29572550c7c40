"""Grids: three numbers, whatever was given."""

import pytest

from simrank.kernels.launch import grid_sizes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (5, (5, 1, 1)),
        ((2, 3), (2, 3, 1)),
        ([2, 3, 4], (2, 3, 4)),
        (lambda meta: (meta["n"] // 2,), (4, 1, 1)),
        (0, (0, 1, 1)),
    ],
)
def test_a_grid_has_three_axes(given, expected):
    """Of a number, of some, or of a function of the arguments."""
    assert grid_sizes(given, {"n": 8}) == expected


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((1, 2, 3, 4), ValueError, "one to three axes"),
        ((), ValueError, "one to three axes"),
        (1.5, TypeError, "divide with triton.cdiv"),
        (-1, ValueError, "no negative size"),
        ((1, 65536), ValueError, "use the first axis for what is long"),
    ],
)
def test_other_grids_are_refused(given, error, message):
    """As CUDA would at the launch, with the cure."""
    with pytest.raises(error, match=message):
        grid_sizes(given, {})
