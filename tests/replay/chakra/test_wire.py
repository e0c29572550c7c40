"""Chakra's binary form."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.errors import ConfigError
from simrank.replay.chakra.text import read_text_form
from simrank.replay.chakra.wire import read_wire
from tests.property.broken import broken, read_or_refused

HERE = Path(__file__).parent
DATA = (HERE / "pipeline.1.et").read_bytes()
GENERATED = HERE / "generated"
META = b"\x07\x0a\x050.0.4"


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    """A field as protobuf writes it: bytes behind their length, numbers as varints."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def message(*fields):
    body = b"".join(fields)
    return varint(len(body)) + body


def attribute(number, value):
    return field(10, field(1, b"x") + value if isinstance(value, bytes) else
                 field(1, b"x") + field(number, value))  # fmt: skip


def only(*fields):
    (node,) = read_wire(META + message(*fields), "f.et")
    return node


@pytest.mark.parametrize("rank", [0, 1])
def test_what_googles_protobuf_wrote_is_the_same_in_both_forms(rank):
    """But for lines, which a binary file has not."""
    binary = read_wire((HERE / f"pipeline.{rank}.et").read_bytes(), "f")
    text = read_text_form((HERE / f"pipeline.{rank}.json").read_text(), "f")
    assert len(binary) == len(text) == 4
    for mine, other in zip(binary, text, strict=True):
        assert (mine.id, mine.name, mine.type, mine.deps) == (
            other.id, other.name, other.type, other.deps,
        )  # fmt: skip
        assert (mine.duration_us, mine.attributes) == (other.duration_us, other.attributes)


def test_every_type_of_attribute_that_chakras_generator_writes_is_read():
    """And as its jsonizer says it, but for bytes, which no replay asks for."""
    name = "one_metadata_node_all_types.0"
    (binary,) = read_wire((GENERATED / f"{name}.et").read_bytes(), "f")
    (text,) = read_text_form((GENERATED / f"{name}.json").read_text(), "f")
    assert (binary.id, binary.name, binary.type) == (0, "METADATA_NODE", "METADATA_NODE")
    assert (text.id, text.name, text.type) == (0, "METADATA_NODE", "METADATA_NODE")
    said = {key: value for key, value in binary.attributes.items() if value is not None}
    assert said.pop("float") == pytest.approx(1.2345)
    assert said == {
        "double": 1.2345, "int32": 12345, "int64": 9876543210, "uint32": 12345,
        "uint64": 9876543210, "sint32": -12345, "sint64": -9876543210, "fixed32": 12345,
        "fixed64": 9876543210, "sfixed32": -12345, "sfixed64": -9876543210, "bool": True,
        "string": "12345",
    }  # fmt: skip
    lists = {f"{key}_list" for key in [*said, "float", "bytes"]}
    assert {key for key, value in binary.attributes.items() if value is None} == {*lists, "bytes"}
    assert text.attributes == pytest.approx(binary.attributes)


@pytest.mark.parametrize("path", sorted(GENERATED.glob("*.et")), ids=lambda path: path.name)
def test_a_file_of_chakras_generator_cut_short_is_refused_with_its_byte(path):
    """Wherever it is cut, but between two nodes: what is left there is a whole trace."""
    data = path.read_bytes()
    whole = {0: -1}  # By where each message ends, how many nodes are whole there.
    at = 0
    while at < len(data):
        length, start = data[at] & 0x7F, at + 1
        if data[at] > 0x7F:
            length, start = length | data[at + 1] << 7, at + 2
        at = start + length
        whole[at] = len(whole) - 1
    for cut in range(1, len(data)):
        if cut in whole:
            assert len(read_wire(data[:cut], "f.et")) == whole[cut]
            continue
        with pytest.raises(ConfigError, match=r"^f\.et: byte \d+: expected .*, got "):
            read_wire(data[:cut], "f.et")


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=5), st.booleans())
def test_numbers_and_their_lists_are_read_as_written(number, deps, is_packed):
    """Packed, or one by one."""
    packed = [field(5, b"".join(map(varint, deps)))]
    node = only(field(1, number), *(packed if is_packed else [field(5, dep) for dep in deps]))
    assert (node.id, node.deps) == (number, tuple(deps))


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_numbers_keep_their_sign(value):
    """As int64, zigzag and fixed."""
    assert only(attribute(9, value)).attributes == {"x": value}
    zigzag = (value << 1) ^ (value >> 63)
    assert only(attribute(17, zigzag)).attributes == {"x": value}
    fixed = varint(25 << 3 | 1) + struct.pack("<q", value)
    assert only(attribute(25, fixed)).attributes == {"x": value}


def test_other_values_are_read_by_their_field():
    """Texts, truths, fractions; a list is none of a replay's business."""
    assert only(attribute(0, field(29, b"text"))).attributes == {"x": "text"}
    assert only(attribute(27, 1)).attributes == {"x": True}
    half = varint(3 << 3 | 1) + struct.pack("<d", 0.5)
    assert only(attribute(3, half)).attributes == {"x": 0.5}
    assert only(attribute(0, field(28, b"\x0a\x01\x01"))).attributes == {"x": None}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "byte 0: expected Chakra's global metadata, got an empty file"),
        (META[:-1], "f.et: byte 1: expected a message of 7 bytes, got the end of the file"),
        (b"\x07\x0a\x050.0.1", "f.et: version: expected Chakra's schema 0.0.4, got 0.0.1"),
        (META + b"\xff" * 12, "byte 8: expected a number of protobuf, got one without an end"),
        (META + b"\x02\x0b\x00", "byte 9: expected a field of protobuf 3, got wire type 3"),
        (META + b"\x02\x12\x09", "byte 9: expected 9 bytes of field 2, got the end of its message"),
        (META + b"\x03\x12\x01\xff", "byte 11: expected UTF-8 in field 2, got other bytes"),
        (META + b"\x02\x18\x63", "byte 9: expected a type of node up to 7, got 99"),
        (META + b"\x02\x10\x01", "byte 11: expected a text in field 2, got a number"),
        (META + b"\x03\x0a\x01a", "byte 11: expected a number in field 1, got bytes"),
        (META + b"\x02\x50\x01", "byte 11: expected an attribute, got a number"),
    ],
)
def test_what_is_wrong_is_said_with_its_byte(data, message):
    """And what was expected there."""
    with pytest.raises(ConfigError) as caught:
        read_wire(data, "f.et")
    assert message in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(broken(DATA))
def test_a_broken_file_is_read_or_refused(data):
    """Never anything else."""
    read_or_refused(read_wire, data, "f.et")
