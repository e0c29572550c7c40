"""JSON that others wrote: one object, several, lines of them; and what is wrong with it."""

import pytest

from simrank.config.json_parts import JsonPart, read_parts
from simrank.errors import ConfigError


@pytest.mark.parametrize(
    "text", ['{"a": 1}\n{"a": 2}\n', '[{"a": 1}, {"a": 2}]', '{\n"a": 1}{"a": 2}']
)
def test_objects_stand_in_a_list_or_behind_each_other(text):
    """Lines of JSON, JSON that is set on several lines, and a list of objects."""
    assert [part.data["a"] for part in read_parts(text, "f")] == [1, 2]


def test_each_object_knows_its_line():
    """Where it begins, with empty lines before it."""
    assert [part.line for part in read_parts('\n{"a":\n1}\n\n{}', "f")] == [2, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n{"a"', "f:2: expected JSON, got Expecting ':' delimiter in column 5"),
        ("[1]", "f:1: expected an object, got 1"),
        ("[[]]", "f:1: expected an object, got a list of 0"),
        ('{"a": NaN}', "f:1: expected JSON, got NaN, which is not a JSON number"),
        ("[" * 100_000, "f:1: expected JSON, got maximum recursion depth"),
        ("[" + "9" * 5000 + "]", "f:1: expected JSON, got Exceeds the limit"),
    ],
)
def test_what_is_no_json_is_named_with_its_line(text, message):
    """Also what Python's reader of JSON would take, or end with."""
    with pytest.raises(ConfigError) as caught:
        list(read_parts(text, "f"))
    assert message in str(caught.value)


PART = JsonPart(
    "f", 7, "", {"n": 3, "flag": True, "t": 2.5, "s": "x", "o": {"k": 1}, "l": [{"k": 9}, 4]}
)


def test_values_are_what_they_should_be():
    """Numbers, texts, objects and lists of objects."""
    assert (PART.whole("n", 0, 3), PART.time_us("t"), PART.text("s")) == (3, 2.5, "x")
    assert PART.part("o").whole("k", 1, 1) == 1
    assert PART._replace(data={"l": [{"k": 9}]}).parts("l")[0].path == "l[0]."


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda p: p.whole("n", 4, 9), "f:7: n: expected a whole number from 4 to 9, got 3"),
        (lambda p: p.whole("flag", 0, 9), "f:7: flag: expected a whole number .*, got true"),
        (lambda p: p.whole("t", 0, 9), "f:7: t: expected a whole number .*, got 2.5"),
        (lambda p: p.time_us("s"), 'f:7: s: expected a time .*, got "x"'),
        (lambda p: p.text("none"), "f:7: none: expected a string, got nothing"),
        (lambda p: p.part("l"), "f:7: l: expected an object, got a list of 2"),
        (lambda p: p.parts("o"), "f:7: o: expected a list of objects, got an object with k"),
        (lambda p: p.parts("l"), r"f:7: l\[1\]: expected an object, got 4"),
        (lambda p: p.part("o").text("k"), r"f:7: o.k: expected a string, got 1"),
    ],
)
def test_what_they_should_not_be_is_named_with_its_key(look, message):
    """File, line, key, what was expected and what was found."""
    with pytest.raises(ConfigError, match=message):
        look(PART)
