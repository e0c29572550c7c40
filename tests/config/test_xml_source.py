"""XML of others: lines, places, and what is left out."""

import pytest

from simrank.config.files import read_user_file
from simrank.config.xml_source import parse_xml
from simrank.errors import ConfigError

PARENTS = {"a": ("",), "b": ("a", "b"), "c": ("b",)}


def read(text, **options):
    return parse_xml(text.encode(), "f.xml", PARENTS, **options)


def complaint(text, **options):
    with pytest.raises(ConfigError) as caught:
        read(text, **options)
    return str(caught.value)


def test_elements_know_their_lines_and_who_they_are():
    """Paths count the elements of one name."""
    root = read("<a>\n<b/>\n<b>\n<c/><b x='1'/></b></a>")
    (inner,) = root.children[1].inside("b")
    assert (inner.line, inner.path, inner.attributes) == (4, "b[1].b[0]", {"x": "1"})
    assert [each.line for each in root.below("b")] == [2, 3, 4]


def test_an_element_in_a_wrong_place_is_refused():
    """With what may stand there."""
    assert complaint("<a>\n<c/></a>") == "f.xml:2: expected in <a> <b>, got <c>"
    assert complaint("<b/>") == "f.xml:1: expected <a>, got <b>"
    assert complaint("<a><b><c><a/></c></b></a>").endswith("expected in <c> no element, got <a>")


def test_unknown_elements_are_left_out_with_all_that_is_in_them():
    """Where the format's own reader does so; elsewhere they are refused."""
    text = "<a><new><b/><new/></new><b/></a>"
    assert [each.name for each in read(text, skips_others=True).children] == ["b"]
    assert "got <new>" in complaint(text)
    assert "got <new>" in complaint("<new/>", skips_others=True)


def test_what_nests_too_deep_is_refused():
    """Before Python's own limit."""
    text = "<a>" + "<b>" * 5000 + "</b>" * 5000 + "</a>"
    assert "expected elements nested at most 64 deep" in complaint(text)


def test_attributes_are_checked_with_their_line():
    """Numbers, whole numbers, words and texts."""
    root = read('<a n="7" x="1.5" w="on" bad="1e400" many="99999999999999"/>')
    assert (root.number("n", 0, 9), root.decimal("x", 2), root.word("w", ("on",))) == (7, 1.5, "on")
    assert root.number("none", 0, 9, default=3) == 3
    for look in (
        lambda: root.decimal("bad", 2),
        lambda: root.decimal("w", 2),
        lambda: root.number("many", 0, 9),
        lambda: root.number("x", 0, 9),
        lambda: root.word("none", ("on",)),
        lambda: root.text("none"),
    ):
        with pytest.raises(ConfigError, match=r"^f\.xml:1: \w+: expected "):
            look()


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    """A folder, nothing, a name that no file may have."""
    for path in (tmp_path, tmp_path / "none.xml", "a\0b"):
        with pytest.raises(ConfigError, match="expected a file that can be read"):
            read_user_file(path)
