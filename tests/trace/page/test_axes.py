"""Axes: every value has a place, and ticks can be read."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.trace.page.axes import linear_axis, ratios_axis, sizes_axis, time_text, times_axis

ABOVE_ZERO = st.floats(1e-3, 1e12)


def texts(axis):
    return [text for _, text in axis.ticks]


def test_sizes_are_powers_of_two():
    """As people write them; 1 KiB and 1 MiB are among them."""
    assert texts(sizes_axis([8, 2**33])) == [
        "32 B", "1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB",
    ]  # fmt: skip
    assert texts(sizes_axis([1024, 8192])) == ["1 KiB", "2 KiB", "4 KiB", "8 KiB"]


@pytest.mark.parametrize("size", [1, 3000, 4096])
def test_one_size_has_room_on_both_sides(size):
    """The picture of a single point has an axis too."""
    axis = sizes_axis([size])
    assert axis.low <= size <= axis.high
    assert len(axis.ticks) >= 2


def test_times_have_units():
    """Each with the one that suits it."""
    assert texts(times_axis([5, 20_000])) == ["10 us", "100 us", "1 ms", "10 ms"]
    assert texts(times_axis([16.3, 16.4])) == ["15 us", "16 us", "17 us", "18 us"]
    assert [time_text(t) for t in (0.0, 0.5, 12.3456, 1e6)] == ["0 us", "500 ns", "12.35 us", "1 s"]


def test_a_linear_axis_begins_at_zero():
    """And ends at a tick above the largest value."""
    assert texts(linear_axis([481.2], "GB/s")) == ["0", "100", "200", "300", "400", "500"]
    assert linear_axis([0.0, math.nan, math.inf], "GB/s").high == 1.0


@given(st.lists(st.one_of(ABOVE_ZERO, st.just(0.0)), max_size=5))
def test_any_values_have_places(values):
    """Ticks are distinct, few, and within the axis; places are from 0 to 1."""
    sizes = sizes_axis(math.ceil(value) for value in values)
    for axis in (sizes, times_axis(values), linear_axis(values, "GB/s")):
        assert 2 <= len(axis.ticks) <= 20
        assert len(set(texts(axis))) == len(axis.ticks)
        for value in [*(tick for tick, _ in axis.ticks), *values]:
            if axis.holds(value):
                assert 0.0 <= axis.place(value) <= 1.0


def test_a_logarithmic_axis_holds_no_zero():
    """But the lower end of an interval may be zero, and is then at the border."""
    axis = times_axis([1.0, 10.0])
    assert not axis.holds(0.0)
    assert not axis.holds(math.inf)
    assert axis.place(0.0) == 0.0


def test_ratios_are_as_far_below_one_as_above():
    """Twice as fast is as far from it as twice as slow."""
    axis = ratios_axis([0.3, 1.2], "predicted / measured")
    assert texts(axis) == ["x 1/4", "x 1/2", "x 1", "x 2", "x 4"]
    assert (axis.place(1.0), axis.mark) == (0.5, 1.0)
    assert axis.place(0.5) == pytest.approx(1 - axis.place(2.0))
    assert texts(ratios_axis([], "")) == ["x 1/2", "x 1", "x 2"]


@given(st.lists(ABOVE_ZERO))
def test_any_ratio_has_a_place_and_one_a_tick(ratios):
    """However far off, the texts do not touch."""
    axis = ratios_axis(ratios, "")
    assert all(axis.low <= ratio <= axis.high for ratio in ratios)
    assert "x 1" in texts(axis)
    assert len(axis.ticks) <= 9
