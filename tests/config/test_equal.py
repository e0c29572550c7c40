"""The YAML of layouts: wrong keys and values are named by line."""

import pytest

from simrank.config.equal import layouts_of, load_layouts
from simrank.errors import ConfigError


def test_a_file_gives_layouts_and_how_they_are_compared(tmp_path):
    """Axes keep their order."""
    path = tmp_path / "layouts.yaml"
    path.write_text("layouts: [{dp: 2, tp: 4}, {pp: 2}]\nsteps: 2\nallow: {router: drawn anew}\n")
    found = load_layouts(path)
    assert [list(each.items()) for each in found.layouts] == [[("dp", 2), ("tp", 4)], [("pp", 2)]]
    assert (found.steps, found.dtype, found.allow) == (2, "float64", {"router": "drawn anew"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("layouts: []", "a list of layouts such as {dp: 2, tp: 2}"),
        ("layouts: [{dp: 0}]", "layouts[0].dp: expected a whole number from 1"),
        ("layouts: [{dp: 64, tp: 64}]", "at most 1024 ranks"),
        ("layouts: [{2: 2}]", "the name of an axis"),
        ("layouts: [dp]", "sizes by axis such as {dp: 2, tp: 2}"),
        ("layouts: [{dp: 2}]\ndtype: float8", "expected one of float64, float32, bfloat16"),
        ("layouts: [{dp: 2}]\nrename: [a]", "a mapping from the name of a module to a text"),
        ("layouts: [{dp: 2}]\nignore: [1]", "the name of a module, or a list of them"),
        ("layout: [{dp: 2}]", "layouts"),
    ],
)
def test_what_is_wrong_is_named(text, words, tmp_path):
    """With the key, and what is expected there."""
    path = tmp_path / "layouts.yaml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError, match=r"layouts\.yaml") as caught:
        load_layouts(path)
    assert words in str(caught.value)


def test_layouts_that_a_test_gives_are_checked_alike():
    """The error says where they stand."""
    with pytest.raises(ConfigError, match="test_it"):
        layouts_of({"layouts": [{"dp": "two"}]}, "test_it")
