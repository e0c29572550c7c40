"""A page is complete in itself, and a part of it says so if rows are missing."""

from html.parser import HTMLParser

from simrank.trace.page import document, folded_table, heat, notes, section, table


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
