"""The YAML of a decoder: published sizes, and what is wrong with a file."""

import pytest

from simrank.config.decoder import load_decoder
from simrank.config.locate import builtin_names
from simrank.errors import ConfigError

# Billions of parameters as their publishers count them: arXiv:2407.21783, and the card of Qwen3.
PUBLISHED = {"llama3-8b": 8.0, "llama3-70b": 70.6, "llama3-405b": 405.9, "qwen3-30b-a3b": 30.5}


@pytest.mark.parametrize("name", builtin_names("models"))
def test_a_model_has_the_parameters_that_its_publisher_counts(name):
    """To one decimal, in billions."""
    assert round(load_decoder(name).num_parameters / 1e9, 1) == PUBLISHED[name]


def test_an_unknown_model_is_refused_with_the_names():
    """The nearest one is suggested."""
    with pytest.raises(ConfigError, match=r"one of llama3-8b, .*\n.*write `llama3-8b`"):
        load_decoder("lama3-8b")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("kv_heads: 8", "kv_heads: 7"), "a divisor of heads, 32, got 7"),
        (("layers: 32", "layers: 0"), "a whole number from 1"),
        (("seq: 8192", "seq: 8192\nexperts: 8"), "top_k of 1 to 8"),
        (("vocab:", "vocabulary:"), "vocabulary"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, change, said):
    """Also figures that do not go together."""
    text = builtin_text("llama3-8b")
    path = tmp_path / "model.yaml"
    path.write_text(text.replace(*change))
    assert path.read_text() != text
    with pytest.raises(ConfigError, match=said):
        load_decoder(str(path))


def builtin_text(name):
    from simrank.config.locate import locate

    return locate("models", name).read_text()
