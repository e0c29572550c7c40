"""Tables as plain text."""

from simrank.pages.text_table import text_table


def test_columns_are_right_aligned_and_the_last_is_left_as_it_is():
    """Without blanks at the ends of lines."""
    rows = [("rank", "time", "what"), ("1", "12.50", "a  b"), ("10", "3", "")]
    assert text_table(rows) == ["rank   time  what", "   1  12.50  a  b", "  10      3"]
