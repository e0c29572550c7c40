"""YAML with lines."""

import gc

import pytest
import yaml

from simrank.config import load_cluster_config
from simrank.config.yaml_source import (
    _careful,
    _ShallowLoader,
    format_key_path,
    parse_yaml,
    places_of,
    plain_data,
    read_yaml,
    uncollected,
)
from simrank.errors import ConfigError
from tests.property.mutations import mutated, originals


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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: " + "[" * 5000 + "]" * 5000, 1),
        ("x: 1\na: " + "{b: " * 3000 + "1" + "}" * 3000, 2),
        ("\n".join(" " * level + "a:" for level in range(150)), 101),
        ("\n".join(" " * level + "a:" for level in range(2000)), 101),
    ],
)
def test_deep_nesting_is_refused_with_its_line(text, line):
    """Before Python's own limit, however deep."""
    got = "something nested deeper than 100 levels"

    assert refused(text) == [(line, "", "valid YAML", got)]


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1b", "\x7f", "\ufffe"])
def test_control_characters_name_their_line(character):
    """As text in a file; what YAML escapes is data."""
    got = f"the control character U+{ord(character):04X}"

    assert refused(f"a: 1\nb: x{character}y\n") == [(2, "", "valid YAML", got)]


def test_merge_keys_are_refused_by_name():
    """Not as an unknown key; anchors and aliases are taken."""
    expected = (2, "", "keys that are written out", "the merge key `<<`")

    assert refused("a: &a {b: 1}\n<<: *a\n") == [expected]
    assert parse_yaml("a: &a {b: 1}\nc: *a\n", "a.yaml").data == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize("number", ["0x" + "f" * 900, "1:" * 400 + "1", "9" * 5000, "9" * 60])
def test_numbers_that_nothing_has_are_text(number):
    """So that the model can say what it expected, without Python's limit on digits."""
    assert parse_yaml(f"a: {number}\n", "a.yaml").data == {"a": number}


def test_aliases_may_not_blow_up():
    """A file of ten lines does not become ten million items."""
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(8):
        text += f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 10)}]\n"
    ((_, _, expected, got),) = refused(text)

    assert (expected, got) == ("plain data", "an alias that repeats without end")


@pytest.mark.parametrize(
    ("data", "line", "got"),
    [
        ("a: 1\n".encode("utf-16"), 1, "UTF-16 or UTF-32"),
        ("a: 1\n".encode("utf-32"), 1, "UTF-16 or UTF-32"),
        (b"a: 1\nb: \xe9\n", 2, "bytes that are no UTF-8 at offset 8"),
    ],
)
def test_other_encodings_are_named_with_their_line(tmp_path, data, line, got):
    """And what to do about it."""
    path = tmp_path / "a.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)

    (problem,) = caught.value.problems
    assert (problem.line, problem.got) == (line, got)
    assert problem.to_fix == "save the file as UTF-8"


def test_a_byte_order_mark_of_utf_8_is_taken(tmp_path):
    """As editors on Windows write it, with their ends of lines."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")

    assert read_yaml(path).data == {"a": 1, "b": 2}


# ---- large files, read fast: the same data and the same lines as with the careful reader ----

HEAD = "name: big\nsource: assumed\ndevice: {like: hgx_h100, count: 600}\nswitches: [s0..511]\n"
LINK = "  - {{between: [gpu{0}, s{1}], bandwidth: 1 GB/s, latency: 1 us}}\n"


@pytest.fixture
def large(tmp_path):
    """Write a cluster with a link per pair of a device and a switch; returns its file."""

    def write(num_devices, last_line=""):
        links = (LINK.format(gpu, switch) for gpu in range(num_devices) for switch in range(512))
        path = tmp_path / "large.yaml"
        path.write_text(f"{HEAD}links:\n{''.join(links)}{last_line}")
        return path

    return write


def test_data_and_places_are_those_of_the_careful_reader():
    """For every good file, whatever is in it."""
    for text in originals():
        reader = _careful(text, "good.yaml", _ShallowLoader)
        assert plain_data(text, 100) == reader.data
        places = places_of(text)
        assert places.lines == reader.lines
        assert places.texts == reader.texts


def test_what_needs_a_closer_look_is_left_to_the_careful_reader():
    """Mutated files: never other data than its, and never data where it refuses."""
    num_equal = 0
    for number in range(120):
        text = mutated(number)
        try:
            data = plain_data(text, 100)
        except yaml.YAMLError:
            data = None
        if isinstance(data, dict):
            num_equal += 1
            reader = _careful(text, "mutated.yaml", _ShallowLoader)
            assert (data, reader.problems) == (reader.data, [])
    assert num_equal > 20


@pytest.mark.parametrize(
    "text",
    [
        "a: &b 1\n",
        "a: !!str 1\n",
        "a: 1\na: 2\n",
        "<<: {}\n",
        "[a]: 1\n",
        "a: 1\n---\nb: 2\n",
        "a: b\tc\n",
        "a: {b?c: 1}\n",
        "a: 1\n\ufeff",
        "",
    ],
)
def test_anchors_tags_and_odd_keys_are_not_taken(text):
    """They are the careful reader's."""
    assert plain_data(text, 100) is None


def test_deep_nesting_is_refused_with_its_line_by_the_fast_reader():
    """As everywhere."""
    with pytest.raises(yaml.MarkedYAMLError) as caught:
        plain_data("a: 1\nb: " + "[" * 5000 + "]" * 5000, 100)
    assert caught.value.problem_mark.line == 1


def test_the_collector_is_as_it_was():
    """Also where it was off."""
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.slow
def test_300_000_links_load(large):
    """As a list of all of them."""
    config = load_cluster_config(large(600))
    assert len(config.links) == 600 * 512


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last_line", "message"),
    [
        (
            "  - {between: [gpu599, s0], bandwidth: 1 GBps, latency: 1 us}\n",
            "large.yaml:20486: links[20480].bandwidth: expected a rate with a unit, got 1 GBps",
        ),
        ("name: again\n", "large.yaml:20486: name: expected each key once"),
        ("  - {between: [gpu599, s0], bandwidth: 1\n", "large.yaml:20487: expected valid YAML"),
        ("more: " + "[" * 200 + "]" * 200 + "\n", "large.yaml:20486: expected valid YAML"),
    ],
)
def test_what_is_wrong_in_a_large_file_has_its_line(large, last_line, message):
    """Whichever reader finds it."""
    path = large(40, last_line)
    assert path.stat().st_size > 1_000_000
    with pytest.raises(ConfigError) as caught:
        load_cluster_config(path)
    assert message in str(caught.value)
