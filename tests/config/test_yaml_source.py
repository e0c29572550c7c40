"""YAML with lines."""

import pytest

from simrank.config.yaml_source import format_key_path, parse_yaml, read_yaml
from simrank.errors import ConfigError


def refused(text):
    """Return the problems of a text as (line, key path, expected, got)."""
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "a.yaml")
    return [(p.line, p.key_path, p.expected, p.got) for p in caught.value.problems]


def test_each_key_path_knows_its_line():
    """Keys of mappings stand where the key is written, items where they begin."""
    source = parse_yaml("a: 1\nb:\n  - c: 2\n  - d: 3\n", "a.yaml")

    assert source.data == {"a": 1, "b": [{"c": 2}, {"d": 3}]}
    assert [source.line(path) for path in (("a",), ("b",), ("b", 1), ("b", 1, "d"))] == [1, 2, 4, 4]


def test_a_key_that_is_missing_has_the_line_of_what_is_around_it():
    """The nearest known line is better than none."""
    source = parse_yaml("a:\n  b: 1\n", "a.yaml")

    assert source.line(("a", "c", 0)) == 1


def test_keys_are_text_as_written():
    """YAML's `on` and `1` are no booleans and numbers where they are keys."""
    assert parse_yaml("on: 1\n2: 2\n", "a.yaml").data == {"on": 1, "2": 2}


def test_a_duplicate_key_names_both_lines():
    """The second one is not taken silently."""
    expected = (3, "b.c", "each key once", "a second one; the first is on line 2")

    assert refused("b:\n  c: 1\n  c: 2\n") == [expected]


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: [1, 2\nb: 3\n", 2), ("a: 'x\n", 2), ("a: b: c\n", 1), ("\ta: 1\n", 1), ("a: *b\n", 1)],
)
def test_bad_yaml_names_its_line(text, line):
    """Syntax errors are problems like all others."""
    ((found, _, expected, _),) = refused(text)

    assert (found, expected) == (line, "valid YAML")


@pytest.mark.parametrize(
    ("text", "got"), [("", "an empty file"), ("# x\n", "an empty file"), ("- a\n", "a list")]
)
def test_the_top_level_must_be_a_mapping(text, got):
    """An empty file and a list say what they are."""
    assert refused(text)[0][3] == got


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]\n",
        "a: !!python/object:os.system x\n",
        "? [1, 2]\n: 3\n",
        "a: \x00\n",
        "a: 1\n---\nb: 2\n",
        "[" * 3000,
    ],
)
def test_hostile_yaml_is_a_config_error(text):
    """Endless aliases, tags, odd keys, control characters, many documents, deep nesting."""
    assert refused(text)


def test_aliases_cannot_blow_up():
    """A file that would expand to billions of nodes is refused."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

    assert len(refused("\n".join(lines))) == 1


@pytest.mark.parametrize("text", ["a: 2026-99-99\n", "a: 2026-01-02\n", "a: 450e9\n"])
def test_dates_and_unfinished_numbers_stay_text(text):
    """What only YAML would read as something else is left to the models."""
    assert parse_yaml(text, "a.yaml").data == {"a": text[3:-1]}


def test_files_that_cannot_be_read_are_config_errors(tmp_path):
    """A missing file, a folder and bytes that are no text."""
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("none.yaml", ".", "bytes.yaml"):
        with pytest.raises(ConfigError, match="expected a readable file"):
            read_yaml(tmp_path / name)


def test_key_paths_read_like_the_users_own_words():
    """Items in brackets, keys after dots."""
    assert format_key_path(("links", 0, "bandwidth")) == "links[0].bandwidth"
