"""Settings that are one of a few words."""

import pytest

from simrank.config.choices import CHOICES, checked_choice


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_no_choice_is_refused_with_the_choices(name):
    """By the setting's name."""
    for word in CHOICES[name]:
        assert checked_choice(name, word) == word
    with pytest.raises(ValueError, match=f"{name}='other'; choices: {CHOICES[name][0]}"):
        checked_choice(name, "other")
