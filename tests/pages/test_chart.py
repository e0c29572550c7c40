"""Curves: in their places, with bands, marks of changes, and names for all that is drawn."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.pages import Bar, Curve, Point, bars, chart, pictures
from simrank.pages.chart import (
    legend,
    linear_axis,
    ratios_axis,
    sizes_axis,
    time_text,
    times_axis,
)

AXES = (sizes_axis([1024, 4096]), linear_axis([10.0], "bus bandwidth (GB/s)"))


def curve(*points, label="ring", look=0, measured=False):
    return Curve(label, tuple(points), look, measured)


def drawn(axes, *curves):
    """Return the picture as a tree: it is well-formed."""
    return ET.fromstring(chart("Rates", axes, curves)).find("svg")


def places(tree):
    return [(float(c.get("cx")), float(c.get("cy"))) for c in tree.iter("circle")]


def test_a_curve_rises_from_left_to_right():
    """From the lower left border to the upper right one, with the numbers at each point."""
    tree = drawn(AXES, curve(Point(1024, 0.0, "1 KiB: 0"), Point(4096, 10.0, "4 KiB: 10")))
    assert places(tree) == [(58.0, 298.0), (553.65, 30.0)]
    titles = [circle.find("title").text for circle in tree.iter("circle")]
    assert titles == ["1 KiB: 0", "4 KiB: 10"]
    assert tree.get("role") == "img"
    assert tree.get("aria-label") == "Rates: ring"


def test_an_interval_is_a_band():
    """From the low ends to the high ones; without an interval there is none.

    Of a point alone it is a line.
    """
    banded = curve(Point(1024, 5.0, "", 4.0, 6.0), Point(4096, 5.0, "", 4.0, 6.0))
    (band,) = [path for path in drawn(AXES, banded).iter("path") if path.get("class") == "band"]
    ys = {round(float(y), 1) for y in re.findall(r"[\d.]+ ([\d.]+)", band.get("d"))}
    assert ys == {190.8, 137.2}
    alone = drawn(AXES, curve(Point(1024, 5.0, "", 4.0, 6.0)))
    assert [path.get("d") for path in alone.find("g")][:1] == ["M58 137.2L58 190.8"]
    plain = curve(Point(1024, 5.0, ""), Point(4096, 5.0, ""))
    assert 'class="band"' not in chart("Rates", AXES, [plain])


def test_a_change_is_marked_where_it_happens():
    """By a ring on the curve, and in a strip below."""
    what_by_size = {1024: "ring LL", 2048: "tree", 4096: "tree"}
    points = [Point(size, 5.0, "", what=what) for size, what in what_by_size.items()]
    tree = drawn(AXES, curve(*points))
    (ring,) = [circle for circle in tree.iter("circle") if circle.get("class") == "change"]
    assert float(ring.get("cx")) == places(tree)[1][0]
    strips = [rect.find("title").text for rect in tree.iter("rect")]
    assert strips == ["ring: ring LL", "ring: tree"]
    widths = [float(rect.get("width")) for rect in tree.iter("rect")]
    assert sum(widths) == pytest.approx(553.65 - 58, abs=0.02)
    assert "strip" not in chart("Rates", AXES, [curve(*points[1:])])


def test_what_an_axis_cannot_hold_is_left_out():
    """A time of zero has no place on a logarithmic axis; the others stay."""
    axes = (AXES[0], times_axis([5.0]))
    tree = drawn(axes, curve(Point(1024, 0.0, "zero"), Point(4096, 5.0, "five")))
    assert [title.text for title in tree.iter("title")] == ["five"]
    assert not list(drawn(axes, curve(Point(1024, 0.0, "zero"))).iter("circle"))
    assert not list(drawn(axes).iter("circle"))


def test_measured_values_are_points_without_a_line():
    """They have the colour of text."""
    measured = curve(Point(1024, 5.0, "m"), label="measured", look=None, measured=True)
    tree = drawn(AXES, measured)
    (group,) = tree.iter("g")
    assert group.get("class") == "s0 ink measured"
    assert [path.get("class") for path in group.iter("path")] == ["dot"]


def test_thirty_curves_have_thirty_looks():
    """No two have the same colour and dashes."""
    curves = [curve(Point(1024, 5.0, ""), label=f"c{n}", look=n) for n in range(30)]
    tree = drawn(AXES, *curves)
    looks = {
        (group.get("class").split()[1], group.find("path").get("stroke-dasharray"))
        for group in tree.iter("g")
    }
    assert len(looks) == 30


def test_the_legend_hides_a_curve_in_all_pictures():
    """The box of a number belongs to the curves of that number, without any script."""
    curves = [curve(Point(1024, 5.0, ""), label=f"<{n}>", look=n) for n in range(2)]
    assert re.findall(r'class="(t\d)" checked', legend(curves)) == ["t0", "t1"]
    page = pictures(curves, chart("A", AXES, curves), chart("B", AXES, curves))
    assert page.count('class="s1 k1"') == 2
    assert "&lt;1&gt;" in page
    assert "<1>" not in page


# ---- bars: their lengths are the values, and everything is said in words too ----

ROWS = [Bar("p=<1>", (6.0, 2.0), "8 us"), Bar("p=2", (3.0, 1.0), "4 us")]


def test_lengths_are_values_on_one_axis():
    """Each part begins where the one before ends."""
    tree = ET.fromstring(bars("us", ["compute", "idle"], ROWS))
    rects = [rect for row in tree.iter("tr") for rect in row.iter("rect")]
    assert [(r.get("x"), r.get("width")) for r in rects] == [
        ("0%", "75%"), ("75%", "25%"), ("0%", "37.5%"), ("37.5%", "12.5%"),
    ]  # fmt: skip
    assert rects[0].find("title").text == "p=<1>: compute 6 us"
    assert [text.text for text in tree.iter("text")] == ["0", "2", "4", "6", "8", "us"]


def test_bars_are_said_to_who_cannot_see_them():
    """A row has a heading, its parts as a text, and its total."""
    tree = ET.fromstring(bars("us", ["compute", "idle"], ROWS))
    first = next(tree.iter("tr"))
    assert first.find("th").text == "p=<1>"
    assert first.find("td/svg").get("aria-label") == "compute 6 us, idle 2 us"
    assert first.findall("td")[-1].text == "8 us"


def test_nothing_at_all_has_an_axis_still():
    """No rows, and rows of zeros."""
    for rows in ([], [Bar("none", (0.0, 0.0), "0 us")]):
        tree = ET.fromstring(bars("us", ["compute", "idle"], rows))
        assert [rect.get("width") for row in tree.iter("tr") for rect in row.iter("rect")] in (
            [],
            ["0%", "0%"],
        )
        assert [text.text for text in tree.iter("text")][-1] == "us"


# ---- axes: every value has a place, and ticks can be read ----

ABOVE_ZERO = st.floats(1e-3, 1e12)
DIGIT = 0.62  # Width of a digit of wide fonts (DejaVu Sans, Verdana), in font sizes.


def spans(tree, font, *, of_x, is_narrow):
    """Return the ends of the shown texts of an axis, in order."""
    found = []
    for text in tree.iter("text"):
        classes = (text.get("class") or "").split()
        is_tick = text.get("text-anchor") == ("middle" if of_x else "end")
        if not is_tick or "title" in classes or (is_narrow and "wide" in classes):
            continue
        middle = float(text.get("x" if of_x else "y"))
        half = (DIGIT * len(text.text) if of_x else 1.0) * font / 2
        found.append((middle - half, middle + half))
    return sorted(found)


@settings(max_examples=50)
@given(st.lists(ABOVE_ZERO, max_size=5), st.booleans())
def test_texts_of_ticks_never_touch_and_never_leave_the_picture(values, is_small):
    """On a screen of 400 pixels, where a large picture's font is larger, as on a wide one."""
    axes = [
        (sizes_axis(math.ceil(value) for value in values), times_axis(values)),
        (linear_axis(values, "us"), ratios_axis(values, "")),
        (times_axis(values), linear_axis(values, "GB/s")),
    ]
    for pair in axes:
        tree = ET.fromstring(chart("t", pair, [], is_small=is_small)).find("svg")
        _, _, width, height = map(float, tree.get("viewBox").split())
        for font, is_narrow in ((11, False), (11 if is_small else 17, True)):
            for of_x, length in ((True, width), (False, height)):
                found = spans(tree, font, of_x=of_x, is_narrow=is_narrow)
                assert found
                assert 0 <= found[0][0] <= found[-1][1] <= length
                assert all(one[1] <= other[0] for one, other in pairwise(found))
        longest = max(len(text) for text in texts(pair[1]))
        left = min(float(t.get("x")) for t in tree.iter("text") if t.get("text-anchor") == "end")
        assert longest * DIGIT * (11 if is_small else 17) <= left + 0.01


@given(st.lists(ABOVE_ZERO, min_size=1, max_size=5))
def test_texts_below_bars_never_touch(values):
    """On a screen of 400 pixels the axis is 400 less padding: 2 x 19.2 of the page, 24 of a bar."""
    rows = [Bar("rank", (value,), "") for value in values]
    tree = ET.fromstring(bars("us", ["time"], rows))
    found = []
    for text in [each for each in tree.iter("text") if each.get("y") == "12"]:
        at, width = float(text.get("x")[:-1]) / 100 * (400 - 38.4 - 24), 11 * DIGIT * len(text.text)
        left = at - width / 2 if text.get("text-anchor") else at
        found.append((left, left + width))
    assert found[0][0] == 0.0
    assert all(one[1] <= other[0] for one, other in pairwise(found))
    assert found[-1][1] <= 400


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
