"""Curves: in their places, with bands, marks of changes, and names for all that is drawn."""

import re
from xml.etree import ElementTree as ET

import pytest

from simrank.trace.page import Curve, Point, chart, pictures
from simrank.trace.page.axes import linear_axis, sizes_axis, times_axis
from simrank.trace.page.chart import legend

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
    assert places(tree) == [(58.0, 298.0), (556.0, 24.0)]
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
    assert ys == {188.4, 133.6}
    alone = drawn(AXES, curve(Point(1024, 5.0, "", 4.0, 6.0)))
    assert [path.get("d") for path in alone.find("g")][:1] == ["M58 133.6L58 188.4"]
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
    assert sum(widths) == pytest.approx(556 - 58, abs=0.02)
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
