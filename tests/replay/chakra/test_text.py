"""Chakra's JSON form."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from simrank.errors import ConfigError
from simrank.replay.chakra.text import is_chakra_json, read_text_form
from tests.property.broken import broken, read_or_refused

DATA = (Path(__file__).parent / "pipeline.1.json").read_bytes()
TEXT = """\
{"version": "0.0.4"}
{"id": "3", "name": "n", "type": "COMM_COLL_NODE", "ctrl_deps": ["1"], "dataDeps": [2],
 "duration_micros": "5", "attr": [{"name": "comm_size", "int64Val": "-8"},
 {"name": "f", "doubleVal": 1.5}, {"name": "l", "boolList": {"values": [true]}}]}
"""


def complaint(old, new):
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        read_text_form(TEXT.replace(old, new), "f.json")
    return str(caught.value)


def test_both_spellings_of_protobufs_json_are_read():
    """Numbers as texts, too; what is zero is left out."""
    (node,) = read_text_form(TEXT, "f.json")
    assert (node.id, node.type, node.deps, node.line) == (3, "COMM_COLL_NODE", (1, 2), 2)
    assert node.duration_us == 5
    assert node.attributes == {"comm_size": -8, "f": 1.5, "l": None}
    (bare,) = read_text_form('{"version": "0.0.4"} {"type": 4}', "f")
    assert (bare.id, bare.name, bare.type, bare.duration_us) == (0, "", "COMP_NODE", 0)


@pytest.mark.parametrize("key", ["doubleVal", "floatVal", "float_val"])
def test_fractions_that_are_no_numbers_are_read_as_protobuf_spells_them(key):
    """As texts; other texts are no fractions, and whole numbers are never infinite."""
    spelled = '"f", "%s": "%s"}'
    for word in ("Infinity", "-Infinity", "NaN"):
        text = TEXT.replace('"f", "doubleVal": 1.5}', spelled % (key, word))
        (node,) = read_text_form(text, "f.json")
        assert node.attributes["f"] == pytest.approx(float(word), nan_ok=True)
    said = complaint('"f", "doubleVal": 1.5}', spelled % (key, "1.5"))
    assert said.endswith('expected a value of its type, got "1.5"')
    assert "expected a whole number" in complaint('"int64Val": "-8"', '"int64Val": "Infinity"')


def test_the_schema_may_stand_among_the_attributes_of_the_metadata():
    """As PyTorch's converter writes it."""
    meta = '{"attr": [{"name": "schema", "stringVal": "1.0.2-chakra.0.0.4"}]}'
    assert read_text_form(meta, "f") == []
    with pytest.raises(ConfigError, match=r"f:1: version: expected Chakra's schema 0.0.4, got 0"):
        read_text_form(meta.replace("0.0.4", "0.0.9"), "f")
    assert is_chakra_json(meta)
    assert not is_chakra_json("num_ranks 2")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"version": "0.0.4"',
            "",
            "f.json:1: version: expected Chakra's schema 0.0.4, got nothing",
        ),
        ('"COMM_COLL_NODE"', '"COLL"', "f.json:2: type: expected one of INVALID_NODE"),
        ('"COMM_COLL_NODE"', "99", "f.json:2: type: expected one of INVALID_NODE"),
        ('"3"', '"x"', "f.json:2: id: expected a whole number from 0, got 'x'"),
        ('"3"', "-3", "f.json:2: id: expected a whole number from 0, got -3"),
        ("[2]", "2", "f.json:2: datadeps: expected a list of numbers"),
        ('"-8"', "true", "f.json:2: attr[0].int64val: expected a whole number"),
        ("1.5", '"a"', "f.json:2: attr[1].doubleval: expected a value of its type"),
        ('{"name": "f",', "{", "f.json:2: attr[1].name: expected a string"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, message):
    """And what was expected."""
    assert message in complaint(old, new)


def test_nothing_is_no_trace():
    """Not even metadata."""
    with pytest.raises(ConfigError, match="expected Chakra's global metadata, got nothing"):
        read_text_form(" ", "f")


@settings(max_examples=200, deadline=None)
@given(broken(DATA))
def test_a_broken_file_is_read_or_refused(data):
    """Never anything else."""
    read_or_refused(read_text_form, data.decode("utf-8", "replace"), "f.json")
