"""Colours: each can be seen on its ground, and they follow the reader's mode."""

import pytest

from simrank.trace.page.style import (
    DARK,
    FAINT_INKS,
    GROUNDS,
    INKS,
    LIGHT,
    NUM_LOOKS,
    css,
)


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
