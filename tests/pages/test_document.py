"""A page is complete in itself, and a part of it says so if rows are missing."""

import re
from html.parser import HTMLParser

import pytest

from simrank.pages import document, folded_table, heat, notes, section, table
from simrank.pages.document import (
    DARK,
    FAINT_INKS,
    GROUNDS,
    INKS,
    LIGHT,
    NUM_LOOKS,
    Markup,
    css,
    element,
    joined,
    number,
)


class Tags(HTMLParser):
    """Collects tags, and checks that each is closed."""

    def __init__(self, page):
        super().__init__()
        self.seen, self.open, self.texts = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("input", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_a_page_loads_and_runs_nothing():
    """Its policy forbids it even if something got in."""
    page = document("a <b>", [("seed", "<i>")], [section("one", notes(["<u>"]))])
    tags = Tags(page)
    assert page.startswith("<!DOCTYPE html>")
    names = {tag for tag, _ in tags.seen}
    assert names <= {
        "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "dl", "dt", "dd",
        "section", "ul", "li",
    }  # fmt: skip
    policy = [attrs["content"] for tag, attrs in tags.seen if "http-equiv" in attrs]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert {"a <b>", "<i>", "<u>"} <= set(tags.texts)


def test_what_is_missing_is_said():
    """Only where something is."""
    assert "Partial: 2 rows, then interrupted" in document(
        "t", [], [], partial="2 rows, then interrupted"
    )
    assert "Partial" not in document("t", [], [])
    assert notes([]) == ""


def test_a_table_can_be_opened_and_scrolled_with_the_keyboard():
    """It is closed at first; the part that scrolls can have the focus and has a name."""
    tags = Tags(folded_table("All <rows>", ["a", "b"], [("1", "<2>")])).seen
    assert [tag for tag, _ in tags[:3]] == ["details", "summary", "div"]
    assert tags[2][1] == {
        "class": "scroll", "tabindex": "0", "role": "region", "aria-label": "All <rows>",
    }  # fmt: skip
    assert [tag for tag, _ in tags].count("td") == 2


def test_a_cell_has_the_colour_of_its_side_and_distance():
    """None where there is no value, or a small one."""
    steps = (0.1, 0.5)
    cells = [heat("text", value, steps) for value in (-0.6, -0.2, 0.0, None, 0.1, 9.0)]
    classes = [dict(Tags(cell).seen[0][1]).get("class") for cell in cells]
    assert classes == ["low2", "low1", None, None, "high1", "high2"]
    shown = table("all", ["a", "b"], [["<x>", cells[0]]])
    assert "<td>&lt;x&gt;</td>" in shown
    assert cells[0] in shown


# ---- markup: nothing that a user wrote can become a part of a page ----

EVIL = "<script>alert('a & \"b\"')</script>"


def test_text_is_escaped_wherever_it_stands():
    """Inside an element, as an attribute, and between parts."""
    made = element("p", EVIL, title=EVIL)
    assert "<script" not in made + joined(EVIL)
    assert made == (
        '<p title="&lt;script&gt;alert(&#x27;a &amp; &quot;b&quot;&#x27;)&lt;/script&gt;">'
        "&lt;script&gt;alert('a &amp; \"b\"')&lt;/script&gt;</p>"
    )


def test_markup_is_kept():
    """Elements may stand in each other."""
    assert element("p", element("b", "x"), "<") == "<p><b>x</b>&lt;</p>"
    assert isinstance(joined(Markup("<b>")), Markup)


def test_attributes_have_their_names():
    """With hyphens, of Python's words, alone, or left out."""
    made = element("input", class_="a", stroke_width=1.0, viewBox="0", checked=True, hidden=None)
    assert made == '<input class="a" stroke-width="1" viewBox="0" checked>'


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (-0.001, "0"), (1.256, "1.26"), (100.0, "100"), (0.5, "0.5")]
)
def test_numbers_are_short(value, text):
    """Two decimals are finer than a screen."""
    assert number(value) == text


# ---- colours: each can be seen on its ground, and they follow the reader's mode ----


def luminance(colour):
    """Return the relative luminance of WCAG 2.2."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("mode", "colours"), [("light", LIGHT), ("dark", DARK)])
def test_everything_can_be_seen_in_both_modes(mode, colours):
    """WCAG 2.2: 3:1 for what is drawn (1.4.11), 4.5:1 for text (1.4.3)."""
    assert min(contrast(colour, GROUNDS[mode]) for colour in colours) >= 3
    assert min(contrast(ink[mode], GROUNDS[mode]) for ink in (INKS, FAINT_INKS)) >= 4.5


def test_thirty_curves_look_different():
    """By colour and dashes."""
    assert NUM_LOOKS >= 30


def test_the_sheet_names_nothing_outside():
    """Neither fonts nor pictures; each curve has a rule of its own."""
    sheet = css(3)
    assert "url(" not in sheet
    assert "@import" not in sheet
    assert sheet.count(":not(:checked)") == 3
    assert "prefers-color-scheme:dark" in sheet
    assert sheet.count("{") == sheet.count("}")


def test_no_column_is_wider_than_a_phone():
    """Nothing but a box that scrolls by itself has a minimum above 400 pixels, less the padding."""
    px_by_unit = {"px": 1.0, "rem": 16.0, "em": 15.0, "vw": 4.0}
    page = document("t", [], [])
    style = page[page.index("<style>") : page.index("</style>")]
    widths = re.findall(r"(?<![\w-])(?:min-width|width):([\d.]+)(px|rem|em|vw)", style)
    tracks = re.findall(r"minmax\(min\(100%,[\d.]+px\),1fr\)", style)
    assert len(tracks) == style.count("minmax(")
    assert widths
    assert all(float(number) * px_by_unit[unit] <= 361 for number, unit in widths)
    assert 'content="width=device-width, initial-scale=1"' in page


def test_bars_have_their_labels_above_them_on_a_narrow_screen():
    """The bar takes the whole second row, under its label and its total."""
    (narrow,) = re.findall(r"@media \(max-width:48rem\)\{(.*?)\n\}", css(0), re.DOTALL)
    rules = dict(re.findall(r"(\S[^{}\n]*)\{([^}]*)\}", narrow))
    assert "grid-area:1/1" in rules[".bars th"]
    assert "grid-area:1/2" in rules[".bars td:last-child"]
    assert "grid-area:2/1/2/3" in rules[".bars td:nth-child(2)"]
