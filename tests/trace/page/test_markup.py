"""Markup: nothing that a user wrote can become a part of a page."""

import pytest

from simrank.trace.page.markup import Markup, element, joined, number

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
