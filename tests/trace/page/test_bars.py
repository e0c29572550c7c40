"""Bars: their lengths are the values, and everything is said in words too."""

from xml.etree import ElementTree as ET

from simrank.trace.page import Bar, bars

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
